"""`anyformer sweep`: a recipe with every combination of some settings, and which of them is best."""

import os
from functools import partial
from os.path import expanduser
from pathlib import Path
from statistics import fmean

from ..errors import UserError
from ..reporting.console import wide_console
from ..words import counted, number_in_words, with_deviation
from .output import plain_table
from .parser import add_recipe, at_least, seeds_of


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Train a recipe with every combination of the values that settings are given in brackets, or a\n"
        "shipped experiment or a YAML file of your own (anyformer list experiments). Each run is an ordinary one in a\n"
        "folder that is named by its settings; the same command goes on where it was stopped. It ends in a table,\n"
        "sweep.csv and comparison.html. With --evaluate nothing is trained: a saved model is measured with each\n"
        "combination.",
        epilog="examples:\n"
        "  anyformer sweep quickstart 'training.learning_rate=[1e-3,3e-3]' training.max_steps=100\n"
        "  anyformer sweep quickstart 'model.position_encoding=[rotary,alibi,none]' --seeds 3 --jobs 2\n"
        "  anyformer sweep quickstart 'training.learning_rate={min: 1e-4, max: 1e-2, log: true}' \\\n"
        "    --sampler optuna --runs 12\n"
        "  anyformer sweep norm_position\n"
        "  anyformer sweep multi30k_en_de 'task.num_beams=[1,2,4,8]' --evaluate runs/multi30k_en_de\n\n"
        "A list that is one value of a setting stands in a list of its own: 'setting=[[a,b]]'.",
    )
    add_recipe(parser, help="a recipe or a sweep: a YAML file, or a shipped name")
    parser.add_argument("--seeds", metavar="N", help="so many seeds (or those of a list, 1,2,3) for each combination")
    parser.add_argument("--sampler", choices=("grid", "random", "optuna"), help="how combinations are chosen")
    parser.add_argument("--runs", type=at_least(1), metavar="N", help="combinations that random and optuna try")
    parser.add_argument("--metric", metavar="NAME", help="what runs are ordered by, such as test_bleu (default: loss)")
    parser.add_argument("--columns", metavar="NAME,...", help="further columns, such as decoding_tokens_per_second")
    parser.add_argument("--evaluate", metavar="MODEL", help="measure this model with each combination, train none")
    parser.add_argument("--max-examples", type=at_least(1), metavar="N", help="--evaluate: at most so many examples")
    parser.add_argument("--jobs", type=at_least(1), default=1, metavar="N", help="runs at a time (default 1)")
    of_out = "folder of the runs (default: the recipe's output_dir-sweep)"
    parser.add_argument("--out", type=expanduser, metavar="FOLDER", help=of_out)
    parser.add_argument("--legal-only", action="store_true", help="leave out combinations that exclude each other")
    parser.add_argument("--dry-run", action="store_true", help="print the runs and stop")


def run(args) -> int:
    from ..evaluation.request import evaluation_recipe
    from ..experiments.columns import check_columns
    from ..experiments.samplers import known_combinations
    from ..experiments.sweep import SweepStudy
    from ..experiments.sweep_file import read_sweep
    from ..recipes.compose import load_recipe
    from ..recipes.introspection import check_beside
    from ..recipes.recipe_files import is_file_of
    from ..reporting.plots import check_by_position

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("anyformer sweep starts its runs itself; call it without torchrun or accelerate launch")
    options = {name: getattr(args, name) for name in ("seeds", "sampler", "runs", "metric", "evaluate", "max_examples")}
    columns = None if args.columns is None else [word.strip() for word in args.columns.split(",")]
    sweep = read_sweep(args.recipe, args.overrides, columns=columns, **options)
    settings = sweep.settings

    def load(overrides):
        if settings.evaluate is None:
            return load_recipe(settings.recipe, overrides)
        return evaluation_recipe(settings.evaluate, settings.recipe, overrides)

    recipe = load(sweep.fixed)
    check_beside("publish", recipe.publish, [("repo_id=", True, "does not go with a sweep, whose runs are many")])
    known = known_combinations(sweep, recipe.training.seed)
    if known is not None:
        known = legal(known, sweep, args.legal_only, load)
    check_columns(settings.columns, recipe)
    if settings.by_position is not None:
        check_by_position(f"by_position={settings.by_position}", recipe)
    seeds = [None] if settings.seeds is None else seeds_of(str(settings.seeds), recipe.training.seed)
    words = [word for name in args.plugins for word in ("--plugin", name)]
    words += ["--trust-remote-code"] * args.trust_remote_code
    folder = Path(recipe.training.output_dir)
    is_sweep = is_file_of(args.recipe, "experiments", "recipe")
    folder = folder.parent / Path(args.recipe).stem if is_sweep else Path(f"{folder}-sweep")
    of_commands = {"seeds": seeds, "options": words, "compose": evaluation_recipe}
    study = SweepStudy(Path(args.out or folder), [], sweep=sweep, recipe=recipe, combinations=known, **of_commands)
    if args.dry_run:
        for combination in known or ():
            print(*(str(member.folder) for member in study.members_of(combination)), sep="\n")
        return 0
    count = (settings.runs if known is None else len(known)) * len(seeds)
    print(f"{counted(count, study.noun)} in {study.folder}, {args.jobs} at a time; what each prints is in its .log")
    code = make(study, args.jobs, args.entry)
    print_table(study)
    if code == 1:
        failed = sum(member.state != "finished" for member in study.members)
        print(f"{failed} of {counted(len(study.members), study.noun)} failed; the same command tries them again")
    elif code:
        print("stopped; the same command goes on from there")
    return code


def legal(known: list, sweep, leave_out: bool, load) -> list:
    """Return the valid combinations; raise UserError for the first invalid one, or with `leave_out` if none is valid.

    load: composes the recipe with some settings; raises UserError if they are not valid.
    """
    valid, first = [], None
    for combination in known:
        try:
            load([*sweep.fixed, *combination.settings])
            valid.append(combination)
        except UserError as error:
            first = first or f"{combination.name}: {error}"
    if first is None or (leave_out and valid):
        if first is not None:
            print(f"{counted(len(known) - len(valid), 'combination')} left out; {first}")
        return valid
    others = len(known) - len(valid) - 1
    more = f", and {counted(others, 'other')} like it" if others else ""
    way_out = "; --legal-only leaves such combinations out" if valid else ""
    raise UserError(f"{first}{more}{way_out}")


def make(study, at_once: int, entry) -> int:
    """Make the runs, with the newest line of each on a terminal; return the exit code."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    if not console.is_terminal:
        return study.run(at_once, entry)
    with console.status("starting") as status:
        say = partial(console.print, markup=False)
        return study.run(at_once, entry, say, lambda lines: status.update(escape("\n".join(lines)) or "starting"))


def print_table(study) -> None:
    """Print the combinations, the best first, and which differences between them are sure."""
    from ..experiments.samplers import written
    from ..experiments.sweep import PAGE, TABLE
    from ..reporting.comparison import print_differences

    console, varied, columns = wide_console(), study.varied(), study.settings.columns
    keys = [key.rpartition(".")[2] for key in varied]
    measured = [name.replace("_", " ") for name in (study.metric, *columns)]
    table = plain_table([*keys, *measured, "minutes", ""], left=[*keys, ""])
    for members, mean, deviation in study.ordered():
        values = [written(members[0].values[key]) if key in members[0].values else "" for key in varied]
        figure = "" if mean is None else with_deviation(mean, deviation)
        known = ([member.facts[name] for member in members if member.facts.get(name) is not None] for name in columns)
        further = [number_in_words(fmean(numbers)) if numbers else "" for numbers in known]
        minutes = sum(member.facts.get("wall_seconds") or 0 for member in members) / 60
        states = dict.fromkeys(member.state for member in members if member.state != "finished")
        table.add_row(*values, figure, *further, f"{minutes:.1f}" if minutes else "", "; ".join(states))
    console.print(table)
    print_differences(study.differences)
    files = [name for name in (TABLE, PAGE) if (study.folder / name).is_file()]
    console.print(f"written: {study.folder}/{' and '.join(files)}", markup=False, soft_wrap=True)

"""`anyformer scaling`: how the loss of a recipe falls with parameters and tokens, from a ladder of small runs."""

import argparse
from pathlib import Path

from ..accounting.devices import CPU, MEMORY, devices_of
from ..errors import UserError
from ..reporting.console import print_facts, wide_console
from .output import json_alone, plain_table, quoted, say_loading, say_next
from .parser import add_json, add_price, add_recipe, at_least, recipe_of, whole_numbers
from .plan_command import size_words, time_words


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Train a recipe in several widths for several numbers of steps, fit the law\n"
        "L = E + A / parameters^alpha + B / tokens^beta (Hoffmann et al. 2022) to all but the widest, and\n"
        "see how well it predicts that one. The runs lie in output_dir and are ordinary ones: the same\n"
        "command goes on where it was stopped.",
        epilog="examples:\n"
        "  anyformer scaling quickstart\n"
        "  anyformer scaling tinyshakespeare_char --widths 32,64,96,128 --steps 250,500,1000\n"
        "  anyformer scaling quickstart --widths 64,96,128,192 --steps 100,200 --predict 512:2000",
    )
    add_recipe(parser, help="a recipe (name or YAML file), of the largest size")
    parser.add_argument(
        "--widths", type=whole_numbers, help="hidden sizes (default: a quarter, 3/8, half, 3/4 and all of the recipe's)"
    )
    parser.add_argument("--steps", type=whole_numbers, help="lengths of runs (default: 1/4, half and all of max_steps)")
    parser.add_argument(
        "--predict",
        type=width_and_steps,
        metavar="WIDTH:STEPS",
        help="a larger run: its loss by the law, its hours, memory and cost; once it has run, its loss beside them",
    )
    parser.add_argument(
        "--devices",
        metavar="8xH100-80GB",
        help=f"of the larger run: how many of {', '.join(MEMORY)} or {CPU} (1x{CPU})",
    )
    add_price(parser)
    parser.add_argument("--bootstrap", type=at_least(0), default=200, help="resamples for intervals (200; 0: none)")
    add_json(parser)


def width_and_steps(text: str) -> tuple[int, int]:
    """An argparse type: a width and a number of steps with a colon between them."""
    words = text.split(":")
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"{text} is no width and number of steps, such as 512:20000")
    return int(words[0]), int(words[1])


def run(args) -> int:
    from ..experiments.ladder import FEWEST, ladder, steps_of, widths_of
    from ..experiments.study import Study
    from ..recipes.compose import load_recipe
    from ..recipes.introspection import check_beside

    recipe = recipe_of(args)
    check_beside("publish", recipe.publish, [("repo_id=", True, "does not go with scaling, whose runs are many")])
    if recipe.stages:
        raise UserError("stages do not go with scaling, which counts rows of one length; set stages=[]")
    widths, steps = widths_of(recipe, args.widths), steps_of(recipe, args.steps)
    if (fitted := (len(widths) - 1) * len(steps)) < FEWEST:
        raise UserError(
            f"{len(widths)} widths and {len(steps)} lengths leave {fitted} runs without the widest, and five numbers "
            f"are fitted to them; give {FEWEST} or more by --widths and --steps"
        )
    if args.predict is None and (args.devices is not None or args.price is not None):
        raise UserError("--devices and --price are of a larger run; name it by --predict WIDTH:STEPS")

    def load(settings: list[str]):
        return load_recipe(args.recipe, [*args.overrides, *settings], trust_remote_code=args.trust_remote_code)

    rungs = ladder(recipe, widths, steps, load)
    larger = None if args.predict is None else ladder(recipe, *([value] for value in args.predict), load)[0]
    devices = devices_of(args.devices or CPU)
    say_loading()
    from ..accounting.plan import plan_run
    from ..experiments.scaling import report

    with json_alone(args.json) as answer:
        study = Study(Path(recipe.training.output_dir), rungs, noun="run", quiet=True)  # the table shows their results
        code = study.train()
        if not code:
            plan = None if larger is None else plan_run(larger.recipe, devices, price=args.price)
            result = report(recipe, rungs, args.bootstrap, larger, plan)
            answer.append(result)
            print_report(result, recipe.training.output_dir)
            if larger is None:
                say_next(f"anyformer plan {args.recipe}    # what a larger one would take")
            elif result["larger"]["loss"] is None:
                settings = " ".join(map(quoted, [*args.overrides, *larger.settings]))
                say_next(f"anyformer train {quoted(args.recipe)} {settings}")
    return code


def print_report(result: dict, folder: str) -> None:
    """Print the runs, the law with its intervals, and how well the widest run was predicted."""
    console = wide_console()
    table = plain_table(("width", "steps", "parameters", "tokens", "loss", "by the law", "error", ""), left=("",))
    for run in result["runs"]:
        error = run["predicted"] / run["loss"] - 1
        counts = (f"{run[name]:,}" for name in ("width", "steps", "parameters", "tokens"))
        mark = "" if run["fitted"] else "held out"
        table.add_row(*counts, f"{run['loss']:.4f}", f"{run['predicted']:.4f}", f"{error:+.2%}", mark)
    console.print(table)
    law, edges = result["law"], result.get("intervals", {})

    def with_edges(name: str) -> str:
        low, high = edges.get(name, (None, None))
        return f"{law[name]:.3g}" + ("" if low is None else f" ({low:.3g} to {high:.3g})")

    published = (f"{source} {both['alpha']} and {both['beta']}" for source, both in result["published"].items())
    of_size = f"{law['a']:.4g} / parameters^{law['alpha']:.4g}"
    of_length = f"{law['b']:.4g} / tokens^{law['beta']:.4g}"
    facts = [
        ("law", f"loss = {law['irreducible']:.4g} + {of_size} + {of_length}; parameters without embeddings and head"),
        ("exponents", f"{with_edges('alpha')} of parameters, {with_edges('beta')} of tokens"),
        ("published", "; ".join(published)),
        ("best", f"c times the compute: c^{with_edges('share_of_parameters')} times the parameters, the rest tokens"),
        *(facts_of_larger(result["larger"]) if "larger" in result else []),
        *(("note", sentence) for sentence in result["notes"]),
        ("written", f"{folder}/scaling.json, and scaling.png where matplotlib is installed"),
    ]
    print_facts(console, facts)


def facts_of_larger(run: dict) -> list[tuple[str, str]]:
    """(label, text) of the larger run that the law predicts."""
    low, high = run.get("interval", (None, None))
    loss = f"loss {run['predicted']:.4f} by the law" + ("" if low is None else f" ({low:.4f} to {high:.4f})")
    if run["loss"] is not None:
        loss += f", measured {run['loss']:.4f}, so the law's error is {run['predicted'] / run['loss'] - 1:+.2%}"
    size = f"width {run['width']:,}, {run['steps']:,} steps: {run['parameters']:,} parameters, {run['tokens']:,} tokens"
    takes = f"{time_words(run['hours'] * 3600)} on {run['devices']}, {size_words(run['bytes_of_a_device'])} on each"
    takes += " (fits)" if run["fits"] else " (too much)"
    takes += "" if run["cost"] is None else f", {run['cost']:,.2f} to pay"
    return [("larger", size), ("reaches", loss), ("takes", f"{takes}, as `anyformer plan` counts")]

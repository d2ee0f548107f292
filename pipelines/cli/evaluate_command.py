"""`anyformer evaluate`: a model on a task or a suite, or two models compared on a task."""

import os
from os.path import expanduser
from pathlib import Path

from ..errors import UserError
from ..plugins import objective_of
from ..words import say
from .output import json_alone, quoted, say_loading, say_next
from .parser import add_json, add_overrides, at_least, whole_numbers


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Measure a model (the folder of a run, any saved model, or a repository on the Hub; ours or\n"
        "transformers' own) on the test data of a recipe: the metrics of its task, or the perplexities of its text,\n"
        "with 95 % intervals. Three names, A B TASK, compare two models on the same examples. Where TASK is a suite\n"
        "(a YAML file with a list of tasks) all of its tasks are measured; where it is blimp, or a file of good and\n"
        "bad texts, the share of pairs whose good text is likelier.\n"
        "The numbers are printed, and kept as JSON in the model's folder.",
        epilog="examples:\n"
        "  anyformer evaluate runs/quickstart\n"
        "  anyformer evaluate runs/quickstart quickstart --split validation --max-examples 100\n"
        "  anyformer evaluate runs/imdb_classify labelled.csv\n"
        "  anyformer evaluate runs/multi30k_en_de multi30k_en_de task.num_beams=1\n"
        "  anyformer evaluate runs/imdb_classify runs/imdb_finetuned imdb_classify\n"
        "  anyformer evaluate runs/imdb_classify sentiment\n"
        "  anyformer evaluate 'runs/{task}' sentences\n"
        "  anyformer evaluate gpt2 blimp --max-examples 6700\n"
        "  anyformer evaluate runs/quickstart pairs.jsonl minimal_pairs.good_field=right\n"
        "  anyformer evaluate gpt2 sst2_classify --shots 0,1,4,8\n"
        "  anyformer evaluate gpt2 wikitext2_decoder --output gpt2.json\n"
        "  anyformer evaluate runs/stdlib_long_context stdlib_long_context --by-position",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="folder of a run or a model, or a Hub repository; of a suite also a pattern such as 'runs/{task}'",
    )
    parser.add_argument(
        "recipe",
        metavar="TASK",
        nargs="?",
        help="recipe whose data and metrics are taken (default: the run's own); or labelled files, a pattern or a "
        "folder, which the run's own recipe reads; or a suite; A B TASK compares models",
    )
    add_overrides(parser)
    parser.add_argument("--split", choices=("test", "validation"), help="data to measure on (default: test, if any)")
    parser.add_argument("--max-examples", type=at_least(1), help="at most so many, spread over the data (default: all)")
    default = "(default: MODEL/evaluation-TASK.json)"
    parser.add_argument("--output", type=expanduser, metavar="FILE", help=f"JSON to write {default}")
    fields = "place, texts, prediction, reference"
    parser.add_argument("--predictions", type=expanduser, metavar="FILE", help=f"JSONL to write: {fields}")
    _add_few_shot(parser)
    parser.add_argument(
        "--by-position", action="store_true", help="perplexity by the number of tokens before; JSON and a plot (PNG)"
    )
    add_json(parser)


def _add_few_shot(parser) -> None:
    parser.add_argument(
        "--shots",
        type=whole_numbers,
        metavar="K,K,...",
        help="a language model answers a task of classes, numbers or texts after so many solved examples: 0,1,4,8",
    )
    parser.add_argument("--template", help="--shots: the question, columns in braces: 'Review: {text}\\nSentiment:'")
    parser.add_argument(
        "--label-words",
        metavar="WORD,WORD,...",
        help="--shots: a word for each class (default: the classes' names), or the numbers that are asked for",
    )


# Option -> the option that it needs.
BELONGS_TO = {"template": "shots", "label_words": "shots"}
OF_PAIRS = "minimal pairs are of one model, without --split; leave the rest out"
# (what is given, the programs that it does not go with, the sentence). several: models.
REFUSED = (
    ("several", ("pairs",), OF_PAIRS),
    ("split", ("pairs",), OF_PAIRS),
    ("several", ("suite",), "a suite is of one model; compare two on each of its tasks: anyformer evaluate A B TASK"),
    ("by_position", ("pairs", "suite", "compare"), "--by-position is of one model and one task; a sweep draws several"),
    ("shots", ("pairs", "suite", "compare", "by_position"), "--shots is of one model and one task, not --by-position"),
    ("predictions", ("by_position", "suite"), "--predictions are of one task; name a single one"),
)


def run(args) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # each process would measure, and write, everything
        raise UserError("anyformer evaluate runs in one process; start it without torchrun or accelerate launch")
    for option, owner in BELONGS_TO.items():
        if getattr(args, option) and not getattr(args, owner):
            raise UserError(f"--{option.replace('_', '-')} belongs to --{owner.replace('_', '-')}; add it")
    args.program = program = _program(args)
    args.several = len(args.models) > 1
    for given, programs, why in REFUSED:
        if program in programs and getattr(args, given):
            raise UserError(why)
    with json_alone(args.json) as answer:
        measure = {"pairs": _pairs, "suite": _suite}.get(program, _task)
        result, output = measure(args)
        written = _write(result, output, args.predictions)  # before it is shown: a pipe's reader may leave early
        answer.append(result.facts())
        result.show()
        print(*written, sep="\n", end="\n" * bool(written))
    if program in ("task", "shots", "by_position"):
        task = f" {quoted(args.recipe)}" if args.recipe else ""
        say_next(f"anyformer evaluate {quoted(args.models[0])} ANOTHER_MODEL{task or ' TASK'}    # is one better?")


def _program(args) -> str:
    """What is asked for: pairs, suite, compare, by_position, shots or task."""
    from ..evaluation.request import is_pairs
    from ..recipes.recipe_files import is_file_of

    if is_pairs(args.recipe, args.models[0], args.overrides):
        return "pairs"
    if args.recipe is not None and is_file_of(args.recipe, "suites", "suite"):
        return "suite"
    if len(args.models) > 1:
        return "compare"
    if args.by_position:
        return "by_position"
    return "task" if args.shots is None else "shots"


def _task(args) -> tuple:
    """One model or two on a task: (what was Measured, the file of its JSON)."""
    from ..evaluation.request import check_predictions, choose_split, evaluation_recipe, is_data, on_data, own_recipe
    from ..reporting.plots import check_by_position

    task, given = args.recipe, args.recipe if is_data(args.recipe) else None
    if given is not None:
        if args.program == "shots":
            raise UserError("--shots takes its solved examples from training data; name a recipe instead of a file")
        task = own_recipe(args.models[0], args.overrides)
    recipes = []
    for model in args.models:
        notes: list[str] = []
        trust = {"trust_remote_code": args.trust_remote_code}
        recipe = evaluation_recipe(model, task, args.overrides, notes, **trust)
        recipes.append(recipe if given is None else on_data(recipe, given))
        say(notes)
        check_predictions(recipes[-1], args.predictions)
    recipe = recipes[0]
    if args.program == "shots" and not objective_of(recipe).for_rows().asks_for:
        raise UserError(f"--shots asks a language model for a class, number or text; TASK={recipe.name} asks for none")
    split = choose_split(recipe, args.split)
    kinds = {"by_position": "by-position", "shots": "shots"}
    kind = _against(*map(Path, args.models)) if args.several else kinds.get(args.program)
    output = _output(args, recipe.name, kind)
    if args.program == "by_position":
        check_by_position("--by-position", recipe)
        if output is None:
            raise UserError("--by-position writes JSON and a plot, and MODEL is no folder; add --output FILE")
    say_loading()
    result = _measured(args, recipes, split, output)
    if given is not None and args.program == "task":
        from ..evaluation.result import validation_of

        result.validation = validation_of(args.models[0])
    return result, output


def _measured(args, recipes: list, split: str, output: Path | None):
    from ..evaluation import compare, evaluate, few_shot, position_perplexity

    recipe, most = recipes[0], args.max_examples
    if args.program == "compare":
        return compare.compare_models(*recipes, split, most)
    if args.program == "by_position":
        return position_perplexity.evaluate_by_position(recipe, split, most)
    if args.program == "shots":
        words = None if args.label_words is None else args.label_words.split(",")
        return few_shot.evaluate_few_shot(recipe, split, args.shots, args.template, words, most)
    picture = None if output is None else output.with_suffix(".png")
    return evaluate.evaluate_model(recipe, split, max_examples=most, picture=picture)


def _against(first: Path, second: Path) -> str:
    """How a comparison's file names the second model: by its last name, or by all where it lies in another folder."""
    beside = first.parent == second.parent or len(second.parts) == 1
    return f"against-{second.name if beside else str(second).strip('/').replace('/', '-')[-150:]}"


def _pairs(args) -> tuple:
    from ..evaluation.request import check_writable, pairs_request

    given = args.models[0], args.recipe, args.overrides, args.max_examples
    recipe, name, settings = pairs_request(*given, trust_remote_code=args.trust_remote_code)
    output = _output(args, name, None if settings.score == "auto" else settings.score)
    if args.predictions is not None:
        check_writable(Path(args.predictions), "--predictions")
    say_loading()
    from ..evaluation.pair_evaluation import evaluate_pairs

    return evaluate_pairs(recipe, settings), output


def _suite(args) -> tuple:
    from ..evaluation.request import recipes_of_suite
    from ..recipes.suite_file import read_suite

    suite, model, notes = read_suite(args.recipe), args.models[0], []
    options = {name: getattr(args, name) for name in ("split", "max_examples", "trust_remote_code")}
    recipes = recipes_of_suite(suite, model, args.overrides, notes=notes, **options)
    say(notes)
    output = _output(args, suite.name)
    say_loading()
    from ..evaluation.suite import evaluate_suite

    return evaluate_suite(suite, model, recipes), output


def _output(args, task: str, kind: str | None = None) -> Path | None:
    """The file of the JSON, checked to be writable; None without --output if the model is no folder."""
    from ..evaluation.request import check_writable, result_file

    default = result_file(args.models[0], task, args.split, args.max_examples, kind)
    output = Path(args.output) if args.output else default
    if output is not None:
        check_writable(output)
    return output


def _write(result, output: Path | None, predictions: str | None) -> list[str]:
    """Write the result, a suite's into the model card as well, and the answers if `predictions` names a file.

    Returns sentences that say where all is.
    """
    from ..evaluation.result import with_examples, write_json, write_lines

    written = []
    if output is not None:
        write_json(result.facts(), output)
        written.append(f"written to {output}")
        if result.draw(picture := output.with_suffix(".png")):
            written.append(f"the curve is in {picture}")
    if predictions is not None:
        write_lines(with_examples(result.answers, result.asked), Path(predictions))
        written.append(f"predictions are in {predictions}")
    if hasattr(result, "suite") and output is not None and output.parent == Path(result.model).expanduser():
        from ..publishing.model_card import write_model_card

        written.append(f"model card: {write_model_card(output.parent)}")
    return written

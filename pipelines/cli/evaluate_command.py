"""`anyformer evaluate`: a model on a task or a suite, or two models compared on a task."""

from collections.abc import Callable
from os.path import expanduser
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..words import say
from .output import json_alone, quoted, refuse_json, say_loading, say_next
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
        help="recipe whose data and metrics are taken (default: the run's own), or a suite; A B TASK compares models",
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


def run(args) -> None:
    from ..evaluation.request import check_one_process, is_pairs
    from ..recipes.suite_file import is_suite

    check_one_process()
    for option, owner in BELONGS_TO.items():
        if getattr(args, option) and not getattr(args, owner):
            raise UserError(f"--{option.replace('_', '-')} belongs to --{owner.replace('_', '-')}; add it")
    of_pairs, several = is_pairs(args.recipe), len(args.models) > 1
    of_suite = is_suite(args.recipe) and not of_pairs
    of_one = not (several or of_suite or of_pairs)
    for is_refused, why in (
        (of_pairs and (several or args.split), "minimal pairs are of one model, without --split; leave the rest out"),
        (
            of_suite and several,
            "a suite is of one model; compare two on each of its tasks: anyformer evaluate A B TASK",
        ),
        (args.by_position and not of_one, "--by-position is of one model and one task; a sweep draws several"),
        (args.shots and (args.by_position or not of_one), "--shots is of one model and one task, not --by-position"),
        (args.predictions and (args.by_position or of_suite), "--predictions are of one task; name a single one"),
    ):
        if is_refused:
            raise UserError(why)
    if args.by_position:
        refuse_json(args, "--by-position")
    of_shots = _few_shot if args.shots is not None else _one_model
    measure = _pairs if of_pairs else _suite if of_suite else of_shots if of_one else _compare
    with json_alone(args.json) as answer:
        if (measured := measure(args)) is not None:
            result, show, *files = measured
            written = _write(result, *files, args.predictions)  # before it is shown: a pipe's reader may leave early
            answer.append(result.facts())
            show(result)
            print(*written, sep="\n", end="\n" * bool(written))
    if of_one:
        task = f" {quoted(args.recipe)}" if args.recipe else ""
        say_next(f"anyformer evaluate {quoted(args.models[0])} ANOTHER_MODEL{task or ' TASK'}    # is one better?")


def _recipe(args, model: str):
    from ..evaluation.request import check_predictions, evaluation_recipe

    notes: list[str] = []
    recipe = evaluation_recipe(model, args.recipe, args.overrides, notes, trust_remote_code=args.trust_remote_code)
    say(notes)
    check_predictions(recipe, args.predictions)
    return recipe


def _output(args, task: str, kind: str | None = None) -> Path | None:
    """The file of the JSON, checked to be writable; None without --output if the model is no folder."""
    from ..evaluation.request import check_writable, result_file

    default = result_file(args.models[0], task, args.split, args.max_examples, kind)
    output = Path(args.output) if args.output else default
    if output is not None:
        check_writable(output)
    return output


# What the functions below return: a result, the function that prints it, the file of its JSON, and its answers, with
# the recipe and the reader of their examples if the answers lack these. None: all has been printed and written.
Measured = tuple[Any, Callable[[Any], None], Path | None, tuple] | None


def _one_model(args) -> Measured:
    from ..evaluation.request import choose_split

    recipe = _recipe(args, args.models[0])
    split = choose_split(recipe, args.split)
    output = _output(args, recipe.name, "by-position" if args.by_position else None)
    if args.by_position:
        from ..reporting.plots import check_by_position

        check_by_position("--by-position", recipe)
        if output is None:
            raise UserError("--by-position writes JSON and a plot, and MODEL is no folder; add --output FILE")
    say_loading()
    if args.by_position:
        from ..evaluation.position_perplexity import evaluate_by_position

        evaluate_by_position(recipe, split, output, args.max_examples)
        return None  # it has printed and written its results
    from ..evaluation.evaluate import evaluate_model, print_evaluation

    picture = None if output is None else output.with_suffix(".png")
    result = evaluate_model(recipe, split, max_examples=args.max_examples, picture=picture)
    return result, print_evaluation, output, (result.answers, recipe, result.asked)


def _few_shot(args) -> Measured:
    from ..evaluation.request import check_shots, choose_split

    recipe = _recipe(args, args.models[0])
    check_shots(recipe)
    split = choose_split(recipe, args.split)
    output = _output(args, recipe.name, "shots")
    say_loading()
    from ..evaluation.few_shot import Shots, evaluate_few_shot, print_few_shot

    words = None if args.label_words is None else args.label_words.split(",")
    shots = Shots(args.shots, args.template, words)
    result = evaluate_few_shot(recipe, split, shots, max_examples=args.max_examples)
    if output is not None and len(args.shots) > 1:
        from ..reporting.plots import can_plot, plot_shots

        if can_plot():
            plot_shots(result.shots, output.with_suffix(".png"))
            print(f"the curve is in {output.with_suffix('.png')}")
    return result, print_few_shot, output, (result.answers, recipe, result.asked)


def _pairs(args) -> Measured:
    from ..evaluation.request import check_writable, pairs_request

    given = args.models[0], args.recipe, args.overrides, args.max_examples
    recipe, name, settings = pairs_request(*given, trust_remote_code=args.trust_remote_code)
    kind = None if settings.score == "auto" else settings.score
    output = _output(args, name, kind)
    if args.predictions is not None:
        check_writable(Path(args.predictions), "--predictions")
    say_loading()
    from ..evaluation.pair_evaluation import evaluate_pairs, print_pairs

    result = evaluate_pairs(recipe, settings)
    return result, print_pairs, output, (result.answers,)


def _against(first: Path, second: Path) -> str:
    """How a comparison's file names the second model: by its last name, or by all where it lies in another folder."""
    beside = first.parent == second.parent or len(second.parts) == 1
    return f"against-{second.name if beside else str(second).strip('/').replace('/', '-')[-150:]}"


def _compare(args) -> Measured:
    from ..evaluation.request import choose_split

    recipes = [_recipe(args, model) for model in args.models]
    split = choose_split(recipes[0], args.split)
    output = _output(args, recipes[0].name, _against(*map(Path, args.models)))
    say_loading()
    from ..evaluation.compare import compare_models, print_comparison

    result = compare_models(*recipes, split, args.max_examples)
    return result, print_comparison, output, (result.answers(), recipes[0], result.first.asked)


def _suite(args) -> Measured:
    from ..evaluation.request import recipes_of_suite
    from ..recipes.suite_file import read_suite

    suite, model, notes = read_suite(args.recipe), args.models[0], []
    options = {name: getattr(args, name) for name in ("split", "max_examples", "trust_remote_code")}
    recipes = recipes_of_suite(suite, model, args.overrides, notes=notes, **options)
    say(notes)
    output = _output(args, suite.name)
    say_loading()
    from ..evaluation.suite import evaluate_suite, print_suite

    return evaluate_suite(suite, model, recipes), print_suite, output, ()


def _write(result, output: Path | None, answers: tuple, predictions: str | None) -> list[str]:
    """Write the result, a suite's into the model card as well, and the answers if `predictions` names a file.

    Returns sentences that say where all is.
    """
    from ..evaluation.evaluate import with_examples, write_json, write_lines

    written = []
    if output is not None:
        write_json(result.facts(), output)
        written.append(f"written to {output}")
    if predictions is not None:
        predicted, *source = answers
        write_lines(with_examples(predicted, *source) if source else predicted, Path(predictions))
        written.append(f"predictions are in {predictions}")
    if hasattr(result, "suite") and output is not None and output.parent == Path(result.model).expanduser():
        from ..publishing.model_card import write_model_card

        written.append(f"model card: {write_model_card(output.parent)}")
    return written

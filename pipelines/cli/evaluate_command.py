"""`anyformer evaluate`: a model on a task or a suite, or two models compared on either."""

from pathlib import Path

from ..errors import UserError
from .output import json_alone, quoted, refuse_json, say, say_loading, say_next
from .parser import add_json, add_overrides, add_trust, at_least


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
    parser.add_argument(
        "--split", choices=("test", "validation"), help="data to measure on (default: test, else validation)"
    )
    parser.add_argument("--max-examples", type=at_least(1), help="at most so many, spread over the data (default: all)")
    parser.add_argument(
        "--output", metavar="FILE", help="JSON to write (default: evaluation-TASK.json in the model's folder)"
    )
    parser.add_argument(
        "--predictions", metavar="FILE", help="JSONL to write: file and line, texts, prediction, scores, reference"
    )
    _add_few_shot(parser)
    parser.add_argument(
        "--by-position", action="store_true", help="perplexity by the number of tokens before; JSON and a plot (PNG)"
    )
    parser.add_argument("--label", help="--by-position: the curve's name in the plot (default: MODEL)")
    add_json(parser)
    add_trust(parser)


def _add_few_shot(parser) -> None:
    parser.add_argument(
        "--shots",
        metavar="K,K,...",
        help="a language model answers a task of classes, numbers or texts after so many solved examples: 0,1,4,8",
    )
    parser.add_argument(
        "--template", help="--shots: the question, with columns in braces, such as 'Review: {text}\\nSentiment:'"
    )
    parser.add_argument(
        "--label-words",
        metavar="WORD,WORD,...",
        help="--shots: a word for each class (default: the classes' names), or the numbers that are asked for",
    )
    parser.add_argument(
        "--normalized", action="store_true", help="--shots: likelihoods by the characters of their words"
    )


# Option -> the one that it belongs to.
BELONGS_TO = {"label": "by_position"} | dict.fromkeys(("template", "label_words", "normalized"), "shots")


def run(args) -> int:
    from ..evaluation.request import check_one_process, is_pairs
    from ..recipes.suite_file import is_suite

    check_one_process()
    for option, owner in BELONGS_TO.items():
        if getattr(args, option) and not getattr(args, owner):
            raise UserError(f"--{option.replace('_', '-')} belongs to --{owner.replace('_', '-')}; add it")
    of_pairs = is_pairs(args.recipe)
    of_suite = is_suite(args.recipe) and not of_pairs
    of_one = len(args.models) == 1 and not of_suite and not of_pairs
    if of_pairs and (len(args.models) > 1 or args.split is not None):
        raise UserError("minimal pairs are of one model, and have no splits; name one MODEL, and leave --split out")
    if of_suite and len(args.models) > 1:
        raise UserError("a suite is of one model; compare two on each of its tasks: anyformer evaluate A B TASK")
    if args.by_position and not of_one:
        raise UserError("--by-position is of one model and one task; a sweep draws several (by_position)")
    if args.shots is not None and (args.by_position or not of_one):
        raise UserError("--shots is of one model and one task, without --by-position")
    if args.predictions is not None and (args.by_position or of_suite):
        raise UserError("--predictions are of one task; remove it, or name a single task")
    if args.by_position:
        refuse_json(args, "--by-position")
    of_shots = _few_shot if args.shots is not None else _one_model
    measure = _pairs if of_pairs else _suite if of_suite else of_shots if of_one else _compare
    with json_alone(args.json) as args.answer:
        measure(args)
    if of_one:
        task = f" {quoted(args.recipe)}" if args.recipe else ""
        say_next(f"anyformer evaluate {quoted(args.models[0])} ANOTHER_MODEL{task or ' TASK'}    # is one better?")
    return 0


def _recipe(args, model: str):
    from ..evaluation.request import check_predictions, evaluation_recipe

    notes: list[str] = []
    recipe = evaluation_recipe(model, args.recipe, args.overrides, notes)
    say(notes)
    check_predictions(recipe, args.predictions)
    recipe.trust_remote_code = args.trust_remote_code
    return recipe


def _output(args, task: str, kind: str | None = None) -> Path | None:
    """Where the JSON goes, which can be written there; None where nobody says and the model is no folder."""
    from ..evaluation.request import check_writable, result_file

    kept = result_file(args.models[0], task, args.split, args.max_examples, kind)
    output = Path(args.output) if args.output else kept
    if output is not None:
        check_writable(output)
    return output


def _one_model(args) -> None:
    from ..evaluation.request import check_by_position, choose_split

    recipe = _recipe(args, args.models[0])
    split = choose_split(recipe, args.split)
    output = _output(args, recipe.name, "by-position" if args.by_position else None)
    if args.by_position:
        check_by_position(recipe, output)
    say_loading()
    if args.by_position:
        from ..evaluation.position_perplexity import evaluate_by_position

        label = args.label or args.models[0]
        evaluate_by_position(recipe, split, label, output, args.max_examples)
        return
    from ..evaluation.evaluate import evaluate_model, print_evaluation

    picture = None if output is None else output.with_suffix(".png")
    result = evaluate_model(recipe, split, max_examples=args.max_examples, picture=picture)
    print_evaluation(result)
    _write(args, result, output)
    _write_predictions(result.answers, args.predictions, recipe, split)


def _few_shot(args) -> None:
    from ..evaluation.request import check_shots, choose_split, numbers_of_shots

    numbers = numbers_of_shots(args.shots)
    recipe = _recipe(args, args.models[0])
    check_shots(recipe)
    split = choose_split(recipe, args.split)
    output = _output(args, recipe.name, "shots")
    say_loading()
    from ..evaluation.few_shot import Shots, evaluate_few_shot, print_few_shot

    words = None if args.label_words is None else args.label_words.split(",")
    shots = Shots(numbers, args.template, words, args.normalized)
    result = evaluate_few_shot(recipe, split, shots, max_examples=args.max_examples)
    print_few_shot(result)
    _write(args, result, output)
    if output is not None and len(numbers) > 1:
        from ..reporting.plots import can_plot, plot_shots

        if can_plot():
            plot_shots(result.shots, output.with_suffix(".png"))
            print(f"the curve is in {output.with_suffix('.png')}")
    _write_predictions(result.answers, args.predictions, recipe, split)


def _pairs(args) -> None:
    from ..evaluation.request import check_writable, pairs_request

    recipe, name, settings = pairs_request(args.models[0], args.recipe, args.overrides, args.max_examples)
    recipe.trust_remote_code = args.trust_remote_code
    kind = None if settings.score == "auto" else settings.score
    output = _output(args, name, kind)
    if args.predictions is not None:
        check_writable(Path(args.predictions), "--predictions")
    say_loading()
    from ..evaluation.pair_evaluation import evaluate_pairs, print_pairs

    result = evaluate_pairs(recipe, name, settings)
    print_pairs(result)
    _write(args, result, output)
    _write_predictions(result.answers, args.predictions)


def _compare(args) -> None:
    from ..evaluation.request import choose_split

    recipes = [_recipe(args, model) for model in args.models]
    split = choose_split(recipes[0], args.split)
    output = _output(args, recipes[0].name, f"against-{Path(args.models[1]).name}")
    say_loading()
    from ..evaluation.compare import compare_models, print_comparison

    result = compare_models(*recipes, split, args.max_examples)
    print_comparison(result)
    _write(args, result, output)
    _write_predictions(result.answers(), args.predictions, recipes[0], split)


def _suite(args) -> None:
    from ..evaluation.request import recipes_of_suite
    from ..recipes.suite_file import read_suite

    suite, model, notes = read_suite(args.recipe), args.models[0], []
    how = {name: getattr(args, name) for name in ("split", "max_examples", "trust_remote_code")}
    recipes = recipes_of_suite(suite, model, args.overrides, notes=notes, **how)
    say(notes)
    output = _output(args, suite.name)
    say_loading()
    from ..evaluation.suite import evaluate_suite, print_suite

    result = evaluate_suite(suite, model, recipes)
    print_suite(result)
    _write(args, result, output)
    if output is not None and output.parent == Path(model).expanduser():
        from ..publishing.model_card import write_model_card

        print(f"model card: {write_model_card(output.parent)}")


def _write(args, result, output: Path | None) -> None:
    from ..evaluation.evaluate import write_json

    args.answer.append(result.facts())
    if output is not None:
        write_json(result.facts(), output)
        print(f"written to {output}")


def _write_predictions(answers: list[dict], file: str | None, *rows) -> None:
    """rows: the recipe and the split whose examples stand beside the answers; none where the answers hold them."""
    from ..evaluation.evaluate import with_examples, write_lines

    if file is not None:
        write_lines(with_examples(answers, *rows) if rows else answers, Path(file))
        print(f"predictions are in {file}")

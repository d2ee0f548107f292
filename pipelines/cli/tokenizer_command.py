"""`anyformer tokenizer`: tokenizers measured on a text, beside each other, or the tokens of a text."""

from ..words import say
from .output import json_alone, quoted, say_loading, say_next
from .parser import add_json, at_least


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Measure the tokenizer of a recipe (trained, or taken from the cache), of a folder or on the Hub:\n"
        "tokens per word, bytes per token, unknown tokens, texts that do not come back, entries never used.\n"
        "Over the validation text of the recipe, over files, or over TEXT, whose tokens are shown.",
        epilog="examples:\n"
        "  anyformer tokenizer quickstart\n"
        '  anyformer tokenizer runs/quickstart "def read(self):"\n'
        "  anyformer tokenizer quickstart tokenizer.vocab_size=8192 --beside quickstart --beside gpt2\n"
        "  anyformer tokenizer gpt2 --beside runs/quickstart --on 'texts/*.txt' --json",
    )
    target_help = "a recipe (name or YAML file), a folder of a run or a tokenizer, or a Hub repository"
    parser.add_argument("target", metavar="RECIPE_OR_FOLDER", help=target_help)
    parser.add_argument(
        "words",
        metavar="TEXT",
        nargs="*",
        default=[],
        help="text to measure on and to show; section.key=value after a recipe is a setting of it",
    )
    parser.add_argument("--on", metavar="FILE", help="measure on this file or glob, of any format of data.files")
    parser.add_argument("--text-field", default="text", help="--on: column or key that holds the text (default text)")
    parser.add_argument("--split", choices=("validation", "test", "train"), help="text of the recipe to measure on")
    parser.add_argument(
        "--beside", metavar="RECIPE_OR_FOLDER", action="append", default=[], help="measure this one, too (repeatable)"
    )
    parser.add_argument("--max-bytes", type=at_least(1), default=10_000_000, help="of text at most (default 10 MB)")
    add_json(parser)


def run(args) -> None:
    from ..evaluation import tokenizer_report

    overrides, texts = tokenizer_report.divide(args.target, args.words)
    notes: list[str] = []
    first = tokenizer_report.locate(args.target, overrides, notes)
    places = [first, *map(tokenizer_report.locate, args.beside)]
    say(notes)
    tokenizer_report.check_text(first, texts, args.on, args.split)
    say_loading()
    if texts:
        sample = tokenizer_report.Sample("TEXT", texts, shown=True)
    elif args.on:
        sample = tokenizer_report.sample_of_files(args.on, args.text_field, args.max_bytes)
    else:
        sample = tokenizer_report.sample_of_recipe(first.recipe, first.label, args.split, args.max_bytes)
    with json_alone(args.json) as answer:
        answer.append(tokenizer_report.report(places, sample, trust_remote_code=args.trust_remote_code))
    if first.is_recipe:
        say_next(f"anyformer preview {quoted(args.target)}")

"""`anyformer preview`: real rows as the model will see them: tokens, labels, documents, what is not predicted."""

import sys
from contextlib import nullcontext, redirect_stdout
from itertools import islice
from os.path import expanduser
from pathlib import Path

from ..errors import UserError
from ..reporting.console import PIPE_WIDTH, print_facts
from ..storage.json_text import json_text
from .output import quoted, refuse_json, say_loading, say_next
from .parser import add_recipe, at_least, recipe_of


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Show training rows as the model will see them: tokens, labels, documents, positions, masks.\n"
        "Where the output has no colours (a pipe, a file, NO_COLOR), [[ ]] stand around what is learned.",
        epilog="examples:\n  anyformer preview quickstart\n  anyformer preview my_recipe.yaml --rows 2\n"
        "  anyformer preview my_recipe.yaml --html rows.html\n"
        "  anyformer preview my_recipe.yaml --json --rows 1000 > rows.jsonl",
    )
    add_recipe(parser)
    parser.add_argument("--rows", type=at_least(1), default=5, help="how many rows (default 5)")
    parser.add_argument("--html", type=expanduser, metavar="FILE", help="a page to write, in place of the output")
    of_json = "print a line for each row, nothing else: its input_ids, labels, tokens and what else a batch has"
    parser.add_argument("--json", action="store_true", help=of_json)


def run(args) -> None:
    from ..evaluation.request import check_writable

    recipe = recipe_of(args)
    if args.html is not None:
        refuse_json(args, "--html")
        check_writable(Path(args.html), "--html")
    say_loading()
    preview(recipe, args.rows, args.html, args.json)
    if not args.json:
        say_next(f"anyformer train {quoted(args.recipe)} --dry-run    # one step of it; then without --dry-run")


def preview(recipe, rows: int, page: str | None = None, as_json: bool = False) -> None:
    """Show `rows` rows of the training data of a recipe, on the output, as JSON or in a page; nothing is trained."""
    from rich.console import Console

    from ..data.account_words import came_in
    from ..generation import locate_model
    from ..objectives.prepare import describe_data, prepare_data
    from ..objectives.showing import legend, row_values
    from ..plugins import objective_of
    from ..reporting.training_rows import write_rows

    of_page = {"force_terminal": True, "color_system": "standard", "no_color": False, "width": PIPE_WIDTH}
    console = Console(highlight=False, soft_wrap=True, **({} if page is None else of_page))
    objective = objective_of(recipe)
    if objective.Reads.show_texts is not None and page is None and not as_json:
        try:
            if recipe.model.name_or_path is not None:
                locate_model(recipe.model.name_or_path, "model.name_or_path")
            objective.facts.config  # noqa: B018
        except UserError as missing:
            preview_texts(console, objective.for_rows(), rows)
            print(f"\ntokens and training need the model; {missing}")
            return
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        data = prepare_data(recipe)
    train = data.rows["train"]
    if as_json:
        for number, row in train.previewed(rows):
            print(json_text(row_values(data, train, number, row), None))
        return

    with nullcontext() if page is None else console.capture() as captured:
        print_facts(console, [*describe_data(data), *came_in(data.rows)])
        console.print(legend(data.reads.legend), soft_wrap=page is not None or not console.is_terminal)
        for number, row in train.previewed(rows):
            data.reads.show(console, data, train, number, row)
    if page is not None:
        size = write_rows(Path(page), recipe.name, captured.get(), is_picture=data.tokenizer is None)
        print(f"written to {page} ({size / 1e6:.2f} MB); open it in a browser")


def preview_texts(console, objective, rows: int) -> None:
    """Print the first conversations of the training data as texts, where there is no model yet and so no tokenizer."""
    from ..data.account_words import lines
    from ..data.bad_rows import bad_rows_of, leave_out
    from ..objectives.showing import legend

    reads = objective.Reads(objective)
    source = reads.open()["train"]
    leave_out(source, bad_rows_of(source, lambda examples: reads.try_examples(examples, None)))
    print_facts(console, [("train, what came in", "\n".join(lines(source.account())))])
    console.print(legend("texts, [unpredicted]underlined[/] (without colours in [[ ]]) what is learned"))
    for number, (place, row) in enumerate(islice(source, rows)):
        reads.show_texts(console, number, place, row)

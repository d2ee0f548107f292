"""`anyformer preview`: real rows as the model will see them: tokens, labels, documents, what is not predicted."""

from ..objectives.showing import legend
from .output import print_facts, quoted, say_loading, say_next
from .parser import add_recipe, at_least, recipe_of


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Show training rows as the model will see them: tokens, labels, documents, positions, masks.",
        epilog="examples:\n  anyformer preview quickstart\n  anyformer preview my_recipe.yaml --rows 2",
    )
    add_recipe(parser)
    parser.add_argument("--rows", type=at_least(1), default=5, help="how many rows (default 5)")


def run(args) -> None:
    recipe = recipe_of(args)
    say_loading()
    preview(recipe, args.rows)
    say_next(f"anyformer train {quoted(args.recipe)} --dry-run    # one step of it; then without --dry-run")


def preview(recipe, rows: int) -> None:
    """Print `rows` rows of the training data of a recipe; nothing is trained."""
    from rich.console import Console

    from ..data.account_words import came_in
    from ..objectives.prepare import describe_data, prepare_data

    console = Console(highlight=False, soft_wrap=True)
    data = prepare_data(recipe, progress=console.is_terminal)
    print_facts(console, [*describe_data(data), *came_in(data.rows)])
    console.print(legend(data.reads.legend))
    train = data.rows["train"]
    for number, row in train.previewed(rows):
        data.reads.show(console, data, train, number, row)

"""`anyformer preview`: real training rows of a recipe."""

from .output import quoted, say_loading, say_next
from .parser import add_recipe, add_trust, at_least, recipe_of


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Show training rows as the model will see them: tokens, labels, documents, positions, masks.",
        epilog="examples:\n  anyformer preview quickstart\n  anyformer preview my_recipe.yaml --rows 2",
    )
    add_recipe(parser)
    parser.add_argument("--rows", type=at_least(1), default=5, help="how many rows (default 5)")
    add_trust(parser)


def run(args) -> int:
    recipe = recipe_of(args)
    say_loading()
    from .preview import preview

    preview(recipe, args.rows)
    say_next(f"anyformer train {quoted(args.recipe)} --dry-run    # one step of it; then without --dry-run")
    return 0

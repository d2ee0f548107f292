"""`anyformer new`: from data as they are to a recipe, with a comment at each guess."""

from os.path import expanduser
from pathlib import Path

from ..errors import UserError
from .output import quoted, say_loading


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Look at some rows of your data and write a recipe: what each column holds, which task learns\n"
        "it, lengths, splits, the model to begin from. Each guess has a comment and can be changed. Then show what\n"
        "came in, two rows as the model will see them, and the commands that follow. Nothing is overwritten.",
        epilog="examples:\n"
        "  anyformer new tickets.csv\n"
        "  anyformer new tickets.csv --task multi_label_classification --out several.yaml\n"
        "  anyformer new photos/ --model google/vit-base-patch16-224\n"
        "  anyformer new stanfordnlp/imdb --out imdb.yaml",
    )
    parser.add_argument("name", metavar="FILE|FOLDER|HUB_NAME", help="a table, a text, a folder, a data set on the Hub")
    parser.add_argument("--task", metavar="NAME", help="what is learned (default: what fits best)")
    parser.add_argument("--model", metavar="NAME", help="the model to begin from: a folder, or a name on the Hub")
    parser.add_argument("--out", type=expanduser, default="recipe.yaml", metavar="FILE", help="default: recipe.yaml")


def run(args) -> None:
    out = Path(args.out)
    if out.exists():
        raise UserError(f"--out {args.out} is there already, and nothing is overwritten; name another file by --out")
    say_loading()
    from ..recipes.compose import load_recipe
    from ..starting.written_recipe import start
    from ..storage.atomic import write_atomically
    from .preview_command import preview

    started = start(args.name, args.task, args.model)
    write_atomically(out, started.text)
    print(f"{out}\n{started.text}")
    recipe = load_recipe(str(out), trust_remote_code=args.trust_remote_code)
    preview(recipe, 2)
    folder, name = quoted(recipe.training.output_dir), quoted(out)
    print(f"\nanyformer preview {name}    # more rows\nanyformer train {name}\nanyformer evaluate {folder} {name}")
    print(f"anyformer predict {folder} ROWS --out answers.csv" if recipe.task else f"anyformer generate {folder} TEXT")

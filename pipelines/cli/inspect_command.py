"""`anyformer inspect`: a page that shows what a model attends to."""

from os.path import expanduser
from pathlib import Path

from .output import say_loading
from .parser import whole_numbers


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Run a model on texts (a vision transformer on image files), and write one HTML page: the\n"
        "attention of every layer and head, summaries of heads, norms, what each layer would predict, loads of\n"
        "experts. It opens without a network, in any browser.",
        epilog="examples:\n"
        '  anyformer inspect runs/quickstart "def add(a, b):"\n'
        '  anyformer inspect runs/imdb_classify "not a terrible film" "a terrible film" --word terrible\n'
        '  anyformer inspect runs/multi30k_en_de "A man is sleeping." --target "Ein Mann schläft."',
    )
    parser.add_argument("model", metavar="MODEL", help="a model's or adapter's folder, or its name on the Hub")
    parser.add_argument("shown", nargs="+", metavar="TEXT", help="a text; for a vision transformer an image file")
    parser.add_argument("--word", help="a part of each text: which tokens look at it")
    parser.add_argument("--layers", type=whole_numbers, help="layers whose maps are shown, such as 0,5 (default: all)")
    parser.add_argument("--target", help="what an encoder-decoder writes (default: what it generates)")
    parser.add_argument(
        "--out", type=expanduser, default="inspect.html", help="the page to write (default %(default)s)"
    )


def run(args) -> None:
    from ..evaluation.request import check_writable

    out = Path(args.out)
    check_writable(out, "--out")
    say_loading()
    from ..inspection.inspect_model import inspect_model

    options = {name: getattr(args, name) for name in ("word", "layers", "target", "trust_remote_code")}
    size = inspect_model(args.model, args.shown, out, **options)
    print(f"written to {out} ({size / 1e6:.2f} MB); open it in a browser")

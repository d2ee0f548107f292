"""`anyformer inspect`: a page that shows what a model attends to."""

from os.path import expanduser
from pathlib import Path

from ..errors import need_package
from .output import say_loading
from .parser import whole_numbers


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Run a model on texts (a vision transformer on image files), and write one HTML page: the\n"
        "attention of every layer and head, the model's answer beside each text, summaries of heads, norms, what\n"
        "each layer would predict, loads of experts. It opens without a network, in any browser.",
        epilog="examples:\n"
        '  anyformer inspect runs/quickstart "def add(a, b):"\n'
        '  anyformer inspect runs/imdb_classify "not a terrible film" "a terrible film" --word terrible\n'
        "  anyformer inspect runs/imdb_classify --texts reviews.csv --word film --figure L0.H1 L1.H3\n"
        '  anyformer inspect runs/multi30k_en_de "A man is sleeping." --target "Ein Mann schläft."',
    )
    parser.add_argument("model", metavar="MODEL", help="a model's or adapter's folder, or its name on the Hub")
    parser.add_argument("shown", nargs="*", metavar="TEXT", help="a text; for a vision transformer an image file")
    parser.add_argument("--texts", metavar="FILE", help="further texts, one a line, or a table of the model's columns")
    of_word = "a part of texts, wherever it occurs: which tokens look at it (repeatable)"
    parser.add_argument("--word", action="append", default=[], help=of_word)
    of_figure = "heads to draw beside --out, as PNG, by the names on the page: L3.H2 (needs matplotlib)"
    parser.add_argument("--figure", metavar="HEAD", nargs="+", action="extend", default=[], help=of_figure)
    parser.add_argument("--layers", type=whole_numbers, help="layers whose maps are shown, such as 0,5 (default: all)")
    parser.add_argument("--target", help="what an encoder-decoder writes (default: what it generates)")
    parser.add_argument("--out", type=expanduser, default="inspect.html", help="page to write (default %(default)s)")


def run(args) -> None:
    from ..evaluation.request import check_writable

    out = Path(args.out)
    check_writable(out, "--out")
    if args.figure:
        need_package("--figure", "matplotlib", "plots")
    say_loading()
    from ..inspection.views import Wanted, inspect_model
    from ..prediction.looked_at import LookedAt
    from ..reporting.plots import plot_attention

    looked_at = LookedAt(args.model, args.shown, args.texts, args.trust_remote_code)
    model, shown = looked_at.answered()
    wanted = Wanted(args.layers, args.word, args.figure)
    size, views = inspect_model(args.model, model, looked_at.processor, shown, out, wanted, args.target)
    print(f"written to {out} ({size / 1e6:.2f} MB); open it in a browser")
    for number, (one, (title, *_)) in enumerate(zip(views, shown), start=1):
        for name, of_head in one.items():
            file = out.with_name(f"{out.stem}-{number}-{name}.png")
            plot_attention(*of_head, name, file)
            print(f"{name} of {title[:40]!r}: {file}")

"""`anyformer inspect`: a page that shows what a model attends to, or the neighbours of a word."""

from pathlib import Path

from ..errors import UserError
from .output import json_alone, say_loading
from .parser import add_json, add_trust

PAGE = "inspect.html"


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Run a model on texts (a vision transformer on image files), and write one HTML page: the\n"
        "attention of every layer and head, summaries of heads, norms, what each layer would predict, loads of\n"
        "experts. It opens without a network, in any browser. With --neighbours: the words nearest to a word, by its\n"
        "input embedding and by what a layer makes of it in each sentence of a file.",
        epilog="examples:\n"
        '  anyformer inspect runs/quickstart "def add(a, b):"\n'
        '  anyformer inspect runs/imdb_classify "not a terrible film" "a terrible film" --word terrible\n'
        '  anyformer inspect runs/multi30k_en_de "A man is sleeping." --target "Ein Mann schläft."\n'
        "  anyformer inspect runs/imdb_mlm --neighbours bank --sentences sentences.txt",
    )
    parser.add_argument("model", metavar="MODEL", help="a model's or adapter's folder, or its name on the Hub")
    parser.add_argument("shown", nargs="*", metavar="TEXT", help="a text; for a vision transformer an image file")
    parser.add_argument("--word", help="a part of each text: which tokens look at it")
    parser.add_argument(
        "--layers", help="layers whose maps the page holds, such as 0,5 (default: all); of --neighbours one (the last)"
    )
    parser.add_argument("--target", help="what an encoder-decoder writes (default: what it generates)")
    parser.add_argument("--neighbours", metavar="WORD", help="print the words nearest to this one, and write no page")
    parser.add_argument(
        "--sentences", metavar="FILE", help="--neighbours: text with a sentence per line, also compressed"
    )
    parser.add_argument("--out", help=f"the page to write (default {PAGE})")
    add_json(parser)
    add_trust(parser)


def run(args) -> int:
    try:
        layers = None if args.layers is None else [int(word) for word in args.layers.split(",")]
    except ValueError:
        raise UserError(f"--layers {args.layers} is no list of numbers, such as 0,5") from None
    if args.neighbours is not None:
        return _neighbours(args, layers)
    if args.sentences is not None:
        raise UserError("--sentences belongs to --neighbours; add it")
    if args.json:
        raise UserError("--json belongs to --neighbours; a page is no JSON")
    if not args.shown:
        raise UserError("TEXT is missing; write anyformer inspect MODEL TEXT, or add --neighbours and --sentences")
    return _page(args, layers)


def _page(args, layers: list[int] | None) -> int:
    from ..evaluation.request import check_writable

    out = Path(args.out or PAGE)
    check_writable(out, "--out")
    say_loading()
    from ..inspection.inspect_model import inspect_model

    size = inspect_model(
        args.model,
        args.shown,
        out,
        word=args.word,
        layers=layers,
        target=args.target,
        trust_remote_code=args.trust_remote_code,
    )
    print(f"written to {out} ({size / 1e6:.2f} MB); open it in a browser")
    return 0


def _neighbours(args, layers: list[int] | None) -> int:
    if args.sentences is None:
        raise UserError(f"--neighbours {args.neighbours} needs --sentences FILE, text with a sentence per line")
    for name in ("word", "target", "out"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name} is of the page, which --neighbours does not write; leave it out")
    if args.shown:
        raise UserError(f"TEXT={args.shown[0]!r} is of the page, which --neighbours does not write; leave it out")
    if layers is not None and len(layers) != 1:
        raise UserError(f"--layers {args.layers}: --neighbours compares the states of one layer; name one")
    if not Path(args.sentences).is_file():
        raise UserError(f"--sentences {args.sentences}: no such file")
    if not args.json:
        say_loading()
    from ..generation import locate_model
    from ..inspection.neighbours import neighbours_of, print_neighbours

    with json_alone(args.json) as answer:
        found = neighbours_of(
            locate_model(args.model),
            args.neighbours,
            Path(args.sentences),
            None if layers is None else layers[0],
            args.trust_remote_code,
        )
        answer.append(found.facts())
        print_neighbours(found)
    return 0

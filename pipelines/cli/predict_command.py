"""`anyformer predict`: a model's answers to rows without labels."""

import sys
from os.path import expanduser
from pathlib import Path

from ..errors import UserError
from .output import quoted, say_loading, say_next
from .parser import at_least


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Answer rows without labels with a saved model: the folder of a run, any model of ours or\n"
        "transformers' own, or a repository on the Hub. The recipe beside it, else its head, says what is read and\n"
        "answered: classes, tags of words, spans, similarities, choices, texts, masked words, vectors.\n\n"
        "FILE is a table (.csv, .tsv, .jsonl, .json, .parquet), an image, a text, or a folder of them. The answers,\n"
        "in the order of the rows and beside their columns, go to --out FILE, or as JSON lines to the standard\n"
        "output. An empty row gets an empty answer. An interrupted prediction goes on with the same command.",
        epilog="examples:\n"
        "  anyformer predict runs/trec_classify questions.csv --out answers.csv\n"
        "  anyformer predict runs/trec_classify mails.jsonl --columns text=body --out answers.parquet\n"
        "  anyformer predict runs/conll2003_ner news.csv --columns tokens=headline | head\n"
        "  anyformer predict runs/fashion_mnist_vit photos/ --out classes.csv\n"
        "  anyformer predict google/flan-t5-small questions.jsonl --max-new-tokens 30",
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a run or a model, or a Hub repository")
    parser.add_argument("files", metavar="FILE", nargs="+", help="tables, images, texts, folders of them, or patterns")
    of_out = "file to write: .jsonl, .csv or .parquet (default: JSON lines)"
    parser.add_argument("--out", type=expanduser, metavar="FILE", help=of_out)
    parser.add_argument(
        "--columns",
        metavar="NAME=COLUMN",
        nargs="+",
        action="extend",
        default=[],
        help="columns that have other names than in the training: text=body",
    )
    parser.add_argument("--batch-size", type=at_least(1), default=16, help="rows answered at once (default: 16)")
    parser.add_argument("--max-new-tokens", type=at_least(1), help="of an answer (default: as it is saved, else 256)")


def run(args) -> None:
    from ..prediction.answer_files import AnswerFile

    columns = dict(_pair(word) for word in args.columns)
    out = None if args.out is None else AnswerFile(Path(args.out))
    say_loading()
    from ..prediction.predict import prepare_prediction, run_prediction

    names = ("batch_size", "max_new_tokens", "trust_remote_code")
    options = {name: getattr(args, name) for name in names}
    prediction = prepare_prediction(args.model, args.files, columns=columns, **options)
    run_prediction(prediction, out, _print)
    if out is not None:
        say_next(f"anyformer evaluate {quoted(args.model)} TASK    # how good such answers are")


def _print(answers: list[dict]) -> None:
    from ..storage.json_text import json_text

    for answer in answers:
        print(json_text(answer, None))
    sys.stdout.flush()


def _pair(word: str) -> tuple[str, str]:
    name, equals, column = word.partition("=")
    if not (name and equals and column):
        raise UserError(f"--columns {word} is not of the form NAME=COLUMN, such as text=body")
    return name, column

"""`anyformer predict`: a model's answers to rows without labels."""

import sys
from os.path import expanduser
from pathlib import Path

from ..errors import UserError
from ..storage.json_text import json_text
from .output import quoted, say_loading, say_next
from .parser import at_least


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Answer rows without labels with a saved model: the folder of a run, any model of ours or\n"
        "transformers' own, or a repository on the Hub. The recipe beside it, else its head, says what is read and\n"
        "answered: classes, tags of words, spans, similarities, choices, texts, masked words, vectors.\n\n"
        "FILE is a table (.csv, .tsv, .jsonl, .json, .parquet), an image, a text, or a folder of them. The answers,\n"
        "in the order of the rows and beside their columns, go to --out FILE, or as JSON lines to the standard\n"
        "output. A row that cannot be answered has an empty prediction and the reason in the column 'reason'. An\n"
        "interrupted prediction goes on with the same command.",
        epilog="examples:\n"
        "  anyformer predict runs/trec_classify questions.csv --out answers.csv\n"
        "  anyformer predict runs/trec_classify mails.jsonl --read text=body --out answers.parquet\n"
        "  anyformer predict runs/trec_classify mails.jsonl --columns id --top 2 --threshold 0.7\n"
        "  anyformer predict runs/conll2003_ner news.csv --read tokens=headline | head\n"
        "  anyformer predict runs/fashion_mnist_vit photos/ --out classes.csv\n"
        "  anyformer predict google/flan-t5-small questions.jsonl --max-new-tokens 30",
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a run or a model, or a Hub repository")
    parser.add_argument("files", metavar="FILE", nargs="+", help="tables, images, texts, folders of them, or patterns")
    of_out = "file to write: .jsonl, .csv or .parquet (default: JSON lines)"
    parser.add_argument("--out", type=expanduser, metavar="FILE", help=of_out)
    of_read = "columns that have other names here than in the training: text=body"
    parser.add_argument("--read", metavar="NAME=COLUMN", nargs="+", action="extend", default=[], help=of_read)
    of_columns = "columns of the rows that are written beside the answers (default: all; without a name: none)"
    parser.add_argument("--columns", metavar="COLUMN", nargs="*", action="extend", help=of_columns)
    parser.add_argument("--top", type=at_least(1), metavar="K", help="write the K best classes with their scores")
    of_threshold = "leave a prediction with a lower score empty, with the reason unsure: 0.7"
    parser.add_argument("--threshold", type=float, metavar="SCORE", help=of_threshold)
    parser.add_argument("--batch-size", type=at_least(1), default=16, help="rows answered at once (default: 16)")
    parser.add_argument("--max-new-tokens", type=at_least(1), help="of an answer (default: as it is saved, else 256)")


def run(args) -> None:
    from ..prediction.answer_files import AnswerFile

    read = {}
    for word in args.read:
        name, equals, column = word.partition("=")
        if not (name and equals and column):
            raise UserError(f"--read {word} is not of the form NAME=COLUMN, such as text=body")
        read[name] = column
    out = None if args.out is None else AnswerFile(Path(args.out))
    say_loading()
    from ..prediction.predict import prepare_prediction, run_prediction

    names = ("columns", "top", "threshold", "batch_size", "max_new_tokens", "trust_remote_code")
    options = {name: getattr(args, name) for name in names}
    prediction = prepare_prediction(args.model, args.files, read=read, **options)
    run_prediction(prediction, out, _print)
    if out is not None:
        say_next(f"anyformer evaluate {quoted(args.model)} LABELLED.csv    # how good such answers are")


def _print(answers: list[dict]) -> None:
    for answer in answers:
        print(json_text(answer, None))
    sys.stdout.flush()

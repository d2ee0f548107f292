"""`anyformer check`: does a model keep its promises?"""

from os.path import expanduser
from pathlib import Path

from ..checks.laws import LAWS, laws_named
from ..errors import UserError
from ..reporting.console import wide_console
from .output import json_alone, plain_table, say_loading
from .parser import add_json

MARKS = {"holds": "[green]holds[/]", "fails": "[red]fails[/]", "not claimed": "not claimed", "not asked": "not asked"}


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Ask any transformers model, ours, native or with code of its own, whether it keeps the promises\n"
        "that a training relies on: each law compares two ways to the same numbers. Asked is a tiny twin of the\n"
        "model's config, with two layers of each kind; with --real the weights themselves. The exit code is 1 where a\n"
        "law fails that the class claims.\n\nLaws:\n\n"
        + "\n\n".join(f"  {name}: {promise}" for name, promise in LAWS.items()),
        epilog="examples:\n"
        "  anyformer check runs/quickstart\n"
        "  anyformer check --model-type qwen3_next\n"
        "  anyformer check llama3_8b --laws packing,cache\n"
        "  anyformer check runs/quickstart --real --html check.html",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a model's folder, a recipe, a preset or a Hub name")
    parser.add_argument("--model-type", metavar="TYPE", help="instead of MODEL: a type of transformers', such as opt")
    parser.add_argument("--kind", metavar="KIND", help="of --model-type: causal, masked, seq2seq or image")
    parser.add_argument("--laws", metavar="NAMES", help="laws to ask, such as packing,padding (default: all)")
    parser.add_argument("--real", action="store_true", help="ask the model's own weights, in fp32, instead of a twin")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default) or cuda")
    parser.add_argument("--html", type=expanduser, metavar="FILE", help="page to write")
    add_json(parser)


def run(args) -> int:
    from ..evaluation.request import check_writable

    laws = laws_named(None if args.laws is None else args.laws.split(","))
    if (args.model is None) == (args.model_type is None):
        raise UserError("name one model: anyformer check MODEL, or anyformer check --model-type TYPE")
    if args.model_type is None and args.kind is not None:
        raise UserError(f"--kind {args.kind} belongs to --model-type; a MODEL names its class itself")
    if args.model_type is not None and args.real:
        raise UserError("--real asks for weights, which --model-type has none of; name a folder")
    if args.html is not None:
        check_writable(Path(args.html), "--html")
    say_loading()
    from ..checks.check_report import page_of, report_of
    from ..checks.made import check_device, subject_of, subject_of_type

    check_device(args.device)
    with json_alone(args.json) as answer:
        if args.model_type is not None:
            name, subject = args.model_type, subject_of_type(args.model_type, args.kind, args.device)
        else:
            options = {"real": args.real, "device": args.device, "trust_remote_code": args.trust_remote_code}
            name, subject = args.model, subject_of(args.model, **options)
        report = report_of(subject, name, laws)
        answer.append(report.to_dict())
        if args.html is not None:  # before anything is printed: the reader of a pipe may leave early
            from ..storage.atomic import write_atomically

            write_atomically(Path(args.html), page_of(report.to_dict()))
        print_report(report)
        if args.html is not None:
            print(f"written to {args.html}")
    return 0 if report.holds else 1


def print_report(report) -> None:
    """Print a table of laws, and for each failure a way out and a program that reproduces it."""
    from rich.markup import escape

    console = wide_console()
    heading = f"{report.name}: {report.model_class}, {report.parameters:,} parameters; {report.line()}"
    console.print(heading, markup=False)
    table = plain_table(("law", "compared", "difference", "tolerance", "verdict"), ("law", "compared", "verdict"))
    for answer in report.answers:
        worst = answer.worst
        numbers = ["" if x is None else f"{x:.1e}" for x in (worst.difference, worst.tolerance)]
        why = f": {answer.why}" if answer.why else ""
        table.add_row(answer.law, escape(worst.what), *numbers, MARKS[answer.verdict] + escape(why))
    console.print(table)
    for answer in report.failed:
        for finding in answer.findings:
            if finding.verdict == "fails" and finding.steps:
                console.print(f"\n{answer.law} fails: {finding.what}", markup=False)
                if finding.way_out:
                    console.print(f"way out: {finding.way_out}", markup=False)
                console.print(report.reproducer(finding), markup=False, soft_wrap=True)
                break

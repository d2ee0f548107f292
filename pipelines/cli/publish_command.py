"""`anyformer publish`: a finished model pushed to the Hub."""

from pathlib import Path

from ..errors import UserError
from .output import quoted, say_next


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Push a run's model, tokenizer, code and model card to the Hub, loadable without this package.",
        epilog="examples:\n  anyformer publish runs/quickstart my-name/my-model --private",
    )
    parser.add_argument("folder", metavar="DIR", help="folder of a finished run, or of a saved model")
    parser.add_argument("repo_id", metavar="REPO_ID", help="repository, as name or owner/name")
    parser.add_argument("--private", action="store_true", help="create the repository as private")
    parser.add_argument("--license", help="licence named in the model card, such as apache-2.0")
    parser.add_argument("--revision", help="branch to push to (default: main)")
    parser.add_argument("--no-check", action="store_true", help="publish without what `anyformer check` finds")


def run(args) -> int:
    from ..publishing.publish import publish

    how = {"private": args.private, "revision": args.revision, "license": args.license}
    print(publish(args.folder, args.repo_id, check=None if args.no_check else checked, **how))
    say_next(f"anyformer evaluate {quoted(args.repo_id)} RECIPE --trust-remote-code    # or AutoModel.from_pretrained")
    return 0


def checked(folder: Path) -> tuple[str, dict] | None:
    """What a tiny twin of the model keeps, as a line and all findings; None of a model that cannot be checked."""
    from ..checks.check_report import report_of
    from ..checks.made import subject_of

    try:
        report = report_of(subject_of(str(folder)), folder.name)
    except UserError as error:
        print(f"published without a check: {error}")
        return None
    print(report.line())
    return report.line(), report.to_dict()

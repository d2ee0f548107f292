"""`anyformer publish`: a finished model pushed to the Hub, or listed as it would be there."""

from pathlib import Path

from ..errors import UserError
from .output import quoted, say_next

BY = ("steps", "words")  # what names the branches of --trajectory


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Push a run's model, tokenizer, code and model card to the Hub, loadable without this package.",
        epilog="examples:\n"
        "  anyformer publish runs/quickstart my-name/my-model --dry-run\n"
        "  anyformer publish runs/quickstart my-name/my-model --private\n"
        "  anyformer publish runs/quickstart my-name/my-model --trajectory words",
    )
    parser.add_argument("folder", metavar="DIR", help="folder of a finished run, or of a saved model")
    name = "repository, as name or owner/name (with --dry-run also none: the folder's name)"
    parser.add_argument("repo_id", metavar="REPO_ID", nargs="?", help=name)
    parser.add_argument("--dry-run", action="store_true", help="list what would be uploaded, with the card; nothing is")
    parser.add_argument("--private", action="store_true", help="create the repository as private")
    parser.add_argument("--license", help="licence named in the model card, such as apache-2.0")
    parser.add_argument("--revision", help="branch to push to (default: main)")
    parser.add_argument(
        "--trajectory",
        choices=BY,
        nargs="?",
        const="steps",
        help="push each checkpoint of the run, too, to a branch such as step-1000, or by words seen 10M-words",
    )
    parser.add_argument("--no-check", action="store_true", help="publish without what `anyformer check` finds")


def run(args) -> None:
    from ..publishing.publish import publish

    check = None if args.no_check else checked
    if args.dry_run:
        list_files(args, check)
        return
    if args.trajectory is not None and args.revision is not None:
        raise UserError(f"--trajectory makes the branches itself; leave out --revision={args.revision}")
    if args.repo_id is None:
        raise UserError("REPO_ID is missing: the repository, as name or owner/name, behind the folder of the model")
    options = {"private": args.private, "revision": args.revision, "license": args.license}
    if args.trajectory is not None:
        from ..publishing.trajectory import publish_trajectory

        branch_options = {"by": args.trajectory, "private": args.private, "license": args.license}
        branches = publish_trajectory(args.folder, args.repo_id, **branch_options)
        print("\n".join(branches.values()))
    print(publish(args.folder, args.repo_id, check=check, **options))
    say_next(f"anyformer evaluate {quoted(args.repo_id)} RECIPE --trust-remote-code    # or AutoModel.from_pretrained")


def list_files(args, check) -> None:
    """List what would be published, with its card; the Hub is not asked."""
    from ..publishing.publish import files_to_publish, listing, with_card
    from ..storage.model_folder import open_model_folder

    if args.trajectory is not None:
        raise UserError("--trajectory pushes to branches; leave out --dry-run")
    model = open_model_folder(args.folder)
    repo_id = args.repo_id or model.path.name
    contents = with_card(files_to_publish(model), model, repo_id, license=args.license, check=check)
    card = contents["README.md"]
    card = card.decode() if isinstance(card, bytes) else card.read_text(encoding="utf-8")
    print(f"{listing(contents)} would go to {repo_id}; README.md:\n\n{card}\nnothing was uploaded")


def checked(folder: Path) -> tuple[str, dict] | None:
    """Check a tiny twin of the model; return (one line, all findings), or None if it cannot be checked."""
    from ..checks.check_report import report_of
    from ..checks.made import subject_of

    try:
        report = report_of(subject_of(str(folder)), folder.name)
    except UserError as error:
        print(f"published without a check: {error}")
        return None
    print(report.line())
    return report.line(), report.to_dict()

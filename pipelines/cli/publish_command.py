"""`anyformer publish`: finished models pushed to the Hub, or listed, or written as they would be."""

import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import UserError
from .output import quoted, say_next


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Push a run's model, tokenizer, code and model card to the Hub, loadable without this package.",
        epilog="examples:\n"
        "  anyformer publish runs/quickstart my-name/my-model --private\n"
        "  anyformer publish runs/quickstart my-name/my-model --dry-run\n"
        '  anyformer publish runs/seed-1 runs/seed-2 my-name/my-model --collection "My model, two seeds"',
    )
    parser.add_argument(
        "words", metavar="DIR", nargs="+", help="folder of a finished run, or of a saved model; several: see REPO_ID"
    )
    # argparse gives all words to DIR; this one says what the last of them is.
    parser.add_argument(
        "repo_id",
        metavar="REPO_ID",
        nargs="?",
        help="repository, as name or owner/name, which --dry-run and --to do not need; each of several folders goes "
        "to one of its own, REPO_ID-FOLDER",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="list what would be uploaded, with the card; nothing is")
    how.add_argument("--to", metavar="FOLDER", help="write what would be uploaded into this new folder instead")
    parser.add_argument("--private", action="store_true", help="create repository and collection as private")
    parser.add_argument("--license", help="licence named in the model card, such as apache-2.0")
    parser.add_argument("--revision", help="branch to push to (default: main)")
    parser.add_argument("--collection", metavar="TITLE", help="put the models into your collection of this title")
    parser.add_argument("--no-check", action="store_true", help="publish without what `anyformer check` finds")


def run(args) -> int:
    from ..publishing.publish import publish

    names = named_repositories(args.words, needed=args.to is None and not args.dry_run)
    if len(names) > 1:
        check_all(names)
    check = None if args.no_check else checked
    if args.dry_run or args.to is not None:
        return instead_of_upload(names, args, check)
    how = {"private": args.private, "revision": args.revision, "license": args.license, "collection": args.collection}
    for folder, repo_id in names.items():
        print(publish(folder, repo_id, check=check, **how))
    repo_id = next(iter(names.values()))
    say_next(f"anyformer evaluate {quoted(repo_id)} RECIPE --trust-remote-code    # or AutoModel.from_pretrained")
    return 0


def named_repositories(words: list[str], needed: bool) -> dict[str, str | None]:
    """{folder: its repository}; each of several has its folder's name at the end. needed: whether REPO_ID is.

    Raises:
        UserError: no REPO_ID, a model in its place, or two folders of one name.
    """
    if len(words) == 1:
        if needed:
            raise UserError(f"REPO_ID is missing; write anyformer publish {words[0]} OWNER/NAME")
        return {words[0]: None}
    *folders, repo_id = words
    if (Path(repo_id).expanduser() / "config.json").is_file():
        raise UserError(
            f"REPO_ID={repo_id} is a model's folder; name the repository last: anyformer publish DIR REPO_ID"
        )
    if len(folders) == 1:
        return {folders[0]: repo_id}
    names = {folder: f"{repo_id}-{re.sub(r'[^A-Za-z0-9.]+', '-', Path(folder).resolve().name)}" for folder in folders}
    if len({*names.values()}) < len(folders):
        raise UserError(f"two of {', '.join(folders)} have one name; publish them one by one, each with its REPO_ID")
    return names


def check_all(folders: Iterable[str]) -> None:
    """Raise UserError for the first folder that cannot be published, before any of them is."""
    from ..publishing.publish import files_to_publish
    from ..storage.model_folder import open_model_folder

    for folder in folders:
        files_to_publish(open_model_folder(folder))


def instead_of_upload(names: dict[str, str | None], args, check) -> int:
    """List what would be published, with the cards, or write it to folders of --to; the Hub is not asked."""
    from ..publishing.publish import files_to_publish, in_all, listing, with_card, write_published
    from ..storage.atomic import destination_folder
    from ..storage.model_folder import open_model_folder

    if args.to is not None and (args.private or args.revision or args.collection):
        raise UserError(f"--to={args.to} writes a folder here; leave out --private, --revision and --collection")
    folders = {name: args.to and Path(args.to, Path(name).resolve().name if len(names) > 1 else "") for name in names}
    for folder in folders.values():
        if folder is not None:
            destination_folder(folder, "--to")
    for name, repo_id in names.items():
        model = open_model_folder(name)
        contents = with_card(files_to_publish(model), model, repo_id, license=args.license, check=check)
        print(listing(contents))
        if folders[name] is not None:
            write_published(contents, destination_folder(folders[name], "--to"))
            print(f"{in_all(contents)}, written to {folders[name]}")
            continue
        card = contents["README.md"]
        print(f"{in_all(contents)}, would go to {repo_id or 'the repository that you name'}; README.md:\n")
        print(card.decode() if isinstance(card, bytes) else card.read_text(encoding="utf-8"))
    if args.dry_run:
        print("nothing was uploaded")
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

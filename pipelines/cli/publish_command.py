"""`anyformer publish`: a finished model pushed to the Hub."""

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


def run(args) -> int:
    from ..publishing.publish import publish

    print(publish(args.folder, args.repo_id, private=args.private, revision=args.revision, license=args.license))
    say_next(f"anyformer evaluate {quoted(args.repo_id)} RECIPE --trust-remote-code    # or AutoModel.from_pretrained")
    return 0

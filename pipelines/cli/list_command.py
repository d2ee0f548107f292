"""`anyformer list`: what recipes can name, one line each."""

from ..errors import UserError, did_you_mean
from ..plugins import OBJECTIVES
from .listing import TABLES, print_fields, print_settings, print_tables
from .output import refuse_json
from .parser import add_json


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="List what recipes can name: families of models, architectures of published sizes, shipped\n"
        "recipes, what can be learned from plain text or labelled examples, what can be measured, suites of tasks,\n"
        "experiments and sources of data.",
        epilog="examples:\n  anyformer list\n  anyformer list recipes\n  anyformer list masked\n"
        "  anyformer list fields decoder\n"
        "  anyformer list --legal",
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "kind",
        nargs="?",
        help=f"only these ({', '.join(TABLES)}), the settings of one objective or task, or the fields of a family",
    )
    parser.add_argument("family", nargs="?", help="of whose config the fields are listed: list fields decoder")
    choice.add_argument("--legal", action="store_true", help="which parts of a model go together, as markdown tables")
    add_json(parser)


def run(args) -> None:
    if args.kind != "fields" and args.family is not None:
        raise UserError(f"{args.family!r}: no such argument")
    if args.legal:
        from .legality_table import legality_markdown

        refuse_json(args, "--legal")
        print(legality_markdown(), end="")
    elif args.kind == "fields":
        print_fields(args.family, args.json)
    elif args.kind is None or args.kind in TABLES:
        print_tables(args.kind, args.json)
    elif args.kind in OBJECTIVES:
        print_settings(args.kind, args.json)
    else:
        raise UserError(f"{args.kind!r}: nothing to list{did_you_mean(args.kind, [*TABLES, 'fields', *OBJECTIVES])}")

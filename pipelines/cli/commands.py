"""The command line. Each verb is a thin door to one library function, imported when the verb runs."""

import argparse
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence

from ..errors import UserError, did_you_mean, reader_left
from .output import add_json, quoted, refuse_json, say_next

VERBS = (
    "list",
    "train",
    "prepare",
    "preview",
    "plan",
    "scaling",
    "sweep",
    "tokenizer",
    "evaluate",
    "generate",
    "inspect",
    "report",
    "convert",
    "merge",
    "publish",
    "completion",
)
LISTED = ("families", "presets", "recipes", "objectives", "tasks", "metrics", "suites", "experiments", "sources")
PLUGIN_HELP = (
    "import this Python file or module first, for the objectives, metrics and sources it registers (repeatable)"
)
EXIT_BUG, EXIT_USER_ERROR, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions are broken at the terminal's width; examples stay as they are, so that they can be copied."""

    def _fill_text(self, text, width, indent):
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        return "\n".join(textwrap.fill(paragraph, width) for paragraph in text.split("\n\n"))


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are our one-sentence errors, and which accepts no shortened option names."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **kwargs)

    def error(self, message):
        raise UserError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str]) -> int:
    """Run one command; return its exit code: 0 done, 2 user error, 130 interrupted, 1 a bug of ours."""
    argv = whole = list(argv)
    debug = "--debug" in argv
    try:
        if not argv:
            build_parser().print_help()
            return EXIT_USER_ERROR
        argv = without_plugins(argv)
        args = parse(argv)
        args.argv = whole
        code = args.run(args)
        sys.stdout.flush()  # here, so that a reader that has left is noticed while we can still say nothing about it
        return code
    except UserError as error:
        return _fail(str(error), EXIT_USER_ERROR, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED, debug)
    except (BrokenPipeError, SystemExit) as error:
        if not reader_left(error):
            raise  # of --help
        # The reader (head, less) has left; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        return _fail(_os_error_sentence(error), EXIT_USER_ERROR, debug)
    except Exception as error:
        from ..training.engines.launch import LOST_ANOTHER, lost_another

        if lost_another(error):
            return _fail(LOST_ANOTHER, EXIT_BUG, debug)
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(f"unexpected {what[:500]}; run again with --debug for the traceback", EXIT_BUG, debug)


def without_plugins(argv: list[str]) -> list[str]:
    """Import what `--plugin` names, before anything is parsed: help and errors know its names; return the rest.

    Raises:
        UserError: no such file, or an error in it.
    """
    from ..plugins import load_plugins

    named, rest = told_plugins(argv)
    if "" in named:
        raise UserError("--plugin names no file; write --plugin my_objective.py")
    load_plugins(named)
    return rest


def told_plugins(argv: list[str]) -> tuple[list[str], list[str]]:
    """(what `--plugin` names, the other words)."""
    named, rest, words = [], [], iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        if option != "--plugin":
            rest.append(word)
        elif equals:
            named.append(value)
        else:
            named.append(next(words, ""))
    return named, rest


def _fail(sentence: str, code: int, debug: bool) -> int:
    from ..training.engines.launch import tell_launcher

    if debug:
        traceback.print_exc()
    if tell_launcher(sentence):
        return code
    rank = f" (rank {os.environ.get('RANK')})" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    print(f"anyformer{rank}: {sentence}", file=sys.stderr)
    return code


def _os_error_sentence(error: OSError) -> str:
    if error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())[:500] or type(error).__name__


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the parsed arguments; `run` in them is the verb's function.

    Raises:
        UserError: unknown verb, option or missing argument.
    """
    verb = next((word for word in argv if not word.startswith("-")), None)
    if verb is not None and verb not in VERBS:
        raise UserError(f"{verb!r}: no such command{did_you_mean(verb, VERBS)}")
    args, rest = build_parser().parse_known_args(argv)
    options = [word for word in rest if word.startswith("-")]
    if not options and hasattr(args, "words"):
        args.words += rest
    elif options or (rest and not hasattr(args, "overrides")):
        raise UserError(f"{(options or rest)[0]!r}: no such argument; see anyformer {verb} --help")
    if hasattr(args, "overrides"):
        args.overrides += rest  # overrides after an option, which argparse leaves over
        from ..evaluation.request import is_setting, told_apart

        if verb == "evaluate":
            words = [args.model, *([] if args.recipe is None else [args.recipe]), *args.overrides]
            args.models, args.recipe, args.overrides = told_apart(words)
        elif is_setting(args.recipe or ""):
            raise UserError(
                f"{args.recipe!r} stands where the recipe belongs; write anyformer {verb} RECIPE {args.recipe}"
            )
    return args


def build_parser() -> Parser:
    """Return the parser of all verbs."""
    # Here, as these modules take what the commands share from this one.
    from .completion_command import add_completion
    from .evaluate_command import add_evaluate
    from .generate_command import add_generate
    from .inspect_command import add_inspect
    from .plan_command import add_plan
    from .prepare_command import add_prepare
    from .report_command import add_report
    from .scaling_command import add_scaling
    from .sweep_command import add_sweep
    from .tokenizer_command import add_tokenizer
    from .train_command import add_train

    parser = Parser(
        prog="anyformer",
        description="Pretrain, evaluate and publish transformers as native Hugging Face models.",
        epilog="examples:\n"
        "  anyformer list\n"
        "  anyformer train quickstart\n"
        '  anyformer generate runs/quickstart "def "\n'
        "\nanyformer VERB --help explains each command.",
    )
    from anyformer import __version__

    parser.add_argument("--version", action="version", version=f"anyformer {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--plugin", metavar="FILE", default=argparse.SUPPRESS, help=PLUGIN_HELP)
    verbs = parser.add_subparsers(title="commands", metavar="VERB", required=True, parser_class=Parser)
    for add in (
        _add_list,
        add_train,
        add_prepare,
        _add_preview,
        add_plan,
        add_scaling,
        add_sweep,
        add_tokenizer,
        add_evaluate,
        add_generate,
        add_inspect,
        add_report,
        _add_convert,
        _add_merge,
        _add_publish,
        add_completion,
    ):
        verb = add(verbs)
        # After the verb as well; without a default, which would overwrite `anyformer --debug train`.
        verb.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
        verb.add_argument("--plugin", metavar="FILE", default=argparse.SUPPRESS, help=PLUGIN_HELP)
    return parser


def _add_list(verbs) -> Parser:
    parser = verbs.add_parser(
        "list",
        help="families, presets, recipes, tasks, metrics and more, one line each",
        description="List what recipes can name: families of models, architectures of published sizes, shipped\n"
        "recipes, what can be learned from plain text or labelled examples, what can be measured, suites of tasks,\n"
        "experiments and sources of data.",
        epilog="examples:\n  anyformer list\n  anyformer list recipes\n  anyformer list masked\n"
        "  anyformer list fields decoder\n"
        "  anyformer list --legal",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "kind",
        nargs="?",
        help=f"only these ({', '.join(LISTED)}), the settings of one objective or task, or the fields of a family",
    )
    parser.add_argument("family", nargs="?", help="of whose config the fields are listed: list fields decoder")
    what.add_argument("--legal", action="store_true", help="which parts of a model go together, as markdown tables")
    add_json(parser)
    parser.set_defaults(run=_run_list)
    return parser


def _add_recipe_arguments(parser: Parser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a YAML file, or the name of a shipped recipe")
    _add_overrides(parser)


def _add_overrides(parser: Parser) -> None:
    parser.add_argument(
        "overrides", metavar="section.key=value", nargs="*", default=[], help="settings that win over the recipe's"
    )


def _add_trust(parser: Parser) -> None:
    parser.add_argument("--trust-remote-code", action="store_true", help="run model code that comes with the model")


def _add_backends(parser: Parser, what: str) -> None:
    """The two backends of a command without a recipe; `what`: what they compute there."""
    from ..backends import ATTENTION, AUTO, EXPERTS

    for part, names in (("attn", f"{', '.join(ATTENTION)} or a kernel of the Hub"), ("experts", ", ".join(EXPERTS))):
        parser.add_argument(f"--{part}-implementation", metavar="NAME", default=AUTO, help=f"{what}: {names}")


def _add_preview(verbs) -> Parser:
    parser = verbs.add_parser(
        "preview",
        help="show real training rows of a recipe; nothing is trained",
        description="Show training rows as the model will see them: tokens, labels, documents, positions, masks.",
        epilog="examples:\n  anyformer preview quickstart\n  anyformer preview my_recipe.yaml --rows 2",
    )
    _add_recipe_arguments(parser)
    parser.add_argument("--rows", type=_at_least(1), default=5, help="how many rows (default 5)")
    _add_trust(parser)
    parser.set_defaults(run=_run_preview)
    return parser


def _add_convert(verbs) -> Parser:
    parser = verbs.add_parser(
        "convert",
        help="turn a native transformers checkpoint into an anyformer one, or back",
        description="Convert a saved model, with tokenizer and generation config, between transformers' own classes\n"
        "and anyformer's. Nothing is written unless both compute the same logits.",
        epilog="examples:\n"
        "  anyformer convert gpt2 models/gpt2\n"
        "  anyformer convert models/gpt2 models/gpt2-native --to native",
    )
    parser.add_argument("model", metavar="MODEL", help="folder of a run or a model, or a Hub repository")
    parser.add_argument("destination", metavar="DST", help="folder to write; it must not exist yet, or be empty")
    parser.add_argument(
        "--to",
        choices=("native", "anyformer", "gguf"),
        metavar="{native,anyformer}",
        help="what to make (default: the other kind)",
    )
    _add_backends(parser, "what computes ours where the two are compared")
    _add_trust(parser)
    parser.set_defaults(run=_run_convert)
    return parser


def _add_merge(verbs) -> Parser:
    parser = verbs.add_parser(
        "merge",
        help="make a whole model of an adapter and its base",
        description="Add an adapter (of training.lora, or of PEFT) to the weights of its base model, and save the sum.",
        epilog="examples:\n  anyformer merge runs/my_adapter models/my_model",
    )
    parser.add_argument("adapter", metavar="ADAPTER", help="folder of an adapter, such as that of a run with LoRA")
    parser.add_argument("destination", metavar="DST", help="folder to write; it must not exist yet, or be empty")
    _add_trust(parser)
    parser.set_defaults(run=_run_merge)
    return parser


def _add_publish(verbs) -> Parser:
    parser = verbs.add_parser(
        "publish",
        help="push a finished model to the Hugging Face Hub",
        description="Push a run's model, tokenizer, code and model card to the Hub, loadable without this package.",
        epilog="examples:\n  anyformer publish runs/quickstart my-name/my-model --private",
    )
    parser.add_argument("folder", metavar="DIR", help="folder of a finished run, or of a saved model")
    parser.add_argument("repo_id", metavar="REPO_ID", help="repository, as name or owner/name")
    parser.add_argument("--private", action="store_true", help="create the repository as private")
    parser.add_argument("--license", help="licence named in the model card, such as apache-2.0")
    parser.add_argument("--revision", help="branch to push to (default: main)")
    parser.set_defaults(run=_run_publish)
    return parser


def _at_least(low: int):
    def whole_number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} must be at least {low}")
        return value

    whole_number.__name__ = "whole number"  # argparse's errors name it
    return whole_number


def _say_loading() -> None:
    if sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
        print("loading torch and transformers ...", file=sys.stderr, flush=True)


def _run_list(args) -> int:
    if args.legal:
        from .legality_table import legality_markdown

        refuse_json(args, "--legal")
        print(legality_markdown(), end="")
        return 0
    from ..plugins import OBJECTIVES
    from .listing import print_fields, print_settings, print_tables

    if args.kind != "fields" and args.family is not None:
        raise UserError(f"{args.family!r}: no such argument")
    if args.kind == "fields":
        print_fields(args.family, args.json)
    elif args.kind is None or args.kind in LISTED:
        print_tables(args.kind, args.json)
    elif args.kind in OBJECTIVES:
        print_settings(args.kind, args.json)
    else:
        raise UserError(f"{args.kind!r}: nothing to list{did_you_mean(args.kind, [*LISTED, 'fields', *OBJECTIVES])}")
    return 0


def _load_recipe(args):
    """The recipe of a command; what its overrides replace is said on the error stream, so that pipes stay clean."""
    from ..recipes.compose import load_recipe

    notes: list[str] = []
    recipe = load_recipe(args.recipe, args.overrides, notes)
    recipe.trust_remote_code = args.trust_remote_code
    if getattr(args, "launch", None) is None:  # else the first process says it
        _say(notes)
    return recipe


def _say(notes: list[str]) -> None:
    for note in notes if os.environ.get("RANK", "0") == "0" else ():
        print(f"anyformer: {note}", file=sys.stderr)


def _run_preview(args) -> int:
    recipe = _load_recipe(args)
    _say_loading()
    from .preview import preview

    code = preview(recipe, args.rows)
    say_next(f"anyformer train {quoted(args.recipe)} --dry-run    # one step of it; then without --dry-run")
    return code


def _run_convert(args) -> int:
    from ..interop.convert_checkpoint import convert, destination_folder

    destination_folder(args.destination)
    _say_loading()
    backends = {name: getattr(args, name) for name in ("attn_implementation", "experts_implementation")}
    trust = {"trust_remote_code": args.trust_remote_code}
    print(convert(args.model, args.destination, to=args.to, **trust, **backends))
    say_next(f"anyformer publish {quoted(args.destination)} your-name/your-model")
    return 0


def _run_merge(args) -> int:
    from ..interop.merge_adapter import check_adapter, merge

    check_adapter(args.adapter, args.destination)
    _say_loading()
    print(merge(args.adapter, args.destination, trust_remote_code=args.trust_remote_code))
    say_next(f"anyformer evaluate {quoted(args.destination)} RECIPE")
    return 0


def _run_publish(args) -> int:
    from ..publishing.publish import publish

    print(publish(args.folder, args.repo_id, private=args.private, revision=args.revision, license=args.license))
    say_next(f"anyformer evaluate {quoted(args.repo_id)} RECIPE --trust-remote-code    # or AutoModel.from_pretrained")
    return 0

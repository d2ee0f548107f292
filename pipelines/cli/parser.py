"""The parser of the command line. A verb is a row of VERBS and a module, which is imported when the verb is used."""

import argparse
import importlib
import itertools
import math
import os
import textwrap
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from ..errors import UserError, did_you_mean
from ..words import say

# Verb -> its line of help. Its module, such as train_command.py, has two functions: add_arguments(add_parser) makes the
# verb's parser (add_parser takes the arguments of argparse's); run(args) returns the exit code, or None for 0.
VERBS = {
    "check": "ask a model whether it keeps its promises: packing, caches, accumulation, saving and more",
    "new": "look at your data, and write a recipe for them",
    "list": "families, presets, recipes, tasks, metrics and more, one line each",
    "train": "train the model a recipe describes",
    "prepare": "tokenise and pack the data of a recipe; nothing is trained",
    "preview": "show real training rows of a recipe; nothing is trained",
    "plan": "parameters, memory per device, FLOPs and days of a run; no data is touched",
    "rehearse": "make one step of a run as a device of a cluster would, without values: memory, messages, FLOPs",
    "scaling": "train a ladder of sizes and fit the law of their losses",
    "sweep": "train a recipe with every combination of some settings, and compare the runs",
    "evaluate": "measure a saved model on a task or a suite of tasks, or compare two models",
    "predict": "a model's answers to rows without labels: classes, tags, spans, texts, vectors and more",
    "generate": "continue a text with a trained model",
    "chat": "talk with a trained model in the terminal",
    "inspect": "a page of attention maps, head by head, of a model on texts or images",
    "report": "the page of a run, finished or not, or of several compared",
    "convert": "turn a native transformers checkpoint into an anyformer one, or back",
    "export": "write a saved model as a file for ONNX Runtime or torch.export",
    "serve": "serve a saved model to OpenAI's clients, by vLLM or transformers",
    "merge": "make a whole model of an adapter and its base",
    "publish": "push a finished model to the Hugging Face Hub",
    "completion": "a script by which bash, zsh or fish complete commands",
}
WITHOUT_MODEL = ("list", "publish", "completion")  # these verbs load no model
OF_ADAPTERS = ("evaluate", "predict", "generate", "chat", "inspect", "export", "merge")  # their models may be adapters
PLUGIN_HELP = "import this Python file or module first, for the objectives, metrics and sources in it (repeatable)"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps descriptions at the terminal's width; examples stay as they are, so that they can be copied."""

    def _fill_text(self, text, width, indent):
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        return "\n".join(textwrap.fill(paragraph, width) for paragraph in text.split("\n\n"))


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UserError for mistakes and accepts no abbreviated options.

    epilog: text, or a function that makes it when help is shown.
    """

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **kwargs)

    def error(self, message):
        raise UserError(f"{message}; see {self.prog} --help")

    def format_help(self):
        if callable(self.epilog):
            self.epilog = self.epilog()
        return super().format_help()


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the parsed arguments; `run` in them is the verb's function.

    Raises UserError: unknown verb, option or missing argument.
    """
    verb = next((word for word in argv if not word.startswith("-")), None)
    if verb is not None and verb not in VERBS:
        raise UserError(f"{verb!r}: no such command{did_you_mean(verb, VERBS)}")
    args, rest = build_parser([verb]).parse_known_args(argv)
    options = [word for word in rest if word.startswith("-")]
    if options or (rest and not hasattr(args, "overrides")):
        raise UserError(f"{(options or rest)[0]!r}: no such argument; see anyformer {verb} --help")
    if hasattr(args, "overrides"):
        args.overrides += rest  # overrides after an option, which argparse leaves over
        if verb == "evaluate":
            words = [args.model, *([] if args.recipe is None else [args.recipe]), *args.overrides]
            args.models, args.recipe, args.overrides = told_apart(words)
        elif is_setting(args.recipe or ""):
            raise UserError(f"{args.recipe!r} stands where the recipe belongs: anyformer {verb} RECIPE {args.recipe}")
    return args


def is_setting(word: str) -> bool:
    """Whether a word is section.key=value; a path may contain `=`, too, as the folders of a sweep do."""
    key, equals, _ = word.partition("=")
    return bool(equals) and "/" not in key and os.sep not in key and not Path(word).is_dir()


def told_apart(words: list[str]) -> tuple[list[str], str | None, list[str]]:
    """Divide a command's words, MODEL, MODEL TASK or A B TASK, and section.key=value, into (models, task, overrides).

    Raises UserError: more names than three, or a model where the task belongs.
    """
    names = list(itertools.takewhile(lambda word: not is_setting(word), words))
    overrides = words[len(names) :]
    if len(names) > 3:
        raise UserError(f"{names[3]!r} is one name too many; write anyformer evaluate A B TASK to compare two models")
    if len(names) == 2 and (Path(names[1]).expanduser() / "config.json").is_file():
        raise UserError(f"TASK={names[1]} is a model; to compare two models name the task as well: A B TASK")
    models = names[: max(1, len(names) - 1)]
    return models, names[-1] if len(names) > 1 else None, overrides


def build_parser(loaded: Iterable[str | None] = VERBS) -> Parser:
    """Return the parser of all verbs; those that are not `loaded` have no arguments."""
    from anyformer import __version__

    parser = Parser(
        prog="anyformer",
        description="Pretrain, evaluate and publish transformers as native Hugging Face models.",
        epilog="examples:\n"
        "  anyformer list\n"
        "  anyformer train quickstart\n"
        '  anyformer generate runs/quickstart "def "\n'
        "\nanyformer VERB --help explains each command.",
    )
    parser.add_argument("--version", action="version", version=f"anyformer {__version__}")
    add_common(parser, default=False)
    verbs = parser.add_subparsers(title="commands", metavar="VERB", required=True, parser_class=Parser)
    for name, help in VERBS.items():
        add_parser = partial(verbs.add_parser, name, help=help)
        if name not in loaded:
            add_parser()
            continue
        module = importlib.import_module(f".{name}_command", __package__)
        module.add_arguments(add_parser)
        verbs.choices[name].set_defaults(run=module.run)
        if name not in WITHOUT_MODEL:
            trust_help = "run model code that comes with the model"
            verbs.choices[name].add_argument("--trust-remote-code", action="store_true", help=trust_help)
        if name in OF_ADAPTERS:
            base_help = "the base of an adapter, where the one that it names is not on this machine"
            verbs.choices[name].add_argument("--base-model", type=os.path.expanduser, metavar="NAME", help=base_help)
        # After the verb as well; without a default, which would overwrite `anyformer --debug train`.
        add_common(verbs.choices[name], default=argparse.SUPPRESS)
    return parser


def add_common(parser: Parser, default) -> None:
    """Add the options that stand before the verb or after it."""
    parser.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")
    parser.add_argument("--plugin", metavar="FILE", default=argparse.SUPPRESS, help=PLUGIN_HELP)


def add_recipe(parser, metavar: str = "RECIPE", help: str = "a YAML file, or the name of a shipped recipe") -> None:
    """Add a recipe and the settings that win over its own."""
    parser.add_argument("recipe", metavar=metavar, help=help)
    add_overrides(parser)


def add_overrides(parser) -> None:
    """Add settings that win over a recipe's."""
    parser.add_argument(
        "overrides", metavar="section.key=value", nargs="*", default=[], help="settings that win over the recipe's"
    )


def add_backends(parser) -> None:
    """Add the options of the two backends to a command without a recipe."""
    from ..backends import ATTENTION, AUTO, EXPERTS

    for part, names in (("attn", f"{', '.join(ATTENTION)} or a kernel of the Hub"), ("experts", ", ".join(EXPERTS))):
        parser.add_argument(f"--{part}-implementation", metavar="NAME", default=AUTO, help=f"what computes it: {names}")


def add_json(parser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON value on the standard output, nothing else")


def at_least(low: int):
    """An argparse type: whole numbers that are at least `low`."""

    def whole_number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} must be at least {low}")
        return value

    whole_number.__name__ = "whole number"  # argparse's errors name it
    return whole_number


def whole_numbers(text: str) -> list[int]:
    """An argparse type: whole numbers with commas between them; repeated ones are dropped."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"{text} is no list of whole numbers, such as 0,4,8")
    return list(dict.fromkeys(map(int, words)))


def add_price(parser) -> None:
    parser.add_argument("--price", type=price, help="of a device for an hour, in any currency: the run's cost is said")


def price(text: str) -> float:
    """An argparse type: a finite number that is not negative."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not what a device costs in an hour, such as 2.5")
    return value


def seeds_of(text: str, first: int) -> list[int]:
    """The seeds of a text: as many as its number, from `first` on, or its list. Raises UserError for other texts."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    seeds = [*range(first, first + numbers[0])] if len(numbers) == 1 else numbers
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError(f"--seeds {text} is no number of seeds from 1 on, such as 3, nor a list of them, such as 1,2,3")
    return seeds


def recipe_of(args):
    """The recipe of a command; notes on what its overrides replace go to standard error, so that pipes stay clean."""
    from ..recipes.compose import load_recipe

    notes: list[str] = []
    recipe = load_recipe(args.recipe, args.overrides, notes, trust_remote_code=args.trust_remote_code)
    if getattr(args, "launch", None) is None:  # otherwise the first process prints them
        say(notes)
    return recipe

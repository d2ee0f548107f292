"""`anyformer completion`: what a shell needs to complete verbs, options, recipes and settings."""

import argparse
import re
from collections.abc import Iterator

from ..errors import UserError
from ..plugins import OBJECTIVES
from ..recipes.field_docs import describe_fields
from ..recipes.introspection import family_fields, training_argument_fields
from ..recipes.recipe_files import shipped
from .listing import TABLES, family_rows
from .parser import build_parser

SHELLS = ("bash", "zsh", "fish")
# Positional arguments with known words: destination -> kind of words. All others are files and folders.
RECIPES, SETTINGS, KINDS = "recipes", "settings", "kinds"
WORDS_OF = {"recipe": RECIPES, "overrides": SETTINGS, "kind": KINDS, "target": RECIPES}
FUNCTION = "_anyformer_{}"


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Print a script that completes verbs, options, recipes, settings and files.",
        epilog="examples:\n"
        "  anyformer completion bash > ~/.local/share/bash-completion/completions/anyformer\n"
        "  anyformer completion zsh > ~/.zfunc/_anyformer      # where fpath has ~/.zfunc\n"
        "  anyformer completion fish > ~/.config/fish/completions/anyformer.fish",
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args) -> None:
    print(completion(build_parser(), args.shell))


def known_words() -> dict[str, list[str]]:
    """{kind of word: all words of that kind}."""
    settings = {row.name for row in describe_fields() if not row.name.endswith("*")}
    settings |= {f"model.{field}" for family, *_ in family_rows() for field in family_fields(family)}
    settings |= {f"training.{field}" for field in training_argument_fields() if not field.startswith("_")}
    names = [name for folder in ("recipes", "models", "suites", "experiments", "stories") for name in shipped(folder)]
    return {
        RECIPES: sorted(set(names)),
        SETTINGS: sorted(f"{name}=" for name in settings if re.fullmatch(r"[\w.]+", name)),
        KINDS: [*TABLES, "fields", *sorted(OBJECTIVES)],
    }


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script of a shell for a parser; shtab writes it, and the known words are functions in it.

    Raises UserError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise UserError("completion needs shtab, which is not installed; install it, by pip install shtab") from None
    for action in _positionals(parser):
        kind = WORDS_OF.get(action.dest)
        name = FUNCTION.format(kind)
        action.complete = {"bash": name, "zsh": name, "fish": f"({name})"} if kind else shtab.FILE
    script = shtab.complete(parser, shell=shell, preamble={shell: "\n".join(_functions(shell))})
    if shell == "bash":  # no space after the `=` of a setting
        (inner,) = re.findall(r"^complete .*-F (\w+) anyformer$", script, re.MULTILINE)
        script = re.sub(rf"^(complete .*-F ){inner} anyformer$", r"\1_anyformer anyformer", script, flags=re.MULTILINE)
        script += (
            f'\n_anyformer() {{\n  {inner} "$@"\n  [[ ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace\n  return 0\n}}'
        )
    return script


def _positionals(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from _positionals(verb)
        elif not action.option_strings and action.choices is None:
            yield action


def _functions(shell: str) -> Iterator[str]:
    for kind, words in known_words().items():
        name, text = FUNCTION.format(kind), " ".join(words)
        files = kind == RECIPES
        if shell == "bash":
            more = '; compgen -f -- "$1"' if files else ""
            yield f'{name}() {{\n  compgen -W "{text}" -- "$1"{more}\n}}'
        elif shell == "zsh":
            space = "-S '' " if kind == SETTINGS else ""
            yield f"{name}() {{\n  compadd {space}-- {text}{'; _files' if files else ''}\n}}"
        else:
            more = "; __fish_complete_path (commandline -ct)" if files else ""
            yield f"function {name}; string split ' ' -- '{text}'{more}; end"

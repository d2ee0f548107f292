"""UserError, for mistakes that a user can correct, and helpers for its messages."""

import difflib
import importlib.util
import os.path
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from safetensors import SafetensorError

# What transformers raises for a checkpoint that is missing, damaged or of another kind.
CANNOT_LOAD = (OSError, ValueError, ImportError, KeyError, SafetensorError)


class UserError(Exception):
    """A mistake in a recipe, a file or a command. Its message is one sentence: field, value, what would be right.

    The command line prints it without a traceback and exits with code 2.
    """


class UnknownName(UserError):
    """A name that nothing here has, such as an optimizer's or a setting's: a plug-in that is not loaded may have it."""


def reader_left(error: BaseException) -> bool:
    """Whether the reader of our output is gone, as after `| head -1`; rich turns that error into a SystemExit."""
    cause = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(cause, BrokenPipeError)


def need_package(what: str, package: str, extra: str | None, module: str | None = None) -> None:
    """Raise UserError, beginning with `what`, where a package is not installed.

    extra: of ours that installs it; None: no extra does. module: the module that is imported; None: it has the
    package's name.
    """
    if importlib.util.find_spec(module or package) is None:
        raise UserError(f"{what} needs the package {package}; install {f'anyformer[{extra}]' if extra else 'it'}")


def refuse_file(what: str, text: str, way_out: str | None = None) -> None:
    """Raise UserError where a text is the name of a file: its name is hardly the text that is meant."""
    if os.path.isfile(os.path.expanduser(text)):
        way_out = way_out or f'give the text that is meant, such as "$(head -1 {text})"'
        raise UserError(f"{what}={text} is a file; {way_out}")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, else its class; messages of other libraries have several lines."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def loading_reason(error: BaseException) -> str:
    """In one line, why a checkpoint could not be loaded; if it comes with code, the option that runs it."""
    if "trust_remote_code" in str(error):  # transformers names its own argument, in several lines
        return "it has code of its own, which runs only with --trust-remote-code (trust_remote_code=True in Python)"
    if isinstance(error, SafetensorError):
        return f"a file of its weights is damaged ({first_line(error)}); put a good copy in its place"
    if "backend tokenizer from one of" in str(error):
        return "it has no tokenizer.json, nor another file of a tokenizer"
    return f"its files lack {error}" if isinstance(error, KeyError) else first_line(error).rstrip(".")


@contextmanager
def loading(what: str) -> Generator[None]:
    """Turn transformers' errors about a checkpoint that cannot be loaded into a UserError about `what`."""
    try:
        yield
    except CANNOT_LOAD as error:
        raise UserError(f"{what} cannot be loaded: {loading_reason(error)}") from error


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is meant: ours for another library's name, else the most similar one; None: none is near."""
    from .aliases import ours_for

    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return next((ours for ours in ours_for(name) if ours in known), near[0] if near else None)


def shown(name: str) -> str:
    """A name as a sentence lists it: in quotes where it is empty or begins or ends with a space."""
    return name if name and name == name.strip() else repr(name)


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean PREFIXx?` for the nearest known name, or a list of the known ones when none is near."""
    known = sorted(known)
    near = nearest(name, known)
    if near is not None:
        return f"; did you mean {prefix}{shown(near)}?"
    return f"; known: {', '.join(map(shown, known))}" if len(known) <= 24 else ""


def refuse_unknown(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise UserError for the first of some keys of a file that is not known."""
    for name in names:
        if name not in known:
            raise UserError(f"{where}: {name!r} is not known{did_you_mean(name, known)}")

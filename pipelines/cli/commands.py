"""Runs one command; every error ends in a message of one sentence and an exit code."""

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from safetensors import SafetensorError

from ..errors import UnknownName, UserError, first_line, reader_left
from ..plugins import lacking_plugins, load_plugins
from .parser import Parser, build_parser, parse

EXIT_BUG, EXIT_USER_ERROR, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141


def main(argv: Sequence[str]) -> int:
    """Run one command; return its exit code, or 2 user error, 130 interrupted, 141 broken pipe, 1 a bug of ours."""
    argv = list(argv)
    _quiet_libraries()
    debug = "--debug" in argv
    try:
        if not argv:
            build_parser([]).print_help()
            return EXIT_USER_ERROR
        first = Parser(prog="anyformer", add_help=False)
        first.add_argument("--plugin", action="append", default=[])
        known, words = first.parse_known_args(argv)
        load_plugins(known.plugin)  # before the rest is parsed, so that help and errors know their names
        args = parse(words)
        args.argv, args.plugins, args.entry = argv, known.plugin, main
        with _on_base(args):
            code = args.run(args) or 0
        sys.stdout.flush()  # here, where a pipe whose reader has left can still be handled
        return code
    except UserError as error:
        return _fail(_with_plugins(error, argv) or str(error), EXIT_USER_ERROR, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED, debug)
    except (BrokenPipeError, SystemExit) as error:
        if not reader_left(error):
            raise  # a SystemExit, as of --help
        # The reader (head, less) has left; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        return _fail(_outside_sentence(error) or _os_error_sentence(error), EXIT_USER_ERROR, debug)
    except Exception as error:
        from ..training.engines.launch import LOST_ANOTHER, lost_another

        if needed := _with_plugins(error, argv):
            return _fail(needed, EXIT_USER_ERROR, debug)
        if lost_another(error):
            return _fail(LOST_ANOTHER, EXIT_BUG, debug)
        if sentence := _outside_sentence(error):
            return _fail(sentence, EXIT_USER_ERROR, debug)
        description = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(f"unexpected {description[:500]}; run again with --debug for the traceback", EXIT_BUG, debug)


def _quiet_libraries() -> None:
    """Two libraries tell a machine without a GPU what it lacks when PEFT or accelerate import them, one on stdout."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    logging.getLogger("DeepSpeed").addFilter(_is_asked_for)


def _is_asked_for(said: logging.LogRecord) -> bool:
    return not said.getMessage().startswith("Setting accelerator to CPU")


def _on_base(args):
    """Inside, the adapters that a command names are of --base-model. Raises UserError where it names none of them."""
    if (base := getattr(args, "base_model", None)) is None:
        return nullcontext()
    from ..adapters import is_adapter, on_base, refuse_adapter
    from ..generation import locate_model

    models = [getattr(args, name) for name in ("model", "adapter") if hasattr(args, name)]
    models = getattr(args, "models", models)
    if not any(map(is_adapter, models)):
        raise UserError(f"--base-model={base} is the base of an adapter, and {models[0]} is none; leave it out")
    refuse_adapter(base)
    return on_base(locate_model(base, "--base-model"))


def _fail(sentence: str, code: int, debug: bool) -> int:
    from ..training.engines.launch import tell_launcher

    if debug:
        traceback.print_exc()
    if tell_launcher(sentence):
        return code
    rank = f" (rank {os.environ.get('RANK')})" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    print(f"anyformer{rank}: {sentence}", file=sys.stderr)
    return code


def _with_plugins(error: Exception, argv: Sequence[str]) -> str:
    """The sentence for a name that only a plug-in has, where one of a run that the command names is not loaded.

    Such an error is an UnknownName, a KeyError, or comes from a config that refuses a name; "": the error is another.
    """
    if not isinstance(error, UnknownName | KeyError) and not isinstance(error.__cause__, ValueError):
        return ""
    for word in argv:
        place = Path(word.rpartition("=")[2]).expanduser()
        for folder in (place, place.parent):
            if lacking := lacking_plugins(folder):
                sentence = re.split(r"; (?:did you mean|known:) ", str(error))[0]
                sentence += " is not known" * isinstance(error, KeyError)
                return f"{sentence}; {folder} was made with plug-ins that are not loaded: add {lacking}"
    return ""


def _outside_sentence(error: Exception) -> str | None:
    """The sentence for a fault outside of the program that nobody has turned into a UserError; None for a bug."""
    from ..storage.atomic import has_no_space

    if has_no_space(error):
        place = f"{error.filename}: " if getattr(error, "filename", None) else ""
        full = "the disk is full, or a quota or limit of file sizes (ulimit -f) is reached"
        return f"{place}{full}; nothing that is half written was kept; free some space and run the same again"
    if "EADDRINUSE" in str(error):
        return f"MASTER_PORT={os.environ.get('MASTER_PORT')} is in use by another program; set a free port"
    if isinstance(error, SafetensorError | json.JSONDecodeError):
        return f"a file of the model is damaged ({first_line(error)}); put a good copy in its place"
    return None


def _os_error_sentence(error: OSError) -> str:
    if error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())[:500] or type(error).__name__

"""Silences transformers' log where our own messages say the same in one sentence."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_only() -> Iterator[None]:
    """In the block transformers logs only errors: no tables of missing weights, no hints about packages."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


@contextmanager
def silent() -> Iterator[None]:
    """In the block transformers logs only errors and draws no progress bars."""
    from transformers.utils import logging

    drew = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with errors_only():
            yield
    finally:
        if drew:
            logging.enable_progress_bar()


@contextmanager
def without_messages(*beginnings: str) -> Iterator[None]:
    """In the block transformers' log leaves out messages with these beginnings."""

    def says_something_else(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(beginnings)

    handlers = logging.getLogger("transformers").handlers
    for handler in handlers:
        handler.addFilter(says_something_else)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(says_something_else)


@contextmanager
def unsaid() -> Iterator[None]:
    """In the block no library logs or warns of anything less than an error."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)

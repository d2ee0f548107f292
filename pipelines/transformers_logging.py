"""transformers' own log, where our messages say the same in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_only() -> Iterator[None]:
    """In the block transformers logs errors alone: no tables of missing weights, no hints about packages."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)

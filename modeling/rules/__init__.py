"""Rules about configs: what is refused, and the sentence a user reads. Standard library only.

Importing anyformer.modeling installs them, and each config that is built is then checked. This folder is not saved with
models: a model that is loaded by the code in its folder is built as it was saved.

The files import those of models by two dots, which no file that is saved with a model may do.

legality.py has the rules, parts.py those of a layer's parts, bounds.py those of numbers, kinds.py what they read
beside traits.py, names.py unknown fields, serving.py what engines compute.
"""

from ..traits import RULES
from . import kinds  # noqa: F401 - completes the rows of traits.py
from .legality import check_legal


def check_names(config, names) -> None:
    """Call names.check_names, which is imported late: recipes are checked without it."""
    from .names import check_names as check

    check(config, names)


def explain_unserved(config, pages: bool) -> str | None:
    """Call serving.explain_unserved, which is imported late: recipes are checked without it."""
    from .serving import explain_unserved as explain

    return explain(config, pages)


RULES.update(check_legal=check_legal, check_names=check_names, explain_unserved=explain_unserved)

"""A config is loaded from its file with every field, and a field that it does not have is refused."""

import tempfile
from collections.abc import Iterator

from ..findings import Finding, Verdict, of_fact
from ..subject import Subject

MUST_RUN = True


def ask(subject: Subject) -> Iterator[Finding]:
    config = subject.fresh().config
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        again = type(config).from_pretrained(folder)
    before, after = fields_of(config), fields_of(again)
    other = [key for key in sorted(before.keys() - {"_name_or_path"}) if key not in after or before[key] != after[key]]
    yield of_fact("every field comes back", not other, why=", ".join(f"{key}={before[key]!r}" for key in other[:3]))
    what = "a misspelt field is refused"
    try:
        type(config)(hiden_size=3)
    except (TypeError, ValueError):
        yield of_fact(what, True)
    else:
        why = "PreTrainedConfig keeps fields that it does not know as attributes"
        yield Finding(what, Verdict.NOT_CLAIMED, why=why, way_out="compare names with the class's documentation")


def fields_of(config) -> dict:
    """Every field, including those that the class's to_dict leaves out."""
    left_out = vars(config).keys() - config.to_dict().keys()
    return config.to_dict() | {name: getattr(config, name) for name in left_out if not name.startswith("_")}

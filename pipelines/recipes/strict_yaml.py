"""Strict YAML: duplicate keys are errors, `1e-4` is a number, every mistake is one sentence with file and line."""

import re
from collections.abc import Hashable
from typing import Any

import yaml

from ..errors import UserError

# YAML 1.1, which PyYAML reads, wants a dot and a signed exponent in a float and takes `1e-4` for text. This is
# YAML 1.2's rule (core schema, section 10.3.2).
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan")
MOST_CHARACTERS = 2**22  # of a settings file, with its aliases expanded
FLOAT_TAG, DATE_TAG = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"


class StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and endless aliases; reads floats as YAML 1.2 does, and dates as text."""

    def construct_document(self, node):
        if _characters(node, {}) > MOST_CHARACTERS:
            problem = f"its aliases stand for more than {MOST_CHARACTERS:,} characters"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_document(node)

    def construct_scalar(self, node):
        """JSON, which is YAML too, writes characters such as emoji as two escapes: they become one character again."""
        value = super().construct_scalar(node)
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    def construct_mapping(self, node, deep=False):
        seen = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice, first in line {seen[key]}", key_node.start_mark
                )
            if isinstance(key, Hashable):  # SafeLoader refuses keys that are not hashable
                seen[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep=deep)


def _characters(node, counted: dict[int, int | None]) -> int:
    """The approximate length of a node, aliases expanded. counted: lengths by id of node; None: an enclosing node."""
    if counted.get(id(node), 0) is None:
        raise yaml.constructor.ConstructorError(None, None, "an alias stands for what it is in", node.start_mark)
    if id(node) not in counted:
        counted[id(node)] = None
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        inner = [part for pair in parts for part in (pair if isinstance(pair, tuple) else [pair])]
        length = 0 if inner or isinstance(node, yaml.CollectionNode) else len(node.value)
        counted[id(node)] = 1 + length + sum(_characters(part, counted) for part in inner)
    return counted[id(node)]


class StrictDumper(yaml.SafeDumper):
    """SafeDumper whose quoting follows StrictLoader, so that what it writes is read back equal."""

    def ignore_aliases(self, data):
        return True

    def represent_str(self, data):
        # PyYAML escapes Unicode's line breaks in double quotes only; elsewhere it folds them into spaces.
        style = '"' if any(c in data for c in "\x85\u2028\u2029\ufeff") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


StrictDumper.add_representer(str, StrictDumper.represent_str)


def _resolvers(inherited: dict) -> dict:
    resolvers = {
        first: [(tag, pattern) for tag, pattern in rows if tag not in (FLOAT_TAG, DATE_TAG)]
        for first, rows in inherited.items()
    }
    for first in "-+.0123456789":
        # In front, because floats must be tried before the integer patterns.
        resolvers[first] = [(FLOAT_TAG, re.compile(rf"(?:{FLOAT.pattern})\Z")), *resolvers.get(first, [])]
    return resolvers


StrictLoader.yaml_implicit_resolvers = _resolvers(yaml.SafeLoader.yaml_implicit_resolvers)
StrictDumper.yaml_implicit_resolvers = _resolvers(yaml.SafeDumper.yaml_implicit_resolvers)


def parse_yaml(text: str, origin: str) -> Any:
    """Return the one document in `text`. `origin` names it in errors.

    Raises UserError: `ORIGIN:LINE: ...` for anything that is not valid YAML.
    """
    try:
        return yaml.load(text, Loader=StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        near = f"{error.context} {problem}"
        hint = "; text that begins with * or & needs quotes" if "alias" in near or "anchor" in near else ""
        raise UserError(f"{origin}:{mark.line + 1}: {problem}{hint}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{origin}: {' '.join(str(error).split())}") from None
    except (ValueError, RecursionError) as error:  # an impossible number such as 0o9, or brackets nested too deeply
        raise UserError(f"{origin}: not readable as YAML ({error})") from None


def format_yaml(data: Any) -> str:
    """Return `data` (mappings, lists and scalars) as YAML that `parse_yaml` reads back equal; keys keep their order."""
    return yaml.dump(data, Dumper=StrictDumper, sort_keys=False, allow_unicode=True, width=100)

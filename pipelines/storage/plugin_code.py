"""The code of position schemes and kinds of attention that plug-ins have added, saved with a model that uses them.

A folder's `auto_map` then names a file that imports the plug-in, which registers its parts, then the family's module.
"""

import ast
import json
import sys
from pathlib import Path

from anyformer.modeling.base import PLUGIN_CODE
from anyformer.modeling.traits import parts_of

from anyformer import modeling

from ..errors import UserError
from ..manifest import read_json
from .atomic import write_atomically


def plugin_code(config) -> dict[str, str]:
    """{name of a file: source} of the plug-ins whose scheme or kind of attention a config names.

    Raises UserError for a plug-in that imports other parts of anyformer than modeling, which are not saved.
    """
    if not hasattr(config, "attention_kinds"):  # a config of another library
        return {}
    modules = {part.given.__module__ for part in parts_of(config) if part.given is not None}
    plugins = [sys.modules[name] for name in sorted(modules)]
    files = [Path(module.__file__) for module in plugins if getattr(module, "__file__", None)]
    return {file.name: _with_siblings(file) for file in files}


def _with_siblings(file: Path) -> str:
    """The source of a plug-in as saved beside the files of modeling/, from which it then imports with one dot."""
    source = file.read_text(encoding="utf-8")
    lines = source.removesuffix("\n").split("\n")  # as ast counts them: a form feed ends none
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in sorted(imports, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        names = [alias.name for alias in node.names]
        module = getattr(node, "module", None) or ""
        if module == "anyformer.modeling" and set(names) <= modeling._EXPORTS.keys():
            rows = [f"from .{modeling._EXPORTS[alias.name]} import {ast.unparse(alias)}" for alias in node.names]
        elif module.startswith("anyformer.modeling."):
            rows = [
                f"from .{module.removeprefix('anyformer.modeling.')} import {', '.join(map(ast.unparse, node.names))}"
            ]
        elif any(name.partition(".")[0] == "anyformer" for name in (module, *names)):
            raise UserError(
                f"{file}: line {node.lineno} imports what is not saved with a model; keep position schemes and kinds "
                f"of attention in a file of their own, which imports from anyformer.modeling alone"
            )
        else:
            continue
        before = lines[node.lineno - 1].encode()[: node.col_offset].decode()
        after = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
        blank = [""] * (node.end_lineno - node.lineno)
        lines[node.lineno - 1 : node.end_lineno] = [before + "; ".join(rows) + after, *blank]
    return "\n".join(lines) + "\n"


def save_plugin_code(folder: Path, config) -> None:
    """Write the plug-ins' code of a model into the folder in which it has just been saved."""
    code = plugin_code(config)
    if not code:
        return
    saved = read_json(folder / "config.json")
    references = {auto: name.split(".") for auto, name in saved["auto_map"].items()}
    family = references["AutoModel"][0]
    imports = [f"from .{Path(name).stem} import *" for name in code]
    imports += [f"from .{family} import {name}" for _, name in references.values()]
    for name, source in code.items():
        write_atomically(folder / name, source)
    write_atomically(folder / f"{PLUGIN_CODE}.py", "\n".join(imports) + "\n")
    saved["auto_map"] = {auto: f"{PLUGIN_CODE}.{name}" for auto, (_, name) in references.items()}
    write_atomically(folder / "config.json", json.dumps(saved, indent=2, sort_keys=True) + "\n")

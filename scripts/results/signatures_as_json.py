"""Signatures of the standard library's functions and the same as JSON: the data of configs/recipes/smollm2_tuned.yaml.

usage: python scripts/results/signatures_as_json.py [FOLDER]        FOLDER: data/signatures unless given
Those of a module are all in one file: train.jsonl, validation.jsonl or test.jsonl; none is in two.
"""

import ast
import json
import sys
import sysconfig
import zlib
from pathlib import Path

TASK = (
    'Write this Python signature as JSON with three keys: "name", a text; "required", the list of the arguments '
    'without a default; "optional", an object of the other arguments and their defaults as texts. '
    "Answer with the JSON alone."
)
ROWS = {"test": 150, "validation": 40, "train": 360}
LONGEST = 100  # characters of a signature
OTHERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"}


def row(function: ast.FunctionDef) -> dict[str, str] | None:
    """An instruction and its answer; None for a signature that is private, long or has no arguments."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    signature = f"def {function.name}({ast.unparse(arguments)})"
    plain = not (arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg)
    if not names or not plain or len(signature) > LONGEST or function.name.startswith("_"):
        return None
    first = len(names) - len(arguments.defaults)
    optional = dict(zip(names[first:], map(ast.unparse, arguments.defaults)))
    answer = {"name": function.name, "required": names[:first], "optional": optional}
    return {"instruction": TASK, "input": signature, "output": json.dumps(answer)}


def main(folder: Path) -> None:
    rows, seen = {split: [] for split in ROWS}, set()
    library = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(library.rglob("*.py")):
        if OTHERS & {*file.parts}:
            continue
        split = ("test", "validation", *["train"] * 4)[zlib.crc32(file.relative_to(library).as_posix().encode()) % 6]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            made = row(node) if isinstance(node, ast.FunctionDef) else None
            if made is not None and made["input"] not in seen:
                seen.add(made["input"])
                rows[split].append(made)
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in ROWS.items():
        chosen = sorted(rows[split], key=lambda one: zlib.crc32(one["input"].encode()))[:number]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in chosen), encoding="utf-8")
        print(f"{folder / split}.jsonl: {len(chosen)} of {len(rows[split])} signatures")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data/signatures"))

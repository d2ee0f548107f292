"""The metrics of a run on disk: a line of JSON for everything that was logged."""

import json
from pathlib import Path

METRICS_FILE, ROUTER_FILE, GRADIENTS_FILE = "metrics.jsonl", "router.jsonl", "gradients.jsonl"


def read_metrics(path: Path) -> tuple[list[dict], int]:
    """(the entries of a metrics.jsonl, how many lines were damaged); an incomplete last line is not counted."""
    entries, damaged = [], 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
                raise ValueError("no entry of ours")
        except (ValueError, RecursionError):
            damaged += line.endswith(b"\n")  # a killed run may leave half a line
            continue
        if line.endswith(b"\n"):
            entries.append(entry)
    return entries, damaged

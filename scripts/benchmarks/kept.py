"""What was measured, kept: measured.json has every figure and its machine, RESULTS.md a table of those with a goal."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import method
from anyformer.pipelines.storage.atomic import write_atomically

FILE = Path(__file__).with_name("measured.json")
RESULTS = Path(__file__).with_name("RESULTS.md")
COLUMNS = ("case", "sizes", "ratio to", "ratio (90 % interval)", "goal", "verdict")
TABLE = re.compile(rf"^{re.escape(method.line(*COLUMNS))}\n(?:\|.*\n)*(?:\nMeasured: .*\n)?", re.MULTILINE)


def keep(case: str, figures: list[method.Figure], machine: dict[str, str]) -> None:
    """Put a case's figures in place of its last ones, and write the table of RESULTS.md anew."""
    measured = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    measured[case] = machine | {"figures": [asdict(figure) for figure in figures]}
    write_atomically(FILE, json.dumps(measured, indent=1, ensure_ascii=False) + "\n")
    write_atomically(RESULTS, TABLE.sub(lambda _: table(measured), RESULTS.read_text(encoding="utf-8")))


def table(measured: dict[str, dict]) -> str:
    """The figures that have a goal, and when each case was measured."""
    lines, dates = [method.line(*COLUMNS), f"|{'---|' * len(COLUMNS)}"], []
    for case, facts in measured.items():
        dates.append(f"{case} {facts['time'].split()[0]} {facts['commit']}")
        for figure in (method.Figure(**each) for each in facts["figures"]):
            if figure.goal != "-" and figure.variant != method.GUARD:
                variant = "" if figure.variant == "ours" else f" {figure.variant}"
                cells = (case + variant, figure.what, figure.peer, figure.words, figure.goal, figure.verdict)
                lines.append(method.line(*cells))
    return "\n".join([*lines, "", f"Measured: {'; '.join(dates)}."]) + "\n"

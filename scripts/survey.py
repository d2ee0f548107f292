"""Ask the laws of `anyformer check` of every class of the installed transformers that has a causal, masked, seq2seq or
image head, on a tiny twin of its default config; one process for each class, with a time limit.

    python scripts/survey.py OUT                     # a JSON file for each class; what stands there is not asked again
    python scripts/survey.py OUT --laws packing --again
    python scripts/survey.py OUT --page docs/survey.html
"""

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from anyformer.pipelines.checks.laws import LAWS, laws_named

AT_ONCE, LIMIT = 2, 240  # processes, and seconds for each


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", help="classes, such as causal:opt,image:vit (default: all)")
    parser.add_argument("--laws", help="laws to ask, such as packing,cache (default: all)")
    parser.add_argument("--again", action="store_true", help="ask also what OUT holds already")
    parser.add_argument("--page", type=Path, help="write the page of what OUT holds, and ask nothing")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.page is None:
        names = args.only.split(",") if args.only else all_classes()
        survey(args.out, names, laws_named(args.laws.split(",") if args.laws else None), args.again)
    else:
        write_page(args.out, args.page)
    print(summary(args.out))
    return 0


def all_classes() -> list[str]:
    """kind:type of every class, without types that are older names of other types."""
    from anyformer.pipelines.twin import KINDS, classes
    from transformers import CONFIG_MAPPING

    return [f"{kind}:{name}" for kind in KINDS for name in classes(kind) if name in CONFIG_MAPPING]


def survey(out: Path, names: list[str], laws: list[str], again: bool) -> None:
    """Ask the laws of the classes, AT_ONCE at a time, each in a fork of this process, which has imported everything."""
    import torch

    torch.set_num_threads(1)
    asked("causal:llama", [name for name in LAWS if name != "compiled"])  # imports what the children need
    missing = {name: laws if again else missing_of(out, name, laws) for name in names}
    waiting = [name for name in names if missing[name]]
    running: dict[int, tuple[str, float]] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            name = waiting.pop(0)
            running[ask_in_child(out, name, missing[name])] = (name, time.monotonic())
        end_those_over_time(out, running, laws)
        time.sleep(0.05)


def missing_of(out: Path, name: str, laws: list[str]) -> list[str]:
    """The laws that a class has not been asked yet; [] for a class that could not be asked."""
    facts = json.loads(file_of(out, name).read_text()) if file_of(out, name).exists() else {"laws": {}}
    return [law for law in laws if "laws" in facts and law not in facts["laws"]]


def ask_in_child(out: Path, name: str, laws: list[str]) -> int:
    """Fork a process that writes the file of a class; return its id."""
    child = os.fork()
    if child:
        return child
    os.setpgrp()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        facts, file = asked(name, laws), file_of(out, name)
        if "laws" in facts and file.exists():
            known = json.loads(file.read_text()).get("laws", {}) | facts["laws"]
            facts["laws"] = {law: known[law] for law in LAWS if law in known}
        write(out, name, facts)
    finally:
        os._exit(0)


def asked(name: str, laws: list[str]) -> dict:
    """The report of a class as plain values, or {"name", "error"} if it cannot be asked."""
    import torch
    from anyformer.pipelines.checks.check_report import report_of
    from anyformer.pipelines.checks.made import subject_of_type
    from anyformer.pipelines.twin_rows import NOT_ASKED

    torch.set_num_threads(1)
    kind, model_type = name.split(":")
    if (kind, model_type) in NOT_ASKED:
        return {"name": name, "error": NOT_ASKED[kind, model_type]}
    try:
        return report_of(subject_of_type(model_type, kind), name, laws).to_dict()
    except Exception as error:  # anything may happen in an unknown class
        return {"name": name, "error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}


def end_those_over_time(out: Path, running: dict[int, tuple[str, float]], laws: list[str]) -> None:
    for child, (name, began) in list(running.items()):
        ended, _ = os.waitpid(child, os.WNOHANG)
        if not ended and time.monotonic() - began > LIMIT:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            ended = child
        if ended:
            del running[child]
            write_what_had_no_end(out, name, laws)
            print(f"{name}: {time.monotonic() - began:.0f} s, {line_of(json.loads(file_of(out, name).read_text()))}")


def write_what_had_no_end(out: Path, name: str, laws: list[str]) -> None:
    """Record for a class whose process was killed that its missing laws were not asked, and must not be tried again."""
    why = f"no end within {LIMIT} seconds, or its process was killed"
    if not file_of(out, name).exists():
        write(out, name, {"name": name, "error": why})
    elif missing := missing_of(out, name, laws):
        facts = json.loads(file_of(out, name).read_text())
        finding = {"what": "", "verdict": "not asked", "difference": None, "tolerance": None, "why": why}
        finding |= {"way_out": "", "reproducer": ""}
        for law in missing:
            facts["laws"][law] = {"promise": LAWS[law], "verdict": "not asked", "seconds": LIMIT, "findings": [finding]}
        write(out, name, facts)


def file_of(out: Path, name: str) -> Path:
    return out / f"{name.replace(':', '-')}.json"


def write(out: Path, name: str, facts: dict) -> None:
    from anyformer.pipelines.storage.atomic import write_atomically
    from anyformer.pipelines.storage.json_text import json_text

    write_atomically(file_of(out, name), json_text(facts))


def line_of(facts: dict) -> str:
    if "error" in facts:
        return facts["error"]
    verdicts = Counter(answer["verdict"] for answer in facts["laws"].values())
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())


def read(out: Path) -> list[dict]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(out.glob("*.json"))]


def summary(out: Path) -> str:
    """Counts by law, as a Markdown table."""
    classes = read(out)
    reports = [facts for facts in classes if "laws" in facts]
    lines = [f"{len(reports)} of {len(classes)} classes asked", "", "| law | holds | fails | not claimed | not asked |"]
    lines += ["|---|---|---|---|---|"]
    for law in reports[0]["laws"] if reports else ():
        verdicts = Counter(facts["laws"][law]["verdict"] for facts in reports if law in facts["laws"])
        numbers = [str(verdicts[verdict]) for verdict in ("holds", "fails", "not claimed", "not asked")]
        lines.append(f"| {law} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def write_page(out: Path, page: Path) -> None:
    """The page of all classes, failing laws first."""
    from anyformer.pipelines.checks.checks_page import page_of
    from anyformer.pipelines.storage.atomic import write_atomically

    classes = read(out)
    unasked = {facts["name"]: facts["error"] for facts in classes if "error" in facts}
    reports = [facts for facts in classes if "laws" in facts]
    write_atomically(page, page_of(reports, "What the classes of transformers keep", unasked))


if __name__ == "__main__":
    sys.exit(main())

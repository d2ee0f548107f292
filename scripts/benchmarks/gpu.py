"""All that needs a GPU, in one command: checks, then speed; tables in Markdown and rows in JSON.

Each part is a process of its own with its own time limit, so that a crash or a hang costs a row and not the run. Rows
are written as they are measured; those before a crash are kept. Parts stand in the order of their value: what does not
fit before the end is listed as not run. Nothing is installed: the repository's own folders are made importable. This
file imports the standard library only.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOGETHER = 4  # checks that share a GPU at a time; they mostly wait for imports, compilers and the CPU's reference
SHORTEST = 15  # seconds: with less time left no part is started
IMPORTS = 120  # seconds; on a machine that was just started every file comes from the disk
ON_CPU = 10  # times the limits on a GPU


@dataclass(frozen=True)
class Part:
    """A function of gpu_checks.py, gpu_checks_runtime.py or gpu_speed.py.

    limit: seconds on a GPU, from its start. alone: it is timed, and nothing else may run.
    """

    name: str
    limit: float
    alone: bool = False


PARTS = (
    Part("backends", 150),
    Part("steps", 150),
    Part("packed", 120),
    Part("golden", 120),
    Part("generation", 150),
    Part("compiled", 180),
    Part("syncs", 120),
    Part("sharded", 120),
    Part("decoder_350m", 90, alone=True),
    Part("decoder_1b", 100, alone=True),
    Part("moe", 80, alone=True),
    Part("bert", 60, alone=True),
    Part("vit", 60, alone=True),
    Part("cross_entropy", 45, alone=True),
    Part("sliding", 60, alone=True),
    Part("generate", 90, alone=True),
    Part("whole_graph", 120, alone=True),
)


@dataclass
class Job:
    """The process of a part: started early, so that its imports are done when it is told to go."""

    part: Part
    folder: Path
    process: subprocess.Popen = field(init=False)
    ends: float = float("inf")

    def start(self, command: list[str], env: dict) -> None:
        with open(self.folder / f"{self.part.name}.log", "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )

    def go(self, limit: float, imports: float) -> None:
        self.limit, self.ends = limit, time.monotonic() + imports + limit
        with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code says why
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()

    def is_over(self, now: float) -> bool:
        """Whether it has ended, or should have. Its time begins with its first row, which says that it has begun."""
        if not self.has_begun and self.path.exists():
            self.has_begun, self.ends = True, min(self.ends, now + self.limit)
        return self.process.poll() is not None or now >= self.ends

    def stop(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def rows(self) -> list[dict]:
        """What it has measured, and a row for how it ended, unless that was well."""
        rows, name = read_rows(self.path), self.part.name
        code = self.process.returncode
        if self.overdue:
            rows.append(row(name, "the part", "failed", f"no end within {self.limit:.0f} s"))
        elif code:
            rows.append(row(name, "the part", "failed", f"exit code {code}: {last_line(self.log())}"))
        elif all("header" in each for each in rows):
            rows.append(row(name, "the part", "failed", "no rows"))
        return rows

    def log(self) -> str:
        return (self.folder / f"{self.part.name}.log").read_text(errors="replace")

    @property
    def path(self) -> Path:
        return self.folder / f"{self.part.name}.jsonl"

    has_begun = overdue = False


def row(part: str, what: str, result: str, detail: str = "") -> dict:
    return {"part": part, "what": what, "result": result, "detail": detail}


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


def read_rows(path: Path) -> list[dict]:
    """Rows of a file of JSON lines; the last one may have been cut off."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            rows.append(row(path.stem, "a row", "failed", "cut off"))
    return rows


def run(parts, command_of, ends, finished, together=1, patience=1.0, imports=0.0, env=None) -> None:
    """Run `parts` in order, calling `finished(part, rows, log)` after each.

    Args:
        command_of: part, path of its rows -> command. The process waits for a line on its standard input.
        ends: when all must have ended, on the monotonic clock. together: parts that are not `alone` at a time.
        patience: factor of the limits. imports: seconds that a process may take before its first row.
    """
    waiting, running, ready = list(parts), [], None
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        try:
            while waiting or running:
                now = time.monotonic()
                for job in list(running):
                    if not job.is_over(now):
                        continue
                    job.overdue = job.process.poll() is None
                    job.stop()
                    running.remove(job)
                    finished(job.part, job.rows(), job.log())
                if waiting and ready is None and ends - now > SHORTEST:
                    ready = Job(waiting[0], folder)
                    ready.start(command_of(waiting[0], ready.path), env)
                if waiting and ends - now <= SHORTEST:
                    for part in waiting:
                        finished(part, [row(part.name, "the part", "not run", "out of time")], "")
                    waiting = []
                elif waiting and has_room(waiting[0], running, together):
                    running.append(ready)
                    ready.go(min(waiting.pop(0).limit * patience, ends - now), imports)
                    ready.ends = min(ready.ends, ends)
                    ready = None
                time.sleep(0.05)
        finally:
            for job in [*running, *([ready] if ready else [])]:
                job.stop()


def has_room(part: Part, running: list[Job], together: int) -> bool:
    if not running:
        return True
    return not part.alone and not any(job.part.alone for job in running) and len(running) < together


# ------------------------------------------------------------------------------------------------------- the result

# (part, arm, its peer or None, number, goal): the number itself, or its quotient by the peer's. Of several arms whose
# names begin so the best counts.
GOALS = (
    ("decoder_350m", "ours compiled", None, "mfu_palm", 0.45),
    ("decoder_1b", "ours compiled", None, "mfu_palm", 0.52),
    ("decoder_350m", "ours compiled", "native compiled", "ratio", 1.2),
    ("decoder_1b", "ours compiled", "native compiled", "ratio", 1.2),
    ("sliding", "window,", "full attention", "ratio", 4.0),
)
SPEED = ("ms", "per_second", "ratio", "mfu_palm", "mfu_causal", "peak_gib", "syncs")
HEADS = ("ms", "per second", "x reference", "MFU (PaLM)", "MFU (causal)", "peak GiB", "host syncs")


def written(name: str, value) -> str:
    """A number of the speed table."""
    if value is None:
        return "-"
    if name.startswith("mfu"):
        return f"{value:.1%}"
    return {"ms": "{:.2f}", "per_second": "{:,.0f}", "ratio": "{:.3f}", "syncs": "{:d}"}.get(name, "{:.2f}").format(
        value
    )


def goals(rows: list[dict]) -> list[str]:
    """Lines of a table: goal, figure, verdict. The last goal: in a decoder's step the host never waits for the GPU."""

    def best(part: str, arm: str, name: str):
        found = [row.get(name) for row in rows if row["part"] == part and row.get("arm", "").startswith(arm)]
        return max((value for value in found if value is not None), default=None)

    lines = ["| goal | measured | verdict |", "|---|---|---|"]
    for part, arm, peer, name, goal in GOALS:
        figure, of = best(part, arm, name), 1.0 if peer is None else best(part, peer, name)
        figure = None if figure is None or of is None else figure / of
        verdict = "not measured" if figure is None else "met" if figure >= goal else "missed"
        what = f"{part}: {arm.rstrip(',')}, {name}{f' of {peer}' if peer else ''} >= {goal:g}"
        lines.append(f"| {what} | {'-' if figure is None else f'{figure:.3f}'} | {verdict} |")
    ours = [row for row in rows if row["part"].startswith("decoder") and row.get("arm", "").startswith("ours")]
    waits = [row["syncs"] for row in ours if row.get("syncs") is not None]
    verdict = "not measured" if not waits else "met" if not any(waits) else "missed"
    return [*lines, f"| decoders: ours, host syncs in a step = 0 | {max(waits) if waits else '-'} | {verdict} |"]


def tables(rows: list[dict], header: str) -> str:
    """The rows as Markdown: checks and failures, then speed and its goals."""
    lines = [f"```\n{header}\n```", "", "| part | what | result | detail |", "|---|---|---|---|"]
    cell = lambda text: str(text).replace("|", "\\|").replace("\n", " ")  # noqa: E731
    for each in rows:
        if "arm" not in each and "header" not in each:
            lines.append("| " + " | ".join(cell(each[name]) for name in ("part", "what", "result", "detail")) + " |")
    speed = [each for each in rows if "arm" in each]
    if speed:
        lines += ["", f"| what | arm | {' | '.join(HEADS)} |", "|---" * (len(HEADS) + 2) + "|"]
        for each in speed:
            cells = [each["what"], each["arm"], *(written(name, each.get(name)) for name in SPEED)]
            lines.append(f"| {' | '.join(cell(x) for x in cells)} |")
        lines += ["", *goals(rows)]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Complete or not at all."""
    temporary = path.with_suffix(".part")
    temporary.write_text(text)
    temporary.replace(path)


def importable(folder: Path) -> str:
    """A PYTHONPATH under which the package is that of this repository, as pyproject's package-dir lays it out."""
    package = folder / "anyformer"
    package.mkdir()
    for file in (ROOT / "anyformer").glob("*.py"):
        (package / file.name).symlink_to(file)
    for name in ("modeling", "pipelines", "configs"):
        (package / name).symlink_to(ROOT / name)
    return os.pathsep.join([str(folder), str(HERE), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])


def main(argv=None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("output", type=Path, help="folder of the results")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--tiny", action="store_true", help="sizes for a test of this command")
    p.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], metavar="PART", help="these parts alone")
    p.add_argument("--seconds", type=float, default=520, help="what has not begun by then is not run")
    args = p.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    began, rows, headers, names = time.monotonic(), [], [], [part.name for part in PARTS]

    def finished(part, found, log):
        headers.extend(each["header"] for each in found if "header" in each)
        rows.extend(each for each in found if "header" not in each)
        rows.sort(key=lambda each: names.index(each["part"]))
        with open(args.output / "gpu.log", "a") as file:
            file.write(f"===== {part.name}\n{log}\n")
        write(args.output / "gpu.json", json.dumps({"header": headers[:1], "rows": rows}, indent=1))
        write(args.output / "gpu.md", tables(rows, headers[0] if headers else "no part has begun"))
        print(f"{time.monotonic() - began:5.0f} s  {part.name}: {summary(found)}", flush=True)

    (args.output / "gpu.log").unlink(missing_ok=True)
    parts = [part for part in PARTS if not args.only or part.name in args.only]
    with tempfile.TemporaryDirectory() as links:
        env = os.environ | {"PYTHONPATH": importable(Path(links)), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}

        def command_of(part, path):
            command = [sys.executable, str(HERE / "gpu_part.py"), part.name, str(path), "--device", args.device]
            return [*command, "--tiny"] if args.tiny else command

        on_gpu = args.device == "cuda"
        run(
            parts,
            command_of,
            began + args.seconds,
            finished,
            together=TOGETHER if on_gpu else 1,
            patience=1 if on_gpu else ON_CPU,
            imports=IMPORTS,
            env=env,
        )
    print((args.output / "gpu.md").read_text())
    return 1 if any(each.get("result") in ("failed", "not run") for each in rows) else 0


def summary(rows: list[dict]) -> str:
    counts = {}
    for each in rows:
        if "header" not in each:
            result = each.get("result", "measured")
            counts[result] = counts.get(result, 0) + 1
    return ", ".join(f"{count} {result}" for result, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())

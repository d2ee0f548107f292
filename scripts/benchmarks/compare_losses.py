"""Same results, simpler code: the losses of two commits, compared to the last digit.

Each commit is checked out into a temporary folder and trains the runs of tests/golden_runs.py in a process of its own,
in the current environment, on the CPU in fp32, through the command line alone: modules may have moved in between.
Compared are each step's loss, the metrics in run.json and the bytes of the saved weights. `.` stands for the working
tree with whatever is not committed yet. The exit code is 1 where anything differs.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
from golden_runs import FAMILIES, losses_of, recipe_of  # noqa: E402 - from the folder named above

# Trains the recipes named, and ends with an error if any module of anyformer came from elsewhere.
PROGRAM = """
import sys
from anyformer_main import main
code_folder, *recipes = sys.argv[1:]
codes = [main(["train", recipe]) for recipe in recipes]
modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0].startswith("anyformer")}
files = {name: getattr(module, "__file__", None) for name, module in modules.items()}
foreign = [name for name, file in files.items() if file and not file.startswith(code_folder)]
sys.exit(f"not from the commit: {foreign}" if foreign else max(codes))
"""


@dataclass(frozen=True)
class Result:
    """The results of one run."""

    losses: list[float]
    metrics: dict
    weights: str  # sha256

    @classmethod
    def of(cls, run: Path) -> "Result":
        metrics = json.loads((run / "run.json").read_text(encoding="utf-8"))["metrics"]
        weights = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
        return cls(losses_of(run), metrics, weights)


@contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """The files of a commit, in `folder`; the working tree itself for `.`."""
    if commit == ".":
        yield ROOT
        return
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def link_package(source: Path, folder: Path) -> None:
    """Lay out the package `anyformer` in `folder` as links into a checkout, as its pyproject.toml maps it."""
    package = folder / "anyformer"
    package.mkdir(parents=True)
    for file in (source / "anyformer").glob("*.py"):
        (package / file.name).symlink_to(file)
    (folder / "anyformer_main.py").symlink_to(source / "anyformer_main.py")
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
    for name, path in project["tool"]["setuptools"]["package-dir"].items():
        folder.joinpath(*name.split(".")).symlink_to(source / path)


def train(commit: str, folder: Path, families: list[str], steps: int) -> dict[str, Result]:
    """Train `families` with the code of `commit`; everything that is written lies in `folder`."""
    recipes, code = [], folder / "code"
    for family in families:
        home = folder / family
        home.mkdir(parents=True)
        recipes.append(home / "recipe.yaml")
        recipes[-1].write_text(yaml.safe_dump(recipe_of(family, home, steps)), encoding="utf-8")
    # One thread: the order in which sums are added up must not depend on what else the machine does.
    environment = {
        "PYTHONPATH": str(code),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "ANYFORMER_CACHE": str(folder / "cache"),
    }
    with checkout(commit, folder / "checkout") as source:
        link_package(source, code)
        command = [sys.executable, "-P", "-c", PROGRAM, str(code), *map(str, recipes)]
        done = subprocess.run(command, env=os.environ | environment, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(
            f"{commit} did not train (exit code {done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return {family: Result.of(folder / family / "run") for family in families}


def verdict(a: Result, b: Result) -> str:
    """`equal`, or what differs."""
    differing = [step for step, (x, y) in enumerate(zip(a.losses, b.losses, strict=True), start=1) if x != y]
    differences = [f"{len(differing)} losses, first at step {differing[0]}"] if differing else []
    differences += ["metrics"] if a.metrics != b.metrics else []
    differences += ["weights"] if a.weights != b.weights else []
    return "equal" if not differences else f"DIFFERENT: {'; '.join(differences)}"


def print_table(commits: list[str], results: list[dict[str, Result]]) -> bool:
    """Print the last losses of both sides with all their digits; return whether everything is equal."""
    print(f"| family | loss at {commits[0]} | loss at {commits[1]} | losses, metrics and weights |\n|---|---|---|---|")
    for family, a in results[0].items():
        b = results[1][family]
        print(f"| {family} | {a.losses[-1]!r} | {b.losses[-1]!r} | {verdict(a, b)} |")
    return all(verdict(a, results[1][family]) == "equal" for family, a in results[0].items())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs=2, metavar="COMMIT", help="two commits, or `.` for the working tree")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="compare-losses-") as folder:
        folder = Path(folder).resolve()
        results = [
            train(commit, folder / side, options.families, options.steps) for side, commit in zip("ab", options.commits)
        ]
    return 0 if print_table(options.commits, results) else 1


if __name__ == "__main__":
    sys.exit(main())

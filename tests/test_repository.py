"""Files of the repository that services read: they load, and what they run and name exists."""

import ast
import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from anyformer.pipelines.cli import commands as cli

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MOST_LINES = 60  # of a function, with its docstring
READ_AS_A_LIST = {("training/trainer.py", "__init__"): 80}  # of what is made one after another, without branches


def loaded(path: Path) -> dict:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # `on` stays a word


def steps(path: Path) -> list[dict]:
    return [step for job in loaded(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_commands_that_exist_with_extras_that_exist(path):
    workflow = loaded(path)
    assert {"push", "pull_request"} <= set(workflow["on"]) and workflow["permissions"] == {"contents": "read"}
    for step in steps(path):
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w.-]+@[\w./-]+", step["uses"])
            continue
        words = shlex.split(step["run"])
        assert words[0] in ("uv", "uvx", "ls"), step["run"]
        extras = [word for option, word in pairwise(words) if option == "--extra"]
        assert set(extras) <= set(PROJECT["project"]["optional-dependencies"])
        if "anyformer" in words:
            cli.parse(words[words.index("anyformer") + 1 :])


def test_a_test_cannot_see_what_the_user_has_trained_into_runs(tmp_path):
    assert Path.cwd() == tmp_path


def test_the_workflows_cover_every_python_and_the_oldest_versions_that_are_supported():
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    oldest = {name: re.search(rf'"{name}>=([\d.]+)', str(PROJECT["project"]["dependencies"]).replace("'", '"'))[1]
              for name in ("torch", "transformers")}  # fmt: skip
    for name, version in oldest.items():
        assert f'"{name}=={version}.*"' in text
    matrix = loaded(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["fast"]["strategy"]["matrix"]
    assert f">={matrix['python'][0]}" == PROJECT["project"]["requires-python"]


def packages_of(extras: set[str]) -> set[str]:
    """The packages that extras install, those of extras that they name included."""
    own = PROJECT["project"]["optional-dependencies"]
    found = set()
    for line in (line for extra in extras for line in own[extra]):
        name, _, inner = re.match(r"([\w-]+)(\[([\w,-]+)\])?", line).groups()
        found |= packages_of(set(inner.split(","))) if name == PROJECT["project"]["name"] else {name}
    return found


def test_no_test_is_skipped_in_all_jobs_for_want_of_an_extra():
    """What tests ask for by importorskip is installed in the slow job, which runs these tests, also the fast ones."""
    job = loaded(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["slow"]
    runs = [shlex.split(step["run"]) for step in job["steps"] if "run" in step]
    extras = {word for words in runs for option, word in pairwise(words) if option == "--extra"}
    there = packages_of({"dev", *extras}) | {re.split(r"\W", line)[0] for line in PROJECT["project"]["dependencies"]}
    asked = set()
    for path in (ROOT / "tests").rglob("*.py"):
        asked |= set(re.findall(r"importorskip\(\"(\w+)", path.read_text(encoding="utf-8")))
    asked -= {"parameterized"}  # beside transformers' sources, which the job does not have
    assert {name.replace("_", "-") for name in asked} <= there
    tests = [words for words in runs if "pytest" in words]
    assert any(words[-2:] == ["-m", "slow"] for words in tests)
    assert any({"tests/ecosystem", "tests/pipelines"} <= set(words) and "-m" not in words for words in tests)


@pytest.mark.parametrize("folder", ["anyformer", "modeling", "pipelines", "scripts"])
def test_a_function_is_read_on_one_screen(folder):
    long = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                name = path.relative_to(ROOT / folder).as_posix(), node.name
                if node.end_lineno - node.lineno >= READ_AS_A_LIST.get(name, MOST_LINES):
                    long.append(name)
    assert long == []

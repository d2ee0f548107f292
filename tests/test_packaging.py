"""What is installed is what is in the repository: packages, recipes, presets, launcher settings, the command."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from test_readme import SMALL_VOCABULARY, TINY

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("anyformer", "modeling", "pipelines", "configs")  # what the distribution is made of
DATA = (".typed", ".yaml", ".json", ".jinja", ".html", ".css", ".js")


def import_name(file: Path) -> str:
    """Where a file of the repository lies in the installed package, such as anyformer/modeling/decoder.py."""
    relative = file.relative_to(ROOT).as_posix()
    return relative if relative.startswith("anyformer/") else f"anyformer/{relative}"


def shipped_files() -> set[str]:
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*"))
    return {import_name(file) for file in files if file.suffix in (".py", *DATA) and "__pycache__" not in file.parts}


def test_every_folder_of_settings_is_a_package():
    # importlib.resources finds a folder of an editable install only if it is one.
    for folder in [ROOT / "configs", *(ROOT / "configs").iterdir()]:
        if folder.is_dir() and folder.name != "__pycache__":
            assert (folder / "__init__.py").is_file(), folder


def test_the_version_is_of_the_tag_and_known_to_the_installation():
    from packaging.version import Version

    import anyformer

    assert "version" in PROJECT["project"]["dynamic"] and PROJECT["tool"]["setuptools_scm"]["fallback_version"]
    assert Version(anyformer.__version__).release >= (0, 1)  # not the one that says that nothing is installed


SLOW_TO_IMPORT = {"hqq"}  # extras for those who ask for them by name


def test_extras_are_complete_and_refer_to_extras_that_exist():
    extras = PROJECT["project"]["optional-dependencies"]
    own = [text for requirements in extras.values() for text in requirements if text.startswith("anyformer[")]
    named = {name for text in own for name in text.removeprefix("anyformer[").removesuffix("]").split(",")}
    assert named <= set(extras)
    (everything,) = extras["all"]
    assert set(everything.removeprefix("anyformer[").removesuffix("]").split(",")) == set(extras) - {
        "all",
        *SLOW_TO_IMPORT,
    }
    for name in SLOW_TO_IMPORT:  # transformers imports it wherever it is installed
        assert not any(name in text for extra, needs in extras.items() if extra != name for text in needs)


# ------------------------------------------------------------------------------------------------- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built by way of the sdist from a copy of what a clone has: a build writes into its folder."""
    copy, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "anyformer_main.py"):
        shutil.copy(ROOT / name, copy / name)
    uv = shutil.which("uv")
    builder = [uv, "build", "--out-dir"] if uv else [sys.executable, "-m", "build", "--outdir"]
    done = subprocess.run([*builder, str(out), str(copy)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with the unpacked wheel, which is all that installing a pure wheel does to its packages."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


# Runs before the command: the editable install is found by an import hook, which must not answer here.
FROM_WHEEL = """
import sys
site = sys.argv.pop(1)
sys.meta_path[:] = [f for f in sys.meta_path if not getattr(f, "__module__", "").startswith("__editable__")
                    and not getattr(f, "__name__", "").startswith("_Editable")]
sys.path.insert(0, site)
import anyformer_main
code = anyformer_main.main(sys.argv[1:])
import anyformer
import anyformer.configs, anyformer.modeling, anyformer.pipelines
for module in (anyformer_main, anyformer, anyformer.modeling, anyformer.pipelines, anyformer.configs):
    assert module.__file__.startswith(site), module.__file__
sys.exit(code)
"""


@pytest.fixture
def command(installed, tmp_path):
    """Run the wheel's `anyformer ARGUMENTS` in an empty folder; return what it printed."""

    def run(*arguments: str) -> str:
        environment = os.environ | {"ANYFORMER_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        done = subprocess.run(
            # -P: the folder of the process is not searched for modules.
            [sys.executable, "-P", "-c", FROM_WHEEL, str(installed), *arguments],
            **{"env": environment, "cwd": tmp_path / "elsewhere", "capture_output": True, "text": True, "timeout": 300},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


@pytest.mark.slow
def test_the_wheel_holds_every_file_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
        (entry_points,) = [archive.read(name).decode() for name in names if name.endswith("/entry_points.txt")]
    assert {name for name in names if ".dist-info/" not in name} == {*shipped_files(), "anyformer_main.py"}
    assert any(name.endswith("LICENSE") for name in names)
    assert "anyformer = anyformer_main:main" in entry_points
    assert "License-Expression: Apache-2.0" in metadata and "# anyformer" in metadata


@pytest.mark.slow
def test_the_wheel_works_from_another_folder(command, tmp_path):
    from anyformer.pipelines.recipes.compose import load_recipe

    listed = command("list")
    for name in ("quickstart", "llama_1b", "causal"):
        assert name in listed
    assert command("train", "quickstart", "--print-recipe") == load_recipe("quickstart").to_yaml()
    assert "devices: 1 x cpu" in command("train", "quickstart", *TINY, SMALL_VOCABULARY)
    run = tmp_path / "elsewhere" / "runs" / "quickstart"
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    assert (run / "decoder.py").read_bytes() == (ROOT / "modeling" / "decoder.py").read_bytes()

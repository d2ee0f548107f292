"""The models' tests pass on the oldest transformers we accept and on the newest there is."""

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version

import pytest

LIMIT_S = 1700  # of all tests of the models, which other tests may have to share the machine with


def run(*command, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LIMIT_S, check=False, **options)


def oldest_accepted(repo_root) -> str:
    """The lower bound of pyproject.toml, as a requirement of exactly that release."""
    dependencies = tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]["dependencies"]
    (requirement,) = (d for d in dependencies if d.startswith("transformers"))
    return requirement.split(",")[0].replace(">=", "==") + ".*"


@pytest.fixture(params=["oldest", "newest"])
def other_transformers(request, repo_root, tmp_path):
    """Environment variables under which Python finds another transformers, and what it needs, before the installed one.

    torch and the rest stay those of this environment; transformers itself does not depend on them.
    """
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed; it fetches the other transformers")
    wanted = oldest_accepted(repo_root) if request.param == "oldest" else "transformers>=5,<6"
    target = tmp_path / "site-packages"
    install = run(uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", target, wanted)
    if install.returncode:
        pytest.skip(f"cannot install {wanted}: {install.stderr.strip().splitlines()[-1]}")
    env = os.environ | {"PYTHONPATH": str(target)}
    found = run(sys.executable, "-c", "import transformers; print(transformers.__version__)", env=env)
    assert found.returncode == 0, found.stderr
    if found.stdout.strip() == version("transformers"):
        pytest.skip(f"transformers {version('transformers')}, on which all tests run anyway, is the {request.param}")
    assert (request.param == "newest") or found.stdout.startswith(wanted.split("==")[1].removesuffix("*"))
    return env


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 100)
def test_the_models_pass_their_tests_on_another_transformers(other_transformers, repo_root):
    tests = run(
        *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/modeling"),
        cwd=repo_root,
        env=other_transformers,
    )
    assert tests.returncode == 0, tests.stdout[-6000:]

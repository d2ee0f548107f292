"""The commit of the code that a measurement is of."""

import shutil
import subprocess
from pathlib import Path

CODE = ("modeling", "pipelines", "configs")


def commit() -> str:
    """Its name, with "-dirty" where the code has been changed since; "unknown" outside of a git checkout."""
    git = ["git", "-C", str(Path(__file__).resolve().parents[1])]
    described = shutil.which("git") and subprocess.run([*git, "describe", "--always"], capture_output=True, text=True)
    if not described or described.returncode:
        return "unknown"
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *CODE], check=False).returncode
    return described.stdout.strip() + "-dirty" * changed

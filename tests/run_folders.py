"""What a run's folder holds."""

import json
from pathlib import Path

from anyformer.pipelines.storage.checkpoints import STAGING, commit
from safetensors.torch import load_file


def facts_of(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())


def lines_of(run: Path) -> list[dict]:
    """All whole lines of metrics.jsonl; none of a run that has not logged."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def saved_weights(run: Path, name="model.safetensors") -> dict:
    return load_file(run / name)


def assert_same(weights: dict, others: dict) -> None:
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        assert tensor.equal(others[name]), name


def assert_same_weights(run: Path, other: Path, name="model.safetensors") -> None:
    assert_same(saved_weights(run, name), saved_weights(other, name))


def make_checkpoint(folder: Path, step: int, files: dict[str, bytes] | None = None) -> Path:
    """A complete checkpoint of some files."""
    staged = folder / STAGING / f"checkpoint-{step}"
    for name, content in (files or {"model.safetensors": b"weights" * 9, "sub/rng.pth": b"state"}).items():
        (staged / name).parent.mkdir(parents=True, exist_ok=True)
        (staged / name).write_bytes(content)
    final = folder / f"checkpoint-{step}"
    commit(staged, final)
    return final


def read_audit(run: Path) -> list[dict]:
    """The rows that all processes of a run have trained (training.audit_samples), by step."""
    files = sorted((run / "samples").glob("*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted(lines, key=lambda line: line["step"])

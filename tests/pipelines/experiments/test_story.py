"""A story: each step begins from the one before, is planned before there is any, and is made once."""

import json
import re
from pathlib import Path

import pytest
import yaml
from anyformer.pipelines.cli import commands as cli
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.experiments.story import read_story
from anyformer.pipelines.recipes.recipe_files import is_file_of, shipped
from processes import Process

SMALL = [
    *("data.max_documents=30", "pretraining.tokenizer.vocab_size=400", "pretraining.model.num_hidden_layers=1"),
    *("pretraining.model.hidden_size=32", "pretraining.model.intermediate_size=64"),
    *("pretraining.model.num_attention_heads=2", "pretraining.model.num_key_value_heads=1"),
    *("training.per_device_train_batch_size=2", "training.save_steps=2", "training.bf16=false"),
    *("evaluation.every_steps=4", "evaluation.max_rows=2", "evaluation.sample_tokens=4"),
    *(f"{step}.training.max_steps=6" for step in ("pretraining", "instructions", "chat")),
]


@pytest.mark.parametrize("name", list(shipped("stories")))
def test_each_step_begins_from_the_folder_of_the_one_before(name):
    steps = read_story(name, ["training.output_dir=here", "chat.training.max_steps=7", "training.seed=3"]).members
    assert is_file_of(name, "stories", "steps") and not is_file_of("quickstart", "stories", "steps")
    assert read_story(name, ["training.output_dir=~/here"]).folder == Path.home() / "here"
    assert [str(step.folder) for step in steps] == ["here/pretraining", "here/instructions", "here/chat"]
    assert [step.recipe.model.name_or_path for step in steps] == [None, "here/pretraining", "here/instructions"]
    assert [step.recipe.training.seed for step in steps] == [3] * 3
    assert steps[-1].recipe.training.max_steps == 7 != steps[0].recipe.training.max_steps
    for step in steps:  # before anything is trained: the architecture and the tokenizer of the first
        assert step.planned.model == steps[0].recipe.model and step.planned.tokenizer == steps[0].recipe.tokenizer


@pytest.mark.parametrize(
    "steps, words, sentence",
    [
        ({}, [], "steps. is no name of a step"),
        ({"data": {}}, [], "steps.data is no name of a step"),
        ({"a/b": {}}, [], "steps.a/b is no name of a step"),
        ({"a": {"trainin": {}}}, [], "step a: trainin: no such section; did you mean training"),
        ({"a": {"model": {"preset": "gpt2"}}}, ["b.training.seed=1"], "'b' is neither a step of story mine nor"),
        ({"a": {"model": {"preset": "gpt2"}}}, ["a.training.sed=1"], "step a: training.sed: no such setting"),
    ],
)
def test_a_mistake_in_a_story_is_one_sentence(tmp_path, steps, words, sentence):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"steps": steps}))
    with pytest.raises(UserError, match=sentence):
        read_story(str(file), words)


def test_what_is_of_one_run_is_refused_for_a_story(command, capsys):
    assert command("train", "story", "--seeds", "2") == 2
    assert "--seeds is of one run, and story is a story" in capsys.readouterr().err
    assert command("preview", "story") == 2
    assert "a story of several recipes, which train and plan take" in capsys.readouterr().err


def test_a_story_is_planned_as_the_sum_of_its_steps(without_activations, command, capsys):
    assert command("plan", "story", *SMALL, "--devices", "H100-80GB", "--json") == 0
    out, printed = capsys.readouterr()
    found = json.loads(out)
    assert list(found["steps"]) == ["pretraining", "instructions", "chat"] and "pretraining" in printed
    plans = found["steps"].values()
    assert found["seconds"] == pytest.approx(sum(plan["seconds"] for plan in plans)) and found["seconds"] > 0
    assert len({plan["parameters"] for plan in plans}) == 1
    assert all(plan["steps"] == 6 and plan["steps_source"] == "training.max_steps" for plan in plans)


@pytest.mark.slow
def test_a_killed_story_goes_on_with_the_step_it_was_in_and_makes_none_twice(tmp_path, command, capsys, repo_root):
    words = ["train", "story", *SMALL, f"training.output_dir={tmp_path / 'story'}"]
    assert command(*words, "--dry-run") == 0 and not (tmp_path / "story").exists()
    process = Process(cli.main, words)
    process.wait_until(lambda: list((tmp_path / "story/instructions").glob("checkpoint-*")))
    process.kill()
    made = tmp_path / "story/pretraining/model.safetensors"
    before = made.stat().st_mtime_ns
    capsys.readouterr()
    assert command(*words) == 0
    printed = capsys.readouterr().out
    assert made.stat().st_mtime_ns == before and printed.count("finished before") == 1
    assert f"{tmp_path / 'story/instructions'}/checkpoint-" in printed
    page = (tmp_path / "story/report.html").read_text()
    assert all(f'href="{step}/report.html"' in page for step in ("pretraining", "instructions", "chat"))
    assert "asked: Hello!" in page
    (block,) = re.findall(r"^```python\n(.*?)^```", (repo_root / "docs/story.md").read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(block.replace("runs/story", str(tmp_path / "story")).replace("200", "2"), "story.md", "exec"), {})
    assert "right 0\nby chance 0" in capsys.readouterr().out  # six steps teach nothing
    assert command(*words) == 0 and capsys.readouterr().out.count("finished before") == 3
    assert command(*words, "pretraining.tokenizer.vocab_size=500") == 2
    assert "tokenizer.vocab_size" in capsys.readouterr().err

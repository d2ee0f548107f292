"""A story: each step begins from the one before, is planned before there is any, and is made once."""

import json
import os
import re
import signal
import time

import pytest
import yaml
from anyformer.pipelines.cli import commands as cli
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.experiments.story_file import is_story, read_story
from anyformer.pipelines.recipes.recipe_files import shipped
from processes import Process

SMALL = [
    *("data.max_documents=30", "vocabulary.tokenizer.vocab_size=400", "pretraining.model.num_hidden_layers=1"),
    *("pretraining.model.hidden_size=32", "pretraining.model.intermediate_size=64"),
    *("pretraining.model.num_attention_heads=2", "pretraining.model.num_key_value_heads=1"),
    *("training.per_device_train_batch_size=2", "training.save_steps=2", "training.bf16=false"),
    *("evaluation.every_steps=4", "evaluation.max_rows=2", "evaluation.sample_tokens=4"),
    *(f"{step}.training.max_steps=6" for step in ("pretraining", "instructions", "chat")),
]


@pytest.mark.parametrize("name", list(shipped("stories")))
def test_each_step_begins_from_the_folder_of_the_one_before(name):
    story = read_story(name, ["training.output_dir=here", "chat.training.max_steps=7", "training.seed=3"])
    vocabulary, *steps = story.steps
    assert is_story(name) and not is_story("quickstart") and vocabulary.makes_tokenizer
    assert [str(step.folder) for step in steps] == ["here/pretraining", "here/instructions", "here/chat"]
    assert steps[0].recipe.tokenizer.name_or_path == str(vocabulary.folder)
    assert [step.recipe.model.name_or_path for step in steps] == [None, "here/pretraining", "here/instructions"]
    assert [step.recipe.training.seed for step in story.steps] == [3] * 4
    assert steps[-1].recipe.training.max_steps == 7 != steps[0].recipe.training.max_steps
    for step in steps:  # before anything is trained: the architecture of the first, the vocabulary's own size
        assert step.planned.model.name_or_path is step.planned.tokenizer.name_or_path is None
        assert step.planned.model.fields == steps[0].planned.model.fields
        assert step.planned.model.fields["vocab_size"] == vocabulary.recipe.tokenizer.vocab_size


def test_a_step_may_begin_from_a_recipe_and_change_some_of_it(tmp_path):
    text = {"steps": {"a": {"recipe": "quickstart", "training": {"max_steps": 3}}, "b": {"recipe": "instructions_1k"}}}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(text))
    first, second = read_story(str(file)).steps
    assert (first.recipe.training.max_steps, first.recipe.training.optim) == (3, "muon")
    assert second.recipe.model.name_or_path == "runs/mine/a" and second.recipe.data.files.startswith("data/")
    assert second.planned.model.fields == first.recipe.model.fields


@pytest.mark.parametrize(
    "steps, words, sentence",
    [
        ({}, [], "steps names none"),
        ({"data": {}}, [], "steps.data is a section of recipes"),
        ({"a/b": {}}, [], "name the step by other letters"),
        ({"a": {"trainin": {}}}, [], "did you mean training"),
        ({"a": {"recipe": "quickstrat"}}, [], "did you mean quickstart"),
        ({"first": {"recipe": "quickstart"}}, ["frist.training.seed=1"], "did you mean first"),
        ({"first": {"recipe": "quickstart"}}, ["first.training.sed=1"], "step first: training.sed: no such setting"),
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


def test_a_story_is_planned_as_the_sum_of_its_steps(tmp_path, command, capsys):
    file = tmp_path / "plan.json"
    assert command("plan", "story", *SMALL, "--devices", "H100-80GB", "--output", file) == 0
    found, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert list(found["steps"]) == ["pretraining", "instructions", "chat"] and "pretraining" in printed
    assert (
        found["seconds"] == pytest.approx(sum(plan["seconds"] for plan in found["steps"].values()))
        and found["seconds"] > 0
    )
    assert len({plan["parameters"] for plan in found["steps"].values()}) == 1
    assert all(plan["steps"] == 6 and plan["steps_source"] == "training.max_steps" for plan in found["steps"].values())


@pytest.mark.slow
def test_a_killed_story_goes_on_with_the_step_it_was_in_and_makes_none_twice(tmp_path, command, capsys, repo_root):
    words = ["train", "story", *SMALL, f"training.output_dir={tmp_path / 'story'}"]
    assert command(*words, "--dry-run") == 0 and not (tmp_path / "story").exists()
    process = Process(cli.main, words)
    deadline = time.monotonic() + 300
    while not list((tmp_path / "story/instructions").glob("checkpoint-*")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    made = [tmp_path / "story/vocabulary/tokenizer.json", tmp_path / "story/pretraining/model.safetensors"]
    before = [file.stat().st_mtime_ns for file in made]
    capsys.readouterr()
    assert command(*words) == 0
    printed = capsys.readouterr().out
    assert [file.stat().st_mtime_ns for file in made] == before and printed.count("finished before") == 2
    assert f"{tmp_path / 'story/instructions'}/checkpoint-" in printed
    page = (tmp_path / "story/report.html").read_text()
    assert all(f'href="{step}/report.html"' in page for step in ("pretraining", "instructions", "chat"))
    assert "a vocabulary of 400 tokens" in page and "After chat" in page
    (block,) = re.findall(r"^```python\n(.*?)^```", (repo_root / "docs/story.md").read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(block.replace("runs/story", str(tmp_path / "story")).replace("200", "2"), "story.md", "exec"), {})
    assert "right 0\nby chance 0" in capsys.readouterr().out  # six steps teach nothing
    assert command(*words) == 0 and capsys.readouterr().out.count("finished before") == 4
    assert command(*words, "vocabulary.tokenizer.vocab_size=500") == 2
    assert "holds another tokenizer (tokenizer.vocab_size is 400 there and 500 here)" in capsys.readouterr().err

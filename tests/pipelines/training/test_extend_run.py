"""Runs that go on for more steps than they were begun with."""

import json
import shutil

import pytest
import yaml
from anyformer.pipelines.cli import commands as cli
from anyformer.pipelines.recipes.compose import recipe_from_dict
from anyformer.pipelines.recipes.schema import Recipe, TrainingSection
from anyformer.pipelines.recipes.stage_plan import stages_of
from anyformer.pipelines.training.checkpoints.resume import extend
from anyformer.pipelines.training.checkpoints.same_run import shared_steps
from anyformer.pipelines.training.learning_rate import share_of_steps
from golden_runs import losses_of, recipe_of
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """recipe(folder name, steps, **training) -> the file of a tiny decoder's recipe."""
    place = tmp_path_factory.mktemp("more")

    def write(name: str, **training):
        made = recipe_of("decoder", place, 8)
        made["training"] |= {"output_dir": str(place / name), "save_steps": 2, "save_total_limit": 8, **training}
        (place / f"{name}.yaml").write_text(yaml.safe_dump(made))
        return place / f"{name}.yaml", place / name

    return write


def weights_of(folder) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def train(file, *words, code=0):
    assert cli.main(["train", str(file), *words]) == code


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param({"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 3}, marks=pytest.mark.slow),
        {"lr_scheduler_type": "wsd", "warmup_steps": 2, "decay_steps": 0.5},
    ],
    ids=lambda schedule: schedule["lr_scheduler_type"],
)
def test_a_finished_run_goes_on_to_more_steps_as_if_it_had_been_begun_with_them(schedule, recipe, capsys):
    name = schedule["lr_scheduler_type"]
    file, folder = recipe(name, **schedule)
    whole, other = recipe(f"{name}-whole", max_steps=12, **schedule)
    train(file)
    capsys.readouterr()
    train(file, "training.max_steps=12")
    printed = capsys.readouterr()
    train(whole)
    # wsd goes on from before its decay, which had begun at step 4 of 8
    assert f"going on from {folder}/checkpoint-{4 if name == 'wsd' else 8}" in printed.out
    assert (folder / "decayed-checkpoint-8").is_dir() == (name == "wsd")
    assert losses_of(folder)[-4:] == losses_of(other)[-4:]
    assert weights_of(folder) == weights_of(other)
    assert json.loads((folder / "run.json").read_text())["steps"] == 12
    train(file, "training.max_steps=12")
    assert "is finished already" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_has_decayed_is_extended_by_a_stretch_of_its_own(recipe, capsys):
    file, folder = recipe("cosine")
    train(file)
    train(file, "training.max_steps=14", code=2)
    assert "cosine" in (refused := capsys.readouterr().err) and "; add --extend, which goes on from there" in refused
    train(file, "training.max_steps=14", "--extend")
    assert f"going on from {folder}/checkpoint-8" in capsys.readouterr().out
    whole, other = recipe("cosine-whole", max_steps=14, restarts=[8])
    train(whole)
    assert losses_of(folder) == losses_of(other) and weights_of(folder) == weights_of(other)
    assert "began anew at step 8" in (folder / "README.md").read_text()
    capsys.readouterr()
    train(file, "training.max_steps=14", "--extend")  # the same command shows the result
    assert "is finished already" in capsys.readouterr().out
    halves = ("training.per_device_train_batch_size=2", "training.gradient_accumulation_steps=2")
    train(file, "training.max_steps=14", "--extend", *halves)  # as many rows in a step, divided otherwise
    assert "is finished already" in capsys.readouterr().out
    train(file, "training.max_steps=16", "--extend")
    assert json.loads((folder / "run.json").read_text())["recipe"]["training"]["restarts"] == [8, 14]


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["training.max_steps=8", "--extend"], "is no more than the 8 steps"),
        (["training.max_steps=4"], "training.max_steps is 8 there and 4 here"),
        (["training.max_steps=12", "training.learning_rate=0.1"], "training.learning_rate is 0.001 there and 0.1 here"),
        (["training.output_dir=nowhere", "--extend"], "training.output_dir=nowhere holds no run to extend"),
        (["--extend", "--seeds", "2"], "--extend is of one run"),
        (["training.restarts=[4,2]"], "training.restarts=[4, 2] must be steps above 0"),
        (["training.restarts=[9]"], "begins anew at step 9, but the run has 8 steps"),
    ],
)
def test_what_is_no_continuation_is_one_sentence(words, sentence, recipe, capsys):
    file, folder = recipe("refused")
    if not folder.exists():
        train(file)
    capsys.readouterr()
    train(file, *words, code=2)
    assert sentence in capsys.readouterr().err


def recipe_with(name: str, **fields) -> Recipe:
    return Recipe(training=TrainingSection(lr_scheduler_type=name, **fields))


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(["cosine", "linear", "wsd", "inverse_sqrt", "constant"]))
def test_an_extended_schedule_is_the_finished_one_and_then_a_new_one(first, second, name):
    plain, both = recipe_with(name), recipe_with(name, restarts=[first])
    one, other = share_of_steps(plain, first), share_of_steps(plain, second)
    share = share_of_steps(both, first + second)
    assert [share(step) for step in range(first + second)] == [*map(one, range(first)), *map(other, range(second))]
    assert shared_steps(plain, first, both, first + second) == first


def test_schedules_agree_until_one_of_them_decays():
    for name, expected in {"cosine": 10, "linear": 10, "wsd": 80, "inverse_sqrt": 100, "constant": 100}.items():
        old = new = recipe_with(name, warmup_steps=10)
        assert shared_steps(old, 100, new, 200) in (expected, expected + 1), name
    shares = recipe_with("constant_with_warmup", warmup_steps=0.1)  # whose warm-up is longer in a longer run
    assert shared_steps(shares, 100, shares, 200) == 0


def test_a_finished_run_without_checkpoints_is_not_begun_again_over_its_model(recipe, capsys):
    file, folder = recipe("bare", lr_scheduler_type="constant")
    train(file)
    before = weights_of(folder)
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    train(file, "training.max_steps=12", code=2)
    assert "and none of its checkpoints" in capsys.readouterr().err and weights_of(folder) == before


def test_a_share_of_steps_is_a_share_by_either_name():
    one, other = recipe_with("wsd", decay_steps=0.2), recipe_with("wsd", lr_scheduler_kwargs={"num_decay_steps": 0.2})
    shares = [share_of_steps(recipe, 100) for recipe in (one, other)]
    assert [shares[0](step) for step in range(100)] == [shares[1](step) for step in range(100)]


def test_a_first_stage_of_one_step_stays_one_step(tmp_path):
    stages = [{"until": 0.1, "learning_rate": "constant"}, {"until": 1.0, "learning_rate": "decay"}]
    made = recipe_of("decoder", tmp_path, 10) | {"stages": stages}
    made["training"] = {"max_steps": 10, "output_dir": str(tmp_path)}
    facts = {"recipe": recipe_from_dict(made).to_dict(), "data": {"fingerprint": ""}, "status": "finished", "steps": 10}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    longer = extend(recipe_from_dict(made, ["training.max_steps=20"]))
    assert [stage.end for stage in stages_of(longer)] == [1, 10, 20]

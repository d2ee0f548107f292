"""Stages of a run: length, rows of a step, schedule and weight decay that change at borders, and going on exactly."""

import json
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import yaml
from anyformer.pipelines.data.ordered_rows import staged, weighed
from anyformer.pipelines.data.rows import Rows
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.base import Planned
from anyformer.pipelines.patches import OVERRIDDEN_BY_STAGES
from anyformer.pipelines.recipes.compose import recipe_from_dict
from anyformer.pipelines.recipes.schema import Recipe, StageSection, TrainingSection
from anyformer.pipelines.recipes.stage_plan import stages_of
from anyformer.pipelines.reporting.charts import marks_of
from anyformer.pipelines.reporting.run_log import read_run
from anyformer.pipelines.training.checkpoints.resume import extend
from anyformer.pipelines.training.checkpoints.same_run import shared_steps
from anyformer.pipelines.training.learning_rate import share_of_steps
from anyformer.pipelines.training.stages.stage_run import StagedTraining, StageRun
from anyformer.pipelines.training.stages.staged_trainer import StagedTrainer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import end_in_micro_batch, free_port, run_ranks
from run_folders import assert_same_weights, lines_of, read_audit
from test_distributed import ENGINES, assert_close, needs_deepspeed, rank_main
from test_elastic import dying
from transformers import Trainer

FIRST = {"until": 4, "sequence_length": 16, "learning_rate": "constant"}
SECOND = {"until": 8, "global_batch_size": 8, "per_device_train_batch_size": 2, "weight_decay": 0.0}
SECOND |= {"learning_rate": "decay", "min_lr_rate": 0.2}
THIRD = {"until": 1.0, "sequence_length": 16, "learning_rate": "cosine", "warmup_steps": 1, "peak": 0.5}
MADE = {
    "model": {"family": "decoder", "max_position_embeddings": 64},
    "tokenizer": {"vocab_size": 300},
    "data": {"source": "stdlib"},
    "objective": {"name": "causal", "sequence_length": 32},
}
TRAINING = {"max_steps": 8, "global_batch_size": 4, "warmup_steps": 2, "save_steps": 1, "save_total_limit": 20}


def sections(*stages) -> list[StageSection]:
    return [StageSection(**stage) for stage in stages]


def run_of(total: int, *stages, **training) -> Recipe:
    return Recipe(training=TrainingSection(max_steps=total, **training), stages=sections(*stages))


@pytest.fixture
def recipe(tiny_recipe, text_file):
    """recipe(stages, mixture, **training) -> the file of a tiny decoder's recipe; with mixture of two sources."""

    def make(*stages, mixture=False, **training):
        sources = [{"files": str(text_file), "name": name, "max_documents": n} for name, n in (("some", 5), ("few", 3))]
        data = {"files": None, "mixture": sources} if mixture else {"max_documents": 6}
        file = tiny_recipe(training=TRAINING | {"audit_samples": True} | training, data=data)
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"stages": list(stages)}))
        return file

    return make


def steps_of(folder) -> list[tuple]:
    """(step, loss, learning rate, stage) of each line of the log."""
    names = ("step", "loss", "learning_rate", "stage")
    return [tuple(line[name] for name in names) for line in lines_of(folder) if "loss" in line]


@pytest.mark.slow
def test_a_run_killed_at_each_side_of_a_border_ends_as_the_one_that_was_not(recipe, command, tmp_path):
    file = recipe(
        FIRST | {"mixture": {"some": 1}}, SECOND | {"until": 1.0, "mixture": {"some": 1, "few": 3}}, mixture=True
    )
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert command("train", file, f"training.output_dir={whole}") == 0
    again = ("train", file, f"training.output_dir={broken}")
    # A step of the first stage is a micro-batch, of the second four: killed in step 4, the first of 5, the third of 6.
    for number, micro_batch in enumerate((4, 2, 7)):
        end_in_micro_batch(micro_batch, command, *again, output=tmp_path / f"{number}.log")
        steps = [int(each.name.split("-")[1]) for each in broken.glob("checkpoint-*")]
        assert max(steps) == 3 + number  # one step before the border, at it, one after it
    assert command(*again) == 0
    assert steps_of(broken) == steps_of(whole)
    assert read_audit(broken) == read_audit(whole)
    assert_same_weights(whole, broken)
    rates = [round(rate / 5e-3, 6) for _, _, rate, _ in steps_of(whole)]
    assert rates == [round(share, 6) for share in (1 / 3, 2 / 3, 1, 1, 1, 0.8, 0.6, 0.4)]
    trained = Counter(line["step"] for line in read_audit(whole) for _ in line["rows"])
    assert trained == {1: 4, 2: 4, 3: 4, 4: 4, 5: 8, 6: 8, 7: 8, 8: 8}
    last = [line for line in lines_of(whole) if "loss" in line][-1]
    assert last["tokens_few"] == pytest.approx(24 * 48, abs=48) and last["tokens_some"] > last["tokens_few"] / 2
    assert last["stage"] == 2 and last["loss_few"] > 0
    assert marks_of(read_run(whole)) == [{"x": 4, "label": "stage 2"}]
    states = torch.load(whole / "checkpoint-8" / "optimizer.pt", weights_only=True)["param_groups"]
    before = torch.load(whole / "checkpoint-4" / "optimizer.pt", weights_only=True)["param_groups"]
    assert {group["weight_decay"] for group in states} == {0.0} and before[0]["weight_decay"] == 0.1


def test_plan_counts_each_stage_by_itself(recipe, command, capsys, without_activations):
    assert command("plan", recipe(FIRST, SECOND | {"until": 1.0}), "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    counted = [(one["tokens"], one["tokens_per_step"], one["steps"]) for one in plan["by_stage"]]
    assert counted == [(16, 64, 4), (48, 384, 4)] and plan["steps"] == 8


def test_extending_adds_the_stages_that_the_recipe_has_beyond_the_run_or_its_last_one_again(tmp_path):
    training = {"output_dir": str(tmp_path), "warmup_steps": 2}
    shares = FIRST | {"until": 0.5}, SECOND | {"until": 1.0}

    def extended(total: int, *stages) -> list[StageSection]:
        made = recipe_from_dict(MADE | {"training": training | {"max_steps": total}, "stages": list(stages)})
        return extend(made).stages

    def has_run(status: str, total: int, *stages) -> None:
        recipe = run_of(total, *stages, **training)
        run = {"recipe": recipe.to_dict(), "data": {"fingerprint": ""}, "status": status, "steps": total}
        (tmp_path / "run.json").write_text(json.dumps(run))

    has_run("finished", 8, *shares)
    assert extended(12, FIRST | {"until": 0.5}, SECOND | {"until": 0.9}, THIRD) == sections(FIRST, SECOND, THIRD)
    again = SECOND | {"until": 1.0, "warmup_steps": 2, "peak": 1.0}  # the share at which it began
    for status in ("running", "finished"):
        assert extended(12, *shares) == sections(FIRST, SECOND, again)
        has_run(status, 12, FIRST, SECOND, again)  # then the same command
    assert extended(16, *shares) == sections(FIRST, SECOND, again | {"until": 12}, again)
    with pytest.raises(UserError, match=r"training.max_steps=12 is no more than the 12 steps"):
        extended(12, *({"until": until, "learning_rate": "constant"} for until in (0.2, 0.4, 0.9, 1.0)))
    has_run("finished", 12, FIRST, SECOND, FIRST | {"until": 1.0, "peak": 0.2, "warmup_steps": 1})
    assert extended(16, *shares)[-1:] == sections(FIRST | {"until": 1.0, "peak": 0.2, "warmup_steps": 0})  # goes on


@pytest.mark.slow
def test_a_finished_run_goes_on_with_one_stage_more_as_if_it_had_been_begun_with_it(recipe, command, tmp_path, capsys):
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    assert command("train", recipe(FIRST, SECOND), f"training.output_dir={longer}") == 0
    shares = recipe(FIRST | {"until": 0.5}, SECOND | {"until": 0.9}, THIRD, max_steps=12)
    assert command("train", shares, f"training.output_dir={longer}", "--extend") == 0
    assert f"going on from {longer}/checkpoint-8" in capsys.readouterr().out
    file = recipe(FIRST, SECOND, THIRD, max_steps=12)
    assert command("train", file, f"training.output_dir={whole}") == 0
    assert steps_of(longer) == steps_of(whole) and read_audit(longer) == read_audit(whole)
    assert_same_weights(whole, longer)
    other = recipe(FIRST | {"sequence_length": 20}, SECOND, THIRD | {"until": 14}, max_steps=14)
    assert command("train", other, f"training.output_dir={longer}") == 2
    assert "up to step 0 alone; leave them as they are, with a learning_rate each" in capsys.readouterr().err


OF_STAGES = ENGINES | {"tp": ["training.parallelism={tp: 2}"]}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=[needs_deepspeed] * name.startswith("zero")) for name in OF_STAGES]
)
def test_two_processes_train_the_stages_of_one_and_killed_past_a_border_end_as_not_killed(
    engine, recipe, command, tmp_path
):
    file = recipe(FIRST, SECOND | {"until": 1.0}, learning_rate=1e-3, weight_decay=1.0)
    plain, environment = "model.hidden_dropout=0.0", {"DS_ACCELERATOR": "cpu"}

    def train(name, main=rank_main):
        folder = tmp_path / f"ranks-{free_port()}"
        folder.mkdir()
        words = (file, f"training.output_dir={tmp_path / name}", plain, *OF_STAGES[engine])
        run_ranks(2, main, command, *words, folder=folder, env=environment)
        return tmp_path / name

    one, two = tmp_path / "one", train("two")
    assert command("train", file, f"training.output_dir={one}", plain) == 0

    def rows(run):
        found = {step: [] for step in range(1, 9)}
        for line in read_audit(run):
            found[line["step"]] += zip(line["rows"], map(str, line["documents"]))
        return {step: sorted(own) for step, own in found.items()}

    assert rows(one) == rows(two)
    assert_close([loss for _, loss, *_ in steps_of(two)], [loss for _, loss, *_ in steps_of(one)])
    with pytest.raises(RuntimeError, match="ended with -9"):
        train("broken", partial(dying, 10))  # a step of the second stage is two micro-batches or, under tp, four
    assert (tmp_path / "broken" / "checkpoint-5").is_dir() and not (tmp_path / "broken" / "checkpoint-7").exists()
    broken = train("broken")
    assert steps_of(broken) == steps_of(two) and rows(broken) == rows(two)
    assert_same_weights(two, broken)


class Numbers(Rows):
    """Rows that are their own numbers."""

    def __init__(self, size: int):
        self.size, self.fingerprint, self.name = size, f"{size} numbers", "numbers"
        self.facts = {"rows": size, "tokens": 10 * size, "documents": size, "bytes": size}

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        return {"number": number}


@settings(suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=5), st.integers(0, 3))
def test_rows_of_one_length_are_all_trained_before_one_is_again_whatever_the_borders(stages, seed):
    lengths, counts = zip(*stages)
    rows = staged([Numbers(length) for length in lengths], [None] * len(stages), counts, seed)
    assert len(rows) == sum(counts)
    whole = {length: staged([Numbers(length)], [None], [sum(counts)], seed) for length in lengths}
    met = {length: [] for length in lengths}
    for number, length in enumerate(length for length, count in stages for _ in range(count)):
        assert rows[number] == whole[length][len(met[length])]  # as without the other stages
        met[length].append(rows[number]["number"])
    for length, numbers in met.items():
        assert max(Counter(numbers).values()) <= -(-len(numbers) // length)


def test_stages_weigh_sources_anew_and_each_source_goes_on_where_it_was():
    parts, weights = {"web": Numbers(7), "code": Numbers(5)}, [{"web": 1}, {"web": 1, "code": 3}, {"code": 1}]
    rows = staged([weighed(parts, {"web": 1, "code": 1}, "tokens", 0)] * 4, [None, *weights], [6, 4, 8, 4], seed=3)
    drawn = [rows.place(number) for number in range(len(rows))]
    counts = [Counter(name for name, _ in drawn[begin:end]) for begin, end in ((0, 6), (6, 10), (10, 18), (18, 22))]
    assert counts == [{"web": 3, "code": 3}, {"web": 4}, {"web": 2, "code": 6}, {"code": 4}]
    for name, size in (("web", 7), ("code", 5)):
        own = [number for source, number in drawn if source == name]
        assert set(own[:size]) == set(range(size))  # all before one comes again
    assert rows.tokens_before(10) == {"web": 70, "code": 30} and rows.tokens_before(22) == {"web": 90, "code": 130}


def test_the_time_that_is_left_follows_the_tokens_of_the_stages_to_come():
    def run(stage, rows, length):
        return StageRun(
            stage,
            SimpleNamespace(objective=SimpleNamespace(planned=lambda: Planned(lengths=(length, length)))),
            None,
            rows,
            rows,
            1,
            0,
        )

    stages = stages_of(run_of(20, {"until": 10}, {"until": 1.0}))
    staged = StagedTraining([run(stages[0], 4, 16), run(stages[1], 8, 48)], None, None)
    assert [staged.work(step) for step in (0, 4, 10, 20)] == [0, 4 * 64, 640, 640 + 10 * 384]


def test_a_stage_alone_has_the_schedule_of_transformers():
    for name, ours in (("linear", "decay"), ("cosine", "cosine"), ("constant_with_warmup", "constant")):
        plain = share_of_steps(Recipe(training=TrainingSection(lr_scheduler_type=name, warmup_steps=5)), 40)
        staged = share_of_steps(run_of(40, {"until": 1.0, "learning_rate": ours}, warmup_steps=5), 40)
        assert [staged(step) for step in range(40)] == pytest.approx([plain(step) for step in range(40)], abs=1e-12)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 20), st.integers(1, 20), st.sampled_from(["decay", "cosine"]), st.floats(0.1, 0.9))
def test_a_stage_begins_at_the_rate_where_the_last_one_ended(first, second, kind, low):
    stages = {"until": first, "learning_rate": kind, "min_lr_rate": low}, {"until": 1.0, "learning_rate": "constant"}
    share = share_of_steps(run_of(first + second, *stages, warmup_steps=0), first + second)
    assert [share(first + step) for step in range(second)] == [low] * second and share(0) == 1
    assert all(share(step) > share(step + 1) for step in range(first))


def test_runs_are_alike_up_to_the_first_stage_that_differs():
    old = run_of(8, FIRST, SECOND)
    assert shared_steps(old, 8, run_of(12, FIRST, SECOND, THIRD), 12) == 8
    assert shared_steps(old, 8, run_of(12, FIRST, SECOND | {"until": 1.0}), 12) == 5  # a longer decay
    assert shared_steps(old, 8, run_of(12, FIRST, SECOND | {"weight_decay": 0.1}, THIRD), 12) == 4
    assert shared_steps(old, 8, run_of(12, FIRST | {"until": 6}, SECOND, THIRD), 12) == 4
    assert shared_steps(old, 8, run_of(12, FIRST | {"until": 2}, FIRST, SECOND, THIRD), 12) == 8  # the same, cut in two


WHOLE = {"until": 1.0}
SOURCES = {"data": {"mixture": [{"source": "stdlib", "name": "doc"}, {"source": "stdlib_code", "name": "code"}]}}
REFUSED = [
    ([{}], {}, "stages.0.until is not set; it is the step"),
    ([{"until": 0.8}, {"until": 0.5}], {}, "stages.1.until=0.5 is step 5 of 10, which is not above stages.0.until=0.8"),
    ([{"until": 0.8}], {}, "stages.0.until=0.8 of the last stage ends at step 8, and training.max_steps=10"),
    ([{"until": 2.5}], {}, "stages.0.until=2.5 is no step"),
    ([WHOLE], {"training": {"max_steps": -1}}, "stages are parts of training.max_steps, which is not set"),
    ([{"until": 1.0, "sequence_lenght": 4}], {}, "stages.0.sequence_lenght: no such setting; did you mean stages.0."),
    ([WHOLE | {"sequence_length": 128}], {}, "stages.0: objective.sequence_length=128 is longer than"),
    ([WHOLE], {"data": {"dataset": "c4", "streaming": True}}, "stages do not go with data.streaming=true"),
    ([WHOLE], {"training": {"restarts": [5]}}, "training.restarts=[5] does not go with stages"),
    ([WHOLE], {"training": {"save_steps": "epoch"}}, "training.save_steps='epoch' is of passes over rows of one"),
    ([{"until": 5, "learning_rate": "constant"}, WHOLE], {}, "stages.1.learning_rate is not set, and other stages' is"),
    ([WHOLE | {"peak": 0.5}], {}, "stages.0.peak has no effect without stages.0.learning_rate"),
    (
        [{"until": 5, "learning_rate": "decay"}, WHOLE | {"learning_rate": "constant"}],
        {},
        "stages.1 would train at learning rate 0, where the stage before has ended",
    ),
    ([WHOLE | {"learning_rate": "decay", "warmup_steps": 11}], {}, "stages.0.warmup_steps=11.0 is more than the 10 st"),
    ([WHOLE | {"per_device_train_batch_size": 2}], {}, "leaves open how many rows a step has"),
    ([WHOLE | {"mixture": {"a": 1}}], {}, "stages.0.mixture weighs the sources of data.mixture, which has none"),
    ([WHOLE | {"mixture": {"docs": 1}}], SOURCES, "stages.0.mixture.docs is no name in data.mixture; did you mean doc"),
    ([WHOLE | {"mixture": {"doc": 0}}], SOURCES, "leaves no source to read; give one a weight above 0"),
    ([WHOLE | {"weight_decay": 0.1}], {"training": {"weight_decay": 0.0}}, "scales training.weight_decay, which is 0"),
    (
        [WHOLE | {"sequence_length": 8}],
        {
            "objective": None,
            "data": {"files": "a.jsonl"},
            "task": {"name": "sequence_classification", "max_length": 32},
        },
        "stages.0.sequence_length=8: task.name=sequence_classification has no sequence_length",
    ),
]


@pytest.mark.parametrize("stages, changes, sentence", REFUSED, ids=[sentence[:40] for *_, sentence in REFUSED])
def test_what_stages_cannot_be_is_one_sentence(stages, changes, sentence):
    made = MADE | {"training": {"output_dir": "run", "max_steps": 10}}
    for section, values in changes.items():
        made[section] = values if values is None or section in ("data", "task") else made.get(section, {}) | values
    if "task" in changes:
        made["model"] = made["model"] | {"family": "encoder"}
    with pytest.raises(UserError) as refused:
        recipe_from_dict(made | {"stages": stages})
    assert sentence in str(refused.value)


def test_private_methods_of_trainer_that_stages_override_are_those_of_the_table():
    private = {name for name in vars(StagedTrainer) if name.startswith("_") and not name.startswith("__")}
    assert private | {"set_initial_training_values"} == set(OVERRIDDEN_BY_STAGES)
    assert all(hasattr(Trainer, name) for name in OVERRIDDEN_BY_STAGES)

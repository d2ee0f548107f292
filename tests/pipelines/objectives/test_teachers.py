"""Teachers: what is learned of them, what is stored, that runs go on, what a user may get wrong."""

import json
import shutil

import pytest
import torch
from anyformer.pipelines.data import teacher_store
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.objectives.teacher_losses import TokenLesson
from anyformer.pipelines.recipes.compose import load_recipe
from run_folders import lines_of
from task_data import random_decoder
from torch.nn.functional import cross_entropy

HALF = 2e-3  # stored log-probabilities have 11 bits


@pytest.fixture
def teacher(tmp_path):
    """A decoder with random weights, and a tokenizer of bytes."""
    fields = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "initializer_range": 0.2}
    return random_decoder(tmp_path / "teacher", **fields)


@pytest.fixture
def student(tiny_recipe, teacher):
    """Factory of a recipe of a smaller decoder with that teacher; keyword arguments are its section's."""

    def make(name="student", **sections):
        section = {"name_or_path": str(teacher)} | sections.pop("teacher", {})
        model = {"hidden_size": 16, "hidden_dropout": 0.0} | sections.pop("model", {})
        data = {"max_documents": 3} | sections.pop("data", {})
        tokenizer = {"name_or_path": str(teacher)}
        return tiny_recipe(name, model=model, teacher=section, tokenizer=tokenizer, data=data, **sections)

    return make


def random_batch(vocabulary=11, rows=3, length=7):
    labels = torch.randint(vocabulary, (rows, length))
    labels[0, 2] = -100
    return {"input_ids": torch.randint(vocabulary, (rows, length)), "labels": labels}


def by_hand(logits, of_teacher, labels, weight, temperature):
    """The loss place by place, as the paper writes it."""
    total = 0.0
    for row in range(len(labels)):
        for place in range(1, labels.shape[1]):
            if labels[row, place] == -100:
                continue
            s, t = logits[row, place - 1], of_teacher[row, place - 1]
            p, q = (s / temperature).softmax(-1), (t / temperature).softmax(-1)
            hard = -s.log_softmax(-1)[labels[row, place]]
            total += (1 - weight) * hard + weight * temperature**2 * (q * (q / p).log()).sum()
    return total


def stored_of(of_teacher, top_k, temperature):
    """What is stored of logits: ids, and log-probabilities beside that of all others."""
    q = (of_teacher / temperature).softmax(-1)
    values, ids = q.topk(top_k)
    rest = (1 - values.sum(-1, keepdim=True)).clamp_min(1e-30)
    return {"teacher_ids": ids, "teacher_log_probs": torch.cat([values, rest], -1).log()}


def test_a_lesson_is_the_papers_loss_and_all_but_one_stored_tokens_say_everything(in_float64):
    logits, of_teacher, batch = torch.randn(3, 7, 11, requires_grad=True), torch.randn(3, 7, 11), random_batch()
    for weight, temperature in ((0.3, 1.0), (0.7, 2.5), (1.0, 1.0)):
        expected = by_hand(logits, of_teacher, batch["labels"], weight, temperature)
        online = TokenLesson(weight, temperature, True, 11, lambda inputs: of_teacher)
        torch.testing.assert_close(online.total({"logits": logits}, batch), expected)
        stored = TokenLesson(weight, temperature, True, 11)
        whole = stored.total({"logits": logits}, batch | stored_of(of_teacher, 10, temperature))
        torch.testing.assert_close(whole, expected)
        fewer = stored.total({"logits": logits}, batch | stored_of(of_teacher, 4, temperature))
        assert fewer < whole  # the others are one event: KL over fewer events is never more
    assert online.weight(batch) == (batch["labels"][:, 1:] != -100).sum()


def test_a_model_that_is_its_teacher_has_nothing_to_learn_of_it(in_float64):
    logits, batch = torch.randn(3, 7, 11, requires_grad=True), random_batch()
    for top_k in (1, 4):
        stored = stored_of(logits.detach(), top_k, 2.0)
        loss = TokenLesson(1.0, 2.0, True, 11).total({"logits": logits}, batch | stored)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert abs(loss) < 1e-9 and gradient.abs().max() < 1e-9


def test_what_measures_counts_the_labels_alone(in_float64):
    logits, batch = torch.randn(3, 7, 11), random_batch()
    lesson = TokenLesson(0.9, 2.0, True, 11, lambda inputs: pytest.fail("a validation asks no teacher"))
    with torch.no_grad():
        found = lesson.total({"logits": logits}, batch)
    expected = cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(found, expected)


def test_stored_rows_hold_what_the_teacher_says_and_are_made_once(student, teacher, monkeypatch, capsys):
    import transformers

    monkeypatch.setattr(teacher_store, "SHARD_BYTES", 100_000)
    recipe = student(teacher={"stored": True, "top_k": 5, "temperature": 2.0})
    data = prepare_data(load_recipe(recipe), for_training=True)
    rows, printed = data.rows["train"], capsys.readouterr().out
    assert len(rows.shards) > 2 and f"its 5 likeliest tokens of {len(rows):,} rows go into the cache" in printed
    model = transformers.AutoModelForCausalLM.from_pretrained(teacher).eval()
    for number in (0, rows.each, len(rows) - 1):
        row = rows[number]
        inputs = {name: row[name][None] for name in ("input_ids", "position_ids")}
        with torch.no_grad():
            q = (model(**inputs).logits[0] / 2).softmax(-1)
        top = row["teacher_log_probs"].exp()
        torch.testing.assert_close(top[:, :5], q.gather(-1, row["teacher_ids"]), atol=HALF, rtol=HALF)
        torch.testing.assert_close(top.sum(-1), torch.ones(48), atol=HALF, rtol=HALF)
        assert (q.topk(5).values - q.gather(-1, row["teacher_ids"])).abs().max() < HALF
    shard = sorted(rows.shards[0].folder.parent.iterdir())[1]
    shutil.rmtree(shard)  # as where a kill came before it
    again = prepare_data(load_recipe(recipe), for_training=True)
    left = f"its 5 likeliest tokens of {rows.each} rows of {len(rows):,} (the others are there)"
    assert left in capsys.readouterr().out and again.facts == data.facts
    assert torch.equal(again.rows["train"][rows.each]["teacher_ids"], rows[rows.each]["teacher_ids"])
    assert prepare_data(load_recipe(recipe)).rows["train"].fingerprint != rows.fingerprint  # without a training: none


@pytest.mark.slow
@pytest.mark.parametrize("stored", [False, True])
def test_a_killed_student_goes_on_and_needs_no_teacher_at_the_end(student, teacher, whole_and_killed, command, stored):
    whole, _ = whole_and_killed(13, student(teacher={"stored": stored, "weight": 0.7}))
    logged = [line for line in lines_of(whole) if "teacher_loss" in line]
    for line in logged:
        assert line["loss"] == pytest.approx(0.3 * line["labels_loss"] + 0.7 * line["teacher_loss"], rel=1e-4)
    assert logged[-1]["teacher_loss"] < logged[0]["teacher_loss"]
    assert "teacher" in (whole / "README.md").read_text() and "teacher" in (whole / "report.html").read_text()
    shutil.rmtree(teacher)
    before = json.loads((whole / "run.json").read_text())["metrics"]["validation_loss"]
    assert command("evaluate", whole) == 0
    after = json.loads(next(whole.glob("evaluation-*.json")).read_text())["metrics"]["loss"]
    assert after == pytest.approx(before, abs=1e-5)

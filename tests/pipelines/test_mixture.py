"""Several objectives over plain text in one run: shares, rows, losses and mistakes."""

import json
from collections import Counter
from pydoc_data.topics import topics

import pytest
import torch
import transformers
import yaml
from anyformer.pipelines.data.batch_keys import EPOCH, IGNORE_INDEX, PLACE, ROW_IDS
from anyformer.pipelines.data.sample_ids import training_rows
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.data import is_packed
from anyformer.pipelines.objectives.mixture import own_row
from anyformer.pipelines.objectives.prepare import described, prepare_data
from anyformer.pipelines.plugins import OBJECTIVES, OWN_BATCHES, objective_of
from anyformer.pipelines.recipes.compose import load_recipe, recipe_from_dict
from anyformer.pipelines.training.models import model_config
from family_variants import a_share
from run_folders import lines_of
from task_data import write_lines
from transformers import T5Config

TEXTS = [topics[name][:900] for name in sorted(topics)[:30]]
MIDDLES = {"name": "fill_in_the_middle", "label": "middles", "fim_rate": 0.9}
PARTS = {
    "decoder": [{"name": "causal", "weight": 3}, MIDDLES, {"name": "prefix_lm", "sequence_length": 24}],
    "seq2seq": [
        {"name": "span_corruption", "weight": 2},
        {"name": "denoising", "weight": 0.5},
        {"name": "mixture_of_denoisers", "sequence_length": 40},
        {"name": "prefix_lm"},
    ],
    "encoder": [
        {"name": "masked", "label": "tokens"},
        {"name": "masked", "label": "words", "masking": "whole_word", "weight": 2},
        {"name": "masked", "label": "short", "sequence_length": 48},
    ],
}


@pytest.fixture
def mixture(tiny_recipe, tmp_path):
    """Factory: the recipe of a family's parts, the last of which has shorter texts of its own."""
    texts, other = (tmp_path / name for name in ("texts.jsonl", "other.jsonl"))
    write_lines(texts, [{"text": text} for text in TEXTS])
    write_lines(other, [{"text": text[:300]} for text in TEXTS[:20]])

    def make(family="decoder", parts=None, own=True, **sections):
        parts = [dict(part) for part in parts or PARTS[family]]
        if own:
            parts[-1]["data"] = {"files": str(other), "validation_fraction": 0.2}
        sections = {
            "model": {"family": family},
            "data": {"files": str(texts), "validation_fraction": 0.2},
            "evaluation": {"metrics": ["perplexity"], "every_steps": 5, "max_rows": None},
        } | sections
        recipe = yaml.safe_load(tiny_recipe(**sections).read_text())
        recipe["objective"] = {"name": "mixture", "sequence_length": 32, "parts": parts}
        path = tmp_path / "mixture.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return path

    return make


def alone(path, number, data):
    """(data, training rows) of part `number` of a recipe as the objective of a run, with the mixture's tokenizer.

    data: the prepared mixture.
    """
    recipe = yaml.safe_load(path.read_text())
    part = recipe["objective"]["parts"][number]
    recipe["data"] = part.pop("data", recipe["data"])
    part.pop("weight", None), part.pop("label", None)
    recipe["objective"] = {"sequence_length": 32} | part
    recipe["evaluation"] = {"metrics": []}
    objective = objective_of(recipe_from_dict(recipe | {"name": "alone"}))
    reads = objective.Reads(objective)
    sources = reads.open()
    own = reads.prepare(sources, data.tokenizer)
    return own, reads.rows(own, sources["train"], "train")


def trimmed(batch, place):
    """A row of a batch without what pads it: (tokens, labels, positions)."""
    ids, labels = batch["input_ids"][place], batch["labels"][place]
    if "attention_mask" in batch:
        ids = ids[batch["attention_mask"][place].bool()]
    kept = (labels != IGNORE_INDEX).nonzero()
    positions = batch["position_ids"][place].tolist() if "position_ids" in batch else None
    return ids.tolist(), labels[: int(kept[-1]) + 1 if len(kept) else 0].tolist(), positions


@pytest.mark.parametrize("family", PARTS)
def test_a_parts_rows_are_those_of_its_objective_alone_whatever_stands_beside_them(family, mixture):
    path = mixture(family)
    data = prepare_data(load_recipe(str(path)))
    train, parts = data.rows["train"], PARTS[family]
    rows = training_rows(train)
    rows.set_epoch(1)
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()[:40]
    batch = data.collator([rows[number] for number in chosen])
    assert batch["row_ids"] == chosen and is_packed(data)
    assert ("position_ids" in batch) == (family != "seq2seq") and ("attention_mask" in batch) == (family == "seq2seq")
    for number, label in enumerate(train.parts):
        data_alone, own = alone(path, number, data)
        assert len(own) == len(train.parts[label])
        turns = -(-train.counts[label] // len(own))
        for place in (place for place, row in enumerate(chosen) if train.place(row)[0] == label):
            _, inside, turn = train.draw(chosen[place])
            row = own[inside] | {ROW_IDS: inside, EPOCH: turns + turn}
            single = data_alone.collator_of(True)([row])
            (ids, labels, positions), (ours, ours_labels, ours_positions) = trimmed(single, 0), trimmed(batch, place)
            assert labels == ours_labels and ours[: len(ids)] == ids
            if positions is not None:  # then a document of padding
                assert ours_positions == positions + list(range(len(ours_positions) - len(positions)))
                assert set(ours[len(ids) :]) <= {data.tokenizer.pad_token_id or 0}
            else:
                assert ours == ids
    assert len({row["label"] if "label" in row else row["name"] for row in parts}) == len(train.parts)


@pytest.mark.parametrize("family", a_share(PARTS, 2))
def test_the_loss_of_a_joint_batch_is_that_of_its_parts(family, mixture, in_float64):
    recipe = load_recipe(str(mixture(family)))
    data = prepare_data(recipe)
    config = model_config(recipe, data.tokenizer, data.learns().config_fields())
    model = getattr(transformers, data.objective.auto_class).from_config(config).eval()
    train = data.rows["train"]
    chosen = [number for number in range(0, len(train), 11)]
    rows = [train[number] | {ROW_IDS: number, EPOCH: 0} for number in chosen]

    def loss(rows):
        batch = data.collator(rows)
        del batch["row_ids"]
        return model(**batch, num_items_in_batch=1).loss

    with torch.no_grad():
        of_parts = [loss([row for row in rows if row["place"].part == label]) for label in train.parts]
        assert sum(of_parts).item() == pytest.approx(loss(rows).item(), rel=1e-9)


def test_an_epoch_holds_every_row_the_parts_by_weight_and_other_changes_each_time(mixture):
    parts = [{"name": "causal"}, MIDDLES | {"weight": 2}]
    data = prepare_data(load_recipe(str(mixture(parts=parts))))
    train, validation = data.rows["train"], data.rows["validation"]
    sizes = {label: len(rows) for label, rows in train.parts.items()}
    turns = Counter(train.draw(number) for number in range(len(train)))
    assert set(turns.values()) == {1}  # so that no row is changed twice in the same way
    assert {(label, inside) for label, inside, _ in turns} == {(n, i) for n, size in sizes.items() for i in range(size)}
    assert train.counts["middles"] == 2 * train.counts["causal"] and sizes["middles"] < train.counts["middles"]
    assert validation.counts == {label: len(rows) for label, rows in validation.parts.items()}
    again = [number for number in range(len(train)) if train.place(number) == ("middles", 0)]
    seen = {
        tuple(data.collator([train[n] | {ROW_IDS: n, EPOCH: e}])["input_ids"][0].tolist())
        for n in again
        for e in (0, 1)
    }
    assert len(again) > 2 and len(seen) == 2 * len(again)
    # Every special token, in one tokenizer; the text of both parts.
    assert {"<|fim_prefix|>", "<|fim_middle|>"} <= data.tokenizer.get_vocab().keys()
    assert train.facts["rows"] == len(train) and "rows" in described(data, train)
    words = {name: rows.facts["words"] * train.counts[name] // len(rows) for name, rows in train.parts.items()}
    assert min(words.values()) > 100 and train.facts["words"] == sum(words.values())


def test_a_part_of_several_sources_goes_on_in_them_in_each_epoch(mixture, tmp_path):
    sources = [{"files": str(tmp_path / f"{name}.jsonl")} for name in ("texts", "other")]
    own = {"mixture": [sources[0] | {"weight": 0.2}, sources[1]], "validation_fraction": 0}
    parts = [{"name": "causal", "data": own}, MIDDLES]
    path = mixture(parts=parts)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"data": {}}))
    data = prepare_data(load_recipe(str(path)))
    rows, sources = training_rows(data.rows["train"]), data.rows["train"].parts["causal"]
    read = []
    for epoch in range(3):
        rows.set_epoch(epoch)
        read += [row for row in map(rows.__getitem__, range(len(rows))) if row["place"].part == "causal"]
    assert len(read) == 3 * data.rows["train"].counts["causal"]
    for number, row in enumerate(read):
        assert torch.equal(row["input_ids"], sources[number]["input_ids"])
        assert own_row(row) == {PLACE: None, ROW_IDS: number, EPOCH: number // len(sources)}
        assert data.rows["train"].place(row[ROW_IDS])[0] == "causal"


def test_parts_without_padding_to_hide_have_no_mask(mixture):
    data = prepare_data(load_recipe(str(mixture())))
    rows = [data.rows["train"][number] | {ROW_IDS: number, EPOCH: 0} for number in (0, len(data.rows["train"]) - 1)]
    batch = data.collator_of(False)(rows)
    assert (
        batch.keys() == {"input_ids", "labels", "row_ids", "prefix_mask"}
        and batch["input_ids"].shape == batch["labels"].shape
    )


def predicted(data, label):
    """Number of labels that the validation counts of a part."""
    rows, total = data.rows["validation"], 0
    for number in range(len(rows)):
        if rows.place(number)[0] == label:
            labels = data.collator([rows[number] | {ROW_IDS: number, EPOCH: 0}])["labels"]
            total += int((labels[:, 1:] != IGNORE_INDEX).sum())
    return total


def test_the_losses_of_the_parts_add_up_and_a_finished_model_is_measured_alike(mixture, command, tmp_path, capsys):
    path, run = mixture(training={"max_steps": 5, "save_steps": 100}), tmp_path / "run"
    assert command("train", path) == 0
    labels = ["causal", "middles", "prefix_lm"]
    facts = json.loads((run / "run.json").read_text())["metrics"]
    names = {
        f"validation_{metric}{label}" for metric in ("loss", "perplexity") for label in ("", *(f"_{n}" for n in labels))
    }
    assert facts.keys() == names
    data = prepare_data(load_recipe(str(path)))
    counts = {label: predicted(data, label) for label in labels}
    validations = [line for line in lines_of(run) if "validation_loss" in line]
    assert len(validations) == 1  # the finished model's is the last one of its training
    for line in [*validations, facts]:
        total = sum(line[f"validation_loss_{label}"] * counts[label] for label in labels)
        assert total / sum(counts.values()) == pytest.approx(line["validation_loss"], rel=1e-5)
    for line in (line for line in lines_of(run) if "loss" in line):
        own = [value for name, value in line.items() if name.startswith("loss_")]
        assert own and min(own) - 1e-4 <= line["loss"] <= max(own) + 1e-4
    capsys.readouterr()
    assert command("evaluate", run, "--output", tmp_path / "result.json") == 0
    found = json.loads((tmp_path / "result.json").read_text())["metrics"]
    assert {f"validation_{name}": pytest.approx(value, rel=1e-4) for name, value in found.items()} == facts
    assert command("preview", path, "--rows", "3") == 0
    shown = capsys.readouterr().out
    assert all(f"\n{label}:\n" in shown for label in ("causal", "prefix_lm")) and "causal (" in shown
    assert str(run) not in (run / "README.md").read_text()


def test_what_can_be_mixed_is_said_by_the_objective():
    mixable = {name for name, row in OBJECTIVES.items() if OWN_BATCHES not in row.needs}
    assert mixable == {part["name"] for parts in PARTS.values() for part in parts}


CAUSAL = "{name: causal}"
REFUSED = {
    "{name: causal}": "objective.parts has 1 of the two or more objectives that mixture learns together",
    f"{CAUSAL}, {CAUSAL}": "objective.parts.1.label='causal' must be a name of letters, digits and _ that no other has",
    f"{CAUSAL}, {{name: prefix_lm, label: a b}}": "objective.parts.1.label='a b' must be a name",
    f"{CAUSAL}, {{weight: 2}}": "objective.parts.1.name=null is not one of its choices; known: causal",
    f"{CAUSAL}, {{name: pixels}}": "objective.parts.1.name='pixels' is not one of its choices; known: causal",
    f"{CAUSAL}, {{name: prefix_lm, fim_rate: 0.5}}": "objective.parts.1.fim_rate has no effect with "
    "objective.parts.1.name=prefix_lm; it belongs to fill_in_the_middle",
    f"{CAUSAL}, {{name: denoising}}": "objective.parts, denoising: model.family=decoder does not go with "
    "objective.name=denoising; it takes seq2seq",
    f"{CAUSAL}, {{name: prefix_lm, sequence_length: 100}}": "objective.parts.1.sequence_length=100 is longer than",
    f"{CAUSAL}, {{name: prefix_lm, data: {{files: f, streaming: true}}}}": "objective.parts, prefix_lm: "
    "data.streaming=true needs data.dataset; other sources are not streamed",
    "{name: causal, data: {files: f}}, {name: prefix_lm, data: {files: f}}": "data.files has no effect with",
    f"{CAUSAL}, {{name: prefix_lm, data: {{files: f, cache_dir: c}}}}": "objective.parts.1.data.cache_dir has no",
}


@pytest.mark.parametrize("parts", REFUSED)
def test_a_mistake_in_a_part_is_one_sentence_that_names_it(parts, mixture):
    with pytest.raises(UserError) as caught:
        load_recipe(str(mixture()), [f"objective.parts=[{parts}]"])
    assert REFUSED[parts] in str(caught.value) and "\n" not in str(caught.value)


def test_a_part_that_makes_an_epoch_too_long_to_shuffle_is_refused_with_a_weight_that_is_not(mixture):
    path = str(mixture(parts=[{"name": "causal"}, MIDDLES]))
    with pytest.raises(UserError, match=r"objective\.parts, causal: weight=1e-06 makes an epoch of .* rows") as caught:
        prepare_data(load_recipe(path, ["objective.parts.0.weight=1e-6"]))
    enough = float(str(caught.value).split("at least ")[1])
    assert len(prepare_data(load_recipe(path, [f"objective.parts.0.weight={enough * 1.1}"])).rows["train"]) > 10**7


def test_metrics_of_a_whole_text_and_prompts_that_nobody_continues_are_refused(mixture):
    path = str(mixture())
    with pytest.raises(UserError, match=r"word_perplexity' compares tokens and is not for objective\.name=mixture"):
        load_recipe(path, ["evaluation.metrics=[word_perplexity]"])
    parts = "objective.parts=[{name: span_corruption}, {name: denoising}]"
    with pytest.raises(UserError, match=r"sample_prompts has no effect with objective\.name=mixture"):
        load_recipe(path, ["model.family=seq2seq", parts, "evaluation.sample_prompts=[a]"])


def test_a_streamed_part_needs_a_number_of_steps(mixture):
    streamed = ["objective.parts.0.data={dataset: d, streaming: true}", "training.max_steps=-1"]
    with pytest.raises(UserError, match=r"^data\.streaming=true needs training\.max_steps, because a stream has no"):
        load_recipe(str(mixture(own=False)), streamed)


def test_parts_that_train_different_heads_of_a_checkpoint_are_refused(mixture, tmp_path):
    T5Config().save_pretrained(tmp_path / "t5")
    model = [f"model={{name_or_path: {tmp_path / 't5'}}}", "tokenizer={}"]
    for other in ("prefix_lm", "denoising"):
        recipe = load_recipe(str(mixture(parts=[{"name": "causal"}, {"name": other}])), model)
        with pytest.raises(UserError, match=rf"objective\.parts, {other}: it trains AutoModelForSeq2SeqLM of"):
            prepare_data(recipe)

"""The preview shows real rows: tokens, labels, documents, positions, and what is not predicted."""

import json
import re

import pytest
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.objectives.showing import DOCUMENT_COLORS, masked_text, row_text, visible
from anyformer.pipelines.recipes.compose import load_recipe


@pytest.fixture
def recipe(tiny_recipe):
    return load_recipe(str(tiny_recipe(objective={"sequence_length": 64})))


def test_five_rows_with_tokens_labels_documents_and_positions(tiny_recipe, command, capsys):
    assert command("preview", tiny_recipe()) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"row \d+: 48 tokens, \d+ predicted", printed)) == 5
    assert len(re.findall(r"position +input +label +token", printed)) == 5
    assert re.search(r"documents: \d+ from token \d+ \(\d+\), \d+ from token 0", printed)  # a row of several
    assert "% filled" in printed


def test_a_row_shows_its_text_once_with_a_colour_per_document_and_unpredicted_tokens_underlined(recipe):
    data = prepare_data(recipe)
    rows = data.rows["train"]
    number = next(i for i in range(len(rows)) if len(rows.documents(i)) > 1)
    row, segments = rows[number], rows.documents(number)
    text = row_text(row, segments, data.tokenizer)
    shown = "".join(visible(data.tokenizer.decode([i])) for i in row["input_ids"].tolist())
    assert text.plain.replace("│", "") == shown
    styles = [str(span.style) for span in text.spans]
    assert {s.split()[0] for s in styles if "bold" not in s} == set(DOCUMENT_COLORS[: len(segments)])
    assert sum("underline" in s for s in styles) == int((row["labels"] == -100).sum()) == len(segments)


# Other objectives and tasks

MASKED = {"model": {"family": "encoder"}, "objective": {"name": "masked"}, "evaluation": {"metrics": ["perplexity"]}}
SPANS = MASKED | {"model": {"family": "seq2seq"}, "objective": {"name": "span_corruption"}}


@pytest.mark.parametrize("type", ["byte_bpe", "wordpiece"])
def test_a_masked_row_shows_the_text_as_it_was_and_what_the_model_sees_in_its_place(tiny_recipe, type):
    data = prepare_data(load_recipe(str(tiny_recipe(**MASKED, tokenizer={"type": type, "vocab_size": 512}))))
    rows, mask = data.rows["train"], data.tokenizer.mask_token_id
    changes = {"masked": 0, "replaced": 0, "kept": 0}
    for number in range(20):
        row = rows[number]
        batch = data.reads.collated(data, rows, number, row)
        text = masked_text(row, batch, rows.documents(number), data.tokenizer).plain.replace("│", "")
        marked = re.findall("⟦(.*?)⟧", text, flags=re.DOTALL)
        predicted = batch["labels"][0] != -100
        seen, real = batch["input_ids"][0][predicted], row["input_ids"][predicted]
        assert len(marked) == len(seen)
        changes["masked"] += int((seen == mask).sum())
        changes["replaced"] += sum("→" in m for m in marked)
        if type == "byte_bpe":  # without the marks it is the row's text
            words = [visible(data.tokenizer.decode([number])) for number in row["input_ids"].tolist()]
            assert re.sub("⟦(.+?)(→.*?|=)?⟧", r"\1", text) == "".join(words)
        changes["kept"] += int((seen == real).sum())
        assert sum("→" in m for m in marked) == int(((seen != mask) & (seen != real)).sum())
    assert changes["masked"] > changes["replaced"] > 0 and changes["kept"] > 0


def test_the_span_preview_shows_sources_and_targets(tiny_recipe, command, capsys):
    assert command("preview", tiny_recipe(**SPANS)) == 0
    printed = capsys.readouterr().out
    sources, targets = (re.findall(rf"^{name}: (.*)", printed, flags=re.MULTILINE) for name in ("source", "target"))
    sources = [text for text in sources if "encoder reads" not in text]
    assert len(sources) == len(targets) == 5
    assert len(re.findall(r"row \d+: 48 source tokens, \d+ target tokens, from \d+ tokens of text", printed)) == 5
    for source, target in zip(sources, targets):
        names = re.findall(r"<extra_id_\d+>", source)
        assert names == re.findall(r"<extra_id_\d+>", target) == [f"<extra_id_{i}>" for i in range(len(names))]
        assert source.endswith("<|endoftext|>") and target.endswith("<|endoftext|>")


def test_labelled_examples_are_shown_with_their_class_or_their_target(tmp_path, command, capsys):
    rows = [
        {"text": f"a good film {i}", "label": "positive", "en": f"a dog {i}", "de": f"ein Hund {i}"} for i in range(30)
    ]
    rows += [row | {"text": f"a bad film {i}", "label": "negative"} for i, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {
        "tokenizer": {"type": "char"},
        "data": {"files": str(tmp_path / "rows.jsonl")},
        "training": {"output_dir": str(tmp_path / "run")},
    }
    classify = recipe | {"model": {"family": "encoder"}, "task": {"name": "sequence_classification"}}
    (tmp_path / "classify.yaml").write_text(json.dumps(classify))
    assert command("preview", tmp_path / "classify.yaml") == 0
    printed = capsys.readouterr().out
    assert "class positive" in printed and "<|cls|>a·good·film·0<|sep|>" in printed
    task = {"name": "translation", "source_field": "en", "target_field": "de"}
    (tmp_path / "translate.yaml").write_text(json.dumps(recipe | {"model": {"family": "seq2seq"}, "task": task}))
    assert command("preview", tmp_path / "translate.yaml") == 0
    printed = capsys.readouterr().out
    assert "source: a·dog·0<|endoftext|>" in printed and "target: ein·Hund·0<|endoftext|>" in printed

"""The preview shows real rows: tokens, labels, documents, positions, and what is not predicted."""

import json
import re
from itertools import chain

import numpy as np
import pytest
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.objectives.showing import DOCUMENT_COLORS, masked_pieces, row_pieces, tokens_text, visible
from anyformer.pipelines.recipes.compose import load_recipe
from image_data import image_recipe
from rich.console import Console
from task_data import task_recipe

COLOURED = Console(force_terminal=True, color_system="standard", no_color=False)


def test_five_rows_with_tokens_labels_documents_and_positions(tiny_recipe, command, capsys):
    assert command("preview", tiny_recipe()) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"row \d+: 48 tokens, \d+ predicted", printed)) == 5
    assert re.search(r"documents: \d+ from token \d+ \(\d+\), \d+ from token 0", printed)  # a row of several
    assert "% filled" in printed


def test_a_row_shows_its_text_once_with_a_colour_per_document_and_unpredicted_tokens_underlined(tiny_recipe):
    data = prepare_data(load_recipe(str(tiny_recipe(objective={"sequence_length": 64}))))
    rows = data.rows["train"]
    number = next(i for i in range(len(rows)) if len(rows.documents(i)) > 1)
    row, segments = rows[number], rows.documents(number)
    text = tokens_text(COLOURED, row_pieces(row, segments, data.tokenizer))
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
        pieces = masked_pieces(row, batch, rows.documents(number), data.tokenizer)
        text = tokens_text(COLOURED, pieces).plain.replace("│", "")
        marked = re.findall(r"\[\[(.*?)\]\]", text, flags=re.DOTALL)
        predicted = batch["labels"][0] != -100
        seen, real = batch["input_ids"][0][predicted], row["input_ids"][predicted]
        assert len(marked) == len(seen)
        changes["masked"] += int((seen == mask).sum())
        changes["replaced"] += sum("→" in m for m in marked)
        if type == "byte_bpe":  # without the marks it is the row's text
            words = [visible(data.tokenizer.decode([number])) for number in row["input_ids"].tolist()]
            assert re.sub(r"\[\[(.+?)(→.*?|=)?\]\]", r"\1", text) == "".join(words)
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
        assert source.endswith("<|endoftext|>") and target[:2] == "[[" and target.endswith("<|endoftext|>]]")


# What is learned, in plain text and as JSON


@pytest.fixture
def previewed(command, capsys):
    """Factory: (what `preview` prints without colours, what its --json prints for the same rows)."""

    def preview(recipe, *more):
        printed = []
        for words in ([], ["--json"]):
            assert command("preview", recipe, "--rows", "3", *words, *more) == 0
            printed.append(capsys.readouterr().out)
        return printed[0], [json.loads(line) for line in printed[1].splitlines()]

    return preview


@pytest.mark.parametrize("task", ["instruction_tuning", "token_classification", "preference", "question_answering"])
def test_in_plain_text_brackets_stand_around_what_the_labels_say_is_learned(task, tmp_path, previewed):
    printed, rows = previewed(task_recipe(tmp_path, task))
    shown = re.split(r"^\w+ \d+: .*", printed, flags=re.MULTILINE)[1:]
    assert len(shown) == len(rows) == 3
    for text, row in zip(shown, rows):
        tokens, labels = row["tokens"], row["labels"]
        if task == "preference":  # both conversations, the chosen one first
            assert np.shape(row["input_ids"]) == np.shape(row["attention_mask"]) == np.shape(row["answers"])
            tokens, learned = chain(*tokens), chain(*row["answers"])
        elif task == "question_answering":
            assert labels == [row["start_positions"], row["end_positions"]]
            learned = [labels[0] <= place <= labels[1] for place in range(len(tokens))]
        else:
            learned = [label != -100 for label in labels]
        marked = re.findall(r"\[\[(.*?)\]\]", text)
        assert "".join(marked) == "".join(visible(token) for token, is_one in zip(tokens, learned) if is_one)
        assert "]][[" not in text and any(marked)


def test_the_json_of_a_row_is_its_batch(tiny_recipe, previewed):
    recipe = tiny_recipe()
    _, rows = previewed(recipe)
    data = prepare_data(load_recipe(str(recipe)))
    for row in rows:
        batch = data.reads.collated(data, data.rows["train"], row["row"], data.rows["train"][row["row"]])
        assert list(row) == ["row", "input_ids", "labels", "tokens", "position_ids"]
        assert all(row[name] == batch[name][0].tolist() for name in ("input_ids", "labels", "position_ids"))
        assert row["tokens"] == [data.tokenizer.decode([number]) for number in row["input_ids"]]


def test_the_json_of_an_image_has_the_shape_of_its_pixels(tmp_path, previewed):
    _, rows = previewed(image_recipe(tmp_path, channels=3))
    assert {row["labels"] for row in rows} <= {0, 1} and "tokens" not in rows[0]
    assert all(row["pixel_values"] == {"shape": [3, 8, 8], "dtype": "float32"} for row in rows)


def test_a_terminal_shows_colours_in_place_of_brackets(tmp_path, command, capsys, monkeypatch):
    recipe = task_recipe(tmp_path, "instruction_tuning")
    for name, has_marks in (("FORCE_COLOR", False), ("NO_COLOR", True)):
        monkeypatch.setenv(name, "1")
        assert command("preview", recipe, "--rows", "1") == 0
        printed = capsys.readouterr().out.split("row ", 1)[1]
        assert ("[[" in printed) == has_marks and "\x1b[" in printed
    monkeypatch.delenv("FORCE_COLOR")


def test_a_page_holds_the_rows_and_what_came_in(tmp_path, command, capsys):
    recipe, page = task_recipe(tmp_path, "instruction_tuning"), tmp_path / "rows.html"
    assert command("preview", recipe, "--rows", "2", "--html", page) == 0
    printed, text = capsys.readouterr().out, page.read_text()
    assert printed.endswith(f"written to {page} (0.02 MB); open it in a browser\n") and "what came in" in text
    assert text.count("<b>row ") == 2 and '<span class="cyan underline">' in text and "learned" in text
    assert "&lt;|" in text and "<|" not in text and not list(tmp_path.glob(".rows*"))
    assert command("preview", recipe, "--json", "--html", page) == 2
    assert "--html prints no JSON" in capsys.readouterr().err
    assert command("preview", recipe, "--html", tmp_path / "no" / "rows.html") == 2
    assert f"the folder {tmp_path / 'no'} does not exist" in capsys.readouterr().err

"""The preview shows real rows: tokens, labels, documents, positions, and what is not predicted."""

import re

import pytest
import torch
from anyformer.pipelines.data import prepare_data
from anyformer.pipelines.preview import DOCUMENT_COLOURS, preview, row_text, spread, visible
from anyformer.pipelines.recipe import load_recipe
from rich.console import Console


@pytest.fixture
def recipe(tiny_recipe):
    return load_recipe(str(tiny_recipe(objective={"sequence_length": 64})))


def test_five_rows_with_tokens_labels_documents_and_positions(tiny_recipe, command, capsys):
    assert command("preview", tiny_recipe()) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"row \d+: 48 tokens, \d+ predicted", printed)) == 5
    assert len(re.findall(r"position +input +label +token", printed)) == 5
    assert re.search(r"documents: \d+ from token \d+ \(\d+\), \d+ from token 0", printed)  # a row of several
    assert "would waste" in printed


def test_a_row_shows_its_text_once_with_a_colour_per_document_and_unpredicted_tokens_underlined(recipe):
    data = prepare_data(recipe)
    rows = data.rows["train"]
    number = next(i for i in range(len(rows)) if len(rows.segments(i)) > 1)
    row, segments = rows[number], rows.segments(number)
    text = row_text(row, segments, data.tokenizer)
    shown = "".join(visible(data.tokenizer.decode([i])) for i in row["input_ids"].tolist())
    assert text.plain.replace("│", "") == shown
    styles = [str(span.style) for span in text.spans]
    assert {s.split()[0] for s in styles if "bold" not in s} == set(DOCUMENT_COLOURS[: len(segments)])
    assert sum("underline" in s for s in styles) == int((row["labels"] == -100).sum()) == len(segments)


def test_colours_reach_a_terminal(recipe, tmp_path):
    with (tmp_path / "out.txt").open("w") as file:
        preview(recipe, rows=2, console=Console(file=file, force_terminal=True, color_system="standard", width=120))
    assert "\x1b[36m" in (tmp_path / "out.txt").read_text()  # cyan: the first document


def test_rows_are_spread_from_first_to_last():
    assert spread(100, 5) == [0, 25, 50, 74, 99]
    assert spread(3, 5) == [0, 1, 2] and spread(1, 5) == [0]


def test_nothing_is_trained(recipe):
    state = torch.random.get_rng_state()
    assert preview(recipe, rows=1, console=Console(quiet=True)) == 0
    assert torch.equal(state, torch.random.get_rng_state())

"""Laws of CoNLL files: sentences as rows, whatever separates columns; a broken line is a bad row."""

import pytest
from anyformer.pipelines.data.opening import open_examples
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.schema import DataSection
from task_data import CHARACTERS, task_recipe

TEXT = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\n# NN O\nBonn NNP B-LOC\n"
SENTENCES = [(["EU", "rejects"], ["B-ORG", "O"]), (["#", "Bonn"], ["O", "B-LOC"])]
COLUMNS = {"tokens_field": "tokens", "tags_field": "tags"}


def read(tmp_path, text):
    (tmp_path / "a.conll").write_text(text)
    return list(open_examples(DataSection(files=str(tmp_path / "a.conll"), validation_fraction=0), COLUMNS)["train"])


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_sentences_are_rows_and_document_marks_are_dropped(tmp_path, separator):
    rows = read(tmp_path, TEXT.replace(" ", separator))
    assert [(row["tokens"], row["tags"]) for _, row in rows] == SENTENCES
    assert [place.rpartition(", ")[2] for place, _ in rows] == ["line 3", "line 7"]


def test_words_hold_no_break_spaces_and_white_lines_end_sentences(tmp_path):
    rows = read(tmp_path, "10\u00a0000  B\nx\x85y O \n \t \nc\tO\n")
    assert [row["tokens"] for _, row in rows] == [["10\u00a0000", "x\x85y"], ["c"]]


def test_a_line_with_other_columns_is_named_and_may_be_left_out(tmp_path):
    (tmp_path / "a.conll").write_text(TEXT * 20 + "\nno tag at all\n\nRom NNP\n")
    data = {"files": str(tmp_path / "a.conll"), "test_files": None}
    recipe = str(task_recipe(tmp_path, "token_classification", data=data, tokenizer=CHARACTERS))
    both = r"line \d+ holds 4 instead of 3 columns\n.* line \d+ holds 2 instead of 3 columns"
    with pytest.raises(UserError, match=both):
        prepare_data(load_recipe(recipe))
    rows = prepare_data(load_recipe(recipe, ["data.bad_rows=skip"])).rows
    assert sum(map(len, rows.values())) == 40

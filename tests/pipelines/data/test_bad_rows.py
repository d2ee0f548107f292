"""Laws of rows that cannot be used: all in one message, or left out and counted, and nothing else moves."""

import json

import pytest
from anyformer.pipelines.data.bad_rows import BadRow, bad_rows_of
from anyformer.pipelines.data.opening import open_examples
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.schema import DataSection
from image_data import image_recipe, picture_folder
from task_data import CHARACTERS, on_rows, task_recipe, write_lines

GOOD = [{"text": f"a text of number {number}", "label": ("bad", "good")[number % 2]} for number in range(60)]
BAD = {5: {"text": None, "label": "good"}, 17: {"text": "a text", "label": None}, 18: {"text": 3, "label": "bad"}}


def rows_with(bad):
    return [bad.get(number, row) for number, row in enumerate(GOOD)]


def recipe_of(tmp_path, rows, **data):
    path = write_lines(tmp_path / "rows.jsonl", rows)
    data = {"files": str(path), "test_files": None, "validation_fraction": 0.2, "cache_dir": str(tmp_path)} | data
    sections = {"data": data, "tokenizer": CHARACTERS, "evaluation": {"metrics": []}}
    return load_recipe(task_recipe(tmp_path, "sequence_classification", **sections))


def test_all_bad_rows_are_in_one_message_with_place_reason_and_value(tmp_path):
    with pytest.raises(UserError) as caught:
        prepare_data(recipe_of(tmp_path, rows_with(BAD)))
    first, *lines = str(caught.value).split("\n")
    assert first == "3 rows cannot be used; data.bad_rows=skip leaves them out"
    for line, said in (("6", "holds null, not text"), ("18", "holds null, which is no class"), ("19", "holds int")):
        assert sum(f"rows.jsonl, line {line} {said}" in one for one in lines) == 1, lines
    with pytest.raises(UserError, match=r"line 6 holds null, not text \(data\.bad_rows=skip leaves the row out\)$"):
        prepare_data(recipe_of(tmp_path, rows_with({5: BAD[5]})))


def test_of_many_bad_rows_twenty_are_named_and_the_rest_are_counted_by_reason(tmp_path):
    bad = {number: BAD[5] for number in range(30)}
    with pytest.raises(UserError, match=r"and 10 more: 10 'text' holds null, not text$") as caught:
        prepare_data(recipe_of(tmp_path, rows_with(bad)))
    assert len(str(caught.value).split("\n")) == 22


def test_a_reason_leaves_out_numbers_but_not_those_of_a_name():
    row = BadRow(1, "a.csv, line 2", "data.files: a.csv, line 2 holds 3 instead of 2 values, not UTF-8; write it so")
    assert row.reason == "holds … instead of … values, not UTF-8"


def test_a_fault_of_all_rows_is_one_sentence_and_is_not_skipped(tmp_path):
    rows = [{"text": row["text"], "label": [1]} for row in GOOD]
    for policy in ("refuse", "skip"):
        with pytest.raises(UserError, match=r"^task\.label_field='label': .*line \d+ holds \[1\], which is no class"):
            prepare_data(recipe_of(tmp_path, rows, bad_rows=policy))


def test_skipped_rows_are_counted_by_reason_and_move_no_other_row(tmp_path):
    whole = prepare_data(recipe_of(tmp_path, GOOD, bad_rows="skip"))
    left = prepare_data(recipe_of(tmp_path, rows_with(BAD), bad_rows="skip"))
    assert sum(len(rows) for rows in left.rows.values()) == len(GOOD) - len(BAD)
    counts = [rows.notes for rows in left.rows.values() if rows.notes]
    assert counts == [left.facts[split]["notes"] for split, rows in left.rows.items() if rows.notes]
    said = " ".join(note for notes in counts for note in notes)
    for reason in ("1 'text' holds null, not text", "1 'label' holds null, which is no class", "holds int, not text"):
        assert reason in said
    assert not whole.rows["train"].notes and "notes" not in whole.facts["train"]
    opened = open_examples(DataSection(files=str(tmp_path / "rows.jsonl"), validation_fraction=0.2), COLUMNS)
    for examples in opened.values():
        before = [index for index, _ in examples.numbered()]
        examples.left_out = dict.fromkeys(BAD)
        assert [index for index, _ in examples.numbered()] == [index for index in before if index not in BAD]


COLUMNS = {"text_field": "text", "label_field": "label"}


def test_rows_that_the_file_breaks_are_found_with_the_others(tmp_path):
    lines = [json.dumps(row) for row in GOOD]
    lines[0], lines[7] = '{"text": "cut', "[1, 2]"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "a.csv").write_text("text,label\n" + "one,good\n" * 3 + "too,many,values\n" + "two,bad\n" * 3)
    for name, places in (("a.jsonl", ["line 1", "line 8"]), ("a.csv", ["line 5"])):
        data = DataSection(files=str(tmp_path / name), validation_fraction=0)
        examples = open_examples(data, COLUMNS)["train"]
        found = bad_rows_of(examples, lambda probe: None)
        assert [row.place.rpartition(", ")[2] for row in found] == places
        with pytest.raises(UserError, match=places[0]):
            list(examples)


@pytest.mark.parametrize("packing", [False, True])
def test_rows_left_out_of_conversations_are_in_the_notes_and_facts_also_where_rows_are_packed(tmp_path, packing):
    def chat(answer):
        return {"messages": [{"role": "user", "content": "and?"}, {"role": "assistant", "content": answer}]}

    rows = [*(chat(f"so {number}") for number in range(20)), chat("")]
    sections = on_rows(tmp_path, rows, packing=packing, messages_field="messages", prompt_field=None)
    recipe = task_recipe(tmp_path, "instruction_tuning", **sections)
    prepared = prepare_data(load_recipe(recipe, ["data.bad_rows=skip"]))
    (note,) = prepared.rows["train"].notes
    assert note.startswith("1 row left out (data.bad_rows=skip): 1 'messages' holds an empty text")
    assert prepared.facts["train"]["notes"] == [note] and (len(prepared.rows["train"]) < 20) == packing


@pytest.mark.parametrize("bad, left", [([], 3), ([0], 2), ([0, 1, 2], 0)])
def test_a_split_of_which_no_row_is_left_is_one_sentence(tmp_path, bad, left):
    others = [BAD[5] if number in bad else row for number, row in enumerate(GOOD[:3])]
    path = write_lines(tmp_path / "held.jsonl", others)
    how = {"validation_files": str(path), "validation_fraction": None}
    if left:
        assert len(prepare_data(recipe_of(tmp_path, GOOD, bad_rows="skip", **how)).rows["validation"]) == left
        return
    sentence = "^data.bad_rows=skip leaves no example of held.jsonl for validation: 3 'text' holds null, not text$"
    with pytest.raises(UserError, match=sentence):
        prepare_data(recipe_of(tmp_path, GOOD, bad_rows="skip", **how))
    with pytest.raises(UserError, match=r"held\.jsonl, line 1 holds null, not text$"):  # skip would not help
        prepare_data(recipe_of(tmp_path, GOOD, **how))


def test_images_that_cannot_be_read_are_left_out(tmp_path):
    pattern = picture_folder(tmp_path / "pictures")
    (tmp_path / "pictures" / "left" / "zz.png").write_bytes(b"no image")
    data = {"files": str(pattern), "test_files": None, "validation_fraction": 0}
    recipe = load_recipe(image_recipe(tmp_path, data=data, evaluation={"every_steps": None}))
    with pytest.raises(UserError, match=r"zz\.png holds no image .* \(data\.bad_rows=skip leaves the row out\)"):
        prepare_data(recipe)
    (note,) = prepare_data(recipe.with_(data={"bad_rows": "skip"})).rows["train"].notes
    assert note == "1 row left out (data.bad_rows=skip): 1 'image' holds no image that Pillow can read"


def test_bad_rows_of_plain_text_is_refused():
    with pytest.raises(UserError, match=r"data\.bad_rows='skip' has no effect with objective\.name=causal"):
        load_recipe("quickstart", data={"bad_rows": "skip"})

"""Laws of choices: each is read with its context, the batch holds them in order, the right one is found."""

import json
from types import SimpleNamespace

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.multiple_choice import ChoiceCollator
from hypothesis import given
from hypothesis import strategies as st
from task_data import choices, on_rows, task_recipe
from transformers import AutoTokenizer, BertConfig, BertModel

KIND = "multiple_choice"
LISTED = {"context_field": "context", "question_field": None, "choices_field": "choices", "max_length": 96}


def test_columns_and_lists_hold_the_same_choices_by_number_and_by_letter(prepare, tmp_path):
    rows = [json.loads(line) for line in choices(tmp_path / "rows.jsonl", 24).read_text().splitlines()]
    listed = [
        {
            "context": row["sent1"],
            "choices": [f"{row['sent2']} {row[f'ending{i}']}" for i in range(4)],
            "label": "ABCD"[row["label"]],
        }
        for row in rows
    ]
    found = []
    for given_rows, task in ((rows, {"max_length": 96}), (listed, LISTED)):
        data = prepare(**on_rows(tmp_path, given_rows, **task), model={"max_position_embeddings": 96})
        found.append([{name: x.tolist() for name, x in row.items()} for row in data.rows["train"]])
    (one, other), tokenizer = found, data.tokenizer
    assert len(one) == 24 and [row["choice_ends"] for row in one] == [row["choice_ends"] for row in other]
    assert [row["labels"] for row in one] == [row["labels"] for row in other] == [row["label"] for row in rows]
    for row, raw in zip(other, listed):  # texts come back: context, separator, choice
        for (start, end), choice in zip(zip([0, *row["choice_ends"]], row["choice_ends"]), raw["choices"]):
            text = tokenizer.decode(row["input_ids"][start:end]).replace("<|cls|>", "").split("<|sep|>")
            assert [part.strip() for part in text[:2]] == [raw["context"], choice]


def test_digits_in_a_table_of_texts_count_from_0(prepare, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("context,one,two,right\na film,good,bad,0\na film,bad,good,1\n")
    task = {"context_field": "context", "question_field": None, "choices_field": ["one", "two"], "label_field": "right"}
    rows = prepare(**on_rows(tmp_path, table, **task)).rows["train"]
    assert [int(row["labels"]) for row in rows] == [0, 1]


def test_one_of_context_and_question_may_be_empty_but_not_both(prepare, tmp_path):
    def train(*changes):
        sections = on_rows(tmp_path, [row(question="it was") | change for change in changes], **LISTED)
        sections["task"]["question_field"] = "question"
        return prepare(**sections, model={"max_position_embeddings": 96}).rows["train"]

    assert len(train({"question": ""}, {"context": ""})) == 2
    with pytest.raises(UserError, match=r"task.question_field='question': .*line 2 holds an empty text; remove the ex"):
        train({}, {"context": "", "question": " "})


@given(st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=1, max_size=4), st.data())
def test_a_batch_holds_every_choice_in_its_place(lengths, data):
    side = data.draw(st.sampled_from(["left", "right"]))
    tokenizer = SimpleNamespace(pad_token_id=0, padding_side=side)
    rows = []
    for number, sizes in enumerate(lengths):
        ends = torch.tensor(sizes).cumsum(0)
        rows.append({"input_ids": torch.arange(1, int(ends[-1]) + 1), "choice_ends": ends, "row_ids": number})
        rows[-1]["labels"] = torch.tensor(number % 3)
    batch = ChoiceCollator(tokenizer)(rows)
    assert batch["input_ids"].shape[:2] == (len(rows), 3) and batch["labels"].shape == (len(rows),)
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    for row, ids, inside in zip(rows, batch["input_ids"], mask):
        assert torch.equal(ids[inside], row["input_ids"])
        assert inside.sum(-1).cumsum(0).equal(row["choice_ends"])
    assert batch["row_ids"] == list(range(len(rows)))


def row(label=0, **changes):
    return {"context": "a film", "choices": ["good", "bad"], "label": label} | changes


MISTAKES = {
    "range": ([row(), row(2)], r"task.label_field='label': .*line 2 holds 2, but there are 2 choices"),
    "none": ([row(None)], r"line 1 holds null, which is no number or letter"),
    "mixed": ([row("A"), row("1")], r"line 2 holds '1', but others before it are letters; write all as letters, or"),
    "uneven": ([row(), row(choices=["a", "b", "c"])], r"line 2 holds 3 choices, but the first example 2; all need eq"),
    "one": ([row(choices=["a"])], r"line 1 holds 1; it takes two"),
    "empty": ([row(), row(choices=["a", " "])], r"line 2, choice 1 is empty"),
    "no-list": ([row(choices="good")], r"task.choices_field='choices': .*line 1 holds str, not a list of choices"),
    "blank": ([row(), row(context=" ")], r"task.context_field='context': .*line 2 holds an empty text; remove"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_choices_is_one_sentence_before_training(name, refused):
    rows, says = MISTAKES[name]
    refused(rows, LISTED | {"max_length": 40}, says)


def test_a_model_learns_to_choose_and_a_native_one_starts_from_its_own_weights(tmp_path, command, capsys):
    recipe = task_recipe(
        tmp_path,
        "multiple_choice",
        tokenizer={"vocab_size": 300},
        training={"max_steps": 60, "learning_rate": 0.01, "gradient_accumulation_steps": 2},
        evaluation={"every_steps": 30, "best_metric": "accuracy"},
    )
    assert command("train", recipe) == 0
    run = tmp_path / "run"
    assert json.loads((run / "run.json").read_text())["metrics"]["validation_accuracy"] > 0.8  # a quarter by chance
    assert "multiple-choice" in (run / "README.md").read_text()
    assert command("preview", recipe, "--rows", "2") == 0
    assert capsys.readouterr().out.count("→ ") >= 2

    tokenizer = AutoTokenizer.from_pretrained(run)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(tokenizer), **size)).save_pretrained(tmp_path / "native")
    tokenizer.save_pretrained(tmp_path / "native")
    start = ["tokenizer=null", f"model={{name_or_path: {tmp_path / 'native'}}}", "--dry-run"]
    assert command("train", recipe, *start, f"training.output_dir={tmp_path / 'other'}") == 0
    assert "gradients finite" in capsys.readouterr().out

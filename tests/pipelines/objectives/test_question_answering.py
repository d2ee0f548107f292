"""Laws of answers as spans: windows hold the whole context, an answer's tokens are the answer, best spans are found."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from anyformer.pipelines.data.account import Account
from anyformer.pipelines.metrics.significance import kept_comparisons
from anyformer.pipelines.objectives.answers import FinishedModel
from anyformer.pipelines.objectives.question_answering import Windows, best_spans
from anyformer.pipelines.training.finish import answers_of_splits
from anyformer.pipelines.training.losses.model_loss import ModelLoss
from hypothesis import given
from hypothesis import strategies as st
from task_data import CHARACTERS, NAMES, NEUTRAL, contexts, task_recipe, write_lines
from transformers.modeling_outputs import QuestionAnsweringModelOutput

import anyformer

KIND = "question_answering"
TOKENIZERS = {
    "byte_bpe": {"type": "byte_bpe", "vocab_size": 300},
    "wordpiece": {"type": "wordpiece", "vocab_size": 60},
    "unigram": {"type": "unigram", "vocab_size": 34},
    "char": CHARACTERS,
}
WORDS = st.lists(st.sampled_from([*NEUTRAL, *NAMES["PER"], "mr", "stória", "日本"]), min_size=1, max_size=60)


def example(context: str, text: str | None, start: int = 0, question: str = "who") -> dict:
    texts, starts = ([], []) if text is None else ([text], [start])
    row = {"question": question, "context": context, "answers.text": texts, "answers.answer_start": starts}
    return row | {"answers": {"text": texts, "answer_start": starts}}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(words=WORDS, data=st.data(), stride=st.integers(0, 12))
def test_windows_hold_every_token_of_the_context_and_the_answers_tokens_are_the_answer(
    tokenized, kind, words, data, stride
):
    settings, tokenizer = tokenized[kind].objective.settings, tokenized[kind].tokenizer
    windows = Windows(replace(settings, stride=stride), tokenizer)
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, min(len(words) - 1, first + 1)))
    context, answer = " ".join(words), " ".join(words[first : last + 1])
    start = len(" ".join([*words[:first], ""]))
    (found,) = windows.of([("here", example(context, answer, start))], Account())
    whole = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    tokens = whole["offset_mapping"]
    place, covered, holds = 0, set(), 0  # place: of the window's first token in the context
    for ids, labels, (a, b), text, begins, ends in zip(
        *(found[name] for name in ("input_ids", "labels", "inside", "text", "begins", "ends"))
    ):
        assert len(ids) <= 48 and b - a == len(begins) == len(ends)
        offset = tokens[place][0]
        assert context[offset : offset + len(text)] == text
        covered |= {(offset + x, offset + y) for x, y in zip(begins, ends)}
        place += len(begins) - stride
        null = windows.place_of_no_answer(ids)
        assert ids[null] == tokenizer.cls_token_id
        if labels != [null, null]:
            i, j = labels
            assert a <= i <= j < b
            assert text[begins[i - a] : ends[j - a]].strip() == answer
            assert offset + begins[i - a] <= start and start + len(answer) <= offset + ends[j - a]
            holds += 1
    assert covered >= {(x, y) for x, y in whole["offset_mapping"] if x < y}
    assert found["facts"]["answer_in_no_window"] == (holds == 0)
    assert holds or stride < len(tokenizer(answer)["input_ids"]) + 1  # a larger overlap holds any answer


@given(
    st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), min_size=1, max_size=9),
    st.data(),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_the_best_spans_are_those_of_all_spans(scores, data, longest, number):
    first = data.draw(st.integers(0, len(scores) - 1))
    after = data.draw(st.integers(first, len(scores)))
    start, end = (torch.tensor(column, dtype=torch.float) for column in zip(*scores))
    spans = {
        (i, j): scores[i][0] + scores[j][1] for i in range(first, after) for j in range(i, min(after, i + longest))
    }
    found = best_spans(start, end, (first, after), longest, number)
    assert [score for score, _, _ in found] == sorted(spans.values(), reverse=True)[:number]
    assert all(spans[i, j] == score for score, i, j in found) and len({span[1:] for span in found}) == len(found)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_loss_is_the_mean_over_both_ends_of_real_tokens_by_our_head_and_from_any_models_logits(
    prepare, tiny_encoder_config, in_float64, side
):
    data = prepare()
    data.tokenizer.padding_side = side
    collate, rows = data.collator_of(False), data.rows["train"]
    batch = collate([rows[i] for i in range(5)])
    for number in range(5):  # labels are the places of the same tokens, whatever the side of the padding
        ids = rows[number]["input_ids"][rows[number]["labels"]]
        assert torch.equal(batch["input_ids"][number, batch["labels"][number]], ids)
    torch.manual_seed(0)
    config = tiny_encoder_config(vocab_size=len(data.tokenizer), position_encoding="alibi")  # knows no places
    model = anyformer.AnyformerEncoderForQuestionAnswering(config).eval()
    inputs = {name: x for name, x in batch.items() if name != "labels"}
    expected = model(**inputs).loss
    loss = ModelLoss(
        model, shifts_labels=False, accepts_loss_kwargs=False, label_smoothing=0.1, own=data.learns().loss()
    )
    for needs_logits in (False, True):
        total, logits, _ = loss.sum(model, batch, needs_logits)
        torch.testing.assert_close(total / loss.count(batch), expected)
    assert logits.shape == (5, 2, batch["input_ids"].shape[1])
    each = [collate([rows[i]]) for i in range(5)]  # nothing is padded
    outputs = [model(input_ids=row["input_ids"], token_type_ids=row.get("token_type_ids")) for row in each]
    smoothed = sum(
        torch.nn.functional.cross_entropy(scores, row[f"{end}_positions"], label_smoothing=0.1)
        for row, out in zip(each, outputs)
        for end, scores in (("start", out.start_logits), ("end", out.end_logits))
    )
    seen = {name: x for name, x in batch.items() if name not in ("labels", "start_positions", "end_positions")}
    torch.testing.assert_close(loss.function(model(**seen), batch), smoothed / 10)
    empty = batch | {"labels": torch.full_like(batch["labels"], -100)}  # rows that fill up a process's last batch
    empty |= {name: torch.full_like(batch[name], -100) for name in ("start_positions", "end_positions")}
    assert loss.sum(model, empty, False)[0] == 0


class Oracle(torch.nn.Module):
    """Scores by the labels of windows that it has seen; of every other token 0, of no answer `null`."""

    device = torch.device("cpu")

    def __init__(self, rows, null: float):
        super().__init__()
        self.labels = {tuple(row["input_ids"].tolist()): row["labels"].tolist() for row in rows}
        self.null = null

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        start, end = torch.zeros(2, *input_ids.shape)
        for number, ids in enumerate(input_ids):
            real = ids if attention_mask is None else ids[attention_mask[number] == 1]
            first, last = self.labels[tuple(real.tolist())]
            start[number, 0] = end[number, 0] = self.null
            if first > 0:
                start[number, first] = end[number, last] = 4
        return QuestionAnsweringModelOutput(start_logits=start, end_logits=end)


def test_a_model_that_knows_the_tokens_gives_the_answers_in_words_over_all_windows(prepare, tmp_path):
    path = contexts(tmp_path / "rows.jsonl", 40)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    nothing = {"question": "what", "context": "the story was long", "answers": {"text": [], "answer_start": []}}
    write_lines(path, [*rows, *[nothing] * 10])
    test = {"test_files": str(path), "files": str(path)}
    task = {"no_answer": True, "max_length": 40, "stride": 4, "max_answer_length": 16}
    data = prepare(data=test, task=task, tokenizer=CHARACTERS)
    windows, scores, answers = data.rows["test"], data.scores(), data.answers()
    assert len(windows) > 100 and data.rows["test"].facts["examples"] == 50
    model = Oracle(windows, null=1)
    finished = FinishedModel("", lambda: model, batch_size=7)
    of_test = replace(data, rows={"train": data.rows["train"], "test": windows})
    metrics, _, samples = answers_of_splits(of_test, answers, finished)
    lost = windows.facts["answer_in_no_window"] / 50
    assert metrics == {f"test_{name}": pytest.approx(1 - lost) for name in ("answer_exact_match", "answer_f1")}
    assert samples[0]["text"] == samples[0]["reference"] == rows[0]["answers"]["text"][0]
    part = scores.of_answers(finished, windows, [0]).values
    assert part["answer_f1"] == 1  # of one question, by all its windows
    unsure = FinishedModel("", lambda: Oracle(windows, null=100), batch_size=7)
    never = scores.of_answers(unsure, windows, range(len(windows))).values
    assert never == {name: pytest.approx(0.2) for name in ("answer_exact_match", "answer_f1")}
    answers.settings = replace(answers.settings, no_answer=False)  # there always is one
    assert all(each["given"] for each in answers.of_windows(finished, windows, range(len(windows))))


def test_some_of_the_questions_are_the_same_whatever_the_tokenizer(prepare, tmp_path):
    test = {"test_files": str(contexts(tmp_path / "rows.jsonl", 40))}
    asked = []
    for tokenizer in (CHARACTERS, {"type": "byte_bpe", "vocab_size": 310}):
        data = prepare(data=test, task={"max_length": 40, "stride": 4}, tokenizer=tokenizer)
        windows, scores = data.rows["test"], data.scores()
        some, of_window = windows.of_examples(7), windows.numbers("number")
        assert len(some) == sum(number in set(of_window[some]) for number in of_window)  # with all their windows
        with kept_comparisons() as compared:
            oracle = FinishedModel("", lambda rows=windows: Oracle(rows, null=1), 7)
            scores.of_answers(oracle, windows, some)
        asked.append((len(some), compared[0].rows, compared[0].references))
    (first, *same), (second, *other) = asked
    assert first > second and same == other and len(same[0]) == 7


GOOD = [example("mr otto was in a film", "otto", 3)] * 8
MISTAKES = {
    "no-answer": ([*GOOD, example("a", None)], r"line 9 holds no answer; .* set task.no_answer=true"),
    "other": ([*GOOD, example("mr otto", "otto", 2)], r"has ' ott'; the answer begins at 3"),
    "absent": ([example("mr otto", "anna", 3)], r"line 1 holds 3 .* has 'otto'; the answer is not in it"),
    "empty-answer": ([example("a", "", 0)], r"line 1 holds '', which is no text"),
    "start": ([example("a", "a", "0")], r"answer_start_field='answers.answer_start': .* holds '0', which is no whole"),
    "lengths": (
        [{"question": "who", "context": "a", "answers": {"text": ["a"], "answer_start": []}}],
        r"line 1 holds 1 answer, but 0 of task.answer_start_field",
    ),
    "column": ([{"question": "who", "context": "a", "answers": ["a"]}], r"answers.text': no such column in .*line 1"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_answers_is_one_sentence_before_training(name, refused):
    rows, says = MISTAKES[name]
    refused(rows, {}, says)


def test_a_model_learns_to_answer_and_is_measured_again_from_its_folder(tmp_path, command, capsys):
    recipe = task_recipe(
        tmp_path,
        "question_answering",
        tokenizer={"vocab_size": 310},
        training={"max_steps": 100, "learning_rate": 0.01},
        evaluation={"every_steps": 50, "best_metric": "loss"},
    )
    assert command("train", recipe) == 0
    run, printed = tmp_path / "run", capsys.readouterr().out
    metrics = json.loads((run / "run.json").read_text())["metrics"]
    assert metrics["test_answer_f1"] > 0.8 and "answer to 'who was in the film'" in printed
    assert {"validation_loss", "validation_answer_exact_match", "test_loss", "test_answer_exact_match"} < metrics.keys()
    assert command("evaluate", run, "--output", tmp_path / "again.json") == 0
    again = json.loads((tmp_path / "again.json").read_text())["metrics"]
    assert again == {name: pytest.approx(metrics[f"test_{name}"]) for name in again}
    card = (run / "README.md").read_text()
    assert "question-answering" in card and "model = AutoModelForQuestionAnswering.from_pretrained" in card
    assert "pipeline(" not in card  # transformers has none
    asked = answers_by_the_documentation(run, tmp_path / "question_answering-test.jsonl")
    assert sum(text == right for text, right in asked) / len(asked) == pytest.approx(metrics["test_answer_exact_match"])
    assert len(asked) == 11
    capsys.readouterr()
    assert command("preview", recipe, "--rows", "2") == 0
    assert "window 0: " in capsys.readouterr().out


def answers_by_the_documentation(run, questions) -> list[tuple[str, str]]:
    """(given, right) answers: the Python of docs/learning/tasks.md asks the model."""
    page = (Path(__file__).parents[3] / "docs" / "learning" / "tasks.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(compile(block.replace("runs/squad_answers", str(run)), "tasks.md", "exec"), names)
    rows = [json.loads(line) for line in questions.read_text().splitlines()]
    ask = partial(names["answer"], str(run), longest=8)
    return [(ask(row["question"], row["context"]), row["answers"]["text"][0]) for row in rows]


def test_decoders_answer_none_at_their_last_token(tmp_path, command, prepare, capsys):
    model = {"family": "decoder"}
    data = prepare(model=model)
    ids = data.rows["train"][0]["input_ids"].tolist()
    assert Windows(data.objective.settings, data.tokenizer).place_of_no_answer(ids) == len(ids) - 1
    assert command("train", task_recipe(tmp_path, "question_answering", model=model), "--dry-run") == 0
    assert "gradients finite" in capsys.readouterr().out

"""Instruction tuning: which tokens are learned, how conversations share rows, what a user may get wrong."""

import json
from types import SimpleNamespace

import pytest
import torch
import transformers
from anyformer.pipelines.data.account import Account
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives import chats
from anyformer.pipelines.objectives.answers import FinishedModel
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.training.models import model_config
from task_data import on_rows, task_recipe
from test_chats import learned

SAME = 1e-6  # fp32: attention adds up in another order
CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def prepared(tmp_path, **sections):
    sections["model"] = {"max_position_embeddings": 256} | sections.get("model", {})
    return prepare_data(load_recipe(task_recipe(tmp_path, "instruction_tuning", **sections)))


def test_labels_are_exactly_the_answers_and_what_ends_them(tmp_path):
    data = prepared(tmp_path, task={"packing": False}, data={"test_files": None})
    rows, tokenizer = data.rows["validation"], data.tokenizer
    for number, answer in enumerate(rows.texts("answer")):
        read, texts = learned(data, number, "validation")
        assert texts == [f"{answer}<|endoftext|>"]
        (prompt,) = json.loads(rows.texts("prompt")[number])
        asked = tokenizer.apply_chat_template([prompt], add_generation_prompt=True, tokenize=False)
        assert read == f"{asked}{answer}<|endoftext|>\n"
        assert prompt["content"].count("\n\n") == 1  # instruction, empty line, input


def test_packed_conversations_learn_what_they_learn_alone(tmp_path):
    both = [prepared(tmp_path, task={"packing": packing}, data={"test_files": None}) for packing in (True, False)]
    config = model_config(both[0].objective.recipe, both[0].tokenizer, {})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    sums, counts = [], []
    for data in both:
        rows = data.rows["validation"]
        batch = data.collator([rows[number] for number in range(len(rows))])
        counts.append(int((batch["labels"][:, 1:] != -100).sum()))
        with torch.no_grad():
            sums.append(model(**batch, num_items_in_batch=1).loss / counts[-1])
    packed, alone = (data.rows["validation"] for data in both)
    assert counts[0] == counts[1] > 100 and len(packed) < len(alone) / 2 and packed.is_packed
    torch.testing.assert_close(sums[0], sums[1], atol=SAME, rtol=SAME)


def test_a_system_message_for_all_and_an_input_of_some_rows_are_read(tmp_path):
    task = {"messages_field": "messages", "system": "Be short.", "packing": False}
    data = prepared(tmp_path, **on_rows(tmp_path, [{"messages": CHAT * 2}] * 12, **task))
    read, texts = learned(data)
    assert read.startswith("<|system|>\nBe short.<|endoftext|>\n<|user|>\nq") and len(texts) == 2
    task = {"prompt_field": "prompt", "answer_field": "completion", "packing": False}
    rows = [{"prompt": "q", "completion": "a"}]
    with pytest.raises(UserError, match=r"task.input_field='more': no such column"):
        prepared(tmp_path, **on_rows(tmp_path, rows * 12, **task, input_field="more"))
    some = prepared(tmp_path, **on_rows(tmp_path, [rows[0] | {"input": "b"}, *rows * 11], **task)).rows["train"]
    assert len(some[0]["input_ids"]) == len(some[1]["input_ids"]) + len("\n\nb")


GOOD = {"instruction": "a", "input": "", "output": "b"}
BAD = {
    "holds null, neither a text nor a list of messages": {"output": None},
    "line 13 holds an empty text of the assistant": {"output": " "},
    "holds a message without content": {"output": [{"role": "assistant"}]},
    "ends with a message of the user, not with an answer": {"output": [{"role": "user", "content": "x"}]},
    "task.input_field='input': ": {"input": 3},
}


@pytest.mark.parametrize("sentence", BAD)
def test_a_conversation_that_cannot_be_learned_is_named_with_its_place(tmp_path, sentence):
    with pytest.raises(UserError, match="line 13") as error:
        prepared(tmp_path, **on_rows(tmp_path, [*[GOOD] * 12, GOOD | BAD[sentence]]))
    assert sentence in str(error.value)


def test_a_prompt_that_leaves_no_room_is_left_out_and_counted(tmp_path):
    rows = [GOOD, GOOD | {"instruction": "long " * 100}, *[GOOD] * 11]
    data = prepared(tmp_path, **on_rows(tmp_path, rows, max_length=60))
    said = data.reads.describe(data, data.rows["train"])
    assert "1 more left out, whose prompt alone is longer" in said and "cut off" not in said
    lines = [int(place.split()[-1]) for place, _ in data.reads.with_rows(data, data.sources["train"])]
    assert lines == [1, *range(3, 14)]
    rows[2:4] = [GOOD | {"output": "long " * 20}] * 2
    data = prepared(tmp_path, **on_rows(tmp_path, rows, max_length=60))
    cut = "in 2 of 12 conversations an answer is cut off at its end; raise task.max_length"
    assert cut in data.reads.describe(data, data.rows["train"])
    with pytest.raises(UserError, match=r"task.max_length=10: no conversation of .* leaves room for an answer"):
        prepared(tmp_path, **on_rows(tmp_path, rows, max_length=10))


def test_a_template_that_writes_the_question_otherwise_once_its_answer_follows_is_refused(tmp_path):
    data = prepared(tmp_path, data={"test_files": None})
    data.tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + ('!' if loop.last else '?') + m['content'] }}{% endfor %}"
    )
    with pytest.raises(UserError, match="asks for an answer with 'user!x', and writes the answer behind some"):
        data.labels.encode([("here", [{"role": r, "content": "x"} for r in ("user", "assistant") * 2])], Account())


def test_a_conversation_that_begins_with_an_answer_is_one_sentence(tmp_path):
    chats = [{"messages": [{"role": "assistant", "content": "hello"}]}] * 4
    task = {"messages_field": "messages"}
    with pytest.raises(UserError, match="line 1 begins with a message of the assistant, before which nothing is asked"):
        prepared(tmp_path, **on_rows(tmp_path, chats, **task))
    data = prepared(tmp_path, **on_rows(tmp_path, chats, **task, system="Be short."))
    assert "hello" in data.tokenizer.decode(data.rows["train"][0]["input_ids"])


def test_the_preview_underlines_what_is_not_learned_and_the_run_answers(tmp_path, command, capsys):
    recipe = task_recipe(
        tmp_path,
        "instruction_tuning",
        model={"max_position_embeddings": 256},
        training={"max_steps": 4, "learning_rate": 0.01},
        evaluation={"sample_tokens": 5},
    )
    assert command("preview", recipe, "--rows", "1") == 0
    printed = capsys.readouterr().out
    assert "read, but not learned" in printed and "conversations" in printed and "assistant" in printed
    assert command("train", recipe) == 0
    run, printed = tmp_path / "run", capsys.readouterr().out
    facts = json.loads((run / "run.json").read_text())
    assert {"validation_perplexity", "test_perplexity"} <= facts["metrics"].keys()
    assert all(words in printed for words in ("answer to", "reference:", "anyformer chat", "packed into"))
    assert "{% generation %}" in (run / "chat_template.jinja").read_text()
    assert command("generate", run, "Say it twice.", "--chat", "--greedy", "--max-new-tokens", "4") == 0
    assert "Say it twice" not in capsys.readouterr().out
    # The words "--chat" need a template, which a plain decoder's tokenizer lacks.
    for name in ("chat_template.jinja", "manifest.json"):
        (run / name).unlink()
    assert command("generate", run, "Say it twice.", "--chat") == 2
    assert "has no chat template" in capsys.readouterr().err


def test_a_sample_prompt_longer_than_the_positions_is_refused_before_the_training(tmp_path):
    prompts = {"sample_prompts": ["short", "a long question " * 10]}
    answers = prepared(tmp_path, data={"test_files": None}, evaluation=prompts).answers()
    with pytest.raises(UserError, match=r"evaluation.sample_prompts.1 has \d+ tokens, but the model has 128 positions"):
        answers.check_prompts(128)


def test_a_sample_ends_where_the_models_positions_do(tmp_path, monkeypatch):
    answers = prepared(tmp_path, data={"test_files": None}, evaluation={"sample_tokens": 96}).answers()
    monkeypatch.setattr(chats, "continuations", lambda finished, tokenizer, prompts, most: [most])
    config = SimpleNamespace(max_position_embeddings=64)
    finished = FinishedModel("", lambda: SimpleNamespace(config=config), 1)
    found = [answers._sample(finished, [0] * length) for length in (40, 64)]
    assert found == [24, 96]  # rotary positions go on, as far as they do

"""Instruction tuning: which tokens are learned, how conversations share rows, what a user may get wrong."""

import csv
import json
from types import SimpleNamespace

import pyarrow.parquet
import pytest
import torch
from anyformer.pipelines.data.account import Account
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.metrics.significance import kept_comparisons
from anyformer.pipelines.objectives import chats, instruction_tuning
from anyformer.pipelines.objectives.answers import FinishedModel
from anyformer.pipelines.objectives.messages import Chat
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from hypothesis import given
from hypothesis import strategies as st
from task_data import on_rows, task_recipe, write_lines

SAME = 1e-6  # fp32: attention adds up in another order
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<|>"), min_size=1, max_size=20)


def prepared(tmp_path, **sections):
    sections["model"] = {"max_position_embeddings": 256} | sections.get("model", {})
    return prepare_data(load_recipe(task_recipe(tmp_path, "instruction_tuning", **sections)))


def answers_in(tokenizer, input_ids, labels):
    """The texts of the runs of labels that count."""
    runs, last = [], None
    for place, label in enumerate(labels.tolist()):
        if label != -100:
            assert label == input_ids[place]
            if last != place - 1:
                runs.append([])
            runs[-1].append(label)
            last = place
    return [tokenizer.decode(run) for run in runs]


def test_labels_are_exactly_the_answers_and_what_ends_them(tmp_path):
    data = prepared(tmp_path, task={"packing": False}, data={"test_files": None})
    rows, tokenizer = data.rows["validation"], data.tokenizer
    for number, answer in enumerate(rows.texts("answer")):
        row = rows[number]
        assert answers_in(tokenizer, row["input_ids"], row["labels"]) == [f"{answer}<|endoftext|>"]
        (prompt,) = json.loads(rows.texts("prompt")[number])
        asked = tokenizer.apply_chat_template([prompt], add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(row["input_ids"]) == f"{asked}{answer}<|endoftext|>\n"
        assert prompt["content"].count("\n\n") == 1  # instruction, empty line, input

    # Of any conversation: the learned tokens are those of the assistant's texts, in order.
    @given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3))
    def law(turns):
        messages = [
            {"role": role, "content": text}
            for asked, told in turns
            for role, text in (("user", asked), ("assistant", told))
            if text.strip()
        ]
        if not messages or (messages[0]["role"], messages[-1]["role"]) != ("user", "assistant"):
            return
        ((row,),) = data.labels.encode([("here", messages)], Account())
        ids, learned = map(torch.tensor, row)
        labels = ids.masked_fill(~learned, -100)
        said = [f"{m['content'].strip()}<|endoftext|>" for m in messages if m["role"] == "assistant"]
        assert answers_in(tokenizer, ids, labels) == said
        last = [message | {"weight": 0} for message in messages[:-1]] + messages[-1:]  # as of a completion
        ((row,),) = data.labels.encode([("here", last)], Account())
        ids, learned = map(torch.tensor, row)
        assert answers_in(tokenizer, ids, ids.masked_fill(~learned, -100)) == said[-1:]

    law()


def test_control_tokens_in_a_message_are_text_and_those_of_the_template_are_control_tokens(tmp_path):
    data = prepared(tmp_path, task={"packing": False}, data={"test_files": None})
    tokenizer, end = data.tokenizer, "<|endoftext|>"
    answer = f"so {end}{end} and <|pad|>"
    asked = [
        {"role": "user", "content": f"{end} why{end}"},
        {"role": "assistant", "content": answer},
    ]
    plain = [message | {"content": message["content"].replace("<|", "<!")} for message in asked]
    ((ids, learned),), ((others, _),) = data.labels.encode([("here", asked), ("there", plain)], Account())
    assert ids.count(tokenizer.eos_token_id) == others.count(tokenizer.eos_token_id) == 2
    assert tokenizer.pad_token_id not in ids and tokenizer.decode(ids) == tokenizer.decode(others).replace("<!", "<|")
    assert tokenizer.decode([number for number, own in zip(ids, learned) if own]) == answer + end


def test_packed_conversations_learn_what_they_learn_alone(tmp_path):
    import transformers
    from anyformer.pipelines.training.models import model_config

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


def test_conversations_and_prompt_and_completion_are_read_as_well(tmp_path):
    chats = [
        {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}] * 2}
        for i in range(12)
    ]
    task = {"messages_field": "messages", "system": "Be short.", "packing": False}
    data = prepared(tmp_path, **on_rows(tmp_path, chats, **task))
    row = data.rows["train"][0]
    text = data.tokenizer.decode(row["input_ids"])
    assert text.startswith("<|system|>\nBe short.<|endoftext|>\n<|user|>\nq")
    assert len(answers_in(data.tokenizer, row["input_ids"], row["labels"])) == 2
    task = {"prompt_field": "prompt", "answer_field": "completion", "packing": False}
    rows = [{"prompt": "q", "completion": "a"}] * 12
    parquet = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), parquet)
    for source in (rows, parquet):
        data = prepared(tmp_path, **on_rows(tmp_path, source, **task))
        read = data.tokenizer.decode(data.rows["train"][0]["input_ids"])
        assert read.split("\n")[1::2] == ["q<|endoftext|>", "a<|endoftext|>"]
        with pytest.raises(UserError, match=r"task.input_field='more': no such column"):
            prepared(tmp_path, **on_rows(tmp_path, source, **task, input_field="more"))
    some = prepared(tmp_path, **on_rows(tmp_path, [rows[0] | {"input": "b"}, *rows[1:]], **task)).rows["train"]
    assert len(some[0]["input_ids"]) == len(some[1]["input_ids"]) + len("\n\nb")


def test_a_text_among_whole_conversations_is_their_json_or_refused(tmp_path):
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    task = {"messages_field": "messages", "packing": False}

    def train(*texts):
        path = tmp_path / "chats.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["messages"], *([text] for text in texts)])
        return prepared(tmp_path, **on_rows(tmp_path, path, **task))

    data = train(json.dumps(chat), json.dumps([*chat, *chat]))
    texts = [data.tokenizer.decode(data.rows["train"][i]["input_ids"]) for i in range(2)]
    assert texts[1] == 2 * texts[0] and texts[0].split("\n")[1::2] == ["q<|endoftext|>", "a<|endoftext|>"]
    for text in ("hello", '{"role": "user"}', '["hello"]', "[{", "[" * 100_000):
        with pytest.raises(UserError, match=r"line 3 holds str, which is no list of messages \{role, content\}, n"):
            train(json.dumps(chat), text)


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


def without_mark(before="", prompt=""):
    """A template that ends answers with a line break alone: `before` stands before a text, `prompt` ends a prompt."""
    said = "{% for m in messages %}{{ m['role'] + ':BEFORE' + m['content'] + '\\n' }}{% endfor %}"
    asked = "{% if add_generation_prompt %}{{ 'assistant:PROMPT' }}{% endif %}"
    return (said + asked).replace("BEFORE", before).replace("PROMPT", prompt)


@pytest.fixture
def template_of(tmp_path):
    """A task whose tokenizer has this chat template, and single tokens for ' b' and ' red'."""

    def run(template):
        folder = tmp_path / "tokenizer"
        if not folder.is_dir():
            rows = [{"instruction": "assistant: b user: a assistant: red dog", "input": "", "output": "b"}] * 60
            files = {"files": str(write_lines(tmp_path / "words.jsonl", rows)), "validation_fraction": 0.0}
            sections = {"data": files | {"test_files": None}, "tokenizer": {"vocab_size": 280}}
            prepared(tmp_path, **sections).tokenizer.save_pretrained(folder)
        (folder / "chat_template.jinja").write_text(template)
        tokenizer = {"name_or_path": str(folder), "vocab_size": None}
        return prepared(tmp_path, tokenizer=tokenizer, data={"test_files": None})

    return run


def test_an_answer_whose_first_word_takes_the_prompts_last_space_is_learned_behind_the_prompts_own_tokens(template_of):
    joins = without_mark(" ", " ")
    ends = {joins: "red dog", joins.replace("'\\n'", "eos_token"): "red dog", without_mark(" "): " red dog"}
    for template, answer in ends.items():
        data = template_of(template)
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "red dog"}]
        (((ids, learned),),) = data.labels.encode([("here", chat)], Account())
        asked = data.labels.prompt_ids(Chat(chat[:1]))
        assert ids[: len(asked)] == asked and learned.index(True) == len(asked)
        read = data.tokenizer.decode([number for number, own in zip(ids, learned) if own])
        assert read == f"{answer}<|endoftext|>"


def test_a_conversation_that_begins_with_an_answer_is_one_sentence(tmp_path):
    chats = [{"messages": [{"role": "assistant", "content": "hello"}]}] * 4
    task = {"messages_field": "messages"}
    with pytest.raises(UserError, match="line 1 begins with a message of the assistant, before which nothing is asked"):
        prepared(tmp_path, **on_rows(tmp_path, chats, **task))
    data = prepared(tmp_path, **on_rows(tmp_path, chats, **task, system="Be short."))
    assert "hello" in data.tokenizer.decode(data.rows["train"][0]["input_ids"])


def test_written_answers_of_packed_rows_are_compared_with_their_own_references(tmp_path, monkeypatch):
    data = prepared(tmp_path, evaluation={"metrics": ["exact_match", "perplexity"]})
    rows = data.rows["validation"]
    prompts = [tuple(data.labels.prompt_ids(Chat.from_json(prompt))) for prompt in rows.texts("prompt")]
    told = dict(zip(prompts, rows.texts("answer")))
    monkeypatch.setattr(
        instruction_tuning, "continuations", lambda finished, tokenizer, ids, most: [told[tuple(each)] for each in ids]
    )
    with kept_comparisons() as compared:
        model = FinishedModel("", lambda: None, 4)
        found = data.scores().of_answers(model, rows, [0, len(rows) - 1])
    asked = sorted(each[0] for row in (0, len(rows) - 1) for each in rows.documents(row))
    assert found.values == {"exact_match": 1.0} and rows.is_packed and compared[0].rows == asked
    assert compared[0].references == [rows.texts("answer")[number] for number in asked]


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
    assert "answer to" in printed and "reference:" in printed and "--chat" in printed and "packed into" in printed
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

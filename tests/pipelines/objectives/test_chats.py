"""Chats as people keep them: what reaches the template, what is learned of it, and what ends an answer."""

import json
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.prepare import describe_data, prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from people_files import as_csv
from task_data import on_rows, random_decoder, task_recipe, write_lines
from tiny_tokenizers import of_bytes
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

EOS = "<|endoftext|>"
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 1024}
CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "rain", "description": "Rain there.", "parameters": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "rain", "arguments": {"place": "Oslo"}}}
TWO_CALLS = [CALL, CALL | {"function": {"name": "snow", "arguments": {"hour": 7}}}]


def user(text):
    return {"role": "user", "content": text}


def said(text, **keys):
    return {"role": "assistant", "content": text, **keys}


def result(text):
    return {"role": "tool", "content": text}


def tokenizer_of(folder, template, marks=("<|im_start|>", "<|im_end|>"), plain=(), eos=EOS):
    """A tokenizer of bytes with a template. marks: its special tokens, beside named ones. plain: others it adds."""
    tokenizer = of_bytes((EOS, *marks), eos=eos, pad=EOS)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in plain])
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return {"name_or_path": str(folder), "vocab_size": None}


def write(path, rows):
    """A file of rows; what is no text is JSON in .csv, and so are tools in Parquet, as a struct there has fields."""
    texts = [{key: v if isinstance(v, str) else json.dumps(v) for key, v in row.items()} for row in rows]
    if path.suffix == ".csv":
        path.write_text(as_csv(texts), newline="")
    elif path.suffix == ".parquet":
        rows = [row | {key: text[key] for key in row if key == "tools"} for row, text in zip(rows, texts)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        write_lines(path, rows)
    return path


@pytest.fixture
def prepare(tmp_path):
    def run(rows, kind="instruction_tuning", template=CHATML, tokenizer=None, **task):
        model = {"max_position_embeddings": 1024} if kind == "instruction_tuning" else {}
        fields = {"max_length": 1000} | ({"packing": False} if kind == "instruction_tuning" else {}) | task
        sections = on_rows(tmp_path, rows, **fields) | {"model": model}
        sections["tokenizer"] = tokenizer or tokenizer_of(tmp_path / "tokenizer", template)
        if kind == "preference":
            sections |= {"tokenizer": None, "model": {"name_or_path": str(tmp_path / "chats")}}
            model = AutoModelForCausalLM.from_pretrained(random_decoder(tmp_path / "chats", **SIZES))
            model.resize_token_embeddings(260)
            model.save_pretrained(tmp_path / "chats")
            tokenizer_of(tmp_path / "chats", template)
        return prepare_data(load_recipe(task_recipe(tmp_path, kind, **sections)))

    return run


def learned(data, number=0, split="train"):
    """(what is read, the texts that are learned) of a row."""
    row, runs = data.rows[split][number], [[]]
    for token, label in zip(row["input_ids"].tolist(), row["labels"].tolist(), strict=True):
        if label == -100:
            runs.append([])
        else:
            assert label == token
            runs[-1].append(label)
    return data.tokenizer.decode(row["input_ids"]), [data.tokenizer.decode(run) for run in runs if run]


MESSAGES = {"messages_field": "messages"}
WITH_CALLS = [user("rain?"), said(None, tool_calls=TWO_CALLS), result("7 mm"), said("much")]
LEARNED_CALLS = [
    '<tool_call>{"name": "rain", "arguments": {"place": "Oslo"}}</tool_call>'
    '<tool_call>{"name": "snow", "arguments": {"hour": 7}}</tool_call><|im_end|>',
    "much<|im_end|>",
]


def with_calls(calls, content=None, **others):
    return {"messages": [user("rain?"), said(content, tool_calls=calls, **others), result("7 mm"), said("much")]}


def flat(calls):
    return [call["function"] for call in calls]


def as_texts(calls):
    return [{"function": each | {"arguments": json.dumps(each["arguments"])}} for each in flat(calls)]


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


FORMS = {
    "dicts": with_calls(TWO_CALLS),
    "empty": with_calls(TWO_CALLS, ""),
    "flat": with_calls(flat(TWO_CALLS)),
    "arguments as JSON": with_calls(as_texts(TWO_CALLS)),
    "calls as JSON": with_calls(json.dumps(TWO_CALLS)),
    "all as JSON": {"messages": json.dumps(WITH_CALLS), "tools": json.dumps([TOOL])},
    "tools one by one": {"messages": WITH_CALLS, "tools": [json.dumps(TOOL)]},
    "other keys are null": with_calls(TWO_CALLS, weight=None, function_call=None),
    "prompt and completion": {"prompt": [user("rain?")], "completion": WITH_CALLS[1:]},
    "JSON texts": {"prompt": json.dumps([user("rain?")]), "completion": json.dumps(WITH_CALLS[1:])},
}


@pytest.mark.parametrize("end", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("form", FORMS)
def test_calls_of_tools_are_learned_in_every_form_in_which_they_are_kept(prepare, tmp_path, form, end):
    row = {"tools": [TOOL]} | FORMS[form]
    path = write(tmp_path / f"chats.{end}", [row])
    task = MESSAGES if "messages" in row else {"prompt_field": "prompt", "answer_field": "completion"}
    read, texts = learned(prepare(path, **task))
    assert texts == LEARNED_CALLS and "Rain there." in read and "tool\n7 mm<|im_end|>" in read
    assert "null" not in read and "None" not in read


def test_nulls_that_a_table_fills_in_are_not_written_and_counted(prepare):
    """In JSON they are as they are meant, such as a default of a tool."""
    call = CALL | {"function": {"name": "rain", "arguments": {"place": "Oslo", "hour": None}}}
    tool = {"type": "function", "function": {"name": "rain", "description": "Rain there.", "default": None}}
    row = with_calls([call]) | {"tools": [tool, tool], "chat_template_kwargs": {"mode": None}}
    data = prepare([row], **MESSAGES)
    read, texts = learned(data)
    assert texts[0] == LEARNED_CALLS[0].split("</tool_call>")[0] + "</tool_call><|im_end|>" and "null" not in read
    for count in ("calls of tools (1 time)", "tools (2 times)", "chat_template_kwargs (1 time)"):
        assert f"null values in {count}" in data.rows["train"].notes[0]
    data = prepare([with_calls(json.dumps([call])) | {"tools": json.dumps([tool])}], **MESSAGES)
    assert learned(data)[0].count("null") == 2 and data.rows["train"].notes == []


def test_texts_in_parts_are_read(prepare):
    chat = [user([*parts("a"), parts("b")[0] | {"cache_control": "short"}]), said(parts("c"))]
    data = prepare([{"messages": chat}], **MESSAGES)
    assert "user\na\nb<|im_end|>" in learned(data)[0] and learned(data)[1] == ["c<|im_end|>"]
    assert "cache_control of a part of a message (1 time)" in data.rows["train"].notes[0]


@pytest.mark.parametrize("content", [None, "so"])
def test_the_older_form_of_calls_is_written_by_the_template_or_refused(prepare, content):
    row = {"messages": [user("a"), said(content, function_call=CALL["function"])]}
    with pytest.raises(UserError, match="does not write function_call, the older form of tool_calls"):
        prepare([row], **MESSAGES)
    template = CHATML.replace("<|im_end|>\n{% endfor %}", "{{ (m.function_call or {}).name }}<|im_end|>\n{% endfor %}")
    assert learned(prepare([row], template=template, **MESSAGES))[1] == [f"{content or ''}rain<|im_end|>"]


def test_a_template_that_writes_arguments_as_they_are_gets_their_json(prepare):
    template = CHATML.replace("call.function | tojson", "call.function.arguments")
    concatenates = template.replace("{{ call.function.arguments }}", "{{ 'a' + call.function.arguments }}")
    for each in (template, concatenates):
        texts = learned(prepare([with_calls([CALL])], template=each, **MESSAGES))[1]
        assert '{"place": "Oslo"}</tool_call><|im_end|>' in texts[0]


def test_control_tokens_in_any_text_of_a_message_are_ordinary_text(prepare):
    bad = "<|im_end|>"
    call = {"function": {"name": "rain", "arguments": {"place": [bad], bad: "x"}}}
    tool = {"type": "function", "function": {"name": "rain", "description": bad}}
    row = {"messages": [user(bad), said(bad, reasoning_content=bad, tool_calls=[call])], "tools": [tool]}
    other = json.loads(json.dumps(row).replace("<|", "<!"))
    data = prepare([row, other], **MESSAGES)
    ids, plain = (data.rows["train"][number]["input_ids"].tolist() for number in range(2))
    labels = data.rows["train"][0]["labels"]
    end = data.tokenizer.convert_tokens_to_ids(bad)
    assert ids.count(end) == plain.count(end) == 3 and int((labels == end).sum()) == 1
    assert data.tokenizer.decode(ids).count(bad) == 3 + 6
    asked = data.labels.prompt_ids(data.answers().asked(row, "here"))
    assert asked == ids[: len(asked)] and asked.count(end) == 2


def test_keys_that_nothing_reads_are_named_with_their_count(prepare, tmp_path, command, capsys):
    rows = [{"messages": [user("a") | {"name": "Ann"}, said("b", reasoning_content="so", mood="good")]}] * 3
    prepare(rows, **MESSAGES)
    assert command("preview", tmp_path / "recipe.yaml", "task.packing=true", "--rows", "1") == 0
    named = "not written by the chat template: mood of the assistant (3 times), name of the user (3 times)"
    assert named in " ".join(capsys.readouterr().out.split())
    row = {"messages": [user("a"), said("b")], "chat_template_kwargs": {"mode": "short"}}
    assert "mode (1 time)" in describe_data(prepare([row], **MESSAGES))[0][1]
    assert not prepare([{"messages": [user("a"), said("b")]}], **MESSAGES).rows["train"].notes
    pair = {"prompt": [user("a") | {"name": "Ann"}], "chosen": [said("b", mood="good")], "rejected": [said("c")]}
    data = prepare([pair] * 2, "preference", prompt_field="prompt")
    named = "mood of the assistant (2 times), name of the user (2 times)"
    assert named in data.rows["train"].notes[0]


DROPS = {
    "tools": ("{{ tools | tojson }}", "tools"),
    "calls of tools": ("m.tool_calls or []", "[]"),
    "results of tools": ("{{ m.content }}", "{{ m.content if m.role != 'tool' else '' }}"),
    "what the user says": ("{{ m.content }}", "{{ m.content if m.role != 'user' else '' }}"),
    "what the assistant says": ("{{ m.content }}", "{{ m.content if m.role != 'assistant' else '' }}"),
}


@pytest.mark.parametrize("kind", ["instruction_tuning", "preference"])
@pytest.mark.parametrize("what", DROPS)
def test_a_template_that_drops_what_is_needed_is_refused_with_what_mends_it(prepare, what, kind):
    template, said_twice = CHATML.replace(*DROPS[what]), with_calls([CALL])["messages"]
    rows = {
        "instruction_tuning": {"messages": said_twice, "tools": [TOOL]},
        "preference": {"prompt": said_twice[:3], "chosen": "much", "rejected": "no", "tools": [TOOL]},
    }
    task = MESSAGES if kind == "instruction_tuning" else {"prompt_field": "prompt"}
    with pytest.raises(UserError, match=f"does not write {what} .*(line 1|a probe).*; set tokenizer.chat_template to "):
        prepare([rows[kind]] * 2, kind, template=template, **task)


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"loss": False}, {"training": 0, "weight": 1}])
def test_an_answer_that_is_marked_so_is_read_but_not_learned(prepare, mark):
    chat = [user("a"), said("one", **mark), user("b"), said("two", weight=1), user("c"), said("three", **mark)]
    data = prepare([{"messages": chat}], **MESSAGES)
    read, texts = learned(data)
    assert texts == ["two<|im_end|>"] and "one<|im_end|>" in read and "three" not in read
    assert data.rows["train"].notes == []


NO_CHATS = ["hello", '{"role": "user"}', '["hello"]', "[{", "[" * 100_000]
REFUSED = [  # what is said of line 2, and what it holds
    *[(r"holds str, which is no list of messages \{role, content\}, n", {"messages": text}) for text in NO_CHATS],
    ("holds a message with a part that is no", {"messages": [user([{"type": "image_url", "url": "b"}]), said("c")]}),
    ("holds a message with weight=0.5; 1 or true learns an answer", {"messages": [user("a"), said("b", weight=0.5)]}),
    ("marks each answer as one not to be learned", {"messages": [user("a"), said("b", train=False)]}),
    ("holds a tool call without the name of its function", with_calls([{"function": {"arguments": {}}}], "")),
    ("holds a tool call whose arguments are no JSON object", with_calls([{"name": "rain", "arguments": "Oslo"}], "")),
    ("holds tool_calls str, which is no list of calls", with_calls("rain()", "")),
    ("holds an empty text of the assistant", with_calls([], "")),
    ("holds str, which is no list of tools", {"messages": WITH_CALLS, "tools": "a hammer"}),
]


@pytest.mark.parametrize("sentence, row", REFUSED)
def test_a_conversation_that_cannot_be_read_is_one_sentence(prepare, sentence, row):
    field = "task.tools_field='tools' .*" if "of tools" in sentence else ""
    with pytest.raises(UserError, match=f"{field}line 2 {sentence}"):
        prepare([with_calls([CALL]) | {"tools": [TOOL]}, {"tools": [TOOL]} | row], **MESSAGES)


def test_what_a_column_of_template_variables_says_reaches_the_template(prepare):
    template = "{{ mode }}" + CHATML
    rows = [
        {"messages": [user("a"), said("b")], "chat_template_kwargs": kwargs} for kwargs in ({"mode": "short"}, None)
    ]
    data = prepare(rows, template=template, **MESSAGES)
    assert learned(data)[0].startswith("short<|im_start|>") and learned(data, 1)[0].startswith("<|im_start|>")


# ---- what is learned of a conversation

HISTORY = [user("a"), said("old"), user("b")]
COMPLETIONS = {
    "a text": (HISTORY, "new"),
    "a message": (HISTORY, [said("new")]),
    "it repeats the prompt": (HISTORY, [*HISTORY, said("new")]),
    "it repeats the last question": ("b", [*HISTORY, said("new")]),
    "with a system message": ([{"role": "system", "content": "s"}, *HISTORY], [said("new")]),
}


@pytest.mark.parametrize("form", COMPLETIONS)
def test_of_prompt_and_completion_the_completion_is_learned(prepare, form):
    prompt, completion = COMPLETIONS[form]
    data = prepare([{"prompt": prompt, "completion": completion}], prompt_field="prompt", answer_field="completion")
    read, texts = learned(data)
    assert texts == ["new<|im_end|>"] and read.count("user\na<") == read.count("user\nb<") == 1 and "old" in read


def test_an_answer_to_another_question_is_refused(prepare):
    with pytest.raises(UserError, match=r"task.answer_field='completion': .*line 1 begins with a question of its own"):
        row = {"prompt": "a", "completion": [user("b"), said("new")]}
        prepare([row], prompt_field="prompt", answer_field="completion")


def test_a_pair_compares_the_answers_from_where_its_conversations_differ(prepare):
    """Also where both repeat the prompt, as in UltraFeedback, or hold calls of tools before the last answer."""
    good, bad = [said(None, tool_calls=[CALL]), result("7 mm"), said("much")], [said("no")]
    forms = {
        "answers": {"prompt": HISTORY, "chosen": good, "rejected": bad},
        "repeated": {"prompt": "b", "chosen": HISTORY + good, "rejected": HISTORY + bad},
        "conversations": {"chosen": HISTORY + good, "rejected": HISTORY + bad},
    }
    found = []
    for row in forms.values():
        data = prepare([row | {"tools": [TOOL]}] * 2, "preference", prompt_field="prompt" if "prompt" in row else None)
        row = data.rows["train"][0]
        batch = data.collator([row])
        found.append([data.tokenizer.decode(ids[mask]) for ids, mask in zip(batch["input_ids"], batch["answers"])])
        assert "Rain there." in data.tokenizer.decode(row["input_ids"])
        found[-1].append(data.tokenizer.decode(row["input_ids"]).count("user\na<"))
    call = LEARNED_CALLS[0].split("</tool_call>")[0] + "</tool_call><|im_end|>"
    assert found == [[f"{call}much<|im_end|>", "no<|im_end|>", 2]] * 3


def test_a_written_call_is_compared_with_the_call(prepare):
    data = prepare([{"messages": WITH_CALLS[:2], "tools": [TOOL]}] * 2, **MESSAGES)
    rows = data.reads.rows(data, data.sources["train"], "validation")
    assert rows.texts("answer")[0] == LEARNED_CALLS[0].removesuffix("<|im_end|>")
    asked = data.labels.prompt_ids(data.answers().asked({"messages": WITH_CALLS[:2], "tools": [TOOL]}, "here"))
    right = data.tokenizer.apply_chat_template(WITH_CALLS[:1], tools=[TOOL], add_generation_prompt=True)["input_ids"]
    assert asked == right


# ---- the end of an answer

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ENDS = {  # template, special tokens, added tokens that are text, end-of-text token, what is learned, the new stops
    "Llama 3 base": (CHATML, ["<|im_start|>", "<|im_end|>"], [], EOS, "b<|im_end|>", ["<|im_end|>"]),
    "an added token": (CHATML, ["<|im_start|>"], ["<|im_end|>"], EOS, "b<|im_end|>", ["<|im_end|>"]),
    "Phi-3": (
        CHATML + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}",
        *(["<|im_start|>", "<|im_end|>"], [], EOS, "b<|im_end|>", ["<|im_end|>"]),
    ),
    "GLM": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        *(["<|user|>", "<|assistant|>"], [], EOS, "b<|user|>", ["<|user|>"]),
    ),
    "no mark": (
        PLAIN + "{% if add_generation_prompt %}assistant:{% endif %}",
        *([], [], EOS, f" b{EOS}", []),
    ),
    "text that looks like a mark": (CHATML, [], [], EOS, f"b<|im_end|>{EOS}", []),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_token_that_ends_an_answer_is_learned_and_stops_generation(prepare, tmp_path, name):
    template, special, plain, eos, end, stops = ENDS[name]
    tokenizer = tokenizer_of(tmp_path / "tokenizer", template, special, plain, eos)
    data = prepare([{"messages": [user("a"), said("b")] * 2}], tokenizer=tokenizer, **MESSAGES)
    answers = [text for number in range(len(data.rows["train"])) for text in learned(data, number)[1]]
    assert answers == [end, end]
    eos_id = data.tokenizer.eos_token_id
    model = SimpleNamespace(generation_config=GenerationConfig(eos_token_id=eos_id))
    data.learns().adapt(model)
    ids = data.tokenizer.convert_tokens_to_ids(stops)
    assert model.generation_config.eos_token_id == ([eos_id, *ids] if ids else eos_id)
    assert data.tokenizer.decode([eos_id, *ids], skip_special_tokens=True) == ""


def test_a_call_that_ends_otherwise_stops_generation_as_well(prepare, tmp_path):
    template = CHATML.replace(
        "<|im_end|>\n{% endfor %}", "{{ '<|call|>' if m.tool_calls else '<|im_end|>' }}\n{% endfor %}"
    )
    marks = ("<|im_start|>", "<|im_end|>", "<|call|>")
    data = prepare([with_calls([CALL])], tokenizer=tokenizer_of(tmp_path / "tokenizer", template, marks), **MESSAGES)
    model = SimpleNamespace(generation_config=GenerationConfig())
    data.learns().adapt(model)
    assert model.generation_config.eos_token_id == data.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|call|>"])
    assert learned(data)[1][0].endswith("</tool_call><|call|>")


def test_a_saved_run_stops_at_the_end_of_an_answer_and_does_not_show_it(prepare, tmp_path, command, capsys):
    tokenizer = tokenizer_of(tmp_path / "tokenizer", CHATML, ["<|im_start|>"], ["<|im_end|>"])
    rows = [{"messages": [user("a"), said("b")]}] * 8
    data = prepare(rows, tokenizer=tokenizer, **MESSAGES)
    end = data.tokenizer.convert_tokens_to_ids("<|im_end|>")
    how = ["training.max_steps=40", "training.learning_rate=0.01", "training.warmup_steps=0", "task.max_length=40"]
    assert command("train", tmp_path / "recipe.yaml", *how) == 0
    run = tmp_path / "run"
    saved = json.loads((run / "generation_config.json").read_text())["eos_token_id"]
    assert saved == [data.tokenizer.eos_token_id, end]
    assert AutoTokenizer.from_pretrained(run).decode([end], skip_special_tokens=True) == ""
    capsys.readouterr()
    assert command("generate", run, "a", "--chat", "--greedy", "--max-new-tokens", "20") == 0
    assert capsys.readouterr().out.strip() == "b"
    write_lines(tmp_path / "asked.jsonl", [{"messages": [user("a") | {"name": "Ann"}], "tools": []}] * 2)
    assert command("predict", run, tmp_path / "asked.jsonl", "--out", tmp_path / "out.jsonl") == 0
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[1])["prediction"] == "b"
    assert "not written by the chat template: name of the user (2 times)" in capsys.readouterr().err
    write_lines(tmp_path / "asked.jsonl", [{"messages": [user("a"), {"content": "b"}], "tools": []}])
    assert command("predict", run, tmp_path / "asked.jsonl", "--out", tmp_path / "out.jsonl") == 2
    assert "holds a message without role" in capsys.readouterr().err


def test_a_template_that_begins_an_answer_behind_whole_conversations_is_refused(prepare):
    template = CHATML.replace("{% if add_generation_prompt %}", "{% if true %}")
    with pytest.raises(UserError, match=r"ends a whole conversation with .*assistant', as if an answer followed"):
        prepare([{"messages": [user("a"), said("b")]}], template=template, **MESSAGES)


BROKEN = {
    "a range too large": "{% for i in range(10 ** 9) %}{% endfor %}",
    "too much memory": "{{ 'x' * 10 ** 15 }}",
    "an endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a division": "{{ 1 // (messages | length - messages | length) }}",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_template_that_fails_in_any_way_is_one_sentence(prepare, tmp_path, command, capsys, name):
    prepare([{"messages": [user("a"), said("b")]}], **MESSAGES)
    (tmp_path / "tokenizer" / "chat_template.jinja").write_text(BROKEN[name] + CHATML)
    for door in ("train", "preview"):
        assert command(door, tmp_path / "recipe.yaml") == 2
        assert "does not suit the tokenizer's chat template" in capsys.readouterr().err

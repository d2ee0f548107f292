"""Chats in all the forms that people have: each is read with no setting beyond the files, or one sentence mends it."""

import copy
import json
import re

import pytest
import yaml
from anyformer.pipelines.data.account_words import unusual
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.chat_forms import FORMS, recognise
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.plugins import objective_of
from anyformer.pipelines.prediction.predict import prepare_prediction
from anyformer.pipelines.recipes.compose import recipe_from_dict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from task_data import random_decoder
from test_chats import CALL, CHATML, TOOL, parts, result, said, tokenizer_of, user, write

SYSTEM = {"role": "system", "content": "Be short."}
ASKED, TOLD = [user("Rain?")], [said("Water.")]
CHAT, WORSE = ASKED + TOLD, [*ASKED, said("No.")]
SHARE = [{"from": "human", "value": "Rain?"}, {"from": "gpt", "value": "Water."}]
WITH_CALL = [user("Rain?"), said(None, tool_calls=[CALL]), result("7 mm") | {"tool_call_id": "c1"}, said("Much.")]
SHARE_CALL = [
    SHARE[0],
    {"from": "function_call", "value": json.dumps(CALL["function"])},
    {"from": "observation", "value": "7 mm"},
    {"from": "model", "value": "Much."},
]
READ = "user\nRain?<|im_end|>\n<|im_start|>assistant\nWater.<|im_end|>"
BRIEF = f"system\nBe short.<|im_end|>\n<|im_start|>{READ}"
TURNS = "user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>"
CALLED = '<tool_call>{"name": "rain", "arguments": {"place": "Oslo"}}</tool_call><|im_end|>\n<|im_start|>tool\n7 mm'

# A row, its form, and what the template writes of it.
ROWS = {
    "OpenAI": ({"messages": CHAT}, "openai", READ),
    "with calls": ({"messages": WITH_CALL, "tools": [TOOL]}, "openai", CALLED),
    "parts": ({"messages": [user(parts("Rain?")), said(parts("Water."))]}, "openai", READ),
    "reasoning": ({"messages": [*ASKED, said("Water.", reasoning="Wet.")]}, "openai", "<think>Wet.</think>Water."),
    "thinking": ({"messages": [*ASKED, said("Water.", thinking="Wet.")]}, "openai", "<think>Wet.</think>Water."),
    "another column": ({"id": "a", "dialog": CHAT}, "openai", READ),
    "as Python writes it": ({"messages": str(CHAT)}, "openai", READ),
    "a transcript": ({"id": "a", "text": "\n\nHuman: Rain?\n\nAssistant: Water."}, "sharegpt", READ),
    "with marks": ({"text": "### Human: Rain?### Assistant: Water.### Human: So?### Assistant: No."}, "sharegpt", READ),
    "ShareGPT": ({"conversations": SHARE}, "sharegpt", READ),
    "one conversation": ({"conversation": SHARE, "system": "Be short."}, "sharegpt", BRIEF),
    "ShareGPT's calls": ({"conversations": SHARE_CALL, "tools": json.dumps([TOOL])}, "sharegpt", CALLED),
    "Alpaca": ({"instruction": "Rain?", "input": "", "output": "Water."}, "alpaca", READ),
    "with input": ({"instruction": "Is it", "input": "wet?", "output": "Yes."}, "alpaca", "user\nIs it\n\nwet?<"),
    "with system and history": (
        {"instruction": "Rain?", "output": "Water.", "system": "Be short.", "history": [["Hi", "Hello"]]},
        *("alpaca", BRIEF.replace(READ, TURNS + READ)),
    ),
    "prompt": ({"prompt": "Rain?", "completion": "Water."}, "prompt_completion", READ),
    "of messages": ({"prompt": [SYSTEM, *ASKED], "completion": TOLD}, "prompt_completion", BRIEF),
    "of a message": ({"prompt": ASKED, "completion": TOLD[0]}, "prompt_completion", READ),
    "question, answer": ({"question": "Rain?", "answer": "Water."}, "prompt_completion", READ),
    "question, response": ({"system_prompt": "Be short.", "question": "Rain?", "response": "Water."}, None, BRIEF),
    "query, response": ({"query": "Rain?", "response": "Water."}, "prompt_completion", READ),
    "input, output": ({"input": "Rain?", "output": "Water."}, "prompt_completion", READ),
    "Dolly": ({"instruction": "Is it", "context": "wet?", "response": "Yes."}, None, "Is it\n\nwet?<"),
}
HH = {"chosen": "Water.", "rejected": "No."}
PAIRS = {
    "texts": {"prompt": "Rain?", "chosen": "Water.", "rejected": "No."},
    "of an instruction": {"instruction": "Rain?", "chosen": "Water.", "rejected": "No."},
    "of a question": {"system": "", "question": "Rain?", "chosen": "Water.", "rejected": "No."},
    "of an input": {"input": "Rain?", "chosen": "Water.", "rejected": "No."},
    "messages": {"prompt": ASKED, "chosen": TOLD[0], "rejected": WORSE[1]},
    "lists": {"prompt": ASKED, "chosen": TOLD, "rejected": WORSE[1:]},
    "conversations": {"prompt": "Rain?", "chosen": CHAT, "rejected": WORSE, "messages": CHAT},
    "a conversation before them": {"conversations": ASKED, "chosen": TOLD[0], "rejected": WORSE[1]},
    "an implicit prompt": {"chosen": CHAT, "rejected": WORSE},
    "transcripts": {part: f"\n\nHuman: Rain?\n\nAssistant: {said}" for part, said in HH.items()},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tokenizer and a decoder that preferences start from."""
    folder = tmp_path_factory.mktemp("forms")
    tokenizer_of(folder / "tokenizer", CHATML)
    random_decoder(folder / "decoder", hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=300)
    tokenizer_of(folder / "decoder", CHATML)
    return folder


def recipe_of(folder, path, name="instruction_tuning", **task):
    """Sections of a recipe that sets nothing on the columns beyond `task`."""
    model = {"family": "decoder", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    is_pair = name == "preference"
    return {
        "model": {"name_or_path": str(folder / "decoder")} if is_pair else model | {"max_position_embeddings": 1024},
        "data": {"files": str(path), "validation_fraction": 0.0, "cache_dir": str(folder / "cache")},
        "task": {"name": name, "max_length": 1000} | ({} if is_pair else {"packing": False}) | task,
        "evaluation": {"every_steps": None},
        "training": {"output_dir": str(folder / "run"), "bf16": False, "max_steps": 1},
    } | ({} if is_pair else {"tokenizer": {"name_or_path": str(folder / "tokenizer")}})


def rows_of(recipe):
    """(the rows of a recipe, the part that reads them), without a reference model's answers."""
    recipe = recipe_from_dict(recipe)
    task = objective_of(recipe).for_rows()
    reads = task.Reads(task)
    sources = reads.open()
    data = reads.prepare(sources)
    return reads.rows(data, sources["train"], "train"), data


def texts_of(recipe):
    rows, data = rows_of(recipe)
    return [data.tokenizer.decode(rows[number]["input_ids"]) for number in range(len(rows))]


@pytest.mark.parametrize("end", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("name", ROWS)
def test_each_form_is_read_without_a_setting(folder, tmp_path, name, end):
    row, form, read = ROWS[name]
    rows, data = rows_of(recipe_of(folder, write(tmp_path / f"rows.{end}", [row] * 3)))
    assert len(rows) == 3 and read in data.tokenizer.decode(rows[0]["input_ids"])
    assert f"task.format={form or 'prompt_completion'}" in rows.notes[0] and len(rows.notes) == 1


@pytest.mark.parametrize("end", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("name", PAIRS)
def test_each_form_of_preferences_is_read_without_a_setting(folder, tmp_path, name, end):
    row = PAIRS[name] | {"score_chosen": 9.0, "score_rejected": 2.0}
    rows, data = rows_of(recipe_of(folder, write(tmp_path / f"rows.{end}", [row] * 3), "preference"))
    worse = READ.replace("Water", "No")
    assert data.tokenizer.decode(rows[0]["input_ids"]) == f"<|im_start|>{READ}<|im_start|>{worse}"
    unread = {entry["name"]: entry["number"] for entry in rows.account.to_json() if entry["fate"] == "unused"}
    assert unread["score_chosen"] == unread["score_rejected"] == 3


def test_what_was_recognised_is_said_where_rows_are_read(folder, tmp_path, command, capsys):
    path = write(tmp_path / "chats.jsonl", [{"conversations": SHARE, "system": "Be short."}] * 4)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(recipe_of(folder, path) | {"training": {"output_dir": str(tmp_path / "run")}}))
    short = ("training.max_steps=1", "training.bf16=false")
    line = "read as ShareGPT's conversations (task.format=sharegpt): task.messages_field=conversations"
    for words in (("preview", recipe, "--rows", "1"), ("prepare", recipe), ("train", recipe)):
        assert command(*words, *short) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert line in told and "task.system_field=system" in told, words[0]
    asked = write(tmp_path / "asked.jsonl", [{"question": "Rain?"}, {"question": "Snow?"}])
    assert command("predict", tmp_path / "run", asked, "--out", tmp_path / "answers.jsonl") == 0
    assert "task.prompt_field=question" in capsys.readouterr().err
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2
    prediction = prepare_prediction(str(tmp_path / "run"), [{"conversations": SHARE, "system": "Be short."}])
    assert prediction.asked("a row", next(iter(prediction.rows))[1]) == [SYSTEM, *ASKED]
    nothing = prepare_prediction(str(tmp_path / "run"), [{"conversations": [{"from": "human", "value": ""}]}] * 2)
    assert [str(nothing.asked(*one)) for one in nothing.rows] == ["empty in what the model reads"] * 2


def test_what_a_recipe_says_of_its_columns_stays(folder, tmp_path):
    """Such a recipe has the same rows, under the same key, whatever else is in the file."""
    rows = [{"a": [user("x"), said("y")], "messages": CHAT, "system": "Be short."}] * 3
    recipe = recipe_of(folder, write(tmp_path / "rows.jsonl", rows), messages_field="a")
    assert texts_of(recipe)[0].startswith("<|im_start|>user\nx") and not rows_of(recipe)[0].notes
    path = write(tmp_path / "pairs.jsonl", [{"question": "Rain?", "answer": "Water."}] * 3)
    written = recipe_of(folder, path, prompt_field="question", answer_field="answer")
    assert rows_of(written)[0].fingerprint == rows_of(recipe_of(folder, path))[0].fingerprint
    path = write(tmp_path / "alpaca.jsonl", [{"instruction": "Rain?", "output": "Water.", "messages": CHAT[:1]}] * 3)
    assert READ in texts_of(recipe_of(folder, path))[0]


def test_columns_and_roles_of_other_names_are_read_by_two_settings(folder, tmp_path):
    path = write(tmp_path / "a.jsonl", [{"frage": "Rain?", "antwort": "Water.", "rolle": "Be short."}] * 3)
    columns = {"instruction": "frage", "output": "antwort", "system": "rolle"}
    assert BRIEF in texts_of(recipe_of(folder, path, columns=columns))[0]
    turns = [{"speaker": "Kunde", "text": "Rain?"}, {"speaker": "Berater", "text": "Water."}]
    path = write(tmp_path / "b.jsonl", [{"verlauf": turns, "id": "x"}] * 3)
    roles = {"Kunde": "user", "Berater": "assistant"}
    for more in ({}, {"columns": {"messages": "verlauf"}}, {"messages_field": "verlauf"}):
        rows, data = rows_of(recipe_of(folder, path, roles=roles, **more))
        assert READ in data.tokenizer.decode(rows[0]["input_ids"])
    read = [entry for entry in rows.account.to_json() if entry["what"] == "role"]
    assert [(entry["name"], entry["number"]) for entry in read] == [("Berater", 3), ("Kunde", 3)]


LONG = {"id": "q-1", "thema": "Wetter", "frage": "Was ist Regen denn?", "antwort": "Wasser aus den Wolken."}
SENTENCES = {
    "a likely prompt and answer": (LONG, {}, "likely is task.prompt_field=frage, task.answer_field=antwort"),
    "a likely answer": (LONG, {"prompt_field": "frage"}, "task.answer_field='output'.*task.answer_field=antwort"),
    "likely messages": ({"id": "a", "chat": CHAT}, {"messages_field": "x"}, "likely is task.messages_field=chat"),
    "a misspelt column": ({"chats": CHAT}, {"messages_field": "chat"}, "did you mean chats?"),
    "another task": (PAIRS["texts"], {}, "likely is task.name=preference"),
    "a misspelt name": (LONG, {"columns": {"instuction": "frage"}}, "'instuction' is .*did you mean instruction"),
    "no such column": (LONG, {"columns": {"instruction": "frag"}}, "task.columns.instruction='frag': no such column"),
    "another form": (LONG, {"format": "sharegpt"}, "task.format='sharegpt'.*task.format=auto, task.prompt_field=frage"),
    "a column without messages": (
        {"id": "a", "text": "so it is", "dialog": CHAT},
        *({"messages_field": "text"}, "'text': no messages in .*likely is task.messages_field=dialog"),
    ),
    "a column without texts": (
        {"instruction": "a", "output": 7, "reply": "so it is"},
        *({}, "task.answer_field='output': neither texts nor .*likely is task.answer_field=reply"),
    ),
    "other tools": (
        {"messages": CHAT, "functions": [TOOL]},
        *({"tools_field": "abilities"}, "task.tools_field='abilities'.*likely is task.tools_field=functions"),
    ),
    "an unknown form": (LONG, {"format": "chatml"}, "task.format='chatml' is not one of its choices"),
    "other roles": (
        {"messages": [{"role": "Kunde", "content": "a"}, {"role": "Berater", "content": "b"}]},
        *({}, "task.roles={Berater: assistant, ...: user} reads it as one"),
    ),
    "a role of ours": (LONG, {"roles": {"Kunde": "human"}}, "task.roles.Kunde='human' is not one of its choices"),
    "a system that is no text": (
        {"messages": CHAT, "system": 7},
        *({"system_field": "system"}, "task.system_field='system': .*line 1 holds int, not text"),
    ),
    "a history of no turns": (
        LONG | {"instruction": "a", "output": "b", "history": [["a"]]},
        *({}, "task.history_field='history': .*holds list, which is no list of messages"),
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_what_cannot_be_read_is_one_sentence_with_the_setting_that_mends_it(folder, tmp_path, name):
    row, task, sentence = SENTENCES[name]
    path = write(tmp_path / "rows.jsonl", [row] * 3)
    with pytest.raises(UserError, match=sentence) as error:
        rows_of(recipe_of(folder, path, **task))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("own, other", [("OpenAI", "ShareGPT"), ("Alpaca", "OpenAI"), ("OpenAI", "prompt")])
def test_splits_in_two_forms_are_one_sentence(folder, tmp_path, own, other):
    recipe = recipe_of(folder, write(tmp_path / "rows.jsonl", [ROWS[own][0]] * 3))
    recipe["data"] |= {"validation_files": str(write(tmp_path / "held.jsonl", [ROWS[other][0]] * 3))}
    del recipe["data"]["validation_fraction"]
    said = rf"held.jsonl would be .*task.format={ROWS[other][1]}.* and rows.jsonl by task.*; bring both into one"
    with pytest.raises(UserError, match=said):
        rows_of(recipe)


@pytest.mark.parametrize("own, other", [("OpenAI", "ShareGPT"), ("Alpaca", "OpenAI"), ("OpenAI", "prompt")])
def test_two_forms_in_one_file_are_named_with_the_line(folder, tmp_path, own, other):
    path = write(tmp_path / "rows.jsonl", [ROWS[own][0]] * 3 + [ROWS[other][0]])
    form = re.escape(FORMS[ROWS[other][1]])
    with pytest.raises(UserError, match=f"no such column in .*line 4, which is of another form, {form} "):
        rows_of(recipe_of(folder, path))
    recipe = recipe_of(folder, path)
    recipe["data"]["bad_rows"] = "skip"
    rows = prepare_data(recipe_from_dict(recipe)).rows["train"]
    assert len(rows) == 3 and any(FORMS[ROWS[other][1]] in line for line in unusual(rows.account))


def test_a_system_message_of_some_rows_is_read_there(folder, tmp_path):
    row = {"question": "Rain?", "answer": "Water."}
    for name in ("system", "system_prompt"):
        path = write(tmp_path / f"{name}.jsonl", [row | {name: "Be short."}, row])
        first, second = texts_of(recipe_of(folder, path))
        assert BRIEF in first and READ in second and "short" not in second


def test_roles_and_keys_that_are_none_of_ours_are_told(folder, tmp_path):
    call = CALL | {"function": CALL["function"] | {"strict": True}}
    odd = [user("Rain?"), said(None, tool_calls=[call]), {"role": "plug-in", "content": "7 mm"}, said("Much.")]
    rows, _ = rows_of(recipe_of(folder, write(tmp_path / "rows.jsonl", [{"messages": odd}] * 3)))
    told = " ".join(rows.notes)
    assert "'plug-in' 3; task.roles" in told and "strict of the function of a call (3 times)" in told


def test_rows_of_other_kinds_are_no_chats():
    others = [{"text": "a", "label": "b"}, {"en": "a", "de": "b"}, {"tokens": ["a"], "tags": ["O"]}, {"from": "a@b.c"}]
    assert all(recognise([row] * 3) is None for row in others)
    assert recognise([]) is None and set(FORMS) >= {recognise([row]).name for row, *_ in ROWS.values()}


# ---- the law: conversations that nobody drew, in all forms

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)
ANSWER = st.fixed_dictionaries({"text": TEXT, "thought": st.none() | TEXT, "learned": st.booleans()})
TURN = st.fixed_dictionaries({"ask": TEXT, "parts": st.booleans(), "call": st.booleans(), "answer": ANSWER})
CHATS = st.fixed_dictionaries({"system": st.none() | TEXT, "turns": st.lists(TURN, min_size=1, max_size=3)})
THOUGHTS = ("reasoning_content", "reasoning", "thinking")


def messages_of(chat, nulls: bool, key: str):
    """OpenAI's messages. nulls: as a table that fills in keys. key: of what is thought."""
    messages = [] if chat["system"] is None else [{"role": "system", "content": chat["system"]}]
    for number, turn in enumerate(chat["turns"]):
        messages.append(user(parts(turn["ask"]) if turn["parts"] else turn["ask"]))
        if turn["call"]:
            messages += [said(None, tool_calls=[CALL]), result("7 mm")]
        answer, is_last = turn["answer"], number == len(chat["turns"]) - 1
        more = {} if answer["thought"] is None else {key: answer["thought"]}
        more |= {} if answer["learned"] or is_last else {"weight": 0}
        messages.append(said(answer["text"], **more))
    if nulls:
        keys = dict.fromkeys(key for message in messages for key in message)
        messages = [dict.fromkeys(keys) | message for message in messages]
    return messages


def as_share(message):
    """The same message as ShareGPT writes it."""
    others = {key: value for key, value in message.items() if key not in ("role", "content", "tool_calls")}
    if message.get("tool_calls"):
        return {"from": "function_call", "value": json.dumps([CALL["function"]])} | others
    names = {"user": "human", "assistant": "gpt", "tool": "observation"}
    role = message["role"]
    return {"from": names.get(role, role), "value": message["content"]} | others


def forms_of(chat, nulls=False, key=THOUGHTS[0]):
    """{form: a row with the conversation}; Alpaca's only where it can hold it."""
    messages = messages_of(chat, nulls, key)
    last = max(number for number, message in enumerate(messages) if message["role"] == "user") + 1
    has_system, tools = chat["system"] is not None, {"tools": [TOOL]}
    rest, system = (messages[1:], {"system": chat["system"]}) if has_system else (messages, {})
    worse = [*messages[:-1], said("no, not that")]
    forms = {
        "openai": {"messages": messages},
        "sharegpt": {"conversations": list(map(as_share, rest))} | system,
        "prompt_completion": {"prompt": messages[:last], "completion": messages[last:]},
        "preference": {"chosen": messages, "rejected": worse},
    }
    if all(set(message) == {"role", "content"} and isinstance(message["content"], str) for message in rest):
        texts = [message["content"] for message in rest]
        history = [list(pair) for pair in zip(texts[:-2:2], texts[1:-2:2])]
        forms["alpaca"] = {"instruction": texts[-2], "output": texts[-1], "history": history} | system
    return {form: row | tools for form, row in forms.items()}


def task_of(form):
    return "preference" if form == "preference" else "instruction_tuning"


LAW = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])


@LAW
@given(chats=st.lists(CHATS, min_size=1, max_size=6), nulls=st.booleans(), key=st.sampled_from(THOUGHTS))
def test_a_conversation_is_the_same_in_every_form(folder, tmp_path, chats, nulls, key):
    each = [forms_of(chat, nulls, key) for chat in chats]
    read = {}
    for form in {form for forms in each for form in forms}:
        there = [number for number, forms in enumerate(each) if form in forms]
        path = write(tmp_path / "rows.jsonl", [each[number][form] for number in there])
        read[form] = dict(zip(there, texts_of(recipe_of(folder, path, task_of(form))), strict=True))
    right = read.pop("openai")
    assert all(text.startswith(right[number].rstrip()) for number, text in read.pop("preference").items())
    for form, texts in read.items():
        assert texts == {number: right[number] for number in texts}, form


def leaves(value, path=()):
    """The path of each key, item and column of a row, but those that say only what is so without them."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        if key not in ("id", "type"):
            yield (*path, key)
            yield from leaves(item, (*path, key))


def without(row, path):
    row = copy.deepcopy(row)
    place = row
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return row


@LAW
@given(chat=CHATS, nulls=st.booleans(), key=st.sampled_from(THOUGHTS), draw=st.data())
def test_whatever_is_taken_out_of_a_conversation_shows(folder, tmp_path, chat, nulls, key, draw):
    forms = forms_of(chat, nulls, key)
    form = draw.draw(st.sampled_from(sorted(forms)))
    paths = list(leaves(forms[form]))
    if form == "preference":  # of its prompt no answer is learned, marked so or not
        paths = [path for path in paths if path[-1] != "weight" or path[1] == len(forms[form][path[0]]) - 1]
    path = draw.draw(st.sampled_from(paths))

    def outcome(row):
        recipe = recipe_of(folder, write(tmp_path / "rows.jsonl", [forms[form], row]), task_of(form))
        try:
            rows, _ = rows_of(recipe)
        except UserError as error:
            return str(error)
        batches = [{name: value.tolist() for name, value in rows[n].items()} for n in range(len(rows))]
        return batches, rows.account.to_json()

    assert outcome(without(forms[form], path)) != outcome(forms[form]), (form, path)

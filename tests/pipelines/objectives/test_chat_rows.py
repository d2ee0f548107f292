"""Rows of answers by templates that write a message otherwise once another follows: what is learned, behind what."""

import json

import pytest
from anyformer.pipelines.data.account import Account
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.generation import load_writer
from anyformer.pipelines.metrics.significance import kept_comparisons
from anyformer.pipelines.objectives import instruction_tuning
from anyformer.pipelines.objectives.answers import FinishedModel
from anyformer.pipelines.objectives.chat_rows import ChatRows
from anyformer.pipelines.objectives.messages import Chat
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.serving.chat import converse
from hypothesis import given
from hypothesis import strategies as st
from task_data import on_rows, random_decoder, task_recipe, write_lines
from test_chats import EOS, TOOL, result, said, user
from tiny_tokenizers import of_bytes
from transformers import AutoModelForCausalLM

MARKS = (EOS, "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|return|>", "<|call|>")
MERGED = ["assistant: b assistant: red dog\n\n\n", "<think>\n\n</think>\n\n"] * 60
CALLS = "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
LATER = "{% set ns = namespace(user=0) %}"
LATER += "{% for m in messages %}{% if m.role == 'user' %}{% set ns.user = loop.index0 %}{% endif %}{% endfor %}"
THOUGHT = "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n"
SAID, END = "{{ m.content }}" + CALLS, "<|im_end|>\n"
ASK, TURN = "<|im_start|>assistant\n", "<|im_start|>{{ m.role }}\n"


def template(said, other="{{ m.content }}" + END, ask=ASK, turn=TURN, before="", after=""):
    """said, other: what is written of an answer and of other messages `m` behind `turn`. ask: the prompt's end."""
    said = "{% if m.role == 'assistant' %}" + said + "{% else %}" + other + "{% endif %}"
    asked = "{% if add_generation_prompt %}" + ask + "{% endif %}"
    return before + "{% for m in messages %}" + turn + said + "{% endfor %}" + asked + after


SINCE = "{% if loop.index0 > ns.user %}" + THOUGHT + "{% endif %}" + SAID + END
TEMPLATES = {
    "ChatML": template(SAID + END),
    "thoughts before the last question are dropped, as by Qwen3's": template(SINCE, before=LATER),
    "a prompt opens a thought, as by DeepSeek-R1's": template(SAID + END, ask=ASK + "<think>\n"),
    "both, as by Qwen3.5's": template(SINCE, before=LATER, ask=ASK + "<think>\n"),
    "a mark at the very end, as by Phi-3's": template(
        SAID + END, after="{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
    ),
    "other ends in history and of calls, as by gpt-oss'": template(
        SAID + "{{ '<|call|>' if m.tool_calls else '<|return|>' if loop.last else '<|im_end|>' }}"
    ),
    "thoughts of history vanish once an answer follows": template(
        "{% if m.reasoning_content and (loop.last or messages[-1].role != 'assistant') %}"
        "<think>{{ m.reasoning_content }}</think>{% endif %}" + SAID + END
    ),
    "the next message ends an answer, as by GLM's": template(
        "\n" + SAID.replace("content", "content | trim"), "\n{{ m.content }}", "<|assistant|>", "<|{{ m.role }}|>"
    ),
    "no end": template(SAID + "\n", "{{ m.content }}\n", "assistant:", "{{ m.role }}:"),
    "white space at the prompt's end": template(SAID + END, ask=ASK + " \n\n"),
    "a seam": template(SAID + END, ask="assistant: ", turn="{{ m.role }}: "),
    "parts": template(SAID.replace("content", "content[0].text") + END, "{{ m.content[0].text }}" + END),
}
TOGETHER = {"ChatML", "a mark at the very end, as by Phi-3's", "the next message ends an answer, as by GLM's", "parts"}


CALL = {"type": "function", "function": {"name": "rain", "arguments": {"place": "Oslo"}}}
RESULT = result("7 mm")


def rows_of(template):
    tokenizer = of_bytes(MARKS, MERGED, 330, eos=EOS, pad=EOS)
    tokenizer.chat_template = template
    return ChatRows.with_ends(tokenizer)


TEXT = st.text("ab \n.<|>é", min_size=1, max_size=8).filter(str.strip)
ANSWER = st.builds(
    lambda text, thought, weight: said(text, **thought, **weight),
    TEXT,
    st.sampled_from([{}, {}, {"reasoning_content": "hm"}]),
    st.sampled_from([{}, {}, {"weight": 0}, {"weight": 1}]),
)
TURNS = st.one_of(
    st.tuples(st.builds(user, TEXT), ANSWER),
    st.tuples(st.builds(user, TEXT), st.just(said("", tool_calls=[CALL])), st.just(RESULT), ANSWER),
)


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_is_learned_behind_exactly_the_tokens_of_its_prompt_and_once(name):
    rows = rows_of(TEMPLATES[name])
    stops = rows.tokenizer.convert_tokens_to_ids([end.strip() for end in rows.ends.values()])

    @given(st.lists(TURNS, min_size=1, max_size=3), st.booleans())
    def law(turns, has_system):
        system = [{"role": "system", "content": "be a dog"}] if has_system else []
        chat = [*system, *(message for turn in turns for message in turn)]
        chat += [user("so?"), said("end")] if chat[-1].get("weight") == 0 else []
        answers = [n for n, m in enumerate(chat) if m["role"] == "assistant" and m.get("weight") != 0]
        (made,) = rows.encode([("here", Chat(chat))], Account())
        (apart,) = rows.encode([("here", Chat(chat))], Account(), "apart")
        assert len(apart) == len(answers) and len(made) in (1, len(answers))
        crosses = any(chat[n]["content"][:1].isspace() for n in answers)  # a token may, from the prompt into the answer
        assert name not in TOGETHER or len(made) == 1 or crosses
        if len(made) == 1:
            together, ids = made[0], made[0][0]
            assert sum(together[1]) == sum(sum(learned) for _, learned in apart)
        for number, (alone, learned) in zip(answers, apart):
            asked = rows.prompt_ids(Chat(chat[:number]))
            if not any(mark in str(chat) for mark in MARKS):
                how = {"add_generation_prompt": True, "return_dict": True}
                assert asked == rows.write(chat[:number], **how)["input_ids"]
            end = len(learned) - learned[::-1].index(True)
            assert alone[: len(asked)] == asked and learned[:end] == [False] * len(asked) + [True] * (end - len(asked))
            answer = rows.tokenizer.decode(alone[len(asked) : end])
            assert alone[end - 1] in stops and chat[number]["content"].strip() in answer
            assert "tool_calls" not in chat[number] or "Oslo" in answer
            if len(made) == 1:
                assert ids[:end] == alone[:end] and together[1][len(asked) : end] == learned[len(asked) : end]
            else:
                assert (alone, learned) in made

    law()


# ---- the settings, by the command line and in the rows of splits

QWEN = TEMPLATES["thoughts before the last question are dropped, as by Qwen3's"]
THREE = [user("a"), said("one", reasoning_content="hm"), user("b"), said("two"), user("c"), said("three")]
WAYS = {
    "auto": (QWEN, ["<think>\nhm\n</think>\n\none", "<think>\n\n</think>\n\ntwo", "<think>\n\n</think>\n\nthree"]),
    "apart": (TEMPLATES["ChatML"], ["one", "two", "three"]),
    "together": (TEMPLATES["ChatML"], ["one", "two", "three"]),
}


def recipe_of(tmp_path, rows, template=QWEN, kind="instruction_tuning", **task):
    tokenizer = of_bytes(MARKS, MERGED, 330, eos=EOS, pad=EOS)
    tokenizer.chat_template = template
    task = {"max_length": 400} | task
    if kind == "preference":
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 512}
        model = AutoModelForCausalLM.from_pretrained(random_decoder(tmp_path / "start", **sizes))
        model.resize_token_embeddings(len(tokenizer))
        model.save_pretrained(tmp_path / "start")
        sections = {"model": {"name_or_path": str(tmp_path / "start")}, "tokenizer": None}
    else:
        sections = {"model": {"max_position_embeddings": 512}}
        sections["tokenizer"] = {"name_or_path": str(tmp_path / "start"), "vocab_size": None}
        task = {"messages_field": "messages"} | task
    tokenizer.save_pretrained(tmp_path / "start")
    return task_recipe(tmp_path, kind, **on_rows(tmp_path, rows, **task) | sections)


def learned(data, split="train"):
    """The texts that each row learns, without what ends them."""
    found = []
    for number in range(len(data.rows[split])):
        row = data.rows[split][number]
        kept = data.tokenizer.decode(row["labels"][row["labels"] != -100])
        found += kept.split("<|im_end|>")[:-1]
    return found


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("turns", WAYS)
def test_conversations_are_rows_together_or_apart_and_what_that_costs_is_said(tmp_path, turns, packing):
    template, answers = WAYS[turns]
    recipe = recipe_of(tmp_path, [{"messages": THREE}] * 3, template, turns=turns, packing=packing)
    data = prepare_data(load_recipe(recipe, [f"data.test_files={tmp_path}/rows.jsonl"]))
    rows = data.rows["train"]
    assert sorted(learned(data)) == sorted(answers * 3) and rows.facts["examples"] == 3
    said_of_it = data.reads.describe(data, rows)
    assert ("3 of them in 9 rows, one for each answer" in said_of_it) == (turns != "together")
    if turns == "auto":
        longest = sum(len(data.tokenizer(text)["input_ids"]) for text in answers)
        assert rows.facts["apart"]["tokens"] > longest and f"(task.turns={turns})" in said_of_it
    again = prepare_data(load_recipe(recipe, ["task.turns=auto", f"data.test_files={tmp_path}/rows.jsonl"]))
    assert (again.rows["train"].fingerprint == rows.fingerprint) == (turns == "auto")
    places = [place for place, _ in data.reads.with_rows(data, data.sources["train"])]
    assert len(places) == (3 if turns == "together" else 9) and len(set(places)) == 3
    assert {"prompt", "answer"}.isdisjoint(rows[0])


def test_where_answers_cannot_be_together_that_is_one_sentence(tmp_path, command, capsys):
    recipe = recipe_of(tmp_path, [{"messages": THREE}])
    assert command("prepare", recipe) == 0 and "1 of them in 3 rows" in " ".join(capsys.readouterr().out.split())
    assert command("prepare", recipe, "task.turns=together") == 2  # though rows by auto are in the cache
    assert "writes an answer otherwise once another follows" in (said := capsys.readouterr().err)
    assert "line 1" in said and "set task.turns=auto" in said


def test_metrics_and_samples_ask_for_the_last_answer_of_each_conversation(tmp_path, monkeypatch):
    chats = [{"messages": [user(f"q{n}"), said("x"), user("and?"), said(f"a{n}")]} for n in range(5)]
    recipe = recipe_of(tmp_path, chats)
    overrides = [f"data.test_files={tmp_path}/rows.jsonl", "evaluation.metrics=[exact_match, perplexity]"]
    data = prepare_data(load_recipe(recipe, overrides))
    rows = data.rows["test"]
    assert rows.facts["examples"] == 5 and sum(text is not None for text in rows.texts("answer")) == 5
    asked = {tuple(data.labels.prompt_ids(Chat(chat["messages"][:3]))): f"a{n}" for n, chat in enumerate(chats)}
    monkeypatch.setattr(
        instruction_tuning, "continuations", lambda finished, tokenizer, ids, most: [asked[tuple(i)] for i in ids]
    )
    with kept_comparisons() as compared:
        found = data.scores().of_answers(FinishedModel("", lambda: None, 4), rows, range(len(rows)))
    assert found.values == {"exact_match": 1.0} and len(compared[0].rows) == 5
    examples = list(data.reads.with_rows(data, data.sources["test"]))
    assert [examples[number][1]["messages"][3]["content"] for number in compared[0].rows] == compared[0].references
    monkeypatch.setattr(data.answers().__class__, "_sample", lambda self, finished, ids: asked[tuple(ids)])
    shown = data.answers().samples(FinishedModel("", lambda: None, 4), data.rows, None)
    assert [sample["text"] for sample in shown] == [sample["reference"] for sample in shown] and len(shown) == 3


def test_answers_whose_prompt_leaves_no_room_are_counted_in_rows_of_their_own_as_well(tmp_path):
    long = [*THREE[:2], user("b" * 200), *THREE[3:]]
    data = prepare_data(load_recipe(recipe_of(tmp_path, [{"messages": long}, {"messages": THREE}], max_length=150)))
    facts = data.rows["train"].facts
    assert facts["examples"] == 2 and facts["answers_cut"] == 1 and facts["left_out"] == 0
    assert sorted(learned(data)) == sorted([*WAYS["auto"][1], WAYS["auto"][1][0]])


MARKED = [user("a"), said("one", train=True), user("b"), said("two"), user("c"), said("three", weight=0)]


@pytest.mark.parametrize(
    "learns, answers", [("answers", ["one", "two"]), ("last_answer", ["two"]), ("marked", ["one"])]
)
def test_the_answers_that_are_learned_are_chosen_and_weight_0_never_is(tmp_path, learns, answers):
    recipe = recipe_of(tmp_path, [{"messages": MARKED}], TEMPLATES["ChatML"], learns=learns)
    data = prepare_data(load_recipe(recipe))
    assert learned(data) == answers and data.rows["train"].notes == []
    assert "three" not in data.tokenizer.decode(data.rows["train"][0]["input_ids"])
    with pytest.raises(UserError, match=r"line 1 marks no answer, and task.learns=marked; leave the example out"):
        prepare_data(load_recipe(recipe_of(tmp_path, [{"messages": MARKED[2:4]}], learns="marked")))


def test_a_pair_compares_true_last_answers_and_several_only_where_they_share_a_row(tmp_path):
    history = THREE[:4]
    pair = {"prompt": [*history, user("c")], "chosen": [said("yes", reasoning_content="so")], "rejected": [said("no")]}
    data = prepare_data(load_recipe(recipe_of(tmp_path, [pair] * 2, kind="preference", prompt_field="prompt")))
    row = data.rows["train"][0]
    batch = data.collator([row])
    texts = [data.tokenizer.decode(ids[mask]) for ids, mask in zip(batch["input_ids"], batch["answers"])]
    assert texts == ["<think>\nso\n</think>\n\nyes<|im_end|>", "<think>\n\n</think>\n\nno<|im_end|>"]
    asked = data.labels.prompt_ids(Chat(pair["prompt"]))
    assert batch["input_ids"][:, : len(asked)].tolist() == [asked] * 2 and row["chosen_start"] == len(asked)
    both = pair | {"chosen": [said("yes"), user("d"), said("well")]}
    recipe = recipe_of(tmp_path, [both] * 2, kind="preference", prompt_field="prompt")
    with pytest.raises(UserError, match=r"its answers share no row; set task.learns=last_answer"):
        prepare_data(load_recipe(recipe))
    assert len(prepare_data(load_recipe(recipe, ["task.learns=last_answer"])).rows["train"]) == 2


# ---- the setting tokenizer.chat_template, and tools from the training to an answer


@pytest.mark.parametrize("name", ["plain", "chatml", "chatml_tools", "own.jinja"])
def test_a_run_learns_and_saves_the_template_that_is_set(tmp_path, command, name):
    template = str(tmp_path / name) if name == "own.jinja" else name
    (tmp_path / "own.jinja").write_text("own " + TEMPLATES["ChatML"])
    rows = [{"messages": [user("a"), said("b")], **({"tools": [TOOL]} if "tools" in name else {})}] * 4
    recipe = recipe_of(tmp_path, rows)
    steps = ["training.max_steps=2", f"tokenizer.chat_template={template}", "data.validation_fraction=0"]
    assert command("train", recipe, *steps) == 0
    saved = (tmp_path / "run" / "chat_template.jinja").read_text()
    data = prepare_data(load_recipe(recipe, steps))
    assert saved == data.tokenizer.chat_template and saved != QWEN
    assert learned(data) == ["b"] * 4 or name == "plain"
    assert ("Rain there." in data.tokenizer.decode(data.rows["train"][0]["input_ids"])) == ("tools" in name)
    how = {"return_dict": True, "return_assistant_tokens_mask": True}
    whole = data.tokenizer.apply_chat_template([user("a"), said("b")], **how)
    if name != "own.jinja":  # TRL learns by these marks
        end = EOS if name == "plain" else "<|im_end|>"
        ids = [number for number, own in zip(whole["input_ids"], whole["assistant_masks"]) if own]
        assert data.tokenizer.decode(ids) == "b" + end


def test_a_checkpoint_keeps_its_tokenizer_under_another_template_and_others_are_refused(tmp_path, command, capsys):
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    recipe = recipe_of(tmp_path, [pair] * 2, kind="preference", prompt_field="prompt")
    data = prepare_data(load_recipe(recipe, ["tokenizer={chat_template: plain}"]))
    assert data.tokenizer.decode(data.rows["train"][0]["input_ids"]).startswith("<|user|>\na" + EOS)
    assert command("prepare", recipe, "tokenizer={chat_template: chatlm}") == 2
    assert "no such file, and no shipped one; did you mean chatml?" in capsys.readouterr().err
    recipe = task_recipe(tmp_path, "sequence_classification", tokenizer={"chat_template": "plain"})
    assert command("prepare", recipe) == 2
    assert "tokenizer.chat_template='plain' has no effect with task.name=sequence_" in capsys.readouterr().err


CALLED = [user("rain?"), said("", tool_calls=[CALL], reasoning_content="ask"), RESULT, said("much")]


def test_calls_are_learned_and_a_finished_model_is_asked_with_its_tools(tmp_path, command):
    recipe = recipe_of(tmp_path, [{"messages": CALLED, "tools": [TOOL]}] * 8, max_length=500)
    how = ["training.max_steps=6", "tokenizer.chat_template=chatml_tools", "data.validation_fraction=0"]
    assert command("train", recipe, *how) == 0
    call = '<think>\nask\n</think>\n\n<tool_call>\n{"name": "rain", "arguments": {"place": "Oslo"}}\n</tool_call>'
    assert learned(prepare_data(load_recipe(recipe, how)))[:2] == [call, "much"]
    stops = json.loads((tmp_path / "run" / "generation_config.json").read_text())["eos_token_id"]
    assert stops == [MARKS.index(EOS), MARKS.index("<|im_end|>")]
    model, tokenizer = load_writer(str(tmp_path / "run"))
    ids = tokenizer.apply_chat_template(CALLED[:1], tools=[TOOL], add_generation_prompt=True, return_tensors="pt")
    assert "Rain there." in tokenizer.decode(ids["input_ids"][0])
    written = model.generate(**ids, do_sample=False, max_new_tokens=12)[0, ids["input_ids"].shape[1] :]
    right = tokenizer.decode(written, skip_special_tokens=True)
    write_lines(tmp_path / "asked.jsonl", [{"messages": CALLED[:1], "tools": [TOOL]}])
    files = [tmp_path / "asked.jsonl", "--out", tmp_path / "out.jsonl"]
    assert command("predict", tmp_path / "run", *files, "--max-new-tokens", "12") == 0
    assert json.loads((tmp_path / "out.jsonl").read_text())["prediction"] == right
    shown = []
    converse(model, tokenizer, ["rain?", "/exit"], shown.append, tools=[TOOL], do_sample=False, max_new_tokens=12)
    assert "".join(shown[1:]) == right + "\n"

"""Chat templates of published models, as TRL ships them: rows are right, or refused for their true reason."""

import copy
import re
from functools import cache
from pathlib import Path

import pytest
from anyformer.pipelines.data.account import Account
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.chat_rows import ChatRows
from anyformer.pipelines.objectives.messages import Chat, read_messages
from tiny_tokenizers import of_bytes
from tokenizers import AddedToken, Regex, pre_tokenizers

trl = pytest.importorskip("trl")
FOLDER = Path(trl.__file__).parent / "chat_templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja") if not path.stem.endswith("_training"))

MARK = re.compile(
    r"<[|｜][^<>{}' \n]{1,40}?>|<[a-z_]{2,20}\|>|</?(?:think|tool_call|tool_response|arg_key|arg_value|s)>"
    r"|<(?:start|end)_of_(?:turn|utterance)>|<(?:bos|eos|sop|BOS_TOKEN)>|\[gMASK\]"
)
PLAIN = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>|<｜tool")  # added, but not special
# (bos, eos) of published models; the first that fits counts.
PUBLISHED = {
    "cohere": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "gemma": ("<bos>", "<eos>"),
    "glm": ("", "<|endoftext|>"),
    "gptoss": ("", "<|return|>"),
    "idefics": ("<|begin_of_text|>", "<|end_of_text|>"),
    "smolvlm": ("<|im_start|>", "<end_of_utterance>"),
    "llama": ("<|begin_of_text|>", "<|eot_id|>"),
    "llava": ("<s>", "</s>"),
    "phi": ("<s>", "<|endoftext|>"),
    "muse": ("", "<|eot|>"),
    "lfm": ("<|startoftext|>", "<|im_end|>"),
    "": ("", "<|im_end|>"),
}
# The word splitter of Llama 3, Qwen and DeepSeek.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def user(text):
    return {"role": "user", "content": text}


def said(text, **keys):
    return {"role": "assistant", "content": text, **keys}


def thinking(messages):
    answers = [message["role"] == "assistant" for message in messages]
    thoughts = [{"reasoning_content": f"hmm, thought {n}"} if is_one else {} for n, is_one in enumerate(answers)]
    return [message | thought for message, thought in zip(messages, thoughts)]


PARAMETERS = {"type": "object", "properties": {"place": {"type": "string", "description": "a place"}}, "required": []}
TOOL = {"name": "get_snow", "description": "Snow of a place.", "parameters": PARAMETERS}
CALL = {"id": "call12345", "type": "function", "function": {"name": "get_snow", "arguments": {"place": "Rome"}}}
RESULT = {"role": "tool", "name": "get_snow", "tool_call_id": "call12345", "content": "twelve flakes"}
TURNS = [
    *(user("why is rain near"), said("old stones said so"), user("tell me more"), said("red apples fell on hills")),
    *(user("and then"), said("cats sat on mats")),
]
CALLED = [user("why is snow near"), said(None, tool_calls=[CALL]), RESULT, said("it snows much")]
KINDS = {
    "one": TURNS[:2],
    "two": TURNS[:4],
    "three": TURNS,
    "system": [{"role": "system", "content": "be a blue dog"}, *TURNS[:4]],
    "reasoning": thinking(TURNS[:4]),
    "tools": CALLED,
    "both": thinking(CALLED),
}
TOOLS, BOTH = ("tools", "both"), ("reasoning", "both")
# (templates, kinds) that are refused, by the reason that is said.
ALTERNATE = "Conversation roles must alternate"
REFUSED = {
    ("cohere cohere2 gemma gemma3", TOOLS): ALTERNATE,
    ("gemma", ("system",)): "System role not supported",
    ("llava_next", TOOLS): "Only user and assistant roles are supported",
    ("deepseek_r1_distill deepseekv3 idefics3 llama3 phi3 phi3_5 qwen2_5_vl smolvlm", TOOLS): "does not write tools ",
    ("lfm2", TOOLS): "does not write calls of tools ",
    ("qwen3_5_nothink", BOTH): "say enable_thinking: true in a column chat_template_kwargs",
}
REASONS = {(name, kind): why for (names, kinds), why in REFUSED.items() for name in names.split() for kind in kinds}


@cache
def speller():
    texts = [message["content"] or "" for messages in KINDS.values() for message in messages]
    tokenizer = of_bytes(("<unk>",), [*texts, *["assistant\n user\n system\n\n \n\n\n"] * 3], 600)
    parts = pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts])
    return tokenizer


def training_template(name):
    """TRL's own twin of a template, which marks what it learns; None: it learns nothing of answers alone."""
    text, own = (FOLDER / f"{name}.jinja").read_text(), FOLDER / f"{name}_training.jinja"
    return own.read_text() if own.exists() else text if re.search(r"{%-? *generation", text) else None


def tokenizer_of(name):
    tokenizer, text = copy.deepcopy(speller()), (FOLDER / f"{name}.jinja").read_text()
    bos, eos = next(tokens for part, tokens in PUBLISHED.items() if part in name)
    marks = {*MARK.findall(text + (training_template(name) or "")), eos, *filter(None, [bos])}
    added = [AddedToken(mark, special=not PLAIN.match(mark), normalized=False) for mark in sorted(marks)]
    tokenizer.add_tokens(added, special_tokens=False)
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.chat_template = bos or None, eos, text
    return tokenizer


def chat_of(kind, **variables):
    tools = {"tools": [{"type": "function", "function": TOOL}]} if kind in TOOLS else {}
    return Chat(read_messages(copy.deepcopy(KINDS[kind]), "here", None, Account()), tools | variables)


def given(messages, rows):
    """Messages as a template takes them, which this test says by itself: texts in parts, arguments as JSON."""
    messages = copy.deepcopy(messages)
    for message in messages:
        if rows.takes_parts:
            message["content"] = [{"type": "text", "text": message["content"]}]
        for call in message.get("tool_calls", []) if rows.takes_text else []:
            call["function"]["arguments"] = '{"place": "Rome"}'
    return messages


def check(rows, chat):
    """Each answer is learned behind the ids of its prompt, up to an end that is a stop; return the rows by `auto`."""
    (apart,), (made,) = (rows.encode([("here", chat)], Account(), how) for how in ("apart", "auto"))
    stops = rows.tokenizer.convert_tokens_to_ids([end.strip() for end in rows.ends.values()])
    answers = [number for number, message in enumerate(chat) if message["role"] == "assistant"]
    for number, (ids, learned) in zip(answers, apart, strict=True):
        asked = rows.tokenizer.apply_chat_template(
            given(chat[:number], rows), add_generation_prompt=True, return_dict=True, **chat.variables
        )["input_ids"]
        end = len(learned) - learned[::-1].index(True)
        assert ids[: len(asked)] == asked and learned[:end] == [False] * len(asked) + [True] * (end - len(asked))
        answer = rows.tokenizer.decode(ids[len(asked) : end])
        assert chat[number]["content"] in answer and ("tool_calls" not in chat[number] or "Rome" in answer)
        assert ids[end - 1] in stops and len([token for token in ids[len(asked) : end - 1] if token in stops]) <= 1
    assert len(made) in (1, len(answers)) and (len(made) > 1 or made[0][0][:end] == apart[-1][0][:end])
    return made


def test_all_templates_are_there():
    assert len(NAMES) >= 41 and {name for name, _ in REASONS} <= {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_rows_begin_with_the_prompt_that_is_asked_and_what_cannot_be_is_refused_with_its_reason(name):
    rows = ChatRows.with_ends(tokenizer_of(name))
    for kind in KINDS:
        chat = chat_of(kind)
        if (name, kind) not in REASONS:
            check(rows, chat)
            continue
        with pytest.raises(UserError, match=REASONS[name, kind]) as refused:
            rows.encode([("line 1", chat)], Account())
        assert "line 1" in str(refused.value)
    if name == "qwen3_5_nothink":  # what the refusal says
        for kind in BOTH:
            check(rows, chat_of(kind, enable_thinking=True))


# What TRL's training templates mark of the last answer, beside what is learned here: docs/learning/instructions.md.
EQUAL, BEHIND, PROMPT, OTHER = "equal", "what stands behind the end, too", "the prompt's end, too", "otherwise"
BESIDE = dict.fromkeys(["cohere", "cohere2", "glm4moe", "llama3", "llava_next"], EQUAL)
BESIDE |= dict.fromkeys(["gptoss", "muse_glimmer", "qwen2_5", "qwen3_5_nothink", "qwen3_5_think"], PROMPT)
BESIDE |= dict.fromkeys(["qwen3_6", "qwen3_8"], PROMPT)
BESIDE |= dict.fromkeys([name for name in NAMES if name.startswith("nemotron_3")], PROMPT)
BESIDE |= dict.fromkeys(["deepseek_r1_distill", "deepseekv3", "diffusion_gemma, after a tool"], OTHER)


@pytest.mark.parametrize("name", [name for name in NAMES if training_template(name)])
def test_what_is_learned_differs_from_what_trl_marks_as_the_docs_say(name):
    rows, how = ChatRows.with_ends(tokenizer_of(name)), {"return_dict": True, "return_assistant_tokens_mask": True}
    for kind in [kind for kind in KINDS if (name, kind) not in REASONS]:
        chat = chat_of(kind)
        (*_, (ids, learned)), made = rows.encode([("", chat)], Account(), "apart")[0], check(rows, chat)
        template = {"chat_template": training_template(name)} | chat.variables
        whole = rows.tokenizer.apply_chat_template(given(chat, rows), **how, **template)
        mask, end = whole["assistant_masks"], len(whole["assistant_masks"]) - whole["assistant_masks"][::-1].index(1)
        begin = end - [*mask[:end][::-1], 0].index(0)
        ours, asked = (
            rows.tokenizer.decode([i for i, own in zip(ids, learned) if own is one]) for one in (True, False)
        )
        theirs, found = rows.tokenizer.decode(whole["input_ids"][begin:end]), OTHER
        if theirs.startswith(ours):
            found = EQUAL if theirs == ours else BEHIND
        elif theirs.rstrip().endswith(ours) and theirs[: theirs.rindex(ours)] in asked:
            found = PROMPT
        special = f"{name}, after a tool" if kind in TOOLS else name
        assert found == BESIDE.get(special, BESIDE.get(name, BEHIND)), (kind, ours, theirs)
        if found == EQUAL and len(made) == 1:  # so that the losses are equal
            row = [part[: len(mask)] for part in made[0]]
            assert row == [whole["input_ids"], [bool(own) for own in mask]]


def test_few_templates_are_refused_anything():
    # 256 of 287; 2 more as a refusal says. DeepSeek-V3 writes calls, and no tools.
    known = [(name, kind) for name in NAMES for kind in KINDS]
    assert len(known) - len(REASONS) >= 0.89 * len(known)
    rows = ChatRows.with_ends(tokenizer_of("deepseekv3"))
    for kind in TOOLS:
        check(rows, Chat(chat_of(kind)))

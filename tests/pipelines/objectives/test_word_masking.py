"""Whole words: they are the tokenizer's own, stay whole, and are hidden at the rate that is set."""

import json
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from anyformer.pipelines.data.batch_keys import IGNORE_INDEX
from anyformer.pipelines.objectives.masked import MaskedCollator, MaskingSettings, TokenHider
from anyformer.pipelines.tokenizers.word_marks import WordMarks
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import trained_on

KINDS = ("byte_bpe", "wordpiece", "unigram")
OTHER_SCRIPTS = "Größe naïve 你好世界 Москва 3.5 don't (well-known) … “quoted” e-mail_x 100% ok"
SHARES = {"mask_probability": 0.15, "mask_replace": 0.8, "random_replace": 0.1}
TEXTS = [topics[name] for name in sorted(topics)[:12]]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    text, folder = "\n".join([*TEXTS, OTHER_SCRIPTS]), tmp_path_factory.mktemp("cache")
    return {kind: trained_on(text, folder, type=kind, vocab_size=700, framing="cls_sep") for kind in KINDS}


def encoded(tokenizer, text):
    """(ids, the number of each token's word, as the tokenizer itself divides the text)"""
    encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    return np.array(encoding.ids), encoding.word_ids


def row_of(tokenizer, text, number=0, length=None):
    ids = torch.tensor(tokenizer(text)["input_ids"][:length])
    return {"input_ids": ids, "labels": ids.clone(), "position_ids": torch.arange(len(ids)), "row_ids": number}


# Words


@pytest.mark.parametrize("kind", KINDS)
def test_words_begin_where_the_tokenizers_own_pre_tokenizer_divides(tokenizers, kind):
    tokenizer = tokenizers[kind]
    marks = WordMarks(tokenizer)
    for text in [*TEXTS[:6], OTHER_SCRIPTS.replace("don't ", "")]:
        ids, words = encoded(tokenizer, text)
        true = np.array([i == 0 or words[i] != words[i - 1] for i in range(len(words))])
        wrong = np.flatnonzero(marks.word_starts(ids) != true)
        # A run of white space is one word here; pre-tokenizers leave its last character to itself.
        blank = np.array([tokenizer.decode([number]).isspace() for number in ids])
        assert all(blank[place] and blank[place - 1] for place in wrong), (
            kind,
            [tokenizer.convert_ids_to_tokens(ids[place - 1 : place + 1].tolist()) for place in wrong[:5]],
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_entry_with_a_space_before_it_is_the_same_text(tokenizers, kind):
    tokenizer = tokenizers[kind]
    marks, entries = WordMarks(tokenizer), tokenizer.convert_ids_to_tokens
    changed = [number for number, other in enumerate(marks.after_space) if other != number]
    marked = {entries(number): entries(int(marks.after_space[number])) for number in changed}
    space = {"byte_bpe": "Ġ", "unigram": "▁"}.get(kind)
    assert all(after == f"{space}{before}" for before, after in marked.items())
    assert len(marked) > 20 if space else not marked


# What is hidden


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(
    text=st.integers(0, 11),
    length=st.integers(3, 120),
    probability=st.floats(0.02, 0.9),
    seed=st.integers(0, 2**63),
)
def test_words_stay_whole_and_the_rate_holds(tokenizers, kind, text, length, probability, seed):
    tokenizer = tokenizers[kind]
    row = row_of(tokenizer, TEXTS[text], length=length)
    shares = SHARES | {"mask_probability": probability, "masking": "whole_word"}
    collate = MaskedCollator(tokenizer, MaskingSettings(**shares), seed, packed=True)
    labels = collate([row])["labels"][0].numpy()
    predicted, ids = labels != IGNORE_INDEX, row["input_ids"].numpy()
    ordinary = ~np.isin(ids, tokenizer.all_special_ids)
    starts = WordMarks(tokenizer).word_starts(ids)
    words = np.split(np.arange(len(ids)), np.flatnonzero(starts)[1:])
    words = [word for word in words if ordinary[word[0]]]
    assert all(predicted[word].all() or not predicted[word].any() for word in words)
    assert not predicted[~ordinary].any() and (labels[predicted] == ids[predicted]).all()
    number, wanted = int(predicted.sum()), max(1, round(probability * int(ordinary.sum())))
    left = [len(word) for word in words if not predicted[word[0]]]
    if number > wanted:  # not even the shortest word fits
        assert number == min(map(len, words))
    else:
        assert number == wanted or wanted - number < min(left)


def test_no_word_crosses_into_another_document(tokenizers):
    tokenizer = tokenizers["byte_bpe"]
    hider = TokenHider(tokenizer, MaskingSettings(masking="whole_word", **SHARES))
    ids, _ = encoded(tokenizer, " ".join(["unquestionably"] * 40))
    everything, begins = np.ones(len(ids), dtype=bool), np.zeros(len(ids), dtype=bool)
    word = hider.whole_words(ids, everything, 1, np.random.default_rng(0), begins)
    begins[word[1]] = True  # now its first token is a word by itself, the only one
    assert hider.whole_words(ids, everything, 1, np.random.default_rng(1), begins).tolist() == [word[0]]


# The mask filled in at the end of a run


def test_a_masked_run_ends_with_its_prompts_filled_in(tiny_recipe, command, tmp_path, capsys):
    prompts = ["The [MASK] of a class", "<|mask|> is [MASK]"]
    recipe = tiny_recipe(
        model={"family": "encoder"},
        objective={"name": "masked", "masking": "whole_word"},
        training={"max_steps": 2},
        evaluation={"metrics": ["perplexity"], "sample_prompts": prompts},
    )
    assert command("train", recipe) == 0
    printed = capsys.readouterr().out
    first, second = json.loads((tmp_path / "run" / "run.json").read_text())["samples"]
    assert first["prompt"] == "The <|mask|> of a class" and second["prompt"] == "<|mask|> is <|mask|>"
    assert len(first["text"].split(", ")) == 5 and first["text"].endswith("%")
    assert len(second["text"].splitlines()) == 2
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"{first['prompt']}\n=> {first['text']}" in card
    assert first["text"] in printed and "predictions for 'The <|mask|> of a class'" in printed

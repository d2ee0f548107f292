"""Laws of the objectives that change a row and learn what it was: nothing lost, rates kept, random by row alone."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from anyformer.pipelines.data.batch_keys import IGNORE_INDEX
from anyformer.pipelines.data.packing import PackedDataset
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.span_corruption import (
    noise_counts,
    raw_length,
    sentinel_ids,
    source_and_target_lengths,
)
from anyformer.pipelines.objectives.text import shifts_labels
from anyformer.pipelines.plugins import OBJECTIVES, objective_of
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.schema import ModelSection, Recipe, TrainingSection
from anyformer.pipelines.recipes.tokenizer_section import MASK
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_tokenizers import trained_on
from token_arrays import TokenArrays
from transformers import GPT2Config, T5Config

SENTENCES = ["ab cd.", " efg!", " hij ab?", " c.", " defghij ab cd ef gh."]
MODES = ["<|R|>", "<|S|>", "<|X|>"]
MIDDLES = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
FAMILY = {"fill_in_the_middle": "decoder", "masked": "encoder"}
seeds = st.integers(0, 2**63)
documents = st.lists(st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=9).map("".join), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A tokenizer with a token for each character, and all special tokens of these objectives."""
    special = [MASK, *MODES, *MIDDLES]
    settings = {"type": "char", "framing": "eos", "special_tokens": special, "sentinels": 100}
    return trained_on("".join(SENTENCES), tmp_path_factory.mktemp("letters"), **settings)


def stored(texts, tokenizer):
    """Documents, each with its end-of-text."""
    return TokenArrays([[*tokenizer.encode(t, add_special_tokens=False), tokenizer.eos_token_id] for t in texts])


def made(name, letters, texts, length=64, family=None, seed=0, tail="pad", **own):
    """(data without rows, rows with their ids) over these documents."""
    recipe = Recipe(
        model=ModelSection(family=family or FAMILY.get(name, "seq2seq")),
        objective=OBJECTIVES[name].Settings(sequence_length=length, **own),
        training=TrainingSection(seed=seed),
    )
    objective = objective_of(recipe)
    objective.check()
    data = objective.Reads(objective).prepare({"train": None}, letters)
    dataset = data.reads._pack(data, stored(texts, letters), tail)
    assert isinstance(dataset, PackedDataset)
    return data, [dataset[number] | {"row_ids": number, "epoch": 0} for number in range(len(dataset))]


def text_of(letters, ids) -> str:
    return "".join(letters.convert_ids_to_tokens([i for i in ids.tolist() if i != IGNORE_INDEX]))


def sources_and_targets(letters, data, rows):
    """(source, target, row) of each row as texts, without the end-of-text that closes source and target."""
    batch = data.collator_of(True)(rows)
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    for row, source, target, inside in zip(rows, batch["input_ids"], batch["labels"], mask):
        raw = text_of(letters, row["labels"])
        source, target = text_of(letters, source[inside.bool()]), text_of(letters, target)
        assert source.endswith(letters.eos_token) and target.endswith(letters.eos_token)
        yield source.removesuffix(letters.eos_token), target.removesuffix(letters.eos_token), raw


# ------------------------------------------------------------------------------------------------ denoising


def stand_in_order(pieces: list[str], text: str) -> bool:
    """Whether the text is these pieces with anything between them. The leftmost place of each is enough to try: a
    pattern of `.*` would try all, for minutes where a letter repeats."""
    first, *others = pieces
    if not others:
        return first == text
    *middle, last = others
    place = len(first)
    for piece in middle:
        found = text.find(piece, place)
        if found < 0:
            return False
        place = found + len(piece)
    return text.startswith(first) and text.endswith(last) and place <= len(text) - len(last)


@given(texts=documents, infill=st.floats(0.05, 0.9), mean=st.floats(1, 8), seed=seeds)
def test_each_mask_stands_for_a_span_and_as_many_tokens_as_asked_for_are_left_out(letters, texts, infill, mean, seed):
    own = {"infill_rate": infill, "mean_span_length": mean, "permute_rate": 0.0}
    data, rows = made("denoising", letters, texts, 48, seed=seed, **own)
    end = letters.eos_token
    for source, target, raw in sources_and_targets(letters, data, rows):
        assert target == raw and len(source.split(end)) == len(target.split(end))
        words, kept = (text.replace(end, "") for text in (target, source.replace(MASK, "")))
        assert abs(len(words) - len(kept) - infill * len(words)) <= target.count(end) + 1
        for noisy, text in zip(source.split(end), target.split(end)):
            assert stand_in_order(noisy.split(MASK), text)
            assert len(noisy) - noisy.count(MASK) * (len(MASK) - 1) <= len(text)


@given(texts=documents, seed=seeds)
def test_sentences_change_places_within_their_document(letters, texts, seed):
    data, rows = made("denoising", letters, texts, 1000, seed=seed, infill_rate=0.0)
    ((source, target, _),) = sources_and_targets(letters, data, rows)
    for noisy, text in zip(source.split(letters.eos_token), target.split(letters.eos_token)):
        moved, sentences = (sorted(map(str.strip, re.findall(r"[^.!?]+[.!?]", one))) for one in (noisy, text))
        assert moved == sentences and len(noisy) == len(text)


# ------------------------------------------------------------------------------------------------ left-out spans


def put_back(source, target):
    """The text from a source and a target: each sentinel replaced by its span."""
    spans = dict(re.findall(r"(<extra_id_\d+>)((?:(?!<extra_id).)*)", target, re.DOTALL))
    return re.sub(r"<extra_id_\d+>", lambda found: spans.pop(found[0]), source), spans


@given(texts=documents, length=st.integers(3, 120), density=st.floats(0.02, 0.6), span=st.floats(1, 10), seed=seeds)
def test_kept_tokens_and_spans_are_the_row(letters, texts, length, density, span, seed):
    assume(span >= density / (1 - density))
    own = {"noise_density": density, "mean_span_length": span}
    data, rows = made("span_corruption", letters, texts, length, seed=seed, **own)
    for source, target, raw in sources_and_targets(letters, data, rows):
        text, over = put_back(source, target)
        assert text == raw and not over
        of_source, of_target = (re.findall(r"<extra_id_(\d+)>", one) for one in (source, target))
        assert of_source == of_target == list(map(str, range(len(of_source))))


@given(length=st.integers(3, 120), density=st.floats(0.01, 0.5), span=st.floats(1.5, 40))
def test_every_full_row_fills_the_encoder_exactly_and_the_targets_too(letters, length, density, span):
    raw = raw_length(length, density, span)
    noise, spans = noise_counts(raw, density, span)
    text = ("".join(SENTENCES) * 3 * raw)[: 3 * raw - 1]
    data, rows = made("span_corruption", letters, [text], length, noise_density=density, mean_span_length=span)
    batch = data.collator_of(True)(rows)
    assert batch["input_ids"].shape == (3, length) and "attention_mask" not in batch
    assert batch["labels"].shape == (3, noise + spans + 1) and (batch["labels"] != IGNORE_INDEX).all()
    assert (np.isin(batch["labels"], sentinel_ids(letters)).sum(1) == spans).all()


@pytest.mark.parametrize(("density", "span"), [(0.15, 3.0), (0.15, 8.0), (0.15, 32.0), (0.3, 3.0), (0.5, 3.0)])
@pytest.mark.parametrize("length", [64, 114, 128, 512, 1024])
def test_lengths_are_those_of_t5s_code(length, density, span):
    def t5_lengths(tokens):  # random_spans_helper of t5/data/preprocessors.py
        noise = round(tokens * density)
        spans = max(round(noise / span), 1)  # its mask has one at least, which its lengths forget
        return tokens - noise + spans + 1, noise + spans + 1

    tokens = length
    while t5_lengths(tokens + 1)[0] <= length:
        tokens += 1
    assert raw_length(length, density, span) == tokens
    assert source_and_target_lengths(tokens, density, span) == t5_lengths(tokens)


@given(texts=documents, seed=seeds, length=st.integers(8, 120))
def test_each_denoiser_leaves_out_what_its_target_says(letters, texts, seed, length):
    data, rows = made("mixture_of_denoisers", letters, texts, length, seed=seed)
    batch = data.collator_of(True)(rows)
    assert batch["input_ids"].shape[1] <= length and batch["labels"].shape[1] <= length
    for source, target, raw in sources_and_targets(letters, data, rows):
        (mode,) = re.findall(r"<\|[RSX]\|>", source)
        assert source.startswith(mode)
        text, over = put_back(source.removeprefix(mode), target)
        assert text == raw and not over
        if mode == "<|S|>":
            assert re.findall(r"<extra_id_\d+>", source) == ["<extra_id_0>"] and source.endswith("<extra_id_0>")


def test_the_papers_denoisers_are_drawn_alike(letters):
    data, (row, *_) = made("mixture_of_denoisers", letters, ["".join(SENTENCES) * 9], 64)
    batch = data.collator_of(True)([row | {"row_ids": number} for number in range(1400)])
    drawn = Counter(letters.convert_ids_to_tokens(batch["input_ids"][:, 0].tolist()))
    assert all(abs(drawn[mode] - 200 * times) < 60 for mode, times in zip(MODES, (2, 1, 4)))


# ---------------------------------------------------------------------------------------- prefixes and middles


@given(texts=documents, seed=seeds)
def test_prefix_and_rest_are_the_row(letters, texts, seed):
    data, rows = made("prefix_lm", letters, texts, 40, seed=seed)
    assert data.objective.auto_class == "AutoModelForSeq2SeqLM" and not shifts_labels(data.objective)
    for source, target, raw in sources_and_targets(letters, data, rows):
        assert source + target == raw and source and (target or raw == letters.eos_token or len(raw) == 1)


@given(texts=documents, seed=seeds)
def test_a_decoder_predicts_the_rest_of_each_document_after_a_prefix_that_all_of_it_sees(letters, texts, seed):
    data, rows = made("prefix_lm", letters, texts, 40, family="decoder", seed=seed)
    assert data.objective.auto_class == "AutoModelForCausalLM" and shifts_labels(data.objective)
    for packed in (True, False):
        batch = data.collator_of(packed)(rows)
        assert torch.equal(batch["input_ids"], torch.stack([row["input_ids"] for row in rows]))
        for row, labels, prefix in zip(rows, batch["labels"], batch["prefix_mask"]):
            predicted = labels != IGNORE_INDEX
            assert torch.equal(labels[predicted], row["labels"][predicted])
            starts = (row["position_ids"] == 0).nonzero()[:, 0].tolist()
            for begin, end in zip(starts, [*starts[1:], 40]):
                here, seen = predicted[begin:end], prefix[begin:end]
                if (row["labels"][begin:end] != IGNORE_INDEX).any():  # two tokens or more, no padding
                    first = int(here.int().argmax())
                    assert first > 0 and here[first:].all() and torch.equal(seen == 0, here)
                else:
                    assert not seen.any()


@given(texts=documents, seed=seeds)
def test_a_decoders_masks_are_seen_by_all_and_have_a_token_before_them(letters, texts, seed):
    data, rows = made("masked", letters, texts, 40, family="decoder", seed=seed)
    assert data.objective.auto_class == "AutoModelForCausalLM" and shifts_labels(data.objective)
    for packed in (True, False):
        batch = data.collator_of(packed)(rows)
        assert "attention_mask" not in batch
        for row, labels, seen in zip(rows, batch["labels"], batch["prefix_mask"]):
            assert not (labels != IGNORE_INDEX)[row["position_ids"] == 0].any()
            assert seen[row["labels"] != IGNORE_INDEX].all() and (seen.diff() <= 0).all()


def test_a_checkpoints_config_says_what_reads_the_prefix(tmp_path):
    for config, head in ((GPT2Config(), "AutoModelForCausalLM"), (T5Config(), "AutoModelForSeq2SeqLM")):
        config.save_pretrained(tmp_path / head)
        settings = OBJECTIVES["prefix_lm"].Settings()
        objective = objective_of(Recipe(model=ModelSection(name_or_path=str(tmp_path / head)), objective=settings))
        assert (objective.auto_class, shifts_labels(objective)) == (head, head == "AutoModelForCausalLM")
        if head == "AutoModelForCausalLM":
            with pytest.raises(UserError, match=r"\(gpt2\) is causal throughout.*anyformer convert"):
                objective.Reads(objective).open()
    with pytest.raises(UserError, match="cannot be loaded"):
        _ = objective_of(Recipe(model=ModelSection(name_or_path=str(tmp_path)), objective=settings)).auto_class


def arranged_back(text, letters):
    """A document of a batch as it was, and how it was arranged."""
    prefix, middle, suffix = MIDDLES
    if not text.startswith(prefix):
        return text, None
    body = text.removeprefix(prefix).removesuffix(letters.eos_token)
    if body.startswith(suffix):
        last, joined = body.removeprefix(suffix).split(middle)
        return joined + last, "SPM"
    first, rest = body.split(suffix)
    last, filled = rest.split(middle)
    return first + filled + last, "PSM"


@given(texts=documents, seed=seeds, packed=st.booleans(), rate=st.sampled_from([0.0, 0.5, 1.0]))
def test_a_rearranged_document_is_the_document_and_each_token_is_predicted_as_often(letters, texts, seed, packed, rate):
    texts = texts if packed else texts[:1]
    data, rows = made("fill_in_the_middle", letters, texts, 40, fim_rate=rate, shortest=4, seed=seed)
    batch = data.collator_of(True)(rows)
    for i, row in enumerate(rows):
        starts = (batch["position_ids"][i] == 0).nonzero()[:, 0].tolist()
        spans = list(zip(starts, [*starts[1:], len(batch["position_ids"][i])]))
        before = (row["position_ids"] == 0).nonzero()[:, 0].tolist()
        for (begin, end), start, stop in zip(spans, before, [*before[1:], 36]):
            labels = row["labels"][start:stop]
            if not (labels != IGNORE_INDEX).any():  # padding, or a single token
                continue
            found, kind = arranged_back(text_of(letters, batch["input_ids"][i][begin:end]), letters)
            raw = text_of(letters, row["input_ids"][start:stop])
            assert found == raw.removesuffix(letters.eos_token) if kind else found == raw
            assert rate < 1 or kind or stop - start < 4
            assert rate > 0 or not kind
            new = Counter(batch["labels"][i][begin:end].tolist())
            for name in (*MIDDLES, letters.eos_token):
                new.pop(letters.convert_tokens_to_ids(name), None)
            old = Counter(labels.tolist())
            old.pop(letters.eos_token_id, None)
            assert new - Counter({IGNORE_INDEX: 99}) == old - Counter({IGNORE_INDEX: 99})
    if rate == 0:
        assert torch.equal(batch["input_ids"][:, : rows[0]["input_ids"].shape[0]], batch["input_ids"])
    without = data.collator_of(False)(rows)
    assert "position_ids" not in without and torch.equal(without["input_ids"], batch["input_ids"])


def test_half_of_the_documents_are_rearranged_half_of_those_with_the_suffix_first(letters):
    data, rows = made("fill_in_the_middle", letters, ["".join(SENTENCES) * 2] * 400, 82, tail="drop", shortest=2)
    batch = data.collator_of(True)(rows)
    ids, (prefix, _, suffix) = batch["input_ids"].flatten(), letters.convert_tokens_to_ids(MIDDLES)
    begins = ids == prefix
    parts = sum(len(np.flatnonzero(row["position_ids"].numpy() == 0)) for row in rows)
    by_suffix = int((begins[:-1] & (ids[1:] == suffix)).sum())  # some prefixes are empty, too
    assert abs(int(begins.sum()) / parts - 0.5) < 0.06 and abs(by_suffix / int(begins.sum()) - 0.5) < 0.09


# --------------------------------------------------------------------------------------------- all of them

OBJECTIVE = [("denoising", None), ("mixture_of_denoisers", None), ("prefix_lm", None), ("prefix_lm", "decoder")]
OBJECTIVE += [("fill_in_the_middle", None)]
CORRUPTED = [(name, family, {}) for name, family in [*OBJECTIVE, ("span_corruption", None)]]
CORRUPTED += [("masked", "encoder", {"masking": kind}) for kind in ("token", "whole_word")]


@pytest.mark.parametrize(("name", "family", "own"), CORRUPTED)
def test_a_row_is_changed_alike_in_every_batch_and_otherwise_by_epoch_seed_and_number(letters, name, family, own):
    texts = ["".join(SENTENCES[:n]) * 3 for n in range(1, 6)]
    for seed in (0, 7, 2**62):
        data, rows = made(name, letters, texts, 48, family, seed=seed, **own)
        whole = data.collator_of(True)(rows)
        for size in range(1, len(rows) + 1):
            order = np.random.default_rng(size).permutation(len(rows))[:size].tolist()
            part = data.collator_of(True)([rows[number] for number in order])
            for key in ("input_ids", "labels"):
                width = min(whole[key].shape[1], part[key].shape[1])
                assert torch.equal(part[key][:, :width], whole[key][order][:, :width])
            assert part["row_ids"] == order and "epoch" not in part

    def seen(seed=0, **changes):
        other, _ = made(name, letters, texts, 48, family, seed=seed, **own)
        batch = other.collator_of(True)([rows[1] | changes])
        return tuple(batch["input_ids"][0].tolist()), tuple(batch["labels"][0].tolist())

    assert seen(epoch=1) == seen(epoch=1)
    different = {seen(), *(seen(epoch=n) for n in (1, 2, 3)), *(seen(row_ids=n) for n in (7, 8)), seen(1), seen(2)}
    assert len(different) > 4  # where half of the documents stay as they are, some are equal


@pytest.mark.parametrize(("name", "family", "own"), CORRUPTED)
def test_a_row_that_fills_up_an_evaluation_predicts_nothing(letters, name, family, own):
    data, rows = made(name, letters, ["".join(SENTENCES)] * 3, 32, family, **own)
    filler = rows[0] | {"labels": torch.full_like(rows[0]["labels"], IGNORE_INDEX)}
    batch = data.collator_of(True)([rows[0], filler])
    assert (batch["labels"][0] != IGNORE_INDEX).any() and (batch["labels"][1] == IGNORE_INDEX).all()
    assert name != "masked" or torch.equal(batch["input_ids"][1], rows[0]["input_ids"])  # nothing is hidden, either
    assert not batch.get("attention_mask", torch.zeros(0)).eq(0).any() or family != "encoder"


@pytest.mark.parametrize(("name", "family"), OBJECTIVE)
def test_the_batches_of_a_stream_have_one_length(letters, name, family):
    data, rows = made(name, letters, ["".join(SENTENCES)] * 9, 32, family, tail="drop")
    streamed = objective_of(data.objective.recipe.with_(data={"streaming": True}))
    data = replace(data, objective=streamed, reads=streamed.Reads(streamed))
    batches = [data.collator_of(True)(rows[i : i + 1]) for i in range(6)]
    for key in ("input_ids", "labels"):
        assert len({batch[key].shape for batch in batches}) == 1


@pytest.mark.parametrize(("name", "family"), OBJECTIVE)
def test_a_preview_and_a_trained_tokenizer_have_the_tokens_that_are_needed(name, family, tiny_recipe, command, capsys):
    family = family or FAMILY.get(name, "seq2seq")
    recipe = {"model": {"family": family}, "objective": {"name": name}, "evaluation": {"metrics": ["perplexity"]}}
    assert command("preview", tiny_recipe(**recipe), "--rows", "3") == 0
    tokens = {"denoising": MASK, "mixture_of_denoisers": "<extra_id_0>", "fill_in_the_middle": MIDDLES[1]}
    assert tokens.get(name, "predicted" if family == "decoder" else "source: ") in capsys.readouterr().out


# Bad input


@pytest.mark.parametrize(
    ("name", "own", "sentence"),
    [
        ("denoising", {"infill_rate": 0.0, "permute_rate": 0.0}, "with both rates 0 copies its text; set one"),
        ("fill_in_the_middle", {"middle_token": "<|fim_prefix|>"}, "must be three tokens, not"),
        ("span_corruption", {"noise_density": 0.9}, "objective.mean_span_length=3.0 must be at least 9 with"),
    ],
)
def test_bad_settings_are_one_sentence(tiny_recipe, name, own, sentence):
    model, evaluation = {"family": FAMILY.get(name, "seq2seq")}, {"metrics": ["perplexity"]}
    recipe = tiny_recipe(model=model, objective={"name": name, **own}, evaluation=evaluation)
    with pytest.raises(UserError) as caught:
        load_recipe(str(recipe))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_a_tokenizer_without_the_tokens_is_refused_in_one_sentence(tmp_path):
    bare = trained_on("".join(SENTENCES), tmp_path, type="char", framing="eos", sentinels=4)
    for name, sentence in {
        "denoising": "needs a tokenizer with a mask token",
        "masked": "needs a tokenizer with a mask token; this one has none",
        "mixture_of_denoisers": "leaves out 11 spans a row, but the tokenizer has 4 sentinels",
        "fill_in_the_middle": "needs the token '<|fim_prefix|>', which the tokenizer does not have; add",
    }.items():
        with pytest.raises(UserError, match=re.escape(sentence)) as error:
            made(name, bare, SENTENCES)
        assert "\n" not in str(error.value)
    for lacks, sentence in (("pad", "a padding"), ("eos", "an end-of-text")):
        setattr(bare, f"{lacks}_token", None)
        with pytest.raises(UserError, match=f"needs a tokenizer with {sentence} token"):
            made("span_corruption", bare, SENTENCES)


def test_rows_too_short_for_spans_and_texts_too_short_for_a_row_are_refused_in_one_sentence(letters):
    with pytest.raises(UserError, match=r"objective\.sequence_length=2 must be at least 3"):
        made("span_corruption", letters, SENTENCES, 2)
    with pytest.raises(UserError, match=r"objective\.sequence_length=3 must be at least 4"):
        raw_length(3, 0.15, 3.0, beside=1)
    with pytest.raises(UserError, match="takes 70 tokens of text, more than the whole text of"):
        made("span_corruption", letters, ["ab"], tail="drop")

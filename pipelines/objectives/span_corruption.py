"""Span corruption (Raffel et al. 2020, section 3.1.4), with the lengths of T5's code."""

import numpy as np
import torch

from ..data.batch_keys import IGNORE_INDEX
from ..data.packing import PackedDataset, StreamingPackedDataset, TokenStore
from ..data.sample_ids import row_generators, row_ids
from ..errors import UserError
from ..recipes.schema import ObjectiveSection
from ..tokenizers.special_tokens import NEEDED, sentinel


class SpanCorruptionObjective:
    """Spans of tokens are left out of the encoder's input, a sentinel in place of each; the decoder writes them.

    Rows are slices of one stream of documents, each ended by eos, as in T5: a row may hold the end of one document and
    the beginning of the next, and tokens attend to the whole row. The slices are as long as it takes for the input to
    come to sequence_length tokens. Raises UserError for a tokenizer without eos, padding or with too few sentinels.
    """

    auto_class = "AutoModelForSeq2SeqLM"
    predicts_next = False
    framing = NEEDED["span_corruption"]

    def __init__(self, section: ObjectiveSection, tokenizer, seed: int = 0):
        self.section, self.tokenizer, self.seed = section, tokenizer, seed
        for name, words in (("eos_token_id", "an end-of-text"), ("pad_token_id", "a padding")):
            if getattr(tokenizer, name) is None:
                raise UserError(
                    f"objective.name=span_corruption needs a tokenizer with {words} token; this one has none"
                )
        self.raw_length = raw_length(section.sequence_length, section.noise_density, section.mean_span_length)
        _, spans = noise_counts(self.raw_length, section.noise_density, section.mean_span_length)
        self.sentinels = sentinel_ids(tokenizer)
        if len(self.sentinels) < spans:
            raise UserError(
                f"objective.sequence_length={section.sequence_length} leaves out {spans} spans a row, but the "
                f"tokenizer has {len(self.sentinels)} sentinels ({sentinel(0)}, {sentinel(1)}, ...)"
            )

    def config_fields(self) -> dict:
        """Fields of a fresh model's config that belong to the objective: padding begins each target, as in T5."""
        return {"decoder_start_token_id": self.tokenizer.pad_token_id}

    def rows(self, store: TokenStore, tail: str) -> PackedDataset:
        """Rows of the raw tokens, from documents tokenised before; the collator corrupts them."""
        if tail == "drop" and 1 < store.num_tokens < self.raw_length:
            raise UserError(
                f"objective.sequence_length={self.section.sequence_length} takes {self.raw_length} tokens of text, "
                f"more than the whole text of {store.name} ({store.num_tokens:,} tokens); set objective.tail=pad"
            )
        pad = self.tokenizer.pad_token_id
        return PackedDataset(store, self.raw_length, tail=tail, pad_token_id=pad, predicts_next=False)

    def stream(self, corpus) -> StreamingPackedDataset:
        """The same rows, tokenised and packed while training."""
        section = self.section
        return StreamingPackedDataset(
            corpus,
            self.tokenizer,
            self.raw_length,
            tail=section.tail,
            add_bos=section.add_bos,
            add_eos=section.add_eos,
            predicts_next=False,
        )

    def collator(self, packed: bool) -> "SpanCorruptionCollator":
        """packed has no meaning here: tokens attend to the whole row, whatever documents it holds."""
        section = self.section
        return SpanCorruptionCollator(
            self.tokenizer,
            self.sentinels,
            section.sequence_length,
            noise_density=section.noise_density,
            mean_span_length=section.mean_span_length,
            seed=self.seed,
        )


class SpanCorruptionCollator:
    """Rows of raw tokens -> one batch: input_ids (B, T), labels (B, U), always of the same T and U.

    Inputs are the kept tokens with a sentinel for each span left out, then eos; labels each sentinel with its span,
    then eos. The model makes decoder_input_ids from the labels. A row that came out shorter (the padded last one) is
    padded, its labels by -100, and the batch then has an attention_mask. Which spans are left out depends on the seed,
    the epoch and the row's number alone (data/sample_ids.py).
    """

    def __init__(
        self,
        tokenizer,
        sentinels: np.ndarray,
        input_length: int,
        *,
        noise_density: float,
        mean_span_length: float,
        seed: int,
    ):
        self.sentinels, self.seed = sentinels, seed
        self.eos, self.pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        self.noise_density, self.mean_span_length = noise_density, mean_span_length
        noise, spans = noise_counts(
            raw_length(input_length, noise_density, mean_span_length), noise_density, mean_span_length
        )
        self.input_length, self.target_length = input_length, noise + spans + 1

    def __call__(self, rows: list[dict]) -> dict:
        input_ids = np.full((len(rows), self.input_length), self.pad, dtype=np.int64)
        labels = np.full((len(rows), self.target_length), IGNORE_INDEX, dtype=np.int64)
        attention_mask = np.zeros_like(input_ids)
        for place, (row, generator) in enumerate(zip(rows, row_generators(rows, self.seed))):
            real = row["labels"].numpy() != IGNORE_INDEX
            tokens = row["input_ids"].numpy()
            source, target = self.corrupt(tokens[real] if real.any() else tokens, generator)
            input_ids[place, : len(source)] = source
            attention_mask[place, : len(source)] = 1
            if real.any():  # a row without any label fills a batch up and counts for nothing
                labels[place, : len(target)] = target
        batch = {"input_ids": torch.from_numpy(input_ids), "labels": torch.from_numpy(labels)}
        if not attention_mask.all():
            batch["attention_mask"] = torch.from_numpy(attention_mask)
        return batch | row_ids(rows)

    def corrupt(self, tokens: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Source and target of one row of raw tokens, eos included."""
        noise, spans = noise_counts(len(tokens), self.noise_density, self.mean_span_length)
        kept = random_segments(len(tokens) - noise, spans, generator)
        left_out = random_segments(noise, spans, generator)
        is_noise = np.repeat(np.tile([False, True], spans), np.stack([kept, left_out], axis=1).ravel())
        names = self.sentinels[:spans]
        source = np.insert(tokens[~is_noise], np.cumsum(kept), names)  # each span's name after the tokens before it
        target = np.insert(tokens[is_noise], np.cumsum(left_out) - left_out, names)
        return np.append(source, self.eos), np.append(target, self.eos)


def noise_counts(length: int, noise_density: float, mean_span_length: float) -> tuple[int, int]:
    """(tokens left out, spans they form) of a row of `length` raw tokens, as T5's random_spans_noise_mask has them.

    Rounded half to even; at least one token and one span, and a kept token before each span.
    """
    noise = min(max(round(length * noise_density), 1), max(length - 1, 1))
    spans = max(round(noise / mean_span_length), 1)
    return noise, min(spans, noise, max(length - noise, 1))


def raw_length(input_length: int, noise_density: float, mean_span_length: float) -> int:
    """Raw tokens of a row whose input, with sentinels and eos, comes to `input_length`: the most that fit.

    T5's compute_input_and_target_lengths. One raw token more makes the input longer by one or not at all, so that it
    is filled exactly, but for spans so dense that a kept token and a span can come at once (a mean_span_length near
    noise_density / (1 - noise_density)). Raises UserError for an input_length below 3.
    """

    def length_of_input(length: int) -> int:
        noise, spans = noise_counts(length, noise_density, mean_span_length)
        return length - noise + spans + 1

    length = 2
    if length_of_input(length) > input_length:
        raise UserError(
            f"objective.sequence_length={input_length} must be at least 3 for objective.name=span_corruption: "
            f"a token, a sentinel, eos"
        )
    while length_of_input(length + 1) <= input_length:
        length += 1
    return length


def random_segments(items: int, segments: int, generator: np.random.Generator) -> np.ndarray:
    """Lengths of `segments` parts, none empty, that `items` fall into; every way to cut equally likely."""
    if items < segments:  # a row of one token has nothing to keep
        return np.array([items])
    cuts = np.sort(generator.permutation(items - 1)[: segments - 1]) + 1
    return np.diff(cuts, prepend=0, append=items)


def sentinel_ids(tokenizer) -> np.ndarray:
    """Ids of <extra_id_0>, <extra_id_1>, ..., as many as the tokenizer has."""
    vocabulary, ids = tokenizer.get_vocab(), []
    while sentinel(len(ids)) in vocabulary:
        ids.append(vocabulary[sentinel(len(ids))])
    return np.array(ids, dtype=np.int64)

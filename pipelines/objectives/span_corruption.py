"""Span corruption (Raffel et al. 2020, section 3.1.4), with the lengths of T5's code."""

from dataclasses import dataclass

from ..errors import UserError
from ..plugins import register_objective
from ..recipes.schema import doc
from ..recipes.types import show
from ..tokenizers.special_tokens import SENTINELS, sentinel
from .text import TextObjective, TextSettings


@dataclass
class SpanCorruptionSettings(TextSettings):
    noise_density: float = doc("share of the tokens that is left out", 0.15, above=0, below=1)
    mean_span_length: float = doc("tokens per left-out span, on average", 3.0, at_least=1, at_most=2**20)


@register_objective
class SpanCorruption(TextObjective):
    """Span corruption (Raffel et al. 2020, section 3.1.4), with the lengths of T5's code.

    Spans of tokens are left out of the encoder's input, a sentinel in place of each; the decoder writes them. Rows are
    slices of one stream of documents, each ended by eos, as in T5: a row may hold the end of one document and the
    beginning of the next, and tokens attend to the whole row. The slices are as long as it takes for the input to come
    to sequence_length tokens. Raises UserError for a tokenizer without eos, padding or with too few sentinels.
    """

    name = "span_corruption"
    auto_class = "AutoModelForSeq2SeqLM"
    families = ("seq2seq",)
    special_tokens = "eos"
    sentinels = SENTINELS
    Settings = SpanCorruptionSettings

    def check(self) -> None:
        super().check()
        section = self.settings
        smallest = section.noise_density / (1 - section.noise_density)
        if section.mean_span_length < smallest:
            raise UserError(
                f"objective.mean_span_length={show(section.mean_span_length)} must be at least {smallest:.3g} with "
                f"objective.noise_density={show(section.noise_density)}, so that a kept token stands between two spans"
            )

    def use_tokenizer(self, tokenizer) -> None:
        super().use_tokenizer(tokenizer)
        self.need_tokens(eos="an end-of-text", pad="a padding")
        section = self.settings
        _, spans = noise_counts(self.row_length, section.noise_density, section.mean_span_length)
        self.sentinel_ids = sentinel_ids(self.tokenizer)
        if len(self.sentinel_ids) < spans:
            raise UserError(
                f"objective.sequence_length={section.sequence_length} leaves out {spans} spans a row, but the "
                f"tokenizer has {len(self.sentinel_ids)} sentinels ({sentinel(0)}, {sentinel(1)}, ...)"
            )

    @property
    def row_length(self) -> int:
        section = self.settings
        return raw_length(section.sequence_length, section.noise_density, section.mean_span_length)

    def config_fields(self) -> dict:
        """Padding begins each target, as in T5."""
        return {"decoder_start_token_id": self.tokenizer.pad_token_id}

    def pack(self, store, tail: str):
        if tail == "drop" and 1 < store.num_tokens < self.row_length:
            raise UserError(
                f"objective.sequence_length={self.settings.sequence_length} takes {self.row_length} tokens of text, "
                f"more than the whole text of {store.name} ({store.num_tokens:,} tokens); set objective.tail=pad"
            )
        return super().pack(store, tail)

    def collator(self, packed: bool) -> "SpanCorruptionCollator":
        """packed has no meaning here: tokens attend to the whole row, whatever documents it holds."""
        section = self.settings
        return SpanCorruptionCollator(
            self.tokenizer,
            self.sentinel_ids,
            section.sequence_length,
            noise_density=section.noise_density,
            mean_span_length=section.mean_span_length,
            seed=self.seed,
        )

    def legend(self):
        from .showing import PREDICTED, marked

        return marked(
            "source: what the encoder reads, ",
            ("<extra_id_N>", PREDICTED),
            " where a span was left out; target: each of them with its span; as in the first epoch, others in each "
            "further one",
        )

    def show(self, console, rows, number: int, row: dict) -> None:
        from .showing import show_source_and_target

        show_source_and_target(console, self, rows, number, row)


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
        sentinels,
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
        import numpy as np
        import torch

        from ..data.batch_keys import IGNORE_INDEX
        from ..data.sample_ids import row_generators, row_ids

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

    def corrupt(self, tokens, generator) -> tuple:
        """Source and target, arrays of ids with eos, of one row of raw tokens (an array)."""
        import numpy as np

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


def random_segments(items: int, segments: int, generator):
    """Lengths (an array) of `segments` parts, none empty, that `items` fall into; every way to cut equally likely."""
    import numpy as np

    if items < segments:  # a row of one token has nothing to keep
        return np.array([items])
    cuts = np.sort(generator.permutation(items - 1)[: segments - 1]) + 1
    return np.diff(cuts, prepend=0, append=items)


def sentinel_ids(tokenizer):
    """Ids (an array) of <extra_id_0>, <extra_id_1>, ..., as many as the tokenizer has."""
    import numpy as np

    vocabulary, ids = tokenizer.get_vocab(), []
    while sentinel(len(ids)) in vocabulary:
        ids.append(vocabulary[sentinel(len(ids))])
    return np.array(ids, dtype=np.int64)

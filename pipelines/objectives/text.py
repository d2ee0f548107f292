"""Objectives over plain text: documents are tokenised once and packed into rows of equal length."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import one_way_kind

from ..backends import is_flash
from ..errors import UserError
from ..lazy import np
from ..plugins import METRICS
from ..positions import UNLIMITED, most_positions
from ..recipes.row_words import Words
from ..recipes.schema import ObjectiveSettings, doc
from ..words import working
from .answers import Answers
from .base import Objective
from .data import Data, ModelFacts
from .learns import Learns
from .reads import Reads
from .scores import OF_PART, Scores
from .tokens import Tokens, check_prompts, pad_token_id, train_or_load

if TYPE_CHECKING:
    from ..data.documents import Corpus, Share
    from ..data.rows import Rows


@dataclass
class TextSettings(ObjectiveSettings):
    """Settings of all objectives over plain text."""

    fills_rows: ClassVar[bool] = True
    begins_documents: ClassVar[bool] = False  # the value of add_bos=null

    sequence_length: int = doc(
        "tokens per row of text; of an encoder-decoder's, the longest it reads", 1024, at_least=2, at_most=2**24
    )
    tail: Literal["drop", "pad"] = doc("the last, unfilled training row; validation always pads", "drop")
    add_bos: bool | None = doc("begin each document with the beginning-of-text token; null: only for masked")
    add_eos: bool = doc("end each document with the end-of-text token", True)

    def __post_init__(self):
        if self.add_bos is None:
            self.add_bos = self.begins_documents


def shifts_labels(objective: Objective) -> bool:
    """Whether the model shifts labels by one, as decoders do: they are aligned with the input ids."""
    return objective.auto_class == "AutoModelForCausalLM"


class ReadsText(Reads):
    """Packed rows of text (data/packing.py); a subclass makes batches of them (`collator`).

    Where the model shifts labels, a row that continues a document begins with the last token of the row before.
    Elsewhere rows do not overlap, and all tokens of a row are labels, from which the collator chooses.

    in_stream: whether the rows are a part of a mixture (mixture.py) with a streamed part.
    """

    legend = (
        "a colour per document, [unpredicted]underlined[/]: not predicted (without colours [[ ]]: predicted), │ where "
        "a document ends: no attention across, [padding]struck through[/]: padding; labels stand beside their own "
        "token, and the model shifts them by one; what is drawn at random is drawn anew in each epoch"
    )

    def __init__(self, objective: Objective, facts: ModelFacts | None = None, in_stream: bool = False):
        super().__init__(objective, facts)
        self.in_stream = in_stream

    def asked_columns(self, there: Collection[str] | None = None) -> dict[str, str]:
        return {"text_field": self.recipe.data.text_field}

    def open(self) -> "dict[str, Corpus]":
        from ..data.opening import open_corpora

        return open_corpora(self.recipe.data)  # not by training.seed: another seed keeps validation set and tokenizer

    def texts(self, source: "Corpus") -> "Corpus":
        return source

    def prepare(self, sources: "dict[str, Corpus]", tokenizer: Any = None) -> Data:
        tokenizer = train_or_load(self.objective, sources["train"], tokenizer)
        self._check(tokenizer)
        return Data(self.objective, self, tokenizer, sources=sources)

    def _check(self, tokenizer: Any) -> None:
        """Raise UserError where a tokenizer lacks a token that the objective needs."""

    # ---- rows

    def rows(self, data: Data, source: "Corpus", split: str) -> "Rows":
        """The rows of the text; each source of data.mixture has a token store of its own."""
        if not source.sources:
            return self._rows_of(data, source, split)
        from ..data.ordered_rows import sources_once, weighed

        rows = {name: self._rows_of(data, corpus, split) for name, corpus in source.sources.items()}
        if split != "train":
            return sources_once(rows)
        section = self.recipe.data
        weights = dict(zip(rows, (each.weight for each in section.mixture), strict=True))
        return weighed(rows, weights, section.weights_by, self.seed)

    def _rows_of(self, data: Data, source: "Corpus", split: str) -> "Rows":
        from ..data.packed_stream import StreamingPackedDataset

        section = self.settings
        if split == "train" and self.recipe.data.streaming:
            options = {"tail": section.tail, "shifts_labels": shifts_labels(self.objective)} | self._marks_around()
            options |= {"shuffle_buffer": self.recipe.data.shuffle_buffer, "seed": self.recipe.training.seed}
            return StreamingPackedDataset(source, data.tokenizer, self._row_length, **options)
        store = self._tokenization(data, source).store()
        if split == "validation" and not store.num_documents and self.recipe.data.clean is not None:
            raise UserError(
                f"data.clean leaves no document of {store.name} for validation; set a larger data.validation_fraction, "
                f"or data.validation_files"
            )
        # Every token of a validation text counts, so its last row is padded, never dropped.
        with working(f"packing {split}"):
            if split == "train":
                return self._pack(data, store, section.tail)
            return self._pack(data, store, "pad", overlap=getattr(section, "evaluation_overlap", 1))

    def _pack(self, data: Data, store: Any, tail: str, overlap: int = 1) -> "Rows":
        """Pack the documents of a TokenStore into rows. tail: whether to drop or pad a last row that is not full."""
        from ..data.packing import PackedDataset

        options = {"pad_token_id": pad_token_id(data.tokenizer), "shifts_labels": shifts_labels(self.objective)}
        return PackedDataset(store, self._row_length, tail=tail, overlap=overlap, **options)

    def prepare_share(self, data: Data, source: "Corpus", split: str, share: "Share") -> int:
        if split == "train" and self.recipe.data.streaming:
            return 0
        sources = source.sources.values() or [source]
        return sum(self._tokenization(data, corpus).make_share(share) for corpus in sources)

    def _tokenization(self, data: Data, source: "Corpus"):
        """The tokenisation of a split, which makes its token store."""
        from ..data.tokenization import Tokenization

        return Tokenization(source, data.tokenizer, self.cache, **self._marks_around())

    def _marks_around(self) -> dict[str, bool]:
        """Whether bos and eos tokens stand around each document."""
        return {"add_bos": self.settings.add_bos, "add_eos": self.settings.add_eos}

    @property
    def _row_length(self) -> int:
        """Tokens of text in a row."""
        return self.settings.sequence_length

    # ---- batches

    @property
    def _has_one_width(self) -> bool:
        """Whether all batches are padded to one width, as needed where processes share the batches of a stream."""
        return self.recipe.data.streaming or self.in_stream

    def _widths(self) -> tuple[int, int]:
        """(tokens of a row that the model reads, labels of a row) of the widest batch."""
        return self.settings.sequence_length, self.settings.sequence_length

    # ---- words

    def describe(self, data: Data, rows: "Rows") -> str:
        return rows.packing_report()

    def show(self, console, data, rows, number, row):
        show_packed(console, data.tokenizer, number, row, rows.documents(number, row))


def show_packed(
    console: Any, tokenizer: Any, number: int, row: dict, documents: list, marked: Sequence[int] = ()
) -> None:
    """Print a row with its labels. documents: as Rows has them. marked: ids of tokens to highlight."""
    from .showing import documents_line, is_label, row_pieces, tokens_text

    predicted = int(is_label(row["labels"]).sum())
    console.rule(f"row {number}: {len(row['input_ids'])} tokens, {predicted} predicted", align="left")
    console.print(documents_line(documents), markup=False)
    console.print(tokens_text(console, row_pieces(row, documents, tokenizer, marked)))


class LearnsText(Learns):
    """Labels of tokens."""

    @property
    def shifts_labels(self) -> bool:
        return shifts_labels(self.objective)

    def adapt(self, model: Any) -> None:
        """Set the tokenizer's model_max_length to the model's context if it has none, or one shorter than the rows."""
        length, longest = self.settings.sequence_length, self.tokenizer.model_max_length
        if longest < length or longest > UNLIMITED:
            self.tokenizer.model_max_length = max(most_positions(model.config) or 0, length)


class PerplexityScores(Scores):
    """Metrics that follow from the summed loss of the predicted tokens."""

    def of_pass(
        self, metrics: Sequence[str], result: dict[str, float], rows: "Rows", train: "Rows | None"
    ) -> dict[str, float]:
        """Those that follow from losses, of all rows and of each part: {"perplexity": 9.5, "perplexity_a": 8}."""
        train = train if getattr(train, "stores", ()) else None  # streams and examples have no token store
        losses = TokenLosses(result["nll"], result["predictions"], rows, train, self.tokenizer)
        of_losses = {name: METRICS[name] for name in metrics if METRICS[name].of_losses is not None}
        chosen = {name: row for name, row in of_losses.items() if train is not None or not row.needs_train}
        results = {name: row.of_losses(losses) for name, row in chosen.items()}
        for part in [name for name in result if name.startswith(OF_PART)]:
            of_part, suffix = replace(losses, nll=result[part], predictions=1.0), part.removeprefix(OF_PART)
            of_mean = {name: row for name, row in chosen.items() if not row.whole_text}
            results |= {part: result[part]}
            results |= {f"{name}_{suffix}": row.of_losses(of_part) for name, row in of_mean.items()}
        return results


class Continues(Answers):
    """Prompts that the model continues."""

    @property
    def finishes_on(self) -> str:
        return "one" if self.recipe.evaluation.sample_prompts else "none"

    def check_prompts(self, most: int) -> None:
        prompts = self.recipe.evaluation.sample_prompts
        check_prompts([len(self.tokenizer(prompt)["input_ids"]) for prompt in prompts], most)

    def samples(self, finished, splits, scored):
        from ..generation import continue_text

        section = self.recipe.evaluation
        options = {"max_new_tokens": section.sample_tokens, "top_p": section.sample_top_p}
        options["seed"] = self.recipe.training.seed
        return [
            {"prompt": prompt, "text": continue_text(finished.model, self.tokenizer, prompt, **options)}
            for prompt in section.sample_prompts
        ]


class TextObjective(Objective):
    """Base of the objectives over packed rows of text. A subclass makes batches of them, in its class of `Reads`."""

    Settings = TextSettings
    Reads, Learns, Scores, Answers = ReadsText, LearnsText, PerplexityScores, Continues
    tokens = Tokens()
    words = Words(step="rows x {0.sequence_length} tokens")
    compares = "tokens"
    default_metrics = ("perplexity",)


def perplexity(nll_per_token: float) -> float:
    """exp of the mean negative log-likelihood; infinite where that overflows."""
    return math.exp(nll_per_token) if nll_per_token < 700 else math.inf


@dataclass
class TokenLosses:
    """What the metrics are computed from. nll: summed negative log-likelihood of the `predictions` tokens of `rows`."""

    nll: float
    predictions: float
    rows: "Rows"
    train: "Rows | None"
    tokenizer: Any

    def perplexity(self) -> float:
        return perplexity(self.nll / self.predictions)

    def unigram_perplexity(self) -> float:
        """Perplexity of the training text's token frequencies (add-one smoothing) on the labels of the rows.

        The text of each source counts once, whatever its weight in a mixture.
        """
        from ..open_tokenizer import vocabulary_size

        frequency, size = np.ones(vocabulary_size(self.tokenizer), dtype=np.int64), 1 << 24
        for store in self.train.stores:
            for start in range(0, len(store.tokens), size):  # pieces keep a large store on disk
                piece = np.asarray(store.tokens[start : start + size])
                frequency += np.bincount(piece, minlength=len(frequency))
        log_probability = np.log(frequency / frequency.sum())
        total = count = 0
        for i in range(len(self.rows)):
            labels = self.rows[i]["labels"].numpy()
            labels = labels[labels != -100]
            total -= log_probability[labels].sum()
            count += len(labels)
        return perplexity(total / max(1, count))

    def word_perplexity(self) -> float:
        """Perplexity per word, to compare models with different tokenizers. Words are separated by whitespace, and each
        end of a line counts as one (WikiText-2's convention)."""
        return perplexity(self.nll / sum(store.num_words for store in self.rows.stores))

    def bits_per_pixel(self) -> float:
        return self.nll / self.predictions / math.log(2)


# ---- our decoders where tokens see later ones: a prefix, or a row with masks; batches hold PREFIX_MASK


def has_encoder(facts: ModelFacts) -> bool:
    """Whether the model is an encoder-decoder."""
    return facts.family.has_decoder if facts.family is not None else bool(facts.config.is_encoder_decoder)


def is_our_decoder(facts: ModelFacts) -> bool:
    """Whether the model is one of our decoders, which can be told to read in both directions."""
    family = FAMILIES.get(facts.config.model_type) if facts.family is None else facts.family
    return family is not None and not family.bidirectional and not family.has_decoder


def check_ahead(objective: Objective) -> None:
    """Raise UserError for one of our decoders whose tokens cannot see those after them."""
    facts, backend, kind = objective.facts, objective.recipe.model.attn_implementation, None
    if not is_our_decoder(facts):
        return
    if is_flash(backend):
        raise UserError(
            f"model.attn_implementation={backend} hides the future from every token, and with {objective.setting} some "
            f"see it; sdpa and eager can show it"
        )
    if facts.family is not None or facts.config.model_type in FAMILIES:
        kind = one_way_kind(facts.config)
    if kind is not None:
        raise UserError(
            f"model.attention_pattern holds {kind}, which reads tokens in their order, and with {objective.setting} "
            f"some see those after them; full_attention, sliding_attention and strided_attention can"
        )

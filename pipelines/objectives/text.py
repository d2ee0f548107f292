"""Objectives over plain text: documents are tokenised once and packed into rows of equal length."""

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import UserError
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

    _overlap: int = 1  # tokens that a row of validation and test text repeats, where labels are shifted

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

    def prepare(self, sources: "dict[str, Corpus]", cache: Path, progress: bool, tokenizer: Any = None) -> Data:
        tokenizer = train_or_load(self.objective, sources["train"], cache, progress, tokenizer)
        self._check(tokenizer)
        return Data(self.objective, self, tokenizer, sources=sources)

    def _check(self, tokenizer: Any) -> None:
        """Raise UserError where a tokenizer lacks a token that the objective needs."""

    # ---- rows

    def rows(self, data: Data, source: "Corpus", split: str, cache: Path, progress: bool = False) -> "Rows":
        """The rows of the text; each source of data.mixture has a token store of its own."""
        if not source.sources:
            return self._rows_of(data, source, split, cache, progress)
        rows = {name: self._rows_of(data, corpus, split, cache, progress) for name, corpus in source.sources.items()}
        return self._mixed_sources(rows, split)

    def _mixed_sources(self, found: "dict[str, Rows]", split: str) -> "Rows":
        """Join the rows of several sources of a split: by their weights for training, else each row once."""
        from ..data.ordered_rows import sources_once, weighed

        if split != "train":
            return sources_once(found)
        data = self.recipe.data
        weights = dict(zip(found, (section.weight for section in data.mixture), strict=True))
        return weighed(found, weights, data.weights_by, self.seed)

    def _rows_of(self, data: Data, source: "Corpus", split: str, cache: Path, progress: bool) -> "Rows":
        from ..data.packed_stream import StreamingPackedDataset

        section = self.settings
        if split == "train" and self.recipe.data.streaming:
            options = {"tail": section.tail, "shifts_labels": shifts_labels(self.objective)} | self._marks_around()
            options |= {"shuffle_buffer": self.recipe.data.shuffle_buffer, "seed": self.recipe.training.seed}
            return StreamingPackedDataset(source, data.tokenizer, self._row_length, **options)
        store = self._tokenization(data, source, cache).store(progress)
        if split == "validation" and not store.num_documents and self.recipe.data.clean is not None:
            raise UserError(
                f"data.clean leaves no document of {store.name} for validation; set a larger data.validation_fraction, "
                f"or data.validation_files"
            )
        # Every token of a validation text counts, so its last row is padded, never dropped.
        with working(f"packing {split}") if progress else nullcontext():
            if split == "train":
                return self._pack(data, store, section.tail)
            return self._pack(data, store, "pad", overlap=self._overlap)

    def _pack(self, data: Data, store: Any, tail: str, overlap: int = 1) -> "Rows":
        """Pack the documents of a TokenStore into rows. tail: whether to drop or pad a last row that is not full."""
        from ..data.packing import PackedDataset

        options = {"pad_token_id": pad_token_id(data.tokenizer), "shifts_labels": shifts_labels(self.objective)}
        return PackedDataset(store, self._row_length, tail=tail, overlap=overlap, **options)

    def prepare_share(
        self, data: Data, source: "Corpus", split: str, cache: Path, share: "Share", progress: bool = False
    ) -> int:
        if split == "train" and self.recipe.data.streaming:
            return 0
        sources = source.sources.values() or [source]
        return sum(self._tokenization(data, corpus, cache).make_share(share, progress) for corpus in sources)

    def _tokenization(self, data: Data, source: "Corpus", cache: Path):
        """The tokenisation of a split, which makes its token store."""
        from ..data.tokenization import Tokenization

        return Tokenization(source, data.tokenizer, cache, **self._marks_around())

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

    def __init__(self, objective: Objective, data: Data):
        super().__init__(objective, data)
        self.shifts_labels = shifts_labels(objective)

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
        from .perplexity import TokenLosses

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

    def __init__(self, objective: Objective, data: Data):
        super().__init__(objective, data)
        self.finishes_on = "one" if self.recipe.evaluation.sample_prompts else "none"

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

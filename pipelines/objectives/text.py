"""Objectives over plain text: documents are tokenised once and packed into rows of equal length."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import UserError
from ..plugins import METRICS
from ..positions import most_positions
from ..recipes.schema import ObjectiveSettings, TokenizerSection, doc
from ..recipes.special_tokens import WITHOUT_EFFECT, WRITES_EVERY_TEXT, special_tokens
from ..recipes.types import show
from ..words import working
from .answers import Answers
from .base import Objective
from .data import Data, ModelFacts
from .learns import Learns
from .reads import Reads
from .scores import OF_PART, Scores
from .tokens import UNLIMITED, check_prompts, pad_token_id, train_or_load

if TYPE_CHECKING:
    from ..data.documents import Corpus, Share
    from ..data.rows import Rows


@dataclass
class TextSettings(ObjectiveSettings):
    """Settings of all objectives over plain text."""

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

    _overlap: int = 1  # tokens that a row of validation and test text repeats, where labels are shifted

    def __init__(self, objective: Objective, facts: ModelFacts | None = None, in_stream: bool = False):
        super().__init__(objective, facts)
        self.in_stream = in_stream

    def asked_columns(self, there: Collection[str]) -> dict[str, str]:
        return {"text_field": self.recipe.data.text_field}

    def open(self) -> "dict[str, Corpus]":
        from ..data.corpora import open_corpora

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
        from ..data.mixed_rows import SourceRows
        from ..data.mixture_order import MixtureOrder, shares_of

        if split != "train":
            return SourceRows(found)
        data = self.recipe.data
        weights = dict(zip(found, (section.weight for section in data.mixture), strict=True))
        if self._is_streamed(split):
            from .mixture_stream import PlacedStream

            return PlacedStream(found, weights, self.seed)
        tokens, documents = ({name: rows.facts[of] for name, rows in found.items()} for of in ("tokens", "documents"))
        shares = shares_of(weights, data.weights_by, tokens, documents)
        return SourceRows(found, MixtureOrder({name: len(rows) for name, rows in found.items()}, shares, self.seed))

    def _rows_of(self, data: Data, source: "Corpus", split: str, cache: Path, progress: bool) -> "Rows":
        from ..data.packing import StreamingPackedDataset

        section = self.settings
        if self._is_streamed(split):
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

    def check_shares(self) -> None:
        """Plain text can always be prepared in shares."""

    def prepare_share(
        self, data: Data, source: "Corpus", split: str, cache: Path, share: "Share", progress: bool = False
    ) -> int:
        if self._is_streamed(split):
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

    def _is_streamed(self, split: str) -> bool:
        return split == "train" and self.recipe.data.streaming

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
        from ..data.packing import packing_report

        return "a stream, tokenised and packed while training" if rows.is_stream else packing_report(rows)

    def show(self, console, data, rows, number, row):
        show_packed(console, data.tokenizer, number, row, rows.documents(number, row))


def show_packed(
    console: Any, tokenizer: Any, number: int, row: dict, documents: list, marked: Sequence[int] = ()
) -> None:
    """Print a row with its labels. documents: as Rows has them. marked: ids of tokens to highlight."""
    from .showing import documents_line, head_table, is_label, row_text

    predicted = int(is_label(row["labels"]).sum())
    console.rule(f"row {number}: {len(row['input_ids'])} tokens, {predicted} predicted", align="left")
    console.print(documents_line(documents), markup=False)
    console.print(row_text(row, documents, tokenizer, marked))
    console.print("\n".join(head_table(row, tokenizer)), markup=False, style="dim")


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

    def of_pass(self, metrics, result, rows, train):
        return metrics_of_losses(self.tokenizer, metrics, result, rows, train)


def metrics_of_losses(
    tokenizer: Any, metrics: Sequence[str], result: Mapping[str, float], rows: "Rows", train: "Rows | None"
) -> dict[str, float]:
    """Metrics of all rows and of each part of them: {"perplexity": ..., "perplexity_causal": ...}.

    result, train: as Scores.of_pass takes them.
    """
    from ..open_tokenizer import vocabulary_size
    from .perplexity import TokenLosses

    train = train if getattr(train, "stores", ()) else None  # streams and examples have no token store
    losses = TokenLosses(result["nll"], result["predictions"], rows, train, vocabulary_size(tokenizer))
    chosen = {name: METRICS[name] for name in metrics if train is not None or not METRICS[name].needs_train}
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
        check_prompts(prompts, [len(self.tokenizer(prompt)["input_ids"]) for prompt in prompts], most)

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
    special_tokens = "none"
    compares = "tokens"
    default_metrics = ("perplexity",)
    legend_words = (
        "a colour per document, [unpredicted]underlined[/]: not predicted, │ where a document ends: no attention "
        "across, [padding]struck through[/]: padding; labels stand beside their own token, and the model shifts them "
        "by one; what is drawn at random is drawn anew in each epoch"
    )

    def lengths(self) -> dict[str, int | None]:
        return {"sequence_length": self.settings.sequence_length}

    def step_words(self) -> str:
        return f"rows x {self.settings.sequence_length} tokens"


# ---- of tasks that are not yet divided into parts


class Tokenized:
    """Mixin of objectives and tasks with a tokenizer: settings of one that is trained for them, and their checks."""

    # {Auto class that a family is pretrained with: framing}, where the framing is not special_tokens.
    framing_of_head: ClassVar[dict[str, str]] = {}

    @property
    def needed_framing(self) -> str:
        return self.framing_of_head.get(self.family and self.family.pretraining, self.special_tokens)

    def framing(self) -> str:
        """What a tokenizer trained for this recipe puts around a text: as set, else as the objective needs."""
        return self.recipe.tokenizer.framing or self.needed_framing

    def further_tokens(self) -> list[str]:
        """Special tokens that it needs beside framing and sentinels; a tokenizer that is trained for it gets them."""
        return []

    def tokenizer_section(self) -> TokenizerSection:
        """The tokenizer section with its framing, its further tokens and number of sentinels spelled out."""
        section = self.recipe.tokenizer
        sentinels = self.sentinels if section.sentinels is None else section.sentinels
        further = [token for token in self.further_tokens() if token not in section.special_tokens]
        special = [*section.special_tokens, *further]
        return replace(section, framing=self.framing(), sentinels=sentinels, special_tokens=special)

    given_tokenizer: Any = None  # replaces the recipe's: parts and stages of a run share one

    def train_or_load_tokenizer(self, texts: Any, cache: Path, progress: bool):
        """The recipe's tokenizer, loaded, or trained on the corpus `texts`."""
        if self.given_tokenizer is not None:
            return self.given_tokenizer
        from ..tokenizers.load import train_or_load_tokenizer

        return train_or_load_tokenizer(
            self.tokenizer_section(),
            texts,
            cache,
            progress=progress,
            trust_remote_code=self.recipe.trust_remote_code,
        )

    def processor_fingerprint(self) -> str:
        from ..tokenizers.load import tokenizer_fingerprint

        return tokenizer_fingerprint(self.processor)

    def check_framing(self) -> None:
        """Raise UserError for a framing the objective cannot work with."""

    def check_tokenizer(self) -> None:
        recipe, section = self.recipe, self.recipe.tokenizer
        if section.name_or_path is not None:
            for name in ("framing", "sentinels"):
                if getattr(section, name) is not None:
                    raise UserError(
                        f"tokenizer.{name}={show(getattr(section, name))} has no effect with tokenizer.name_or_path; "
                        f"a pretrained tokenizer has its own"
                    )
            return
        for name, types in WITHOUT_EFFECT.items():
            value, default = getattr(section, name), getattr(TokenizerSection(), name)
            if section.type in types and value != default:
                raise UserError(
                    f"tokenizer.{name}={show(value)} has no effect with tokenizer.type={section.type}; set it to "
                    f"{show(default)}"
                )
        self.check_framing()
        if recipe.model.name_or_path is not None:
            raise UserError(
                "tokenizer is trained anew, but model.name_or_path brings its own; remove the tokenizer section"
            )
        size = section.vocab_size
        if size is None:
            if section.type != "char":
                raise UserError(
                    f"tokenizer.vocab_size is not set; tokenizer.type={section.type} needs it, such as 8192"
                )
            return
        entries, named = WRITES_EVERY_TEXT.get(section.type, (0, ""))
        smallest = entries + len(special_tokens(self.tokenizer_section()))
        if entries and size < smallest:
            raise UserError(f"tokenizer.vocab_size={size} must be at least {smallest}: {named} and the special tokens")
        rows = recipe.model.fields.get("vocab_size")
        if rows is not None and rows < size:
            raise UserError(
                f"model.vocab_size={rows} is smaller than tokenizer.vocab_size={size}; remove model.vocab_size"
            )

    def prompt_tokens(self, prompt: str) -> int:
        """Number of tokens that the model reads for one of evaluation.sample_prompts."""
        return len(self.tokenizer(prompt)["input_ids"])

    def check_prompts(self, most: int) -> None:
        """Raise UserError for a prompt that leaves a model of `most` positions no room for an answer."""
        for i, prompt in enumerate(self.recipe.evaluation.sample_prompts):
            tokens = self.prompt_tokens(prompt)
            if tokens >= most:
                raise UserError(
                    f"evaluation.sample_prompts.{i} has {tokens} tokens, but the model has {most} positions; shorten it"
                )

    def token_ids(self, tokens: Sequence[str]) -> list[int]:
        """Ids of special tokens by name; raise UserError for one that the tokenizer does not have."""
        vocabulary = self.tokenizer.get_vocab()
        missing = [token for token in tokens if token not in vocabulary]
        if missing:
            raise UserError(
                f"{self.setting} needs the token {missing[0]!r}, which the tokenizer does not have; add it by "
                f"tokenizer.special_tokens={show(missing)}, or name one that it has"
            )
        return [vocabulary[token] for token in tokens]

    @property
    def pad_token_id(self) -> int:
        """The id that pads rows. Without a padding token it is 0: any id will do, as padding is masked."""
        return 0 if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id

    def need_tokens(self, **words: str) -> None:
        """Raise UserError where the tokenizer lacks one of the tokens: need_tokens(eos="an end-of-text")."""
        for name, noun in words.items():
            if getattr(self.tokenizer, f"{name}_token_id") is None:
                raise UserError(f"{self.setting} needs a tokenizer with {noun} token; this one has none")


class TokenPredictions:
    """Mixin of objectives and tasks whose metrics follow from the summed loss of the predicted tokens."""

    compares = "tokens"
    default_metrics = ("perplexity",)

    def metrics_of_pass(self, metrics, result, rows, train) -> dict[str, float]:
        return metrics_of_losses(self.tokenizer, metrics, result, rows, train)

"""The data section of a recipe: its settings, and checks for those that exclude each other. Standard library only."""

import codecs
import re
from dataclasses import dataclass
from typing import Literal

from ..errors import UnknownName, UserError, did_you_mean
from ..plugins import SOURCES
from .introspection import check_beside, doc, show

SOURCE_KINDS = ("source", "files", "dataset", "mixture")
OF_FILES = ("encoding", "separator", "sheet", "column_names")  # settings of how files are read
BUFFERS_STREAMS = "is of data.streaming=true; stored data are shuffled as a whole, so remove it"
BUFFERS_FILES = "reads several files at a time, so that max_documents has no first ones; remove one"


@dataclass(frozen=True)
class SourceSection:
    """One source of documents: exactly one of `source`, `files`, `dataset`."""

    source: str | None = doc(
        "a corpus that needs no files: stdlib (Python's standard library, sources and documentation), stdlib_code (the "
        "same without its tables of encodings, Unicode and locales), or a plug-in's"
    )
    files: str | list[str] | None = doc(
        "files, globs allowed: .txt and other plain text, .jsonl, .json, .csv, .tsv (also .gz, .bz2, .xz, .zst), "
        ".parquet, .xlsx (needs anyformer[excel]); local, or URLs such as https://, s3://, gs:// and hf://, which are "
        "copied into the cache once"
    )
    dataset: str | None = doc("a data set on the Hub, or a folder that load_dataset reads")
    config_name: str | None = doc("configuration of the Hub data set")
    revision: str | None = doc("revision of the Hub data set")
    split: str = doc("split of the Hub data set", "train")
    text_field: str = doc("column or key that holds the text; doc.body.text: a key within keys", "text")
    encoding: str = doc("encoding of the files, such as cp1251; utf-8: also UTF-16 or cp1252, by their bytes", "utf-8")
    separator: Literal["comma", "semicolon", "tab", "bar"] | None = doc(
        "what stands between the values of a .csv or .tsv table, or of a table in a text file; null: found in each "
        "table's first rows"
    )
    sheet: str | None = doc("sheet of .xlsx files; null: the first that has rows")
    column_names: list[str] | None = doc(
        "names of the columns of .csv, .tsv and .xlsx files whose first line is a row already; null: it names them"
    )
    document: Literal["file", "line", "paragraph"] = doc("what one document is in a plain text file", "file")
    max_documents: int | None = doc("stop after this many documents", at_least=1)


@dataclass(frozen=True)
class MixtureSource(SourceSection):
    name: str | None = doc(
        "what its numbers are called: news makes validation_loss_news; null: the names of its files or of its data set"
    )
    weight: float = doc(
        "share of the training data that comes from this source, relative to the other weights (data.weights_by)",
        1.0,
        at_least=1e-6,
        at_most=1e6,
    )
    validation_files: str | list[str] | None = doc("its own local files for validation")
    validation_split: str | None = doc("its own split of the Hub data set for validation")
    validation_fraction: float | None = doc(
        "share of its own documents held back for validation; null: data.validation_fraction", at_least=0, below=1
    )


@dataclass(frozen=True)
class CleanSettings:
    """What is left out of plain text before it is tokenised (data/cleaning.py); lengths are in characters."""

    exact_duplicates: bool = doc("leave out documents whose text was there before in the source", False)
    near_duplicates: float | None = doc(
        "leave out documents whose sequences of five words are so much the same as an earlier document's (Jaccard "
        "similarity, estimated by MinHash), such as 0.8; needs anyformer[near_duplicates]",
        at_least=0.1,
        at_most=0.99,
    )
    min_length: int | None = doc("leave out shorter documents", at_least=1)
    max_length: int | None = doc("leave out longer documents", at_least=1)
    filter: str | None = doc("file.py:function or module:function, which gets a text and says whether it stays")
    decontaminate: list[str] = doc(
        "leave out documents that share decontaminate_words words in a row with a test text: files (globs allowed), "
        "recipes (their test split, else validation), suites",
        [],
    )
    decontaminate_words: int = doc("words in a row, without case and punctuation", 13, at_least=4, at_most=100)


# The values of data.derive that read plain text, from any source.
DERIVED_FROM_TEXT = ("next_sentence", "function_summary", "docstring_questions", "docstring_conversations")


@dataclass(frozen=True)
class DataSection(SourceSection):
    description: str | None = doc("what the data are, in a few words, for the model card")
    mixture: list[MixtureSource] = doc("several sources with weights, instead of one", [])
    clean: CleanSettings | None = doc(
        "what is left out of plain text for training and of validation documents held back from it, such as "
        "{exact_duplicates: true, decontaminate: [imdb_classify]}; null: nothing"
    )
    weights_by: float | Literal["tokens", "documents"] = doc(
        "what the weights of a mixture are shares of: tokens or documents; a temperature T, a number such as 3: a "
        "source of N tokens counts as N ** (1 / T), times its weight",
        "tokens",
        at_least=1,
        at_most=1000,
    )
    derive: (
        Literal["next_sentence", "function_summary", "docstring_questions", "docstring_conversations", "entity_kinds"]
        | None
    ) = doc(
        "a task's examples are made of other data: next_sentence: of any text, two sentences and four that may be the "
        "next (columns context, choices, label); function_summary: of Python sources, functions and the first "
        "paragraph of their docstrings (code, summary, function); docstring_questions, docstring_conversations: of "
        "Python sources, what each function does and the first sentence of its docstring (instruction, output; "
        "messages), validated in other words than trained; entity_kinds: of tagged words, the text and the kinds of "
        "names in it (the columns that task.text_field and task.label_field name); null: the data as they are"
    )
    streaming: bool = doc("read a Hub data set as a stream: nothing is stored, training needs max_steps", False)
    shuffle_buffer: int | None = doc(
        "streaming: read so many documents from up to 8 files, and give them in an order that training.seed and the "
        "pass say; then the next; null: all as they are stored",
        at_least=2,
        at_most=10_000_000,
    )
    validation_files: str | list[str] | None = doc("local files for validation")
    validation_split: str | None = doc("split of the Hub data set for validation")
    validation_fraction: float | None = doc(
        "share of the documents held back where neither of the above is given; null: 0.05, and of 5,000 labelled "
        "examples or more at least 500",
        at_least=0,
        below=1,
    )
    bad_rows: Literal["refuse", "skip"] = doc(
        "labelled examples and images that cannot be used: refuse: one message names them, and nothing is trained; "
        "skip: they are left out, and counted by reason",
        "refuse",
    )
    test_files: str | list[str] | None = doc("local files for the final test")
    test_split: str | None = doc("split of the Hub data set for the final test")
    test_fraction: float | None = doc("share of labelled examples held back for the test; null: none", above=0, below=1)
    stratify: bool | None = doc(
        "the parts that fractions divide get their share of each class; null: where test_fraction is set and the task "
        "has one class for an example"
    )
    group_field: str | None = doc(
        "column, such as an author or a patient: labelled examples that are equal in it stay in one of the parts that "
        "fractions divide"
    )
    max_document_bytes: int = doc("longer documents are skipped and counted", 100_000_000, at_least=1)
    max_line_bytes: int = doc("documents with a longer line are skipped and counted", 10_000_000, at_least=1)
    cache_dir: str | None = doc("where tokenised data is kept; default: $ANYFORMER_CACHE or ~/.cache/anyformer")

    @property
    def share_held_back(self) -> float:
        """validation_fraction, or its default."""
        return 0.05 if self.validation_fraction is None else self.validation_fraction

    @property
    def by_class(self) -> bool:
        """stratify, or its default."""
        return self.test_fraction is not None if self.stratify is None else self.stratify


def _check_source(source: SourceSection, path: str, mixture: list[MixtureSource]) -> None:
    kinds = [name for name in SOURCE_KINDS[:3] if getattr(source, name) is not None]
    kinds += ["mixture"] if mixture else []
    choices = "source, files, dataset" + (" and mixture" if path == "data" else "")
    if not kinds:
        raise UserError(f"{path} names no data; set one of {choices}")
    if len(kinds) > 1:
        names = [f"{path}.{name}" for name in kinds]
        raise UserError(f"{' and '.join(names)} are both set; keep one and set the other to null")
    if source.source is not None and source.source not in SOURCES:
        raise UnknownName(f"{path}.source={show(source.source)} is not known{did_you_mean(source.source, SOURCES)}")
    if source.files is not None and not all([source.files] if isinstance(source.files, str) else source.files or [""]):
        raise UserError(f"{path}.files={show(source.files)} names no file")
    try:
        codecs.getincrementaldecoder(source.encoding)("surrogateescape").decode("a text".encode(source.encoding), True)
    except (LookupError, ValueError):  # ValueError: idna, a codec for host names
        raise UserError(f"{path}.encoding={show(source.encoding)} is none of Python's; utf-8 and cp1252 are") from None
    files = [getattr(source, name, None) for name in ("files", "validation_files", "test_files")]
    of_hub = [name for name in ("config_name", "revision", "validation_split", "test_split") if hasattr(source, name)]
    rows = [(f"{name}=", source.dataset is None, f"has no effect without {path}.dataset") for name in of_hub]
    rows += [(f"{name}=", not any(files), f"has no effect without {path}.files") for name in OF_FILES]
    check_beside(path, source, rows)


def _check_validation(source: MixtureSource, path: str, data: DataSection) -> None:
    """Raise UserError if the validation data of a mixture's source contradict other settings."""
    names = ("validation_files", "validation_split", "validation_fraction")
    settings = [f"{path}.{name}" for name in names if getattr(source, name) is not None]
    settings += [f"data.{name}" for name in names[:2] if settings and getattr(data, name) is not None]
    if len(settings) > 1:
        raise UserError(f"{' and '.join(settings)} are both set; keep one and set the other to null")


def reads_text(objective) -> bool:
    """Whether an objective reads plain text, and not examples or images."""
    return objective.section != "task" and objective.tokens is not None


def sections_of(objective) -> list[DataSection]:
    """The data sections that are read: the recipe's, or one for each part of a mixture or multi-task."""
    return [part.recipe.data for part in objective.parts.values()] or [objective.recipe.data]


def check_sections(objective) -> None:
    """Raise UserError for data settings that exclude each other; reads no file."""
    if objective.parts:
        objective.check_parts()
        objective.of_each(check_sections)
    else:
        check_data(objective.recipe.data)


def check_data(data: DataSection) -> None:
    """Raise UserError for settings of the data section that exclude each other; no file is touched."""
    _check_source(data, "data", data.mixture)
    for i, source in enumerate(data.mixture):
        _check_source(source, f"data.mixture.{i}", [])
        others = [re.sub(r"\W+", "_", other.name) for other in data.mixture[:i] if other.name is not None]
        if source.name is not None and re.sub(r"\W+", "_", source.name) in ("", "_", *others):
            raise UserError(f"data.mixture.{i}.name={show(source.name)} must be a name that no other source has")
        _check_validation(source, f"data.mixture.{i}", data)
        why = f"has no effect with data.derive={data.derive}, which reads all; leave it out"
        check_beside(f"data.mixture.{i}", source, [("weight=", data.derive is not None, why)])
    why = "the sizes of streams are not known" if data.streaming else "there is no data.mixture"
    is_idle = data.streaming or not data.mixture
    takes_first = any(source.max_documents for source in (data, *data.mixture))
    rows = [
        ("weights_by=", is_idle, f"has no effect, as {why}; leave it out"),
        ("max_documents", data.mixture, "does not go with data.mixture; set max_documents in its sources"),
        ("shuffle_buffer=", not data.streaming, BUFFERS_STREAMS),
        ("shuffle_buffer=", takes_first, BUFFERS_FILES),
    ]
    check_beside("data", data, rows)
    for part in ("validation", "test"):
        if getattr(data, f"{part}_split") is not None and getattr(data, f"{part}_files") is not None:
            raise UserError(f"data.{part}_split and data.{part}_files are both set; keep one and set the other to null")
    if data.streaming and data.dataset is None and not (data.mixture and all(part.dataset for part in data.mixture)):
        raise UserError("data.streaming=true needs data.dataset; other sources are not streamed")


def check_clean(objective, data: DataSection) -> None:
    """Raise UserError for settings of data.clean that exclude each other or have no effect; no file is touched."""
    clean = data.clean
    if not reads_text(objective) and data.derive not in DERIVED_FROM_TEXT:
        raise UserError(f"data.clean is of plain text, and {objective.setting} reads none here; remove it")
    if clean == CleanSettings(decontaminate_words=clean.decontaminate_words):
        raise UserError("data.clean leaves nothing out; set some of it, such as {exact_duplicates: true}")
    why = "compares all documents before the first is read; set data.streaming=false"
    rows = [(f"{name}=", data.streaming, why) for name in ("exact_duplicates", "near_duplicates")]
    check_beside("data.clean", clean, rows)
    if None not in (clean.min_length, clean.max_length) and clean.min_length > clean.max_length:
        raise UserError(f"data.clean.min_length={clean.min_length} is above data.clean.max_length={clean.max_length}")
    if clean.filter is not None and not all(clean.filter.rpartition(":")):
        raise UserError(f"data.clean.filter={show(clean.filter)} names no function, such as my_filters.py:is_english")

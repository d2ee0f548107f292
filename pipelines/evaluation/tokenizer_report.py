"""`anyformer tokenizer`: how a tokenizer encodes a text, compared with other tokenizers on the same text.

Heavy libraries are imported inside functions: a request is checked before they are.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..data.account_words import unusual
from ..data.documents import in_batches
from ..errors import UserError, did_you_mean, loading_reason, refuse_file
from ..generation import HUB_NAME, RUNS, check_runs
from ..lazy import np, transformers
from ..manifest import check_saved_files
from ..objectives.prepare import cache_of
from ..objectives.showing import pieces_text
from ..open_tokenizer import open_tokenizer, vocabulary_size
from ..plugins import objective_of
from ..recipes.compose import load_recipe
from ..recipes.recipe_files import recipe_beside, shipped
from ..recipes.schema import DataSection, Recipe, parts_of_recipe
from ..reporting.console import table_of
from ..words import counted, say

SPLITS = ("validation", "test", "train")
_BATCH = 1_000_000  # characters that are encoded at once
_OVERRIDE = re.compile(rf"({'|'.join(field.name for field in parts_of_recipe())})(\.[\w.]+)?=.*", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """Where a tokenizer comes from: a recipe, for which it is trained or loaded, or a folder or Hub name.

    recipe: for a folder, that of the run in it, on whose text the tokenizer is measured; None: there is none. label:
    the name and the settings that were given for the recipe.
    """

    name: str
    recipe: Recipe | None
    is_recipe: bool
    label: str


@dataclass(frozen=True)
class Sample:
    """The text that tokenizers are compared on. name: what it is, for people. shown: whether its tokens are printed."""

    name: str
    texts: list[str]
    shown: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "texts": len(self.texts),
            "words": sum(len(text.split()) for text in self.texts),
            "bytes": sum(len(text.encode()) for text in self.texts),
        }


@dataclass(frozen=True)
class Measured:
    """One tokenizer measured on one text.

    algorithm: the tokenizers library's name of its model. tokens_per_word: fertility; words are separated by white
    space. unknown_rate: share of the tokens. round_trip_failures: texts that decoding their tokens does not restore.
    never_used: share of the vocabulary, without special tokens, that does not occur in the text.
    """

    name: str
    algorithm: str
    vocab_size: int
    tokens: int
    tokens_per_word: float
    bytes_per_token: float
    unknown_rate: float
    round_trip_failures: int
    never_used: float


# ------------------------------------------------------------------------------------------------------ request


def locate(name: str, overrides: list[str] = (), notes: list[str] | None = None) -> Place:
    """The recipe, folder or Hub name that `name` refers to.

    Raises:
        UserError: it is none of these, or a recipe whose model reads no text.
    """
    path = Path(name).expanduser()
    if is_recipe(name):
        recipe = load_recipe(name, overrides, notes=notes)
        if objective_of(recipe).tokens is None:
            raise UserError(f"recipe {name!r} has no tokenizer: {objective_of(recipe).setting} reads no text")
        return Place(name, recipe, True, " ".join([name, *overrides]))
    if path.is_dir():
        beside = recipe_beside(path)
        return Place(name, load_recipe(str(beside)) if beside else None, False, name)
    if path.exists():
        raise UserError(f"{name!r} is no recipe (.yaml) and no folder; a text to measure on is --on {name}")
    if not HUB_NAME.fullmatch(name) or path.parts[0] == RUNS:
        raise UserError(f"{name!r}: no such recipe, and no such folder")
    check_runs(name, path, "NAME")
    return Place(name, None, False, name)


def is_recipe(name: str) -> bool:
    """Whether a name is a YAML file or that of a shipped recipe."""
    return Path(name).suffix in (".yaml", ".yml") or name in shipped("recipes")


def divide(first: str, words: list[str]) -> tuple[list[str], list[str]]:
    """(settings of the recipe `first`, texts); after a folder or Hub name every word is a text."""
    overrides = [word for word in words if is_recipe(first) and _OVERRIDE.fullmatch(word)]
    return overrides, [word for word in words if word not in overrides]


def check_text(place: Place, texts: list[str], on: str | None, split: str | None) -> None:
    """Raise UserError where it is not clear which text is measured."""
    if texts and on:
        raise UserError("TEXT and --on FILE are two texts to measure on; give one of them")
    if split and (texts or on):
        raise UserError(f"--split {split} is of the recipe's own text; remove it, or {'TEXT' if texts else '--on'}")
    for text in texts:
        refuse_file("TEXT", text, f"to measure on it: --on {text}")
    if "" in [text.strip() for text in texts]:
        raise UserError("TEXT is empty; give some words")
    if not texts and not on and (place.recipe is None or objective_of(place.recipe).tokens is None):
        raise UserError(f"{place.name!r} has no recipe beside it whose text is measured; add --on FILE, or a TEXT")


# --------------------------------------------------------------------------------------------------------- text


def sample_of_recipe(recipe: Recipe, name: str, split: str | None, most: int) -> Sample:
    """The first `most` bytes of a split's text; split=None: the validation text, else the test or training text."""
    objective = objective_of(recipe)
    reads = objective.Reads(objective)
    sources = reads.open()
    chosen = split or next(one for one in SPLITS if one in sources)
    if chosen not in sources:
        raise UserError(f"--split {chosen}: {name} has no such text; it has {' and '.join(sources)}")
    return _sample(reads.texts(sources[chosen]), f"{chosen} text of {name}", most)


def sample_of_files(pattern: str, text_field: str, most: int) -> Sample:
    """The first `most` bytes of the files that a path or glob names, of any format that data.files takes."""
    from ..data.opening import open_corpora

    try:
        corpus = open_corpora(DataSection(files=pattern, text_field=text_field, validation_fraction=0))["train"]
        say(unusual(corpus.source.account()))
        return _sample(corpus, pattern, most)
    except UserError as error:  # its message names settings of a recipe
        message = str(error).replace("data.files", "--on").replace("data.text_field", "--text-field")
        raise UserError(message) from error


def _sample(corpus, name: str, most: int) -> Sample:
    from ..tokenizers.load import training_texts

    texts = list(training_texts(corpus, most))
    sample = Sample(name, texts)
    if not sample.facts["words"]:
        raise UserError(f"{name}: no word of text to measure on")
    whole = sample.facts["bytes"] < most
    return sample if whole else Sample(f"{name}, its first {counted(most, 'byte')}", texts)


# ---------------------------------------------------------------------------------------------------- measuring


def tokenizer_at(place: Place, *, progress: bool, trust_remote_code: bool) -> "transformers.PreTrainedTokenizerFast":
    """The tokenizer of a recipe (trained, or taken from the cache) or of a folder or Hub repository."""
    if place.is_recipe:
        objective = objective_of(place.recipe.with_(trust_remote_code=trust_remote_code))
        reads = objective.Reads(objective)
        return reads.prepare(reads.open(), cache_of(place.recipe), progress).tokenizer
    folder = Path(place.name).expanduser()
    check_saved_files(folder, "RECIPE_OR_FOLDER")
    try:
        tokenizer = open_tokenizer(folder, trust_remote_code)
    except Exception as error:  # transformers raises OSError, ValueError, ImportError, KeyError and its own kinds here
        near = "" if folder.is_dir() else did_you_mean(place.name, shipped("recipes"))
        where = "this folder" if folder.is_dir() else "the Hub"
        raise UserError(f"{place.name!r}: no tokenizer in {where} ({loading_reason(error)}){near}") from error
    if not tokenizer.is_fast:
        raise UserError(f"{place.name!r} has no fast version (tokenizer.json), which is needed here")
    return tokenizer


def measure_tokenizer(tokenizer: "transformers.PreTrainedTokenizerFast", sample: Sample, name: str = "") -> Measured:
    """Encode the texts, without special tokens around them, and decode their tokens again."""
    from ..tokenizers.load import plain_backend

    backend = plain_backend(tokenizer)
    vocabulary, special = tokenizer.get_vocab(), set(tokenizer.all_special_ids)
    used = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    failures = 0
    for group in in_batches(sample.texts, _BATCH, len):
        for text, encoding in zip(group, backend.encode_batch_fast(group, add_special_tokens=False)):
            ids = encoding.ids
            used += np.bincount(np.array(ids, dtype=np.int64), minlength=len(used))
            failures += backend.decode(ids, skip_special_tokens=False) != text
    facts, tokens = sample.facts, int(used.sum())
    entries = [number for number in vocabulary.values() if number not in special]
    unknown = tokenizer.unk_token_id
    return Measured(
        name=name,
        algorithm=type(backend.model).__name__,
        vocab_size=vocabulary_size(tokenizer),
        tokens=tokens,
        tokens_per_word=tokens / facts["words"],
        bytes_per_token=facts["bytes"] / max(tokens, 1),
        unknown_rate=int(used[unknown]) / max(tokens, 1) if unknown is not None else 0.0,
        round_trip_failures=failures,
        never_used=float(np.mean(used[entries] == 0)) if entries else 0.0,
    )


# ---------------------------------------------------------------------------------------------------- reporting


def report(places: list[Place], sample: Sample, *, trust_remote_code: bool) -> dict[str, Any]:
    """Measure the tokenizers on one text; print a table and, if `sample.shown`, the tokens.

    Returns the measured tokenizers and their text, for JSON.
    """
    console, opened = Console(highlight=False, soft_wrap=True), {}
    for place in places:
        if place.label not in opened:
            opened[place.label] = tokenizer_at(place, progress=console.is_terminal, trust_remote_code=trust_remote_code)
    if sample.shown:
        for text in sample.texts:
            for name, tokenizer in opened.items():
                ids = tokenizer(text, add_special_tokens=False).input_ids
                console.print(f"{name}: {counted(len(ids), 'token')}", markup=False, style="dim")
                console.print(pieces_text(ids, tokenizer))
    measured = [measure_tokenizer(tokenizer, sample, name) for name, tokenizer in opened.items()]
    facts = sample.facts
    sizes = f"{counted(facts['texts'], 'text')}, {counted(facts['words'], 'word')}, {counted(facts['bytes'], 'byte')}"
    console.print(f"{sample.name}: {sizes}", markup=False)
    console.print(_table(measured, facts))
    return {"text": facts, "tokenizers": [vars(one) for one in measured]}


def _table(found: list[Measured], facts: dict[str, Any]) -> Table:
    rows = {
        "algorithm": lambda one: one.algorithm,
        "vocabulary": lambda one: f"{one.vocab_size:,}",
        "tokens": lambda one: f"{one.tokens:,}",
        "tokens per word": lambda one: f"{one.tokens_per_word:.3f}",
        "bytes per token": lambda one: f"{one.bytes_per_token:.3f}",
        "unknown": lambda one: f"{one.unknown_rate:.3%}",
        "texts that do not come back": lambda one: f"{one.round_trip_failures:,} of {facts['texts']:,}",
        "entries never used": lambda one: f"{one.never_used:.1%}",
    }
    table = table_of(["", *(one.name for one in found)], slice(1, None))
    for label, cell in rows.items():
        table.add_row(label, *(Text(cell(one)) for one in found))
    return table

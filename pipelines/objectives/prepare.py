"""From a recipe's data section to rows: open corpora or examples, get the tokenizer, tokenise once, pack."""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from ..data.corpora import open_corpora
from ..data.examples import ExampleTexts, open_examples
from ..data.packing import PackedDataset, packing_report, tokenize_corpus
from ..images.processors import processor_fingerprint
from ..recipes.image_checks import sees_images
from ..recipes.schema import Recipe
from ..tokenizers.load import tokenizer_fingerprint, train_or_load_tokenizer
from ..tokenizers.special_tokens import tokenizer_section
from . import OBJECTIVES
from .image_data import image_rows
from .tasks import TASKS


@dataclass
class PreparedData:
    """Rows of each split, with what is worth reporting about them."""

    processor: object  # saved with the model: a tokenizer, or an image processor
    objective: object  # the recipe's objective or task: what rows and batches are, and which model learns from them
    rows: dict = field(default_factory=dict)  # split -> PackedDataset, or a stream for train
    facts: dict = field(default_factory=dict)  # goes into run.json and the model card

    @property
    def tokenizer(self):
        """The tokenizer, or None where the model sees images."""
        return None if getattr(self.objective, "images", False) else self.processor

    @property
    def packed(self) -> bool:
        """Whether any row may hold more than one document."""
        return any(getattr(rows, "is_packed", True) for rows in self.rows.values())


def cache_folder(recipe: Recipe) -> Path:
    """data.cache_dir, $ANYFORMER_CACHE or ~/.cache/anyformer."""
    chosen = recipe.data.cache_dir or os.environ.get("ANYFORMER_CACHE") or "~/.cache/anyformer"
    return Path(chosen).expanduser()


def prepare_data(recipe: Recipe, *, progress: bool = False) -> PreparedData:
    """Open, tokenise and pack every split of the recipe; what was done before is taken from the cache.

    Raises UserError for data that is missing, empty, unreadable or too short.
    """
    if sees_images(recipe):
        data, fingerprint = prepare_image_rows(recipe), processor_fingerprint
    else:
        data = (prepare_corpora if recipe.task is None else prepare_examples)(recipe, progress)
        fingerprint = tokenizer_fingerprint
    identity = [data.facts["train"].get("fingerprint") or data.facts["train"]["stream"], fingerprint(data.processor)]
    data.facts["fingerprint"] = hashlib.sha256("\n".join(identity).encode()).hexdigest()
    return data


def prepare_corpora(recipe: Recipe, progress: bool) -> PreparedData:
    """Packed rows of text, for an objective."""
    cache, section = cache_folder(recipe), recipe.objective
    corpora = open_corpora(recipe.data)  # not by training.seed: another seed keeps validation set and tokenizer
    tokenizer = train_or_load_tokenizer(tokenizer_section(recipe), corpora["train"], cache, progress=progress)
    objective = OBJECTIVES[section.name](section, tokenizer, recipe.training.seed)
    data = PreparedData(tokenizer, objective)
    for split, corpus in corpora.items():
        if split == "train" and recipe.data.streaming:
            data.rows[split] = objective.stream(corpus)
            data.facts[split] = {"stream": corpus.fingerprint()}
            continue
        store = tokenize_corpus(
            corpus, tokenizer, cache, add_bos=section.add_bos, add_eos=section.add_eos, progress=progress
        )
        # Every token of a validation text counts, so its last row is padded, never dropped.
        data.rows[split] = objective.rows(store, section.tail if split == "train" else "pad")
        data.facts[split] = split_facts(data.rows[split])
    return data


def prepare_examples(recipe: Recipe, progress: bool) -> PreparedData:
    """Labelled examples of different lengths, for a task."""
    cache, section = cache_folder(recipe), recipe.task
    task_class, columns_of, text_columns_of = TASKS[section.name]
    splits = open_examples(recipe.data, columns_of(section))
    texts = ExampleTexts(splits["train"], text_columns_of(section))
    tokenizer = train_or_load_tokenizer(tokenizer_section(recipe), texts, cache, progress=progress)
    if tokenizer.model_max_length > 10**9:  # transformers' way to say that nobody set it
        tokenizer.model_max_length = section.max_length  # where `pipeline(..., truncation=True)` cuts
    task = task_class(section, tokenizer, splits["train"], cache, recipe.evaluation.metrics)
    data = PreparedData(tokenizer, task)
    for split, examples in splits.items():
        data.rows[split] = task.rows(examples, cache)
        data.facts[split] = {"fingerprint": data.rows[split].fingerprint} | data.rows[split].facts
    return data


def prepare_image_rows(recipe: Recipe) -> PreparedData:
    """Images, decoded once."""
    job, rows = image_rows(recipe, cache_folder(recipe))
    facts = {split: {"fingerprint": one.fingerprint} | one.facts for split, one in rows.items()}
    return PreparedData(job.processor, job, rows, facts)


def split_facts(rows: PackedDataset) -> dict:
    """Sizes of one split, as plain numbers."""
    store = rows.store
    return {
        "fingerprint": rows.fingerprint,
        "documents": len(store.offsets) - 1,
        "tokens": int(store.offsets[-1]),
        "bytes": int(store.num_bytes),
        "rows": len(rows),
        "fill_rate": round(float(rows.fill_rate), 6),
        "padding_waste": round(float(rows.padding_waste), 6),
        "skipped": {name: int(n) for name, n in vars(store.skipped).items()} if store.skipped else {},
    }


def describe_data(data: PreparedData) -> str:
    """A few lines for people: what each split holds and what padding would have wasted."""
    lines = []
    for split, rows in data.rows.items():
        if isinstance(rows, PackedDataset):
            text = packing_report(rows)
        elif hasattr(data.objective, "describe"):
            text = data.objective.describe(rows)
        else:
            text = "a stream, tokenised and packed while training"
        notes = getattr(getattr(rows, "store", None), "notes", None) or []
        lines += [f"{split}: {text}", *(f"{split}: {note}" for note in notes)]
    return "\n".join(lines)

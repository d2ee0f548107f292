"""From a recipe to rows: its objective opens the sources, makes the tokenizer or image processor, and the rows."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.account_words import listed
from ..data.rows import Rows
from ..errors import UserError
from ..manifest import cache_folder
from ..plugins import TEACHERS, objective_of
from ..recipes.data_section import reads_text
from ..recipes.schema import Recipe
from ..recipes.stage_plan import Stage, of_stage, stages_of
from ..recipes.types import show
from ..storage.contents import contents
from .base import Objective
from .data import Data, ModelFacts
from .reads import Reads

UNKNOWN = re.compile("of the unknown class '(.*?)'(?:;|$)", re.M)  # in an error about a label


def prepare_data(
    recipe: Recipe,
    *,
    splits: Sequence[str] | None = None,
    model_config=None,
    for_training: bool = False,
) -> Data:
    """Open, tokenise and pack the splits of a recipe; results of earlier calls are taken from the cache.

    Args:
        splits: those whose rows are made, the training split first; None: all that the recipe has.
        model_config: of a trained model, which says what the recipe leaves open, such as the classes' names.
        for_training: whether to check and prepare all that the recipe's training needs.

    Raises:
        UserError: data that is missing, empty, unreadable or too short, or not what the model was trained for.
    """
    cache_of(recipe)  # in which hashes of the files are kept
    objective = objective_of(recipe).for_rows()
    facts = objective.facts if model_config is None else ModelFacts(recipe, model_config, splits[0])
    reads = objective.Reads(objective, facts)
    is_taught = for_training and recipe.teacher is not None
    teaching = TEACHERS[objective.taught](reads) if is_taught else None
    if teaching is not None:
        teaching.before_training()
    sources = reads.open()
    validations = {name: getattr(recipe.evaluation, name) for name in ("every_steps", "at_start")}
    name = next((name for name, value in validations.items() if value), None)
    if for_training and name is not None and "validation" not in sources:
        raise UserError(
            f"evaluation.{name}={show(validations[name])} is set, but the data section names no validation data; name "
            f"some, or set it to null"
        )

    def rows_of(data: Data) -> dict[str, Rows]:
        if teaching is not None:
            teaching.check_data(data)
        chosen = [split for split in sources if splits is None or split in splits]
        return {split: reads.rows(data, sources[split], split) for split in chosen}

    data, rows = with_usable_rows(reads, sources, rows_of)
    rows, lesson = reads.completed(data, rows), None
    if teaching is not None:
        rows, lesson = teaching.for_training(data, rows)
    facts = {split: of_split.report() for split, of_split in rows.items()}
    data = replace(data, rows=rows, facts=facts, lesson=lesson)
    if for_training and recipe.stages:
        data = replace(data, stages=prepare_stages(data))
    if "train" in rows:
        of_both = f"{rows['train'].identity}\n{processor_fingerprint(data)}"
        facts["fingerprint"] = hashlib.sha256(of_both.encode()).hexdigest()
    return data


def with_usable_rows(reads: Reads, sources: dict, made: Callable[[Data], Any]) -> tuple[Data, Any]:
    """(the data without rows, what is `made` of them), of sources without rows that are left out.

    Raises UserError for rows that cannot be used, where the recipe does not leave them out.
    """
    while True:
        data = None
        try:
            data = reads.prepare(sources)
            return data, made(data)
        except UserError as error:
            if not leaves_out(reads, sources, error, data):
                raise


def processor_fingerprint(data: Data) -> str:
    """A string that is equal for processors that turn every input into the same model inputs."""
    if data.tokenizer is None:
        from ..images.processors import processor_fingerprint as fingerprint
    else:
        from ..tokenizers.load import tokenizer_fingerprint as fingerprint
    return fingerprint(data.processor)


def prepare_stages(data: Data) -> list[tuple[Stage, Data, Rows]]:
    """Each stage of the recipe with its data and its training rows; stages with one sequence_length share both."""
    made, stages = {repr(data.objective.settings): (data, data.rows["train"])}, []
    for stage in stages_of(data.objective.recipe):
        key = repr(stage.recipe.learned)
        if key not in made:
            objective = objective_of(stage.recipe)
            reads = objective.Reads(objective)
            with of_stage(stage.number):
                prepared = reads.prepare(dict(data.sources), data.tokenizer)
                made[key] = prepared, reads.rows(prepared, data.sources["train"], "train")
        stages.append((stage, *made[key]))
    return stages


def leaves_out(reads: Reads, sources: dict, error: UserError, data: Data | None) -> bool:
    """Leave unusable rows, which may have caused `error`, out of the splits' sources; return whether there were any.

    Where all rows fail, the fault is not in single rows. Raises UserError with all unusable rows where the recipe
    refuses such rows, and for a split of which none is left. data: as Reads.try_examples takes it.
    """
    from ..data.bad_rows import bad_rows_of, leave_out, reasons, refusal
    from ..data.examples import Examples

    if reads.objective.parts:
        from .parts import of_label

        of_parts = {} if data is None else data.parts
        found = [
            leaves_out(part.Reads(part), of_label(sources, label), error, of_parts.get(label))
            for label, part in reads.objective.parts.items()
        ]
        return any(found)
    examples = [source for source in sources.values() if isinstance(source, Examples)]
    bad_rows = [bad_rows_of(one, lambda probe: reads.try_examples(probe, data)) for one in examples]
    whole = [one for one, rows in zip(examples, bad_rows) if rows and len(rows) == sum(1 for _ in one.numbered())]
    if len(whole) == len(examples):
        sentences = "\n".join(row.sentence for rows in bad_rows for row in rows)
        if data is not None and (unknown := list(dict.fromkeys(UNKNOWN.findall(sentences)))):
            fault, known = str(error).partition(";")[0], data.labels.names
            way_out = f"task.label_map='{{{unknown[0]}: {known[0]}, ...}}' says which is which"
            both = f"labels {listed(unknown)}, classes {listed(known)}"
            raise UserError(f"{fault}, and no row is of a known one: {both}; {way_out}") from None
        if way_out := "".join(one.source.none_usable() for one in examples[:1]):
            raise UserError(f"{str(error).rstrip('.')}{way_out}") from None
        return False
    if reads.recipe.data.bad_rows == "skip":
        for one, rows in zip(examples, bad_rows):
            if one in whole:
                raise UserError(f"data.bad_rows=skip leaves no example of {one.name} for {one.split}: {reasons(rows)}")
            if rows:
                leave_out(one, rows)
        return any(bad_rows)
    single = [row for one, rows in zip(examples, bad_rows) if one not in whole for row in rows]
    if single:
        raise refusal(single, error)
    return False


def cache_of(recipe: Recipe) -> Path:
    """The cache folder of a recipe's prepared data, in which hashes of the data's files are kept from now on."""
    cache = cache_folder(recipe.data.cache_dir)
    contents.kept_in = cache / "contents"
    return cache


def prepare_share(recipe: Recipe, number: int, of: int) -> dict[str, int]:
    """Make share `number` (from 1) of the `of` shares of what prepare_data needs; split -> shards made or found.

    Machines that share a cache (data.cache_dir) can make their shares at the same time; each makes the tokenizer, with
    the same result. prepare_data then joins all shards, and makes those that are missing.

    Raises:
        UserError: as prepare_data, and for data that have no shards: labelled examples and images.
    """
    from ..data.tokenization import Share

    cache_of(recipe)
    objective = objective_of(recipe)
    reads = objective.Reads(objective)
    check_shares(objective)
    sources = reads.open()
    data, share = reads.prepare(sources), Share(number, of)
    return {split: reads.prepare_share(data, source, split, share) for split, source in sources.items()}


def check_shares(objective: Objective) -> None:
    """Raise UserError where the rows cannot be prepared in shares."""
    if objective.parts:
        objective.of_each(check_shares)
    elif not reads_text(objective):
        raise UserError(f"--shard is for plain text, and {objective.setting} reads examples; leave it out")


def describe_data(data: Data) -> list[tuple[str, str]]:
    """What each split holds, for people: (split, one or several lines)."""
    return [(split, "\n".join([described(data, rows), *rows.notes])) for split, rows in data.rows.items()]


def described(data: Data, rows: Rows) -> str:
    """Lines that describe the rows of a split, or each part of them."""
    if not rows.parts:
        return data.reads.describe(data, rows)
    texts = ((name, described(data.parts.get(name, data), part)) for name, part in rows.parts.items())
    shares, noun = rows.shares(), data.objective.words.row
    return "\n".join(f"{name} ({shares[name]:.1%} of the {noun}s): {lines}" for name, lines in texts)

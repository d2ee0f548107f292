"""From a recipe to rows: its objective opens the sources, makes the tokenizer or image processor, and the rows."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..data.rows import Rows
from ..errors import UserError
from ..plugins import objective_of
from ..recipes.schema import Recipe
from ..recipes.stage_plan import Stage, of_stage, stages_of
from ..storage.cache import cache_folder
from ..storage.checksums import contents
from .base import Objective


@dataclass
class PreparedData:
    """Rows of each split, with what is worth reporting about them.

    objective: bound to the recipe, with its tokenizer or image processor. rows: split -> Rows. facts: for run.json and
    the model card. sources: split -> what its rows were made of, as Objective.open gives it. stages: the
    stages of the recipe, each with an objective bound to the recipe of this stage, and its training rows.
    """

    objective: Objective
    rows: dict = field(default_factory=dict)
    facts: dict = field(default_factory=dict)
    sources: dict = field(default_factory=dict)
    stages: "list[tuple[Stage, Objective, Rows]]" = field(default_factory=list)

    @property
    def processor(self):
        """What is saved with the model: a tokenizer, or an image processor."""
        return self.objective.processor

    @property
    def tokenizer(self):
        """The tokenizer, or None where the model reads no text."""
        return self.objective.tokenizer

    @property
    def collator(self):
        """Makes a batch of rows; a `transformers.Trainer` takes it as `data_collator`."""
        return self.objective.collator(self.packed)

    @property
    def packed(self) -> bool:
        """Whether any row may hold more than one document."""
        return any(rows.is_packed for rows in (*self.rows.values(), *(rows for *_, rows in self.stages)))


def prepare_data(
    recipe: Recipe,
    *,
    progress: bool = False,
    splits: Sequence[str] | None = None,
    model_config=None,
    for_training: bool = False,
) -> PreparedData:
    """Open, tokenise and pack the splits of a recipe; results of earlier calls are taken from the cache.

    Args:
        splits: those whose rows are made, the training split first; None: all that the recipe has.
        model_config: of a trained model, which says what the recipe leaves open, such as the classes' names.
        for_training: whether to check and prepare all that the recipe's training needs.

    Raises:
        UserError: data that is missing, empty, unreadable or too short, or not what the model was trained for.
    """
    objective, cache = objective_of(recipe), cache_of(recipe)
    if for_training:
        objective.before_training()
    sources = objective.open()
    if for_training and recipe.evaluation.every_steps is not None and "validation" not in sources:
        raise UserError(
            f"evaluation.every_steps={recipe.evaluation.every_steps} is set, but the data section names no validation "
            f"data; name some, or set it to null"
        )
    if model_config is not None:
        objective.adopt(model_config, sources[splits[0]])
    data = PreparedData(objective, sources=sources)
    while not data.rows:
        prepared = False
        try:
            objective.prepare(sources, cache, progress)
            prepared = True
            chosen = [split for split in sources if splits is None or split in splits]
            data.rows = {split: objective.rows(sources[split], split, cache, progress) for split in chosen}
        except UserError as error:
            if not leaves_out(objective, sources, error, prepared):
                raise
    data.rows = objective.completed(data.rows, cache, progress)
    if for_training:
        data.rows = objective.for_training(data.rows, sources, cache)
    data.facts = {split: rows.report() for split, rows in data.rows.items()}
    if for_training and recipe.stages:
        data.stages = prepare_stages(data, cache, progress)
    if "train" in data.rows:
        of_both = f"{data.rows['train'].identity}\n{objective.processor_fingerprint()}"
        data.facts["fingerprint"] = hashlib.sha256(of_both.encode()).hexdigest()
    return data


def prepare_stages(data: PreparedData, cache: Path, progress: bool) -> "list[tuple[Stage, Objective, Rows]]":
    """Each stage of the recipe with its objective and its training rows; stages with one sequence_length share both."""
    made, stages = {repr(data.objective.settings): (data.objective, data.rows["train"])}, []
    for stage in stages_of(data.objective.recipe):
        key = repr(stage.recipe.learned)
        if key not in made:
            objective = objective_of(stage.recipe)
            objective.given_tokenizer = data.tokenizer
            with of_stage(stage.number):
                objective.prepare(data.sources, cache, progress)
                made[key] = objective, objective.rows(data.sources["train"], "train", cache, progress)
        stages.append((stage, *made[key]))
    return stages


def leaves_out(objective: Objective, sources: dict, error: UserError, prepared: bool) -> bool:
    """Leave unusable rows, which may have caused `error`, out of the splits' sources; return whether there were any.

    Where all rows fail, the fault is not in single rows. Raises UserError with all unusable rows where the recipe
    refuses such rows, and for a split of which none is left. prepared: as Objective.try_examples takes it.
    """
    from ..data.bad_rows import bad_rows_of, leave_out, reasons, refusal
    from ..data.examples import Examples
    from .parts import of_label

    if objective.parts:
        parts = ((part, of_label(sources, label)) for label, part in objective.parts.items())
        return any([leaves_out(part, of_part, error, prepared) for part, of_part in parts])
    examples = [source for source in sources.values() if isinstance(source, Examples)]
    bad_rows = [bad_rows_of(one, lambda probe: objective.try_examples(probe, prepared)) for one in examples]
    whole = [one for one, rows in zip(examples, bad_rows) if rows and len(rows) == sum(1 for _ in one.numbered())]
    if len(whole) == len(examples):
        return False
    if objective.recipe.data.bad_rows == "skip":
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


def prepare_share(recipe: Recipe, number: int, of: int, *, progress: bool = False) -> dict[str, int]:
    """Make share `number` (from 1) of the `of` shares of what prepare_data needs; split -> shards made or found.

    Machines that share a cache (data.cache_dir) can make their shares at the same time; each makes the tokenizer, with
    the same result. prepare_data then joins all shards, and makes those that are missing.

    Raises:
        UserError: as prepare_data, and for data that have no shards: labelled examples and images.
    """
    from ..data.tokenization import Share

    objective, cache = objective_of(recipe), cache_of(recipe)
    objective.check_shares()
    sources = objective.open()
    objective.prepare(sources, cache, progress)
    share = Share(number, of)
    return {split: objective.prepare_share(source, split, cache, share, progress) for split, source in sources.items()}


def describe_data(data: PreparedData) -> list[tuple[str, str]]:
    """What each split holds, for people: (split, one or several lines)."""
    return [(split, "\n".join([described(data.objective, rows), *rows.notes])) for split, rows in data.rows.items()]


def described(objective: Objective, rows: Rows) -> str:
    """Lines that describe the rows of a split, or each part of them."""
    if not rows.parts:
        return objective.describe(rows)
    texts = ((name, described(objective.parts.get(name, objective), part)) for name, part in rows.parts.items())
    shares = rows.shares()
    return "\n".join(f"{name} ({shares[name]:.1%} of the {objective.row_noun}s): {lines}" for name, lines in texts)

"""Several objectives over plain text in one run: one model, one tokenizer, rows of all of them by weight."""

from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from ..data.batch_keys import EPOCH, IGNORE_INDEX, PLACE, PREFIX_MASK, ROW_IDS, pad, row_ids
from ..data.rows import Rows
from ..errors import UnknownName, UserError, did_you_mean
from ..lazy import torch
from ..plugins import OBJECTIVES, OWN_BATCHES, register_objective
from ..recipes.compose import of_others, owners_of
from ..recipes.row_words import Words
from ..recipes.schema import DataSection, ObjectiveSettings, Recipe, doc
from ..recipes.types import show
from .base import FamiliesWith, Planned
from .data import Data
from .parts import ReadsParts, SeveralObjectives
from .text import Continues, LearnsText, PerplexityScores, ReadsText, TextObjective, shifts_labels
from .tokens import pad_token_id

# What fills up rows in a wider batch, by key; input_ids are filled up with the padding token.
FILL = {"labels": IGNORE_INDEX, "attention_mask": 0, PREFIX_MASK: 0}
KEYS = {"input_ids", "position_ids", *FILL}  # that a part's batches may hold


@dataclass
class PartSettings:
    """Settings of every part, beside those of its objective, which its `name` names."""

    label: str | None = doc("what its numbers are called: code makes validation_loss_code; null: its objective's name")
    weight: float = doc(
        "share of the training rows that are of it, relative to the other weights", 1.0, at_least=1e-6, at_most=1e6
    )
    data: DataSection | None = doc("its own data section; null: the recipe's")
    sequence_length: int | None = doc("its own tokens per row; null: the mixture's", at_least=2, at_most=2**24)

    @classmethod
    def chosen(cls, value: dict, path: str) -> type:
        """The settings class for a part's mapping at `path`. Raises UserError for unknown names or others' settings."""
        names = [name for name, row in OBJECTIVES.items() if OWN_BATCHES not in row.needs]
        name = value.get("name")
        if name not in names:
            raise UnknownName(f"{path}.name={show(name)} is not one of its choices{did_you_mean(str(name), names)}")
        settings = settings_of_part(OBJECTIVES[name])
        known = {row.name for row in fields(settings)}
        for key in value:
            if key not in known and (owners := owners_of(key, names)):
                raise of_others(path, name, key, owners)
        return settings


@cache
def settings_of_part(objective: type[TextObjective]) -> type:
    """The settings class of a part with this objective: the objective's settings, and those of every part."""
    body = {"__module__": __name__, "__qualname__": f"{objective.__qualname__}Part"}
    return dataclass(type("Part", (PartSettings, objective.Settings), body))


@dataclass
class MixtureSettings(ObjectiveSettings):
    sequence_length: int = doc(
        "tokens per row, where a part has no sequence_length of its own", 1024, at_least=2, at_most=2**24
    )
    parts: list[PartSettings] = doc(
        "the objectives: for each its name, its settings, a weight, and data or a label of its own", []
    )


class ReadsMixture(ReadsParts):
    """Rows of several objectives; each says of which part it is."""

    _is_placed = True

    def open(self) -> dict[str, dict]:
        """Raises UserError also for parts that train different heads of the checkpoint."""
        head = self.objective.auto_class
        for label, part in self.objective.parts.items():
            if part.auto_class != head:
                raise UserError(
                    f"objective.parts, {label}: it trains {part.auto_class} of model.name_or_path="
                    f"{self.recipe.model.name_or_path}, and the part before it {head}; one head learns all parts"
                )
        return super().open()

    @property
    def legend(self) -> str:
        return "\n".join(f"{label}: {reads.legend}" for label, reads in self._parts.items())

    @property
    def _has_stream(self) -> bool:
        return any(part.recipe.data.streaming for part in self.objective.parts.values())

    def _of_part(self, part: TextObjective) -> ReadsText:
        return part.Reads(part, in_stream=self._has_stream)

    def collator(self, data: Data, packed: bool) -> "JointCollator":
        collators = {label: reads.collator(data.parts[label], packed) for label, reads in self._parts.items()}
        widths = None
        if self._has_stream:
            widths = tuple(max(both) for both in zip(*(reads._widths() for reads in self._parts.values())))
        sees_padding = not shifts_labels(self.objective)
        return JointCollator(collators, pad_token_id(data.tokenizer), sees_padding=sees_padding, widths=widths)

    def show(self, console: Any, data: Data, rows: Rows, number: int, row: dict) -> None:
        place = row[PLACE]
        console.print(f"{place.part}:", markup=False)
        of_part = data.parts[place.part], rows.parts[place.part], place.number, row | own_row(row)
        self._parts[place.part].show(console, *of_part)


class LearnsParts(LearnsText):
    """What all parts learn, by one head."""

    def config_fields(self) -> dict[str, Any]:
        return dict(ChainMap(*(part.learns().config_fields() for part in reversed(self.data.parts.values()))))

    def adapt(self, model: Any) -> None:
        for part in self.data.parts.values():
            part.learns().adapt(model)


class SpeakerAnswers(Continues):
    """Prompts, which the first part answers that continues any."""

    def samples(self, finished, splits, scored):
        speaker = self.objective.speaker
        of_speaker = {split: rows.parts[speaker] for split, rows in splits.items() if speaker in rows.parts}
        return self.data.parts[speaker].answers().samples(finished, of_speaker, scored)


@register_objective
class Mixture(SeveralObjectives):
    """Several objectives over plain text in one run, by weight, each with settings, data and a loss of its own.

    The objectives must train the same kind of model, and need no batches of their own (Objective.needs). Each row is
    changed as its objective alone would change it: by the seed, its number in its part, and how often it came before.
    Raises UserError for parts that one model cannot learn.

    speaker: label of the first part that continues prompts: it gets evaluation.sample_prompts. None: no part does.
    """

    name = "mixture"
    families = FamiliesWith("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM")
    label_field = "label"
    words = Words(loss="nats per predicted token")
    Settings = MixtureSettings
    Reads, Learns, Scores, Answers = ReadsMixture, LearnsParts, PerplexityScores, SpeakerAnswers
    tokens = TextObjective.tokens
    compares = TextObjective.compares
    default_metrics = TextObjective.default_metrics

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        lengths = {length for length in self.lengths().values() if length is not None}
        step = f"rows x {'up to ' if len(lengths) > 1 else ''}{max(lengths, default=0)} tokens"
        speaks = [part for part in self.settings.parts if OBJECTIVES[part.name].continues_prompts]
        of_speaker = OBJECTIVES[speaks[0].name].words.of(speaks[0]) if speaks else self.words
        self.words = replace(self.words, step=step, sample=of_speaker.sample, use=of_speaker.use)
        self.speaker = self.label_of(speaks[0]) if speaks else None

    def label_of(self, part: PartSettings) -> str:
        return part.name if part.label is None else part.label

    def bound(self, part: PartSettings) -> TextObjective:
        """Its recipe differs from the mixture's in objective, data, metrics and, except for the speaker, prompts.

        It has no teacher: the mixture refuses one.
        """
        cls = OBJECTIVES[part.name]
        settings = {row.name: getattr(part, row.name) for row in fields(cls.Settings)}
        if part.sequence_length is None:
            settings["sequence_length"] = self.settings.sequence_length
        prompts = self.recipe.evaluation.sample_prompts if self.label_of(part) == self.speaker else []
        evaluation = replace(self.recipe.evaluation, metrics=[], sample_prompts=prompts)
        data = self.recipe.data
        if part.data is not None:
            data = replace(part.data, cache_dir=data.cache_dir)
        learned = cls.Settings(**settings)
        return cls(replace(self.recipe, objective=learned, data=data, evaluation=evaluation, teacher=None))

    @property
    def auto_class(self) -> str:
        return next(iter(self.parts.values())).auto_class  # the same in all parts

    @property
    def continues_prompts(self) -> bool:
        return self.speaker is not None

    # ---- the recipe

    @property
    def reads_recipes_data(self) -> bool:
        return any(part.data is None for part in self.settings.parts)

    def check(self) -> None:
        self.of_each(lambda part: part.check())
        super().check()

    def lengths(self) -> dict[str, int | None]:
        lengths = [part.sequence_length for part in self.settings.parts]
        shared = {"sequence_length": self.settings.sequence_length} if None in lengths else {}
        return shared | {f"parts.{number}.sequence_length": length for number, length in enumerate(lengths)}

    def planned(self) -> Planned:
        fields = ChainMap(*(part.planned().fields for part in reversed(self.parts.values())))
        return replace(super().planned(), fields=fields)


def own_row(row: dict) -> dict:
    """The row's place, sample id and epoch in its part: its n-th turn is what the objective alone gives in epoch n."""
    place = row[PLACE]
    return {PLACE: place.inner, ROW_IDS: place.number, EPOCH: int(row.get(EPOCH, 0)) * place.turns + place.turn}


class JointCollator:
    """Rows of several parts -> one batch: each part's rows as the part's collator makes them, in the order of `rows`.

    Narrower rows are padded. Where rows have position_ids, the padding is a document of its own, which nothing attends
    to, as in PackedDataset. Elsewhere an attention_mask hides it; a causal model needs none, as padding is at the end.

    collators: part -> its collator. sees_padding: whether tokens attend to those after them. widths: (of input_ids, of
    labels) in every batch, which streams need; None: those of the longest row.
    """

    def __init__(self, collators: dict[str, Callable], pad_token_id: int, sees_padding: bool, widths):
        self.collators, self.pad, self.sees_padding, self.widths = collators, pad_token_id, sees_padding, widths

    def __call__(self, rows: list[dict]) -> dict:
        places: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(row[PLACE].part, []).append(place)
        batches = []
        for name, chosen in places.items():
            batch = self.collators[name]([rows[place] | own_row(rows[place]) for place in chosen])
            batch.pop(ROW_IDS, None)
            if unknown := sorted(batch.keys() - KEYS):
                raise UserError(f"objective.parts, {name}: its batches hold {unknown[0]}, which others do not have")
            batches.append(batch)
        self.agree(batches)
        order = [place for chosen in places.values() for place in chosen]
        joined = {key: self.join(key, [batch[key] for batch in batches], order) for key in batches[0]}
        return joined | row_ids(rows)

    def agree(self, batches: list[dict]) -> None:
        """Give all batches a prefix_mask or attention_mask if one has it, the latter also if padding must be hidden."""
        if any(PREFIX_MASK in batch for batch in batches):
            for batch in batches:
                batch.setdefault(PREFIX_MASK, torch.zeros_like(batch["input_ids"]))
        widths = {batch["input_ids"].shape[1] for batch in batches}
        padded = self.sees_padding and (len(widths) > 1 or self.widths is not None)
        if "position_ids" not in batches[0] and (padded or any("attention_mask" in batch for batch in batches)):
            for batch in batches:
                batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))

    def join(self, key: str, tensors: "list[torch.Tensor]", order: list[int]) -> "torch.Tensor":
        """Tensors (B_i, T_i) as one (B, T); the i-th of all their rows becomes row order[i]."""
        placed = {place: row for place, row in zip(order, (row for tensor in tensors for row in tensor))}
        rows = [placed[place] for place in range(len(order))]
        width = max([len(row) for row in rows] + ([self.widths[key == "labels"]] if self.widths else []))
        if key == "position_ids":
            return torch.stack([torch.cat([row, torch.arange(width - len(row))]) for row in rows])
        return pad(rows, FILL.get(key, self.pad), width=width)

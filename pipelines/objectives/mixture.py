"""Several objectives over plain text in one run: one model, one tokenizer, rows of all of them by weight.

An epoch is one pass over the part that is longest for its weight; the rows of the others come again in it, changed anew
each time. Rows of all parts share batches, so that each step learns from all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..data.batch_keys import EPOCH, IGNORE_INDEX, ROW_IDS
from ..data.rows import Rows
from ..errors import UserError, did_you_mean
from ..plugins import OBJECTIVES, register_objective
from ..recipes.compose import of_others, owners_of
from ..recipes.schema import DataSection, ObjectiveSettings, doc
from ..recipes.types import OneOfSeveral, show
from .base import FinishedModel, Objective
from .parts import MixedRows, SeveralParts
from .text import TextObjective, TokenPredictions

if TYPE_CHECKING:
    from torch import Tensor

PLACE = "place"  # key of a row: its Place
KEYS = {"input_ids", "labels", "position_ids", "attention_mask"}  # of a batch
FILL = {"labels": IGNORE_INDEX, "attention_mask": 0}  # after a row's end in a wider batch; of input_ids padding


class Place(NamedTuple):
    """Where a row of a mixture stands: its part, its number in it, how often it came before in the epoch, at most."""

    part: str
    number: int
    turn: int
    turns: int


@dataclass
class PartSettings(OneOfSeveral):
    """What each part has beside the settings of its objective, which `name` names."""

    label: str | None = doc("what its numbers are called: code makes validation_loss_code; null: its objective's name")
    weight: float = doc("share of the training rows that are of it, relative to the other weights", 1.0, above=0)
    data: DataSection | None = doc("its own data section; null: the recipe's")
    sequence_length: int | None = doc("its own tokens per row; null: the mixture's", at_least=2, at_most=2**24)

    @classmethod
    def chosen(cls, value: dict, path: str) -> type:
        names = [name for name, row in OBJECTIVES.items() if row.shares_batches]
        name = value.get("name")
        if name not in names:
            near = did_you_mean(str(name), names)
            if name is None:
                raise UserError(f"{path}.name is not set; it names the objective of this part{near}")
            raise UserError(f"{path}.name={show(name)} is not one of its choices{near}")
        found = settings_of_part(OBJECTIVES[name])
        own = {row.name for row in fields(found)}
        for key in value:
            if key not in own and (owners := owners_of(key, names)):
                raise of_others(path, name, key, owners)
        return found


@cache
def settings_of_part(objective: type[Objective]) -> type:
    """The settings of a part that learns this objective: the objective's own, and those of every part."""
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


@register_objective
class Mixture(SeveralParts, TextObjective):
    """Several objectives over plain text in one run, by weight, each with settings, data and a loss of its own.

    Objectives of one family can be mixed whose rows may share batches (Objective.shares_batches). Each row is changed
    as its own objective changes it: by the seed, its number in its part, and how often it has come. Raises UserError
    for streams, whose rows cannot be counted.
    """

    name = "mixture"
    families = ("decoder", "moe", "encoder", "seq2seq")
    part_noun = "objective"
    label_field = "label"
    loss_unit = "nats per predicted token"
    Settings = MixtureSettings

    def label_of(self, part: PartSettings) -> str:
        return part.name if part.label is None else part.label

    @cached_property
    def speaker(self) -> str | None:
        """Label of the first part that continues texts, which has the recipe's prompts; None: there is none."""
        speaks = [self.label_of(part) for part in self.settings.parts if OBJECTIVES[part.name].continues_prompts]
        return speaks[0] if speaks else None

    def bound(self, part: PartSettings) -> Objective:
        """The recipe's is the same but for objective, data, metrics, and prompts for another part."""
        cls = OBJECTIVES[part.name]
        settings = cls.Settings(**{row.name: getattr(part, row.name) for row in fields(cls.Settings)})
        if part.sequence_length is None:
            settings.sequence_length = self.settings.sequence_length
        evaluation = replace(self.recipe.evaluation, metrics=[])
        if self.label_of(part) != self.speaker:
            evaluation.sample_prompts = []
        data = self.recipe.data
        if part.data is not None:
            data = replace(part.data, cache_dir=data.cache_dir, num_proc=data.num_proc)
        recipe = replace(self.recipe, objective=settings, data=data, evaluation=evaluation)
        recipe.trust_remote_code = self.recipe.trust_remote_code
        return cls(recipe)

    @cached_property
    def first(self) -> Objective:
        """The first part; what depends on the kind of model is alike for all."""
        return next(iter(self.parts.values()))

    @property
    def auto_class(self) -> str:
        return self.first.auto_class

    @property
    def shifts_labels(self) -> bool:
        return self.first.shifts_labels

    @property
    def continues_prompts(self) -> bool:
        return self.speaker is not None

    # ---- the recipe

    @property
    def reads_recipes_data(self) -> bool:
        return any(part.data is None for part in self.settings.parts)

    def check_data(self) -> None:
        super().check_data()
        for label, part in self.parts.items():
            if part.recipe.data.streaming:
                raise UserError(
                    f"objective.parts, {label}: data.streaming=true does not go with {self.setting}, whose rows are "
                    f"counted so that the weights hold; set data.streaming=false"
                )

    def check_family(self) -> None:
        self.of_each(lambda part: part.check_family())
        families = set(self.first.families)
        for label, part in self.parts.items():
            families &= set(part.families)
            if not families:
                raise UserError(
                    f"objective.parts, {label}: it trains {' or '.join(part.families)}, and the parts before it do "
                    f"not; one model learns all parts"
                )

    def check_heads(self) -> None:
        """Raise UserError for parts that train different heads of the checkpoint."""
        for label, part in self.parts.items():
            if (part.auto_class, part.shifts_labels) != (self.auto_class, self.shifts_labels):
                raise UserError(
                    f"objective.parts, {label}: it trains {part.auto_class} of model.name_or_path="
                    f"{self.recipe.model.name_or_path}, and the part before it {self.auto_class}; one head learns all "
                    f"parts"
                )

    def check(self) -> None:
        self.of_each(lambda part: part.check())
        super().check()

    def check_framing(self) -> None:
        self.of_each(lambda part: part.check_framing())

    def framing(self) -> str:
        return self.first.framing()

    @property
    def sentinels(self) -> int:
        return max(part.sentinels for part in self.parts.values())

    def further_tokens(self) -> list[str]:
        return list(dict.fromkeys(token for part in self.parts.values() for token in part.further_tokens()))

    def lengths(self) -> dict[str, int | None]:
        own = [part.sequence_length for part in self.settings.parts]
        shared = {"sequence_length": self.settings.sequence_length} if None in own else {}
        return shared | {f"parts.{number}.sequence_length": length for number, length in enumerate(own)}

    def step_words(self) -> str:
        lengths = {length for length in self.lengths().values() if length is not None}
        return f"rows x {'up to ' if len(lengths) > 1 else ''}{max(lengths)} tokens"

    # ---- data

    def open(self) -> dict[str, dict]:
        self.check_heads()
        return super().open()

    def prepare(self, splits: dict[str, dict], cache: Path, progress: bool) -> None:
        """One tokenizer, trained on as much text of each part, with the special tokens of all."""
        self.processor = self.train_or_load_tokenizer(self.corpus(splits["train"]), cache, progress)
        self.share_tokenizer(splits, cache, progress)

    def mixed(self, rows: dict[str, Rows], weights: dict[str, float] | None) -> "PlacedRows":
        return PlacedRows(rows, weights)

    def collator(self, packed: bool) -> "JointCollator":
        pad = 0 if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id
        own = self.of_each(lambda part: part.collator(packed))
        return JointCollator(own, pad, sees_padding=not self.shifts_labels)

    # ---- the model

    def config_fields(self) -> dict[str, Any]:
        found = {}
        for part in self.parts.values():
            found |= part.config_fields()
        return found

    def prepare_model(self, model) -> None:
        for part in self.parts.values():
            part.prepare_model(model)

    # ---- measuring

    def metrics_of_pass(self, metrics, result, rows, train) -> dict[str, float]:
        """The metrics of all tokens, and of those of each part: {"perplexity": ..., "perplexity_causal": ...}."""
        found = super().metrics_of_pass(metrics, result, rows, train)
        for label in self.parts:
            if f"loss_{label}" in result:
                own = {"nll": result[f"loss_{label}"], "predictions": 1.0}
                of_part = TokenPredictions.metrics_of_pass(self, metrics, own, rows, None)
                found |= {f"{name}_{label}": value for name, value in of_part.items()}
        return found

    def samples(self, finished: FinishedModel, splits: dict[str, MixedRows]) -> list[dict]:
        own = {split: rows.parts[self.speaker] for split, rows in splits.items() if self.speaker in rows.parts}
        return self.parts[self.speaker].samples(finished, own)

    # ---- words

    def sample_title(self, prompt: str) -> str:
        return (self.parts[self.speaker] if self.speaker else super()).sample_title(prompt)

    def how_to_use(self, folder: Path) -> str:
        return (self.parts[self.speaker] if self.speaker else super()).how_to_use(folder)

    def legend(self):
        from rich.text import Text

        return Text("\n").join(Text.assemble(f"{label}: ", part.legend()) for label, part in self.parts.items())

    def show(self, console, rows: MixedRows, number: int, row: dict) -> None:
        super().show(console, rows, number, row | own_row(row))


class PlacedRows(MixedRows):
    """Rows that say of which part they are, for the collator; facts count rows."""

    def __init__(self, parts: dict[str, Rows], weights: dict[str, float] | None):
        super().__init__(parts, weights)
        self.facts["rows"] = self.facts.pop("examples")

    def __getitem__(self, number: int) -> dict:
        name, inside, turn = self.turn(number)
        rows = self.parts[name]
        turns = -(-self.counts[name] // len(rows))
        return rows[inside] | {PLACE: Place(name, inside, turn, turns)}


def own_row(row: dict) -> dict:
    """The sample id and epoch of a row of PlacedRows as its objective alone would count them.

    Its n-th turn is what it would be in the n-th epoch of its objective, so that it is changed anew each time.
    """
    place = row[PLACE]
    return {ROW_IDS: place.number, EPOCH: int(row.get(EPOCH, 0)) * place.turns + place.turn}


class JointCollator:
    """Rows of several parts -> one batch: each part's rows as its own collator makes them, in the order of `rows`.

    Narrower rows are padded. Where rows have position_ids, the padding is a document of its own, which nothing attends
    to, as in PackedDataset. Elsewhere an attention_mask hides it; a causal model needs none, as it follows the text.

    collators: part -> its own. sees_padding: whether tokens attend to those after them.
    """

    def __init__(self, collators: dict[str, Callable[[list[dict]], dict]], pad_token_id: int, sees_padding: bool):
        self.collators, self.pad, self.sees_padding = collators, pad_token_id, sees_padding

    def __call__(self, rows: list[dict]) -> dict:
        from ..data.sample_ids import row_ids

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
        """Give all batches an attention_mask where it takes one."""
        import torch

        widths = {batch["input_ids"].shape[1] for batch in batches}
        padded = self.sees_padding and "position_ids" not in batches[0] and len(widths) > 1
        if padded or any("attention_mask" in batch for batch in batches):
            for batch in batches:
                batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))

    def join(self, key: str, tensors: "list[Tensor]", order: list[int]) -> "Tensor":
        """(B, T) of several (B_i, T_i), row i of which becomes row order[i]."""
        import torch

        width = max(tensor.shape[1] for tensor in tensors)
        joined = torch.full((len(order), width), FILL.get(key, self.pad), dtype=tensors[0].dtype)
        if key == "position_ids":
            joined[:] = torch.arange(width)
        first = 0
        for tensor in tensors:
            places = torch.tensor(order[first : first + len(tensor)])
            first += len(tensor)
            joined[places, : tensor.shape[1]] = tensor
            if key == "position_ids":
                joined[places, tensor.shape[1] :] -= tensor.shape[1]
        return joined

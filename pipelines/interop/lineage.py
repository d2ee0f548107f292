"""What a table of a lineage is made of: each native field and weight beside ours, read in both directions."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CONFIG_MAPPING, PreTrainedConfig

from ..errors import UserError

# ------------------------------------------------------------------------------------------------------ weights


@dataclass(frozen=True)
class Weights:
    """One native module and the modules of ours that hold its parameters."""

    ours: tuple[str, ...]
    transposed: bool = False
    interleaved: bool = False

    def split(self, native: torch.Tensor, config) -> list[torch.Tensor]:
        """A native weight or bias -> one of ours per module; views where possible."""
        rows = native.T if self.transposed and native.ndim == 2 else native
        if self.interleaved:
            per_head = rows.unflatten(0, (config.num_attention_heads, len(self.ours), -1))
            return [per_head[:, i].flatten(0, 1) for i in range(len(self.ours))]
        return list(rows.chunk(len(self.ours)))

    def join(self, ours: list[torch.Tensor], config) -> torch.Tensor:
        """The inverse of `split`."""
        if self.interleaved:
            heads = [part.unflatten(0, (config.num_attention_heads, -1)) for part in ours]
            rows = torch.stack(heads, dim=1).flatten(0, 2)
        else:
            rows = torch.cat(ours) if len(ours) > 1 else ours[0]
        return rows.T if self.transposed and rows.ndim == 2 else rows


def moved(ours: str, transposed: bool = False) -> Weights:
    """The same module under another name. `transposed`: a Conv1D, which keeps its weight as (inputs, outputs)."""
    return Weights((ours,), transposed)


def fused(*names: str, under: str, transposed: bool = False, interleaved: bool = False) -> Weights:
    """Several modules of ours in one native module, of equal size.

    Rows lie one module after the other, or `interleaved`: all modules' rows of the first head, then of the second.
    """
    return Weights(tuple(f"{under}.{name}" for name in names), transposed, interleaved)


# Layers behind the base model; a native model has one of them, or none.
HEAD_WEIGHTS = {
    "lm_head": moved("lm_head"),
    "score": moved("score"),
    "classifier": moved("score"),
    "qa_outputs": moved("qa_outputs"),
}


# ------------------------------------------------------------------------------------------------------- fields


@dataclass(frozen=True)
class Only:
    """A native field that changes the maths in a way we have no field for, except at this value."""

    value: Any


@dataclass(frozen=True)
class Choice:
    """A native field whose few values stand for values of ours; the first is taken where none fits."""

    ours: str
    values: dict[Any, Any]


@dataclass(frozen=True)
class Computed:
    """Native fields that together say what other fields of ours say.

    read: native config -> fields of ours. write: our config -> native fields.
    """

    read: Callable[[Any], dict[str, Any]]
    write: Callable[[Any], dict[str, Any]]


_MISSING = object()  # a field that this config, or this version of transformers, does not have
# A native field that does not change what the model computes: read by nothing, by training, or by other heads.
HARMLESS = object()

# Every native config has them, under our names.
COMMON_FIELDS = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "use_cache")
# Of every PreTrainedConfig: what the labels of a classification head mean.
LABEL_FIELDS = ("id2label", "label2id", "problem_type")
# Fields of ours that act in training only: a twin need not have them.
TRAINING_FIELDS = ("hidden_dropout", "attention_dropout", "initializer_range", "scale_residual_init", "use_cache")


@dataclass(frozen=True)
class Lineage:
    """A native architecture as data.

    native: its `model_type`. preset: the file in configs/models of its best-known size.
    fixed: fields of ours that the architecture decides.
    fields: native field, or several of them, dotted where nested -> field of ours, Only, Choice, Computed or HARMLESS.
    weights: native module, `*` for the layer number, without the base model's prefix -> modules of ours.
    """

    native: str
    preset: str | None
    fixed: dict[str, Any]
    fields: dict[str | tuple[str, ...], Any]
    weights: dict[str, Weights]

    def read(self, native) -> dict[str, Any]:
        """Return the fields of ours that say what a native config says.

        Raises UserError for a value that changes the maths and that we cannot express.
        """
        self._refuse_unknown(native)
        ours = dict(self.fixed)
        for name, row in self.fields.items():
            value = None if isinstance(name, tuple) else _value(native, name)
            match row:
                case _ if value is _MISSING:
                    pass
                case str():
                    ours.setdefault(row, value)
                case Choice() if value in row.values:
                    ours[row.ours] = row.values[value]
                case Computed():
                    ours |= row.read(native)
                case Only() if value != row.value:
                    raise UserError(f"{self.native} with {name}={value!r} has no anyformer twin; {row.value!r} has one")
                case Choice():
                    known = " and ".join(map(repr, row.values))
                    raise UserError(f"{self.native} with {name}={value!r} has no anyformer twin; {known} have one")
        return ours | {name: getattr(native, name) for name in (*COMMON_FIELDS, *LABEL_FIELDS)}

    def write(self, ours) -> dict[str, Any]:
        """Return native fields for our config: its twin where `read` gives the config back, else as near as it gets."""
        native = {}
        for name, row in self.fields.items():
            match row:
                case str():
                    native[name] = getattr(ours, row)
                case Only():
                    native[name] = row.value
                case Choice():
                    wanted = getattr(ours, row.ours)
                    native[name] = next((n for n, o in row.values.items() if o == wanted), next(iter(row.values)))
                case Computed():
                    native |= row.write(ours)
        native |= {name: getattr(ours, name) for name in (*COMMON_FIELDS, *LABEL_FIELDS)}
        return _nested(native)

    def native_config(self, ours) -> PreTrainedConfig:
        """Return the native config of `write`; raises ValueError where transformers does not accept it."""
        return CONFIG_MAPPING[self.native](**self.write(ours))

    def pairs(self, native_names: Iterable[str], prefix: str, our_prefix: str) -> Iterator[tuple]:
        """Yield (native parameter, Weights, our parameters) for the parameters of a native model.

        prefix, our_prefix: of the base model within the model that has the head; "" for a base model itself.
        """
        for name in native_names:
            in_base = name.startswith(prefix)
            path, _, kind = name.removeprefix(prefix).rpartition(".") if in_base else name.rpartition(".")
            layer = re.search(r"\.(\d+)\.", path)
            pattern = path if layer is None else f"{path[: layer.start()]}.*.{path[layer.end() :]}"
            row = (self.weights if in_base else HEAD_WEIGHTS).get(pattern)
            if row is None:
                raise UserError(f"{self.native} with a parameter {name} has no anyformer twin")
            ours = [part if layer is None else part.replace("*", layer[1]) for part in row.ours]
            yield name, row, [f"{our_prefix if in_base else ''}{part}.{kind}" for part in ours]

    def _refuse_unknown(self, native) -> None:
        """A field that a newer transformers has added may change the maths, unless it is left at its default."""
        default = type(native)()
        for name in sorted(native_fields(native) - self.known_fields()):
            if getattr(native, name) != getattr(default, name):
                raise UserError(f"{self.native} with {name}={getattr(native, name)!r} is not known to this anyformer")

    def known_fields(self) -> set[str]:
        """Names of the native fields that the table accounts for; of nested ones the first part."""
        names = (part for name in self.fields for part in ([name] if isinstance(name, str) else name))
        return {name.split(".")[0] for name in names} | set(COMMON_FIELDS)


def native_fields(native: PreTrainedConfig) -> set[str]:
    """Names of the fields that a native config class declares beyond those of every config."""
    return {f.name for f in dataclasses.fields(native)} - {f.name for f in dataclasses.fields(PreTrainedConfig)}


def _value(config, dotted: str) -> Any:
    for name in dotted.split("."):
        config = getattr(config, name, _MISSING)
    return config


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} -> {"a": {"b": 1}}."""
    nested: dict[str, Any] = {}
    for dotted, value in flat.items():
        *parents, name = dotted.split(".")
        target = nested
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = value
    return nested

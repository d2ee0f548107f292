"""Architecture maps: each native field and weight beside ours, read in both directions."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from ..errors import UserError
from .heads import DECODER_HEADS, Heads
from .weights import Weights, find


@dataclass(frozen=True)
class MustEqual:
    """A native field that has a counterpart of ours at this value only: others change the maths."""

    value: Any


@dataclass(frozen=True)
class Same:
    """A native field that must equal another one: ours has one field for both."""

    native: str


@dataclass(frozen=True)
class Choice:
    """A native field with few values, each of them one value of ours; the first is written where none matches."""

    ours: str
    values: dict[Any, Any]


@dataclass(frozen=True)
class Converted:
    """A native field whose value is one of our field `ours`, and the other way round, by a function each."""

    ours: str
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Computed:
    """Native fields and fields of ours that follow from each other by a computation.

    read: native config -> fields of ours. write: our config -> native fields.
    """

    read: Callable[[Any], dict[str, Any]]
    write: Callable[[Any], dict[str, Any]]


# Summing in another order costs 1e-14 in float64, a wrong weight map 1e-1.
TOLERANCE = 1e-9

_MISSING = object()  # a field that this config, or this version of transformers, does not have
# A native field without effect on the outputs: not read at all, or only in training or by other heads.
IRRELEVANT = object()

# Fields with the same name on both sides; special tokens also where the native config does not declare them.
TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")
COMMON_FIELDS = ("vocab_size", *TOKEN_FIELDS, "tie_word_embeddings", "use_cache")
# Of a classification head, in any PreTrainedConfig: its classes, and what a CrossEncoder puts on its numbers.
LABEL_FIELDS = ("id2label", "label2id", "problem_type", "sentence_transformers")
# Fields of ours that act in training only, or name tokens the model does not read: twins may differ in them.
SILENT_FIELDS = ("hidden_dropout", "attention_dropout", "classifier_dropout", "initializer_range")
SILENT_FIELDS += ("scale_residual_init", "fan_in_init", "use_cache", "sep_token_id", "cls_token_id", "mask_token_id")
SILENT_FIELDS += ("num_nextn_predict_layers", "mtp_loss_coef")  # modules of training alone
SILENT_FIELDS += ("lambda_std_dev",)
SILENT_FIELDS += ("router_aux_loss_coef", "router_z_loss_coef", "router_jitter_noise", "output_router_logits")


@dataclass(frozen=True)
class ArchitectureMap:
    """A native architecture as data.

    native: its `model_type`. preset: the file in configs/models of its best-known size.
    fixed: fields of ours that the architecture decides.
    fields: native field, or several of them, dotted where nested -> field of ours, MustEqual, Same, Choice, Converted,
        Computed or IRRELEVANT. Fields that no config class declares are optional.
    weights: native module, `*` for the layer number, without the base model's prefix -> modules of ours; or a function
        of our config that returns this table, where layers of two kinds have modules of one name.
    family: which of ours it belongs to.
    heads: Auto class -> rows of what is behind the base model.
    class_fields: native class -> fields of ours that follow from the class, not from the native config.
    tied_by_weights: whether the head is tied to the embeddings is read from the weights; no native field records it.
    tolerance: how far the outputs of both models, run in float64, may differ, as a part of the largest. More than the
        default only where transformers' class has constants or tables of fewer digits.
    """

    native: str
    preset: str | None
    fixed: dict[str, Any]
    fields: dict[str | tuple[str, ...], Any]
    weights: dict[str, Weights] | Callable[[Any], dict[str, Weights]]
    family: str = "decoder"
    heads: Heads = dataclasses.field(default_factory=lambda: DECODER_HEADS)
    class_fields: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    tied_by_weights: bool = False
    tolerance: float = TOLERANCE

    def read(self, native) -> dict[str, Any]:
        """Return the fields of ours that correspond to a native config.

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
                case Converted():
                    ours[row.ours] = row.read(value)
                case Computed():
                    ours |= row.read(native)
                case MustEqual() if value != row.value:
                    raise UserError(f"{self.native} with {name}={value!r} has no anyformer twin; {row.value!r} has one")
                case Same() if value != (other := _value(native, row.native)):
                    raise UserError(
                        f"{self.native} with {name}={value!r} has no anyformer twin; {row.native}'s {other!r} has one"
                    )
                case Choice():
                    known = " and ".join(map(repr, row.values))
                    raise UserError(f"{self.native} with {name}={value!r} has no anyformer twin; {known} have one")
        common = {name: _value(native, name) for name in (*self.common_fields, *LABEL_FIELDS)}
        return {name: value for name, value in common.items() if value is not _MISSING} | ours

    def write(self, ours) -> dict[str, Any]:
        """Return native fields for our config: exact where `read` gives the config back, else the nearest."""
        declared = {f.name for f in dataclasses.fields(CONFIG_MAPPING[self.native])}
        native = {name: getattr(ours, name) for name in self.common_fields if name in declared or name in TOKEN_FIELDS}
        for name, row in self.fields.items():
            match row:
                case str():
                    native[name] = getattr(ours, row)
                case MustEqual() if name.split(".")[0] in declared:
                    native[name] = row.value
                case Choice():
                    wanted = getattr(ours, row.ours)
                    native[name] = next((n for n, o in row.values.items() if o == wanted), next(iter(row.values)))
                case Converted():
                    native[name] = row.write(getattr(ours, row.ours))
                case Computed():
                    native |= row.write(ours)
        native |= {n: native[row.native] for n, row in self.fields.items() if isinstance(row, Same) and n in declared}
        native |= {name: getattr(ours, name) for name in LABEL_FIELDS if hasattr(ours, name)}
        return _nested(native)

    def native_config(self, ours) -> PreTrainedConfig:
        """Return the native config of `write`; raises ValueError where transformers does not accept it."""
        return CONFIG_MAPPING[self.native](**self.write(ours))

    @property
    def common_fields(self) -> tuple[str, ...]:
        """COMMON_FIELDS that have a meaning here: encoders have no cache, models of images no tokens."""
        if self.family == "vit":
            return ()
        return tuple(name for name in COMMON_FIELDS if name != "use_cache" or self.family != "encoder")

    def pairs(self, auto_class: str, names: Iterable[str], prefix: str, our_prefix: str, ours) -> Iterator[tuple]:
        """Yield (native parameter, Weights, our parameters) for the parameters of a native model.

        prefix, our_prefix: of the base model within the model that has the head; "" for a base model itself. ours: our
        config.
        """
        table = self.weights(ours) if callable(self.weights) else self.weights
        for name in names:
            base = find(table, name.removeprefix(prefix)) if name.startswith(prefix) else None
            if base is not None:
                yield name, base[0], [f"{our_prefix}{part}" for part in base[1]]
            elif (head := find(self.heads[auto_class], name)) is not None:
                yield name, *head
            else:
                raise UserError(f"{self.native} with a parameter {name} has no anyformer twin")

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


def same(*names: str) -> dict[str, str]:
    """Fields of one name on both sides."""
    return dict(zip(names, names))


def classifier_dropout(native: str) -> dict[tuple[str, ...], Computed]:
    """A native field for the dropout before a task head that, unlike ours, cannot be left out."""

    def write(ours) -> dict[str, Any]:
        own = ours.classifier_dropout
        return {native: ours.hidden_dropout if own is None else own}

    return {(native,): Computed(lambda config: {"classifier_dropout": getattr(config, native)}, write)}


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

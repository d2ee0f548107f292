"""Architecture maps: each native field and weight beside ours, read in both directions."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from ..errors import UserError
from ..recipes.introspection import family_fields
from .heads import DECODER_HEADS, Heads
from .weights import SAME, Weights, find


@dataclass(frozen=True)
class MustEqual:
    """A native field that we can express at this value only: others change the maths."""

    value: Any


@dataclass(frozen=True)
class Same:
    """A native field that must equal another one: our config has one field for both."""

    native: str


@dataclass(frozen=True)
class Converted:
    """A native field that corresponds to our field `ours`, with a function for each direction."""

    ours: str
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Computed:
    """Native fields and fields of ours that follow from each other by a computation.

    read: native config -> fields of ours. write: our config -> native fields; None: ours of the same names.
    """

    read: Callable[[Any], dict[str, Any]]
    write: Callable[[Any], dict[str, Any]] | None = None


# Summing in another order costs 1e-14 in float64, a wrong weight map 1e-1.
TOLERANCE = 1e-9

_MISSING = object()  # a field that this config, or this version of transformers, does not have
# A native field without effect on the outputs: not read at all, or only in training or by other heads.
IRRELEVANT = object()

# Fields with the same name on both sides; special tokens also where the native config does not declare them.
TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")
COMMON_FIELDS = ("vocab_size", *TOKEN_FIELDS, "tie_word_embeddings", "use_cache")
# Of a classification head, in any PreTrainedConfig: its classes, and what a CrossEncoder applies to its scores.
LABEL_FIELDS = ("id2label", "label2id", "problem_type", "sentence_transformers")
# Our fields that only affect training, or name tokens that the model does not read: twins may differ in them.
SILENT_FIELDS = ("hidden_dropout", "attention_dropout", "classifier_dropout", "initializer_range")
SILENT_FIELDS += ("scale_residual_init", "fan_in_init", "use_cache", "sep_token_id", "cls_token_id", "mask_token_id")
SILENT_FIELDS += ("num_nextn_predict_layers", "mtp_loss_coef")  # modules that are only used in training
SILENT_FIELDS += ("lambda_std_dev",)
SILENT_FIELDS += ("router_aux_loss_coef", "router_z_loss_coef", "router_jitter_noise", "output_router_logits")


@dataclass(frozen=True)
class ArchitectureMap:
    """A native architecture as data.

    native: its `model_type`.
    fixed: values of our fields that the architecture implies and that are not our defaults.
    fields: native field, or several of them, dotted where nested -> field of ours, MustEqual, Same, Converted,
        Computed or IRRELEVANT. Fields that no config class declares are optional. A declared field without a row
        has the same name in our config.
    weights: native module, `*` for the layer number, without the base model's prefix -> modules of ours; or a function
        of our config that returns this table, if layers of two kinds have modules of the same name. Modules with the
        same name on both sides, as all of LLaMA's, need no row.
    family: our family that it belongs to.
    heads: Auto class -> rows of the modules after the base model, except those with the same name on both sides.
    class_fields: native class -> fields of ours that follow from the class, not from the native config.
    tied_by_weights: whether the head is tied to the embeddings is read from the weights; no native field records it.
    tolerance: how far the outputs of both models, run in float64, may differ, relative to the largest. Above the
        default only where transformers' class has constants or tables with fewer digits.
    """

    native: str
    fields: dict[str | tuple[str, ...], Any]
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)
    weights: dict[str, Weights] | Callable[[Any], dict[str, Weights]] = dataclasses.field(default_factory=dict)
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
        common = {name: _value(native, name) for name in (*self.common_fields, *self.same_fields, *LABEL_FIELDS)}
        return {name: value for name, value in common.items() if value is not _MISSING} | ours

    def write(self, ours) -> dict[str, Any]:
        """Return native fields for our config: exact where `read` gives the config back, else the nearest."""
        declared = {f.name for f in dataclasses.fields(CONFIG_MAPPING[self.native])}
        native = {name: getattr(ours, name) for name in self.common_fields if name in declared or name in TOKEN_FIELDS}
        native |= {name: getattr(ours, name) for name in self.same_fields}
        for name, row in self.fields.items():
            match row:
                case str():
                    native[name] = getattr(ours, row)
                case MustEqual() if name.split(".")[0] in declared:
                    native[name] = row.value
                case Converted():
                    native[name] = row.write(getattr(ours, row.ours))
                case Computed(write=None):
                    native |= {field: getattr(ours, field) for field in ([name] if isinstance(name, str) else name)}
                case Computed():
                    native |= row.write(ours)
        native |= {n: native[row.native] for n, row in self.fields.items() if isinstance(row, Same) and n in declared}
        native |= {name: getattr(ours, name) for name in LABEL_FIELDS if hasattr(ours, name)}
        return _nested(native)

    @property
    def common_fields(self) -> tuple[str, ...]:
        """The COMMON_FIELDS that this family has: encoders have no cache, image models no tokens."""
        if self.family == "vit":
            return ()
        return tuple(name for name in COMMON_FIELDS if name != "use_cache" or self.family != "encoder")

    @property
    def same_fields(self) -> list[str]:
        """Native fields without a row that our config has under the same name."""
        declared = native_fields(CONFIG_MAPPING[self.native])
        return sorted((declared & family_fields(self.family).keys()) - self.known_fields())

    def pairs(self, auto_class: str, names: Iterable[str], prefix: str, our_prefix: str, ours) -> Iterator[tuple]:
        """Yield (native parameter, Weights, our parameters) for the parameters of a native model.

        prefix, our_prefix: of the base model within the model that has the head; "" for a base model itself. ours: our
        config.
        """
        table = self.weights(ours) if callable(self.weights) else self.weights
        for name in names:
            is_base, inner = name.startswith(prefix), name.removeprefix(prefix)
            base = find(table, inner) if is_base else None
            if base is None and (head := find(self.heads[auto_class], name)) is not None:
                yield name, *head
            elif is_base:
                row, parts = base or (SAME, [inner])
                yield name, row, [f"{our_prefix}{part}" for part in parts]
            else:
                yield name, SAME, [name]

    def _refuse_unknown(self, native) -> None:
        """Refuse a field that a newer transformers has added, unless it is at its default: it may change the maths."""
        default = type(native)()
        for name in sorted(native_fields(native) - self.known_fields() - set(self.same_fields)):
            if getattr(native, name) != getattr(default, name):
                raise UserError(f"{self.native} with {name}={getattr(native, name)!r} is not known to this anyformer")

    def known_fields(self) -> set[str]:
        """Names of the native fields that the table accounts for; for nested ones, the first part."""
        names = (part for name in self.fields for part in ([name] if isinstance(name, str) else name))
        return {name.split(".")[0] for name in names} | set(COMMON_FIELDS)


def layer_kinds(kinds: dict[str, str]) -> dict[tuple[str, ...], Computed]:
    """The row for the kinds of attention of an architecture's layers. kinds: native name -> ours.

    A kind of ours that the architecture lacks is written as the last of these, which then shows as the difference.
    """
    names, (*_, other) = {kind: name for name, kind in kinds.items()}, kinds
    row = Computed(
        lambda native: {"attention_pattern": [kinds[name] for name in native.layer_types]},
        lambda ours: {"layer_types": [names.get(kind, other) for kind in ours.attention_kinds]},
    )
    return {("layer_types",): row}


def classifier_dropout(native: str) -> dict[tuple[str, ...], Computed]:
    """The row for a native dropout field of task heads that, unlike ours, cannot be None."""

    def write(ours) -> dict[str, Any]:
        dropout = ours.classifier_dropout
        return {native: ours.hidden_dropout if dropout is None else dropout}

    return {(native,): Computed(lambda config: {"classifier_dropout": getattr(config, native)}, write)}


def native_fields(native: PreTrainedConfig | type[PreTrainedConfig]) -> set[str]:
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

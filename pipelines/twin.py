"""The tiny twin of a model: a config with the same kinds of layers and small widths, and weights drawn from a seed."""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from .errors import UserError
from .twin_rows import ROWS

MOST_PARAMETERS = 2_000_000
VOCABULARY, LAYERS_OF_A_KIND, HEADS, WIDTH, LABELS = 97, 2, 4, 32, 5

# kind -> the Auto class and its mapping of configs to classes; of a class in two mappings, as BART's, the first counts
KINDS = {
    "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING"),
    "seq2seq": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"),
    "masked": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING"),
    "image": ("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING"),
}

# (pattern of a field's name, largest value): the first match counts. Smaller values and unmatched fields stay.
BOUNDS = [
    (r"vocab$|vocab_size(s|_per_layer_input)?$", VOCABULARY),
    (r"qk_head_dim$", 16),
    (r"rotary_dim$|(head_dim|head_size|dim_head|d_head|d_kv|kv_channels|key_dim)$", 8),
    (r"topk_group$|shared_experts?$", 1),
    (r"groups?$|blocks$|block_sizes$|layers?$|depth$|top_?k|experts_per_tok(en)?$|moe_k$", 2),
    (r"experts?(_num)?$", 4),
    (r"rank$|(d_state|state_size)$|patch_size$", 8),
    (r"floor_scale$|scaling_n_floor$", 4),  # the position from which on scores are scaled
    (r"original_max_position_embeddings$", 32),
    (r"(position_embeddings|positions|max_seq_len|seq_length|sequence_length|n_ctx|context_length|max_length)$", 64),
    (r"(window|window_size|window_len|local_attention|local_radius|block_size)$|(^|mamba_|tion_|attn_)chunk_size$", 4),
    (r"(intermediate|ffn|ff|inner|mlp|feed_forward)(_?(size|dim|hidden_size))?(_mlp)?$", 48),
    (r"kernel(_size|_dim)?$|kernel_size", 5),
    (r"image_size$|crop_size$", 32),
    (r"(hidden_size|d_model|n_embd|dims?|width|channels|num_filters|mel_bins|_size|hidden_size_\w+)$", WIDTH),
    (r"(pos_embeddings|latents|num_patches|max_relative_positions)$", 16),
]
NARROWER = r"(embedding_size|embed_proj_dim|emb_size)$"  # embeddings narrower than the hidden size stay narrower
# Image models in stages of growing width
BOUNDS_IN_STAGES = [(r"embed_dim$|embedding_size$|groups_width$", 8), (r"image_size$", 64)]
STAGE_DEPTHS = r"(depths|depth|num_block_repeats|stage_num_blocks|stage_numb_of_layers|layer_depths)$"
STAGE_WIDTHS = r"(hidden_sizes|widths|embed_dims?|channels|embedding_size|attn_unit_dims|out_channels)$"
# Fields that hold the number of layers, the main one first; lists with one value for each layer have that length.
DEPTH = ["num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers"]
KINDS_OF_LAYERS = ["layers_block_type", "layer_types"]  # their length is the depth if no field holds it
# How many first layers differ from the rest, how many last ones share keys and values, lists of layers that differ.
PREFIX = r"(first_k_dense_replace|num_dense_layers|moe_layer_start_index|max_window_layers)$"
SHARED_AT_THE_END = "num_kv_shared_layers"
INDICES = r"(only_layers|idxs|indexes|layer_indices|attention_layers|moe_layers|layer_ids)$"
PERIOD = r"(period|interval|every_n_layers|_step|frequency|pattern|group_size|block_frequency)$"
TOKEN = r"(token_ids?|token_index|(pad|bos|eos|unk|mask|cls|sep)_index)$"
# Fields that a twin is made without: what to_dict adds, how weights are stored, how generate reads a prompt.
DROPPED = {"transformers_version", "architectures", "dtype", "torch_dtype", "quantization_config", "output_attentions"}
DROPPED |= {"prefix_lm"}
NOT_COMPARED = DROPPED - {"architectures"} | {"model_type", "_name_or_path"}
NO_PATH = ("_name_or_path", "")


def classes(kind: str) -> list[str]:
    """The model types of the installed transformers that have a class of a kind."""
    return list(_names(kind))


def _names(kind: str) -> dict[str, str | tuple[str, ...]]:
    return getattr(modeling_auto, f"{KINDS[kind][1]}_NAMES")


def kind_of(config: PreTrainedConfig, names: Sequence[str]) -> str:
    """The kind of a class, by its name and those of its bases, or by the Auto class that loads it.

    names: of the class and its bases; empty if a checkpoint names no class: then the first kind that its custom code
    has a class of. Raises UserError for a class of no kind in KINDS.
    """
    own_code = getattr(config, "auto_map", None) or {}
    for kind, (auto, mapping) in KINDS.items():
        listed = getattr(modeling_auto, mapping).get(type(config), ())
        known = {auto, *(cls.__name__ for cls in (listed if isinstance(listed, tuple) else (listed,)))}
        code = own_code.get(auto, "").rpartition(".")[2]
        if not known.isdisjoint(names) or (code and (code in names or not names)):
            return kind
    raise UserError(f"{[*names, config.model_type][0]} is of no kind that can be checked; {', '.join(KINDS)} can")


@dataclass(frozen=True)
class Shrinking:
    """Shrinks the fields of one config, without its sub-configs. ids: {token id: small token id}.

    depth: the number of layers of the full config; kept: those that the twin has, the first two of each kind.
    """

    fields: dict[str, Any]
    ids: dict[int, int]

    @cached_property
    def depth_field(self) -> str | None:
        names = [] if self.in_stages else DEPTH
        return next((name for name in names if isinstance(self.fields.get(name), int)), None)

    @cached_property
    def depth(self) -> int:
        if self.depth_field:
            return self.fields[self.depth_field]
        return next((len(of) for name, of in self.fields.items() if name in KINDS_OF_LAYERS and of), 0)

    @cached_property
    def in_stages(self) -> bool:
        return any(re.search(STAGE_DEPTHS, name) and isinstance(v, list) for name, v in self.fields.items())

    def column(self, name: str, value: Any) -> list | None:
        """A field's value for each layer of the full config; None if the field is not about single layers."""
        layers = range(self.depth)
        if name == "per_layer_config" and value:
            return [{int(key): str(of) for key, of in value.items()}.get(i) for i in layers]
        if self.is_indices(name, value):
            return [i in value for i in layers]
        if re.search(PREFIX, name) and isinstance(value, int) and name != "max_window_layers":
            return [i < value for i in layers]
        if name == SHARED_AT_THE_END:
            return [i >= self.depth - value for i in layers]
        if isinstance(value, list) and len(value) == self.depth and len({str(v) for v in value}) <= 4:
            return [str(v) for v in value]
        return None

    def is_indices(self, name: str, value: Any) -> bool:
        return bool(re.search(INDICES, name)) and isinstance(value, list) and all(type(v) is int for v in value)

    @cached_property
    def columns(self) -> list[list]:
        return [column for name, value in self.fields.items() if (column := self.column(name, value))]

    @cached_property
    def in_periods(self) -> bool:
        """Whether only a period says which layer is of which kind: the twin then has two periods of two layers."""
        return not self.columns and any(self.is_period(name, value) for name, value in self.fields.items())

    @cached_property
    def kept(self) -> list[int]:
        if self.in_periods:
            return list(range(min(self.depth, 2 * LAYERS_OF_A_KIND)))
        kinds = list(zip(*self.columns)) if self.columns else [()] * self.depth
        return [i for i, kind in enumerate(kinds) if kinds[:i].count(kind) < LAYERS_OF_A_KIND]

    def is_period(self, name: str, value: Any) -> bool:
        return bool(re.search(PERIOD, name)) and isinstance(value, int) and value > 1

    def small(self, name: str, value: Any) -> Any:
        """The twin's value of a field."""
        if name == self.depth_field:
            return len(self.kept)
        if name == "per_layer_config" and value:
            by_layer = {int(key): of for key, of in value.items()}
            return {str(self.kept.index(i)): self.overrides(of) for i, of in by_layer.items() if i in self.kept}
        if re.search(PREFIX, name) and isinstance(value, int):
            return sum(i < value for i in self.kept)
        if name == SHARED_AT_THE_END:
            return sum(i >= self.depth - value for i in self.kept)
        if re.search(TOKEN, name):
            return [self.ids.get(v, v) for v in value] if isinstance(value, list) else self.ids.get(value, value)
        if name in ("id2label", "label2id") and value:
            return dict(list(value.items())[:LABELS])
        if isinstance(value, Mapping):
            small = {key: self.small(str(key), of) for key, of in value.items()}
            return small | self.of_pairs(value)
        if isinstance(value, list | tuple):
            return self.small_list(name, value)
        return self.number(name, value) if type(value) is int else value

    def small_list(self, name: str, value: list) -> list:
        if self.is_indices(name, value):
            return [self.kept.index(i) for i in value if i in self.kept]
        if self.in_stages and all(isinstance(v, int) for v in value):
            if re.search(STAGE_WIDTHS, name):
                return [8 * (i + 1) for i in range(len(value))]
            if re.search(r"heads$", name):
                return [min(v, 2) for v in value]
        if self.column(name, value):
            name = name.removesuffix("_per_layer")
            value = [value[i] for i in self.kept]
            sizes = sorted({v for v in value if type(v) is int})
            if len(sizes) == 2 and self.number(name, sizes[0]) == self.number(name, sizes[1]):  # keep the two apart
                return [self.number(name, v) * (1 + sizes.index(v)) for v in value]
        return [self.small(name, v) for v in value]

    def of_pairs(self, rope: Mapping) -> dict:
        """The rope parameters with one value for each pair of rotated dimensions, for a head size of 8."""
        pairs = max(1, int(4 * rope.get("partial_rotary_factor", 1.0)))
        sections = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
        factors = {name: rope[name][:pairs] for name in ("short_factor", "long_factor") if name in rope}
        return factors | ({"mrope_section": sections} if "mrope_section" in rope else {})

    def overrides(self, fields: dict) -> dict:
        """The small values of the fields that one layer overrides; a value above the config's stays above it."""
        layer = Shrinking(self.fields | fields, self.ids)
        small = {name: layer.small(name, value) for name, value in fields.items()}
        for name, value in fields.items():
            if isinstance(value, int) and small[name] == self.small(name, self.fields.get(name)) != value:
                small[name] *= 2 if value > self.fields[name] else 1
        return small

    def number(self, name: str, value: int) -> int:
        if self.in_periods and name.endswith("_offset"):
            return value % 2
        if self.is_period(name, value):
            return 2 if self.in_periods else value
        if self.in_stages and re.search(r"(layers|blocks|patch_size)$", name):  # the number of stages; their strides
            return value
        if re.search(r"(kv|key_value|_key).*heads$", name):
            return min(value, HEADS if value == self.fields.get(_query_heads(name)) else 2)
        if re.search(r"heads$|n_head$", name):
            return max(heads for heads in (1, 2, HEADS) if heads <= max(value, 1))
        if re.search(NARROWER, name) and value < self.fields.get("hidden_size", 0):
            return min(value, WIDTH // 2)
        bounds = BOUNDS_IN_STAGES + BOUNDS if self.in_stages else BOUNDS
        return min(value, next((bound for pattern, bound in bounds if re.search(pattern, name)), value))


def _query_heads(name: str) -> str:
    """The field of query heads that belongs to a field of key or value heads."""
    if name == "kv_n_heads":
        return "n_heads"
    return name.replace("_key_heads", "_value_heads").replace("key_value", "attention").replace("kv", "attention")


def special_tokens(fields: Any, name: str = "") -> set[int]:
    """The ids of special tokens in a config's fields and in its sub-configs."""
    if isinstance(fields, Mapping):
        return set().union(*(special_tokens(value, str(key)) for key, value in fields.items()))
    if re.search(TOKEN, name):
        return {v for v in (fields if isinstance(fields, list) else [fields]) if type(v) is int and v >= 0}
    return set()


def _small_ids(tokens: set[int]) -> dict[int, int]:
    """{id: id below VOCABULARY}, distinct: small ids stay, the others become the last ids of the vocabulary."""
    large = sorted(token for token in tokens if token >= VOCABULARY // 2)
    return {token: token for token in tokens} | {token: VOCABULARY - 1 - i for i, token in enumerate(large)}


def _shrink(given: dict, ids: dict[int, int]) -> dict:
    """The fields of a twin, including sub-configs and the model type's row in twin_rows.py."""
    given = {name: value for name, value in given.items() if name not in DROPPED and (name, value) != NO_PATH}
    shrinking = Shrinking({name: value for name, value in given.items() if not _is_config(value)}, ids)
    small = {
        name: _shrink(value, ids) if _is_config(value) else shrinking.small(name, value)
        for name, value in given.items()
    }
    row = ROWS.get(given.get("model_type"), {})
    return small | (row(given, small) if callable(row) else row)


def _is_config(value: Any) -> bool:
    return isinstance(value, dict) and "model_type" in value


def tiny_config(config: PreTrainedConfig, kind: str | None = None) -> PreTrainedConfig:
    """A small config of the same class: two layers of each kind, sizes within BOUNDS, all other fields unchanged.

    kind: "causal" makes a decoder of a class that can also be an encoder, such as BERT.
    Raises UserError with the message of the config class if the class refuses the small fields.
    """
    fields = config.to_dict()
    fields = _shrink(fields, _small_ids(special_tokens(fields)))
    for name in ("model_type", "stage_names", "out_features", "out_indices"):  # the class derives them
        fields.pop(name, None)
    if not getattr(config, "auto_map", None):  # it only serves to find code from the Hub
        fields.pop("_name_or_path", None)
    if kind == "causal" and not fields.get("is_encoder_decoder"):
        fields |= dict.fromkeys(fields.keys() & {"is_decoder", "causal"}, True)
    names = _names(kind).get(config.model_type) if kind else None
    if isinstance(names, tuple):  # the Auto class chooses by `architectures`
        fields["architectures"] = [next((name for name in config.architectures or () if name in names), names[0])]
    try:
        return type(config)(**fields)
    except Exception as error:  # code from the Hub may raise any error
        sentence = (str(error).strip() or repr(error)).splitlines()[-1].strip(" '\"")
        raise UserError(f"no tiny twin can be made of {config.model_type}: {sentence}") from error


def constructor(config: PreTrainedConfig) -> str:
    """A Python expression, with transformers alone, that makes the same config: the fields that are not defaults.

    For code from the Hub: the fields that differ from the config published there.
    """
    make: Callable[..., PreTrainedConfig] = type(config)
    if config.model_type in CONFIG_MAPPING and isinstance(config, CONFIG_MAPPING[config.model_type]):
        call = f'AutoConfig.for_model("{config.model_type}"'
    else:
        call = f'AutoConfig.from_pretrained("{config.name_or_path}", trust_remote_code=True'
        make = partial(make.from_pretrained, config.name_or_path)
    return ", ".join([call, *(f"{name}={value!r}" for name, value in _differing(config, make).items())]) + ")"


def _differing(config: PreTrainedConfig, make: Callable[..., PreTrainedConfig]) -> dict[str, Any]:
    """The arguments with which `make` makes an equal config; sub-configs are dicts."""
    fields, defaults = _comparable(config), _comparable(make())
    arguments = {name: value for name, value in fields.items() if name not in defaults or defaults[name] != value}
    for name, value in arguments.items():
        if _is_config(value):
            sub = getattr(config, name)
            named = {"model_type": sub.model_type} if sub.model_type else {}
            arguments[name] = named | _differing(sub, type(sub))
    for _ in range(2):  # the class derives some fields from others unless they are passed
        made = _comparable(make(**arguments))
        arguments |= {name: value for name, value in fields.items() if made.get(name) != value}
    return arguments


def _comparable(config: PreTrainedConfig) -> dict[str, Any]:
    return {name: value for name, value in config.to_dict().items() if name not in NOT_COMPARED}


def tiny_model(
    config: PreTrainedConfig, kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any
) -> PreTrainedModel:
    """A model of a tiny config in eval mode: initialised by its class, then noise (std 0.1) added to each parameter.

    The noise lets biases, norms and gates affect the outputs. The same weights in float32 with transformers alone:
    `torch.manual_seed(seed); model = AutoModelForCausalLM.from_config(config).eval()`, then
    `for p in model.parameters(): p.data += torch.randn_like(p) / 10`.

    kind: a key of KINDS. options: arguments of `from_config`, such as trust_remote_code.
    Raises UserError for more than MOST_PARAMETERS, before weights are made.
    """
    auto, config = getattr(transformers, KINDS[kind][0]), deepcopy(config)  # some classes change their config
    with torch.device("meta"):
        shapes = {name: p.numel() for name, p in auto.from_config(config, **options).named_parameters()}
    if (parameters := sum(shapes.values())) > MOST_PARAMETERS:
        largest = max(shapes, key=shapes.get)
        raise UserError(
            f"the twin of {config.model_type} has {parameters:,} parameters, {shapes[largest]:,} of them in {largest}; "
            f"at most {MOST_PARAMETERS:,} are tiny"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(config, **options).eval()
        for p in model.parameters():
            p.data += torch.randn_like(p) / 10
    if dtype == torch.float64:  # the other implementations of experts have no float64
        model.set_experts_implementation("eager")
    return model.to(dtype)

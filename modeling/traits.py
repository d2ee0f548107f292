"""Position schemes, kinds of attention and feed-forwards: one row of properties each.

Standard library only: rules, configs and listings read these rows before torch is imported. The torch classes stand in
other files, which register them here with `implements`; `implementation` looks them up, and imports their file when a
config first needs one. Rows say what a model needs; the package's rules/kinds.py adds the rest.

Another package adds a scheme or kind by one call of `register_position_scheme` or `register_attention_kind`. A run
saves its code with the model (pipelines/storage/plugin_code.py); with anyformer installed, call it before loading.
"""

import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

PLAIN = "full_attention"  # the default kind
STATE_LAYER_TYPE = "anyformer_states"  # the `layer_types` name of caches of a fixed size

# Functions that the package's rules/ enters by name, for configs to call. Empty in the code of a saved folder.
RULES: dict[str, Callable] = {}

# (is this config illegal?, the sentence a user reads)
Rule = tuple[Callable[..., bool], Callable[..., str]]


@dataclass(frozen=True)
class Scheme:
    """A position scheme: a value of `position_encoding`.

    acts_on: what its module computes, once per forward pass.
        "embeddings"  forward(x, position_ids) -> (B or 1, T, D), added where `position_at` says
        "rotation"    forward(x, position_ids) -> (cos, sin), each (B or 1, T, 2R) for the R channel pairs of a head
                      (cos twice; sin negated, then sin), rotating queries and keys of every layer
        "scores"      forward(x, distances (T, S)) -> (H, T, S), added to the attention scores of every layer; a
                      distance is the query's index minus the key's, which packing and padding leave as it is
        "attention"   forward(x) -> values of the keyword arguments that its `arguments` names, for the scheme's
                      attention class, in the role "scheme attention"
        None          nothing
    """

    acts_on: str | None
    splits_heads: bool = True  # tensor parallelism can split the heads
    module: str = "positions"  # the file of this folder that has its class
    # The fields below are read by rules, listings and plans; rules/kinds.py fills them in for our schemes.
    absolute: bool = False  # it encodes indices in a row, not distances
    bidirectional: bool = False  # it needs tokens that see later tokens
    plane: bool = False  # it has a form for patches, which lie in a plane
    fields: tuple[str, ...] = ()  # config fields that it reads; other schemes may read them, too
    rules: tuple[Rule, ...] = ()  # refusals of configs with this scheme
    plane_rules: tuple[Rule, ...] = ()  # refusals of vision transformers with it

    @property
    def adds_to_scores(self) -> bool:
        """Whether attention scores are changed one by one: by a bias, or by an attention class of its own."""
        return self.acts_on in ("scores", "attention")


@dataclass(frozen=True)
class Kind:
    """A kind of attention: a name in `attention_pattern`."""

    families: Collection[str] = ()  # the model types that have it
    needs: dict[str, str] = field(default_factory=dict)  # {config field it cannot be without: what that field means}
    companions: dict[str, int] = field(default_factory=dict)  # {field: its value in listings and tests}
    layer_type: str = PLAIN  # the name in `layer_types` by which transformers chooses its cache
    implied_by: str | None = None  # a field that, if set, makes all layers of this kind
    cache_values: Callable[..., int] | None = None  # config -> cached numbers per token; None: keys and values
    lookback: Callable[..., int] | None = None  # config -> how many last tokens its cache keeps, beside states
    windowed: bool = False  # a query sees the `sliding_window` tokens before it (an encoder's: to each side) only
    flash: bool = False  # flash kernels compute it, or it runs without a backend
    separable: bool = False  # packed documents can be attended one by one
    segments: bool = False  # it attends block by block
    global_tokens: bool = False  # some tokens see all
    own_scores: bool = False  # a class computes it (role "attention"), not a mask (role "mask")
    splits_heads: bool = True  # tensor parallelism can split the heads
    own_gate: bool = False  # its class gates the attention output by itself
    sizes: dict[str, str] = field(default_factory=dict)  # {config field: the field whose value it takes where null}
    module: str | None = None  # the file of this folder that has its class
    # Rules and plans read these, families, needs and companions; rules/kinds.py fills them in for the kinds below.
    state_values: Callable[..., int] | None = None  # config -> fp32 numbers in a layer's states, for one row
    rules: tuple[Rule, ...] = ()  # refusals of configs with this kind

    @property
    def keeps_states(self) -> bool:
        """Whether its cache holds states of a fixed size; its layers then get token positions instead of a mask."""
        return self.layer_type == STATE_LAYER_TYPE


@dataclass(frozen=True)
class FeedForward:
    """gated: whether a gate projection stands beside the up projection. module, experts: files of its classes."""

    gated: bool
    module: str = "block"
    experts: str = "experts"


MLP_TYPES = {"mlp": FeedForward(gated=False), "glu": FeedForward(gated=True)}
MLP_TYPES["clamped_glu"] = FeedForward(gated=True, module="glu_clamped", experts="experts_clamped")
# Values of `norm_type`, `norm_position` and `block`: the file of this folder that has their class.
NORM_TYPES = {"layernorm": "block", "rmsnorm": "block", "rmsnorm_zero_centered": "norm_zero_centered"}
NORM_POSITIONS = {"pre": "block", "post": "block", "both": "block_norms", "inside": "block_norms"}
BLOCKS = {"sequential": "block", "parallel": "block_parallel"}
BLOCK_FORMS = NORM_POSITIONS | BLOCKS
# {config field that gives all layers another class of attention: the file of that class}.
ATTENTION_PARTS = {"attention_sinks": "attention_sinks", "differential_attention": "attention_differential"}
POSITION_SCHEMES = {
    "none": Scheme(acts_on=None),
    "learned": Scheme(acts_on="embeddings", module="positions_absolute"),
    "sinusoidal": Scheme(acts_on="embeddings", module="positions_absolute"),
    "rotary": Scheme(acts_on="rotation"),
    "alibi": Scheme(acts_on="scores", splits_heads=False, module="positions_scores"),
    "relative": Scheme(acts_on="scores", splits_heads=False, module="positions_scores"),
    "disentangled": Scheme(acts_on="attention", splits_heads=False, module="attention_disentangled"),
}
DELTA = Kind(
    layer_type=STATE_LAYER_TYPE,
    lookback=lambda c: 0,
    flash=True,
    own_scores=True,
    splits_heads=False,
    own_gate=True,
    sizes={
        "linear_num_key_heads": "num_attention_heads",
        "linear_num_value_heads": "linear_num_key_heads",
        "linear_key_head_dim": "head_dim",
        "linear_value_head_dim": "linear_key_head_dim",
        "linear_norm_eps": "norm_eps",
    },
    module="attention_delta",
)
ATTENTION_KINDS = {
    PLAIN: Kind(flash=True, separable=True),
    "sliding_attention": Kind(layer_type="sliding_attention", windowed=True, flash=True, separable=True),
    # Any past token may be needed again: nothing can leave the cache.
    "strided_attention": Kind(module="attention_strided"),
    "chunked_attention": Kind(
        layer_type="chunked_attention", lookback=lambda c: c.attention_chunk_size, module="attention_chunks"
    ),
    "block_sparse_attention": Kind(module="attention_blocks"),
    "local_global_attention": Kind(
        windowed=True, global_tokens=True, own_scores=True, splits_heads=False, module="attention_local_global"
    ),
    "latent_attention": Kind(
        implied_by="kv_lora_rank",
        cache_values=lambda c: c.kv_lora_rank + c.qk_rope_head_dim,
        flash=True,
        own_scores=True,
        splits_heads=False,
        module="attention_latent",
    ),
    "linear_attention": Kind(
        layer_type=STATE_LAYER_TYPE, lookback=lambda c: 0, flash=True, own_scores=True, module="attention_linear"
    ),
    "gated_delta_attention": DELTA,
    "kimi_delta_attention": replace(DELTA, module="attention_kimi_delta"),
    "mamba2_attention": replace(DELTA, module="attention_ssm"),
    "compressive_attention": Kind(
        layer_type=STATE_LAYER_TYPE,
        lookback=lambda c: c.segment_length,
        segments=True,
        own_scores=True,
        splits_heads=False,
        module="attention_recurrent",
    ),
    "recurrent_attention": Kind(
        layer_type=STATE_LAYER_TYPE,
        implied_by="memory_length",
        lookback=lambda c: c.segment_length + c.memory_length,
        segments=True,
        own_scores=True,
        module="attention_recurrent",
    ),
}

# (role, name) -> class or function; roles: "position", "patch position", "scheme attention", "attention", "mask",
# "feed forward", "experts", "norm", "block", "attention gate", "attention part", "attention scales",
# "cross attention", "tokens ahead".
_implementations: dict[tuple[str, str], Callable] = {}


def implements(role: str, *names: str):
    """Decorator: register a class or function for a role and each of `names`."""

    def enter(thing):
        _implementations.update({(role, name): thing for name in names})
        return thing

    return enter


def implementation(role: str, name: str, module: str | None = None) -> Callable | None:
    """The class or function of a role and name, or None. `module`: the file of this folder that registers it.

    A model on the Hub has that file because its family's file imports it, or because it was saved, too: see `parts_of`.

    Raises ImportError where a folder from the Hub, made for another config, lacks the file.
    """
    if module is not None and (role, name) not in _implementations:
        try:
            importlib.import_module(f".{module}", __package__)
        except ModuleNotFoundError as error:
            if not str(error.name).endswith(f".{module}"):
                raise
            raise ImportError(f"{name!r} needs {module}.py, which this model's folder does not have") from error
    return _implementations.get((role, name))


def register_position_scheme(name: str, scheme: Scheme, make: Callable, patches: Callable | None = None) -> None:
    """Add a value of `position_encoding`.

    make: config -> module whose forward is what `scheme.acts_on` says; patches: the same for vision transformers.
    The scheme's own config fields are keyword arguments like any other, once they are named in `scheme.fields`.
    """
    POSITION_SCHEMES[name] = scheme
    implements("position", name)(make)
    if patches is not None:
        implements("patch position", name)(patches)


def register_attention_kind(name: str, kind: Kind, make: Callable | None = None, mask: Callable | None = None) -> None:
    """Add a name for `attention_pattern`: give `mask`, or for a kind with own scores `make`.

    mask: config -> mask_function(batch_idx, head_idx, q_idx, kv_idx), true where a query sees a key, as in
    transformers.masking_utils; the future, padding and other documents are hidden anyway. make: (config, layer_idx)
    -> a subclass of attention.Attention, with `own_scores=True`. `kind.needs` may name fields that no config has.
    """
    ATTENTION_KINDS[name] = kind
    if make is not None:
        implements("attention", name)(make)
    if mask is not None:
        implements("mask", name)(mask)


def implied_kind(c) -> str | None:
    """The kind of attention of all layers if a field such as `memory_length` implies it, else None."""
    fields = {} if c.attention_pattern else {name: kind.implied_by for name, kind in ATTENTION_KINDS.items()}
    return next((name for name, field in fields.items() if field and getattr(c, field, None) is not None), None)


def attention_kinds(c) -> list[str]:
    """The kind of attention of each layer: `attention_pattern` repeated over the layers, else `layer_types`."""
    if c.attention_pattern:
        return [c.attention_pattern[i % len(c.attention_pattern)] for i in range(c.num_hidden_layers)]
    implied = implied_kind(c)
    if implied:
        return [implied] * c.num_hidden_layers
    return list(c.layer_types or [PLAIN] * c.num_hidden_layers)


def one_way_kind(c) -> str | None:
    """A kind of attention with states or chunks, in which no mask can show a token to those before it; or None."""
    return next((kind for kind in attention_kinds(c) if cache_type(kind) not in (PLAIN, "sliding_attention")), None)


def cache_type(kind: str) -> str:
    """The `layer_types` name of a kind of attention, by which transformers chooses its cache."""
    return ATTENTION_KINDS[kind].layer_type if kind in ATTENTION_KINDS else kind


def has_experts(c) -> bool:
    return getattr(c, "num_experts", None) is not None


def mlp_kinds(c) -> list[str]:
    """The kind of feed-forward of each layer, "dense" or "sparse": `mlp_pattern` repeated, else `mlp_layer_types`."""
    if not has_experts(c):
        return ["dense"] * c.num_hidden_layers
    if c.mlp_pattern:
        return [c.mlp_pattern[i % len(c.mlp_pattern)] for i in range(c.num_hidden_layers)]
    return list(c.mlp_layer_types or ["sparse"] * c.num_hidden_layers)


def block_forms(c) -> list[str]:
    """The residual form of each layer: the name of its class in the role "block"."""
    form = c.norm_position if c.block == "sequential" else c.block
    return [form[kind] if isinstance(form, dict) else form for kind in attention_kinds(c)]


def has_scales(c) -> bool:
    """Whether queries and keys are scaled after their rotation."""
    return getattr(c, "attn_temperature_tuning", False) or getattr(c, "qk_l2_norm", False)


def parts_of(c) -> list[str]:
    """The files of this folder with the classes that a config's schemes, kinds of attention and blocks need."""
    modules = [ATTENTION_KINDS[kind].module for kind in attention_kinds(c)]
    modules += [BLOCK_FORMS[form] for form in block_forms(c)]
    modules += [POSITION_SCHEMES[c.position_encoding].module, NORM_TYPES[c.norm_type]]
    modules += ["attention_gate"] if c.attention_gate is not None else []
    modules += ["attention_values"] if getattr(c, "value_residual", False) else []
    modules += [module for part, module in ATTENTION_PARTS.items() if getattr(c, part, False)]
    modules += [MLP_TYPES[c.mlp_type].module] + ([MLP_TYPES[c.mlp_type].experts] if "sparse" in mlp_kinds(c) else [])
    modules += ["attention_scales"] if has_scales(c) else []
    modules += ["attention_positions"] if c.position_at == "queries_keys" else []
    modules += ["score_bias"] if POSITION_SCHEMES[c.position_encoding].acts_on == "scores" else []
    modules += ["attention_cross"] if getattr(c, "add_cross_attention", False) else []
    modules += ["multi_token"] if getattr(c, "num_nextn_predict_layers", 0) else []
    return [module for module in dict.fromkeys(modules) if module is not None]


def image_sides(c) -> tuple[int, ...]:
    """Height and width of a vision transformer's images, in pixels."""
    return (c.image_size,) * 2 if isinstance(c.image_size, int) else tuple(c.image_size)


def own_fields() -> set[str]:
    """All config fields that belong to schemes or kinds of attention."""
    of_schemes = {name for scheme in POSITION_SCHEMES.values() for name in scheme.fields}
    return of_schemes | {name for kind in ATTENTION_KINDS.values() for name in kind.needs}

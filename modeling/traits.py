"""The parts of models: position schemes, kinds of attention, norms, blocks, feed-forwards and options, one row each.

Standard library only: rules, configs and listings read these rows before torch is imported. A row names the file and
the class of a part, which are imported when a config first needs them: see `PARTS`. Rows say what a model needs; the
package's rules/kinds.py adds the rest.

Another package adds a scheme or kind by one call of `register_position_scheme` or `register_attention_kind`. A run
saves its code with the model (pipelines/storage/plugin_code.py); with anyformer installed, call it before loading.
"""

import importlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

PLAIN = "full_attention"  # the default kind
STATE_LAYER_TYPE = "anyformer_states"  # the `layer_types` name of caches of a fixed size

# Functions of the installed package, for configs and layers to call by name. Empty in the code of a saved folder.
RULES: dict[str, Callable] = {}


def no_faults(c) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Part:
    """A part that not every model has: a class or function of this folder, saved with the models that have the part.

    A model on the Hub has the file because its family's file imports it, or because it was saved, too: see `files_of`.
    """

    code: str | None = None  # "file.Name"; None: a part of all models' files, or nothing but config fields
    fields: tuple[str, ...] = field(default=(), kw_only=True)  # config fields that only such parts read
    given: Callable | None = field(default=None, kw_only=True)  # a plug-in's class or function, in place of a name

    def load(self) -> Callable | None:
        """The class or function; None for a part that has none.

        Raises ImportError where a folder from the Hub, made for another config, lacks the file.
        """
        if self.code is None:
            return self.given
        file, name = self.code.split(".")
        try:
            return getattr(importlib.import_module(f".{file}", __package__), name)
        except ModuleNotFoundError as error:
            if not str(error.name).endswith(f".{file}"):
                raise
            raise ImportError(f"{name} needs {file}.py, which this model's folder does not have") from error


@dataclass(frozen=True, kw_only=True)
class Scheme(Part):
    """A position scheme: a value of `position_encoding`. Its class makes the module of all layers from a config.

    acts_on: what its module computes, once per forward pass.
        "embeddings"  forward(x, position_ids) -> (B or 1, T, D), added where `position_at` says
        "rotation"    forward(x, position_ids) -> (cos, sin), each (B or 1, T, 2R) for the R channel pairs of a head
                      (cos twice; sin negated, then sin), rotating queries and keys of every layer
        "scores"      forward(x, distances (T, S)) -> (H, T, S), added to the attention scores of every layer; a
                      distance is the query's index minus the key's, which packing and padding leave as it is
        "attention"   forward(x) -> values of the keyword arguments that its `arguments` names, for the scheme's
                      `attention`
        None          nothing
    """

    acts_on: str | None
    attention: Part | None = None  # the class of attention of all layers
    patches: Part | None = None  # what makes the module of a vision transformer
    splits_heads: bool = True  # tensor parallelism can split the heads
    # The fields below are read by rules, listings and plans; rules/kinds.py fills them in for our schemes.
    absolute: bool = False  # it encodes indices in a row, not distances
    bidirectional: bool = False  # it needs tokens that see later tokens
    plane: bool = False  # it has a form for patches, which lie in a plane
    faults: Callable[..., Iterable[str]] = no_faults  # config -> sentences that refuse it
    plane_faults: Callable[..., Iterable[str]] = no_faults  # the same for vision transformers

    @property
    def adds_to_scores(self) -> bool:
        """Whether attention scores are changed one by one: by a bias, or by an attention class of its own."""
        return self.acts_on in ("scores", "attention")


@dataclass(frozen=True, kw_only=True)
class Kind(Part):
    """A kind of attention: a name in `attention_pattern`. With `own_scores` the part is a class of attention, else it
    makes a mask function from a config, or is none."""

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
    own_scores: bool = False  # a class computes it, not a mask
    splits_heads: bool = True  # tensor parallelism can split the heads
    own_gate: bool = False  # its class gates the attention output by itself
    sizes: dict[str, str] = field(default_factory=dict)  # {config field: the field whose value it takes where null}
    # Rules and plans read these, families, needs and companions; rules/kinds.py fills them in for the kinds below.
    state_values: Callable[..., int] | None = None  # config -> fp32 numbers in a layer's states, for one row
    faults: Callable[..., Iterable[str]] = no_faults  # config -> sentences that refuse it

    @property
    def keeps_states(self) -> bool:
        """Whether its cache holds states of a fixed size; its layers then get token positions instead of a mask."""
        return self.layer_type == STATE_LAYER_TYPE


@dataclass(frozen=True, kw_only=True)
class FeedForward(Part):
    """A feed-forward: a value of `mlp_type`."""

    gated: bool  # a gate projection stands beside the up projection
    experts: Part  # the class of as many of them as a layer has experts


@dataclass(frozen=True, kw_only=True)
class Adjustment(Part):
    """A module of attention, made from (config, layer_idx), that changes queries, keys and values before the cache.

    Its forward maps (q, k, v, **the layer's arguments) to (q, k, v, {arguments that are left for the backend}).
    """

    module: str  # its name in attention
    blocks: Part | None = None  # class of a block -> a class whose blocks hand something to later ones
    shared: Part | None = None  # the class of an object for it, which all blocks of a forward pass get as `shared`


DELTA = Kind(
    "attention_delta.GatedDeltaNet",
    fields=("linear_conv_kernel_dim",),
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
)


@dataclass(frozen=True)
class Parts:
    """The table of parts: for each config field that chooses one, {its value: row}."""

    position_encoding: dict[str, Scheme]
    attention_pattern: dict[str, Kind]
    norm_type: dict[str, Part]
    norm_position: dict[str, Part]  # of sequential blocks
    block: dict[str, Part]
    mlp_type: dict[str, FeedForward]
    attention_class: dict[str, Part]  # {field that gives all layers another class of attention: row}
    adjustments: dict[str, Adjustment]  # {field that, if set, adds one: row}
    options: dict[str, Part]  # {field that, if set, adds something else: row}


OF_DISENTANGLED = ("pos_att_type", "share_att_key", "position_buckets", "max_relative_positions")
OF_DISENTANGLED += ("relative_embedding_norm",)
POSITION_SCHEMES = {
    "none": Scheme(acts_on=None),
    "learned": Scheme(
        "positions_absolute.LearnedPositions",
        acts_on="embeddings",
        patches=Part("positions_2d.LearnedPatchPositions"),
        fields=("max_position_embeddings", "position_offset", "position_at"),
    ),
    "sinusoidal": Scheme(
        "positions_absolute.SinusoidalPositions",
        acts_on="embeddings",
        patches=Part("positions_2d.SinusoidalPatchPositions"),
        fields=("position_at",),
    ),
    "rotary": Scheme(
        "positions.rotary_positions",
        acts_on="rotation",
        patches=Part("positions_2d.RotaryPatchPositions"),
        fields=("rope_parameters", "max_position_embeddings", "no_rope_layers"),
    ),
    "alibi": Scheme("positions_scores.AlibiBias", acts_on="scores", splits_heads=False, fields=("alibi_bias_max",)),
    "relative": Scheme(
        "positions_scores.relative_positions",
        acts_on="scores",
        splits_heads=False,
        fields=("relative_attention_num_buckets", "relative_attention_max_distance", "relative_attention_shared"),
    ),
    "disentangled": Scheme(
        "attention_disentangled.DisentangledPositions",
        acts_on="attention",
        attention=Part("attention_disentangled.DisentangledAttention"),
        splits_heads=False,
        fields=OF_DISENTANGLED,
    ),
}
ATTENTION_KINDS = {
    PLAIN: Kind(flash=True, separable=True),
    "sliding_attention": Kind(layer_type="sliding_attention", windowed=True, flash=True, separable=True),
    # Any past token may be needed again: nothing can leave the cache.
    "strided_attention": Kind("attention_strided.strided_mask_function"),
    "chunked_attention": Kind(
        "attention_chunks.chunked_mask_function",
        layer_type="chunked_attention",
        lookback=lambda c: c.attention_chunk_size,
    ),
    "block_sparse_attention": Kind(
        "attention_blocks.block_sparse_mask_function", fields=("num_local_blocks", "num_sink_blocks")
    ),
    "local_global_attention": Kind(
        "attention_local_global.LocalGlobalAttention",
        windowed=True,
        global_tokens=True,
        own_scores=True,
        splits_heads=False,
    ),
    "latent_attention": Kind(
        "attention_latent.LatentAttention",
        fields=("rope_interleave",),
        implied_by="kv_lora_rank",
        cache_values=lambda c: c.kv_lora_rank + c.qk_rope_head_dim,
        flash=True,
        own_scores=True,
        splits_heads=False,
    ),
    "linear_attention": Kind(
        "attention_linear.LinearAttention",
        layer_type=STATE_LAYER_TYPE,
        lookback=lambda c: 0,
        flash=True,
        own_scores=True,
    ),
    "gated_delta_attention": DELTA,
    "kimi_delta_attention": replace(DELTA, code="attention_kimi_delta.KimiDeltaAttention"),
    "mamba2_attention": replace(DELTA, code="attention_ssm.StateSpace"),
    "compressive_attention": Kind(
        "attention_recurrent.CompressiveAttention",
        layer_type=STATE_LAYER_TYPE,
        lookback=lambda c: c.segment_length,
        segments=True,
        own_scores=True,
        splits_heads=False,
    ),
    "recurrent_attention": Kind(
        "attention_recurrent.RecurrentAttention",
        layer_type=STATE_LAYER_TYPE,
        implied_by="memory_length",
        lookback=lambda c: c.segment_length + c.memory_length,
        segments=True,
        own_scores=True,
    ),
}
SCALES = Adjustment("attention_scales.QueryAndKeyScales", module="scales")
PARTS = Parts(
    position_encoding=POSITION_SCHEMES,
    attention_pattern=ATTENTION_KINDS,
    norm_type={
        "layernorm": Part(fields=("norm_bias",)),
        "rmsnorm": Part(),
        "rmsnorm_zero_centered": Part("norm_zero_centered.ZeroCenteredRMSNorm"),
    },
    norm_position={
        "pre": Part("block.TransformerBlock", fields=("norm_position",)),
        "post": Part("block.TransformerBlock", fields=("norm_position",)),
        "both": Part("block_norms.SandwichBlock", fields=("norm_position",)),
        "inside": Part("block_norms.InsideNormBlock", fields=("norm_position",)),
    },
    block={"sequential": Part(), "parallel": Part("block_parallel.ParallelBlock")},
    mlp_type={
        "mlp": FeedForward("block.MLP", gated=False, experts=Part("experts.PlainExperts")),
        "glu": FeedForward("block.GatedMLP", gated=True, experts=Part("experts.GatedExperts")),
        "clamped_glu": FeedForward(
            "glu_clamped.ClampedMLP",
            gated=True,
            experts=Part("experts_clamped.ClampedExperts"),
            fields=("swiglu_limit", "swiglu_alpha"),
        ),
    },
    attention_class={
        "attention_sinks": Part("attention_sinks.SinkAttention"),
        "differential_attention": Part("attention_differential.DifferentialAttention", fields=("lambda_std_dev",)),
    },
    adjustments={
        "value_residual": Adjustment(
            "attention_values.ValueResidual",
            module="value_mix",
            blocks=Part("attention_values.passing"),
            shared=Part("attention_values.Values"),
        ),
        "attn_temperature_tuning": replace(SCALES, fields=("floor_scale", "attn_scale")),
        "qk_l2_norm": SCALES,
    },
    options={
        "attention_gate": Part("attention_gate.OutputGate"),
        "add_cross_attention": Part("attention_cross.read_encoder"),
        "num_nextn_predict_layers": Part("multi_token.MultiTokenPrediction", fields=("mtp_loss_coef",)),
        "num_experts": Part(fields=("num_experts_per_tok", "router_scoring", "norm_topk_prob", "router_aux_loss_coef")),
        "conv_kernel_size": Part(fields=("conv_act",)),
        "head_transform": Part(fields=("head_bias",)),
        "task_head_transform": Part(fields=("head_bias",)),
        "pooler_act": Part(fields=("pooler_output_size",)),
    },
)
# Where position embeddings are added to queries and keys, all layers have this class of attention.
AT_QUERIES_KEYS = Part("attention_positions.AttentionWithPositions")
SPARSE = Part("experts.SparseMLP")  # the feed-forward of a layer with experts
# Of all schemes that act on scores.
SCORE_BIASES, FOLDED_MASKS = Part("score_bias.score_biases"), Part("score_bias.fold_masks")


def register_position_scheme(name: str, scheme: Scheme, make: Callable, patches: Callable | None = None) -> None:
    """Add a value of `position_encoding`.

    make: config -> module whose forward is what `scheme.acts_on` says; patches: the same for vision transformers.
    The scheme's own config fields are keyword arguments like any other, once they are named in `scheme.fields`.
    """
    POSITION_SCHEMES[name] = replace(scheme, given=make, patches=patches and Part(given=patches))


def register_attention_kind(name: str, kind: Kind, make: Callable | None = None, mask: Callable | None = None) -> None:
    """Add a name for `attention_pattern`: give `mask`, or for a kind with own scores `make`.

    mask: config -> mask_function(batch_idx, head_idx, q_idx, kv_idx), true where a query sees a key, as in
    transformers.masking_utils; the future, padding and other documents are hidden anyway. make: (config, layer_idx)
    -> a subclass of attention.Attention, with `own_scores=True`. `kind.needs` may name fields that no config has.
    """
    ATTENTION_KINDS[name] = replace(kind, given=make or mask)


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
    """The residual form of each layer: a value of `norm_position`, or of `block`."""
    form = c.norm_position if c.block == "sequential" else c.block
    return [form[kind] if isinstance(form, dict) else form for kind in attention_kinds(c)]


def block_part(form: str) -> Part:
    """The row of a residual form."""
    return PARTS.norm_position.get(form) or PARTS.block[form]


def adjustments(c) -> list[Adjustment]:
    """The adjustments that a config's model has, each module once."""
    rows = [row for name, row in PARTS.adjustments.items() if getattr(c, name, False)]
    return list({row.module: row for row in rows}.values())


def parts_of(c) -> list[Part]:
    """The rows of the parts that a config's model has."""
    parts: list[Part] = [ATTENTION_KINDS[kind] for kind in attention_kinds(c)]
    parts += [block_part(form) for form in block_forms(c)]
    parts += [POSITION_SCHEMES[c.position_encoding], PARTS.norm_type[c.norm_type], PARTS.mlp_type[c.mlp_type]]
    chosen = PARTS.attention_class | PARTS.adjustments | PARTS.options
    parts += [part for name, part in chosen.items() if getattr(c, name, None)]
    patches = POSITION_SCHEMES[c.position_encoding].patches
    parts += [patches] if patches is not None and hasattr(c, "patch_size") else []
    parts += [PARTS.mlp_type[c.mlp_type].experts] if "sparse" in mlp_kinds(c) else []
    parts += [AT_QUERIES_KEYS] if c.position_at == "queries_keys" else []
    parts += [SCORE_BIASES] if POSITION_SCHEMES[c.position_encoding].acts_on == "scores" else []
    return parts


def files_of(c) -> list[str]:
    """The files of this folder that a config's model needs beside those that every model of its family imports."""
    return list(dict.fromkeys(part.code.split(".")[0] for part in parts_of(c) if part.code is not None))


def fields_of_others(c) -> set[str]:
    """Config fields that only parts read which the model has not; those that are off by default need no row."""
    rows = [row for rows in vars(PARTS).values() for row in rows.values()]
    fields = {name for row in rows for name in row.fields} - {"max_position_embeddings"}  # of texts, not only of a part
    return fields - {name for part in parts_of(c) for name in part.fields}


def image_sides(c) -> tuple[int, ...]:
    """Height and width of a vision transformer's images, in pixels."""
    return (c.image_size,) * 2 if isinstance(c.image_size, int) else tuple(c.image_size)


def own_fields() -> set[str]:
    """All config fields that belong to schemes or kinds of attention."""
    of_schemes = {name for scheme in POSITION_SCHEMES.values() for name in scheme.fields}
    return of_schemes | {name for kind in ATTENTION_KINDS.values() for name in kind.needs}

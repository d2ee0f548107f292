"""Position schemes, kinds of attention, norms, feed-forwards and families: one row of properties each.

Standard library only: legality, configs, listings and parameter counts read these rows before torch is imported. The
torch classes stand in files of their own and are entered here by `implements`; `implementation` gives them back, and
imports their file the first time that a config asks for one.

A scheme or kind of another package is one call of `register_position_scheme` or `register_attention_kind`. A run saves
its code with the model (pipelines/storage/plugin_code.py); where anyformer is installed, the call comes first again.
"""

import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

DECODER, MOE, ENCODER = "anyformer_decoder", "anyformer_moe", "anyformer_encoder"
SEQ2SEQ, VIT = "anyformer_seq2seq", "anyformer_vit"
PLAIN = "full_attention"  # the default kind
STATE_LAYER_TYPE = "anyformer_states"  # the `layer_types` name of caches of a fixed size

# (is this config illegal?, the sentence a user reads)
Rule = tuple[Callable[..., bool], Callable[..., str]]


@dataclass(frozen=True)
class Family:
    """A family of models. Its key in FAMILIES is the `model_type`: "anyformer_" and the name that recipes give it.

    words: its name in sentences. module: the file of this folder that has its models. config, config_module: the class
    of its config, and the file that has it. heads: {Auto class: the class of `module` that it loads}. pretraining: the
    Auto class assumed for a checkpoint that names no class. objective: the objective or task that a preset of the
    family is planned for. bidirectional: whether tokens see later tokens. has_decoder: whether a decoder reads what an
    encoder makes of a text. of_images: whether it reads images.
    """

    words: str
    module: str
    config: str
    config_module: str
    heads: dict[str, str]
    pretraining: str
    objective: str
    bidirectional: bool = False
    has_decoder: bool = False
    of_images: bool = False

    @property
    def exports(self) -> dict[str, str]:
        """{class: the file of this folder that has it}."""
        return {self.config: self.config_module} | dict.fromkeys(self.heads.values(), self.module)

    def load(self, name: str) -> type:
        """The class of this name, its config or one of its heads."""
        return getattr(importlib.import_module(f".{self.exports[name]}", __package__), name)


@dataclass(frozen=True)
class Scheme:
    """A position scheme: a value of `position_encoding`.

    acts_on: what its module computes, once per forward pass.
        "embeddings"  forward(x, position_ids) -> (B or 1, T, D), added to the token embeddings
        "rotation"    forward(x, position_ids) -> (cos, sin), each (B or 1, T, 2R) for the R channel pairs of a head
                      (cos twice; sin negated, then sin), rotating queries and keys of every layer
        "scores"      forward(x, distances (T, S)) -> (H, T, S), added to the attention scores of every layer; a
                      distance is the query's index minus the key's, which packing and padding leave as it is
        "attention"   forward(x) -> values of the keyword arguments that its `arguments` names, for an attention class
                      of its own, the role "scheme attention"
        None          nothing
    trained_bias: whether a bias of the scores is learned. absolute: whether it encodes indices in a row, not distances.
    bidirectional: whether it needs tokens that see later tokens. plane: whether it has a form for patches, which lie in
    a plane. splits_heads: whether tensor parallelism can split the heads.
    fields: the config fields that only this scheme reads, or that it shares with other schemes.
    rules: refusals of configs with this scheme; plane_rules: of vision transformers with it.
    parameters: (sizes, layers) -> number of parameters; attention_parameters: (sizes) -> those that self-attention has
    beside the usual projections. `sizes` is pipelines' parameter_count._Parts.
    module: the file of this folder that has its class.
    """

    acts_on: str | None
    trained_bias: bool = False
    absolute: bool = False
    bidirectional: bool = False
    plane: bool = False
    splits_heads: bool = True
    fields: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    plane_rules: tuple[Rule, ...] = ()
    parameters: Callable[..., int] = lambda sizes, layers: 0
    attention_parameters: Callable[..., int] = lambda sizes: 0
    module: str = "positions"

    @property
    def adds_to_scores(self) -> bool:
        """Whether attention scores are changed one by one: by a bias, or by an attention class of its own."""
        return self.acts_on in ("scores", "attention")


@dataclass(frozen=True)
class Kind:
    """A kind of attention: a name in `attention_pattern`.

    families: the model types that have it. needs: {config field it cannot be without: what that field means}.
    companions: values of these fields for tiny models, in listings and tests.
    layer_type: the name in `layer_types` by which transformers chooses its cache. implied_by: a field that alone says
    that all layers are of this kind. lookback: config -> how many tokens before a query a layer may look at, for kinds
    whose cache is states or segments. memories: such a cache's matrices (K x (K + 1) in fp32 for each key/value head).
    windowed: whether a query sees the `sliding_window` tokens before it (in an encoder, to each side) only.
    near, stride: config -> where a mask that depends on distances only shows keys, from which memory is planned: the
    most tokens before and after a query that it may see one by one, and the distance of further ones before them, of
    causal kinds only. None: anywhere; none further.
    flash: whether flash kernels compute it, or it runs without a backend. separable: whether packed documents can be
    attended one by one. segments: whether it attends block by block. global_tokens: whether some tokens see all.
    own_scores: whether a class of its own computes it (role "attention"); otherwise it is a mask (role "mask", unless
    it is full or windowed). splits_heads, rules, parameters and module as in Scheme.
    """

    families: Collection[str]
    needs: dict[str, str] = field(default_factory=dict)
    companions: dict[str, int] = field(default_factory=dict)
    layer_type: str = PLAIN
    implied_by: str | None = None
    lookback: Callable[..., int] | None = None
    memories: int = 0
    windowed: bool = False
    near: Callable[..., tuple[int, int]] | None = None
    stride: Callable[..., int] | None = None
    flash: bool = False
    separable: bool = False
    segments: bool = False
    global_tokens: bool = False
    own_scores: bool = False
    splits_heads: bool = True
    rules: tuple[Rule, ...] = ()
    parameters: Callable[..., int] = lambda sizes: 0
    module: str | None = None

    @property
    def keeps_states(self) -> bool:
        """Whether its cache is states of a fixed size; its layers then get token positions instead of a mask."""
        return self.layer_type == STATE_LAYER_TYPE


@dataclass(frozen=True)
class Norm:
    """has_bias: whether `norm_bias` acts."""

    has_bias: bool


@dataclass(frozen=True)
class FeedForward:
    """gated: whether a gate projection stands beside the up projection."""

    gated: bool


def _adds_single_scores(c) -> bool:
    return POSITION_SCHEMES[c.position_encoding].acts_on == "scores"


def _no_single_scores(setting: str, unset, instead: str) -> Rule:
    """Linear attention has no matrix of scores for this setting to act on."""
    return (
        lambda c: getattr(c, setting) != unset,
        lambda c: f"{setting}={getattr(c, setting)} acts on single scores, which linear_attention has not; {instead}",
    )


def _too_few_buckets(c) -> bool:
    buckets = c.relative_attention_num_buckets
    return buckets < 2 or c.relative_attention_max_distance <= buckets // 2


def _plane_rope_type(c) -> str:
    return (c.rope_parameters or {}).get("rope_type", "default")


def _plane_rotated(c) -> int:
    head_dim = c.head_dim if c.head_dim is not None else c.hidden_size // c.num_attention_heads
    return int(head_dim * (c.rope_parameters or {}).get("partial_rotary_factor", 1.0))


def _distance_table(sizes, layers: int) -> int:
    c = sizes.c
    span = c.position_buckets or c.max_relative_positions or c.max_position_embeddings
    return 2 * span * sizes.D + (sizes.norm(sizes.D) if c.relative_embedding_norm else 0)


def _distance_projections(sizes) -> int:
    c = sizes.c
    if c.share_att_key:
        return 0
    keys, queries = sizes.linear(sizes.D, sizes.G * sizes.K, sizes.key_bias), sizes.linear(sizes.D, sizes.H * sizes.K)
    terms = {"c2p": keys, "p2c": queries}
    return sum(terms[name] for name in c.pos_att_type or terms)


def _global_projections(sizes) -> int:
    queries = sizes.linear(sizes.D, sizes.H * sizes.K, sizes.c.attention_bias)
    values = sizes.linear(sizes.D, sizes.G * sizes.K, sizes.c.attention_bias)
    return queries + sizes.linear(sizes.D, sizes.G * sizes.K, sizes.key_bias) + values


def _window(c) -> tuple[int, int]:
    return (c.sliding_window - 1, 0) if c.is_causal else (c.sliding_window, c.sliding_window)


WINDOW = {"sliding_window": "the number of tokens a query sees (in an encoder, to each side)"}
STRIDE = {"attention_stride": "the width of the local band and the distance of far keys"}
SEGMENT = {"segment_length": "the number of tokens that are attended to one by one"}
MEMORY = {"memory_length": "the number of tokens before a segment that it still sees"}

OF_TEXTS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")


def _heads(prefix: str, *names: str) -> dict[str, str]:
    """{Auto class: own class} of the base model and of these heads."""
    return {"AutoModel": f"{prefix}Model"} | {f"AutoModelFor{name}": f"{prefix}For{name}" for name in names}


FAMILIES = {
    DECODER: Family(
        "a decoder",
        module="decoder",
        config="AnyformerDecoderConfig",
        config_module="configuration",
        heads=_heads("AnyformerDecoder", "CausalLM", *OF_TEXTS, "ImageClassification"),
        pretraining="AutoModelForCausalLM",
        objective="causal",
    ),
    MOE: Family(
        "a mixture-of-experts decoder",
        module="moe",
        config="AnyformerMoeConfig",
        config_module="configuration",
        heads=_heads("AnyformerMoe", "CausalLM", *OF_TEXTS),
        pretraining="AutoModelForCausalLM",
        objective="causal",
    ),
    ENCODER: Family(
        "an encoder",
        module="encoder",
        config="AnyformerEncoderConfig",
        config_module="configuration",
        heads=_heads("AnyformerEncoder", "MaskedLM", "PreTraining", *OF_TEXTS, "MultipleChoice"),
        pretraining="AutoModelForMaskedLM",
        objective="masked",
        bidirectional=True,
    ),
    SEQ2SEQ: Family(
        "a sequence-to-sequence model",
        module="seq2seq",
        config="AnyformerSeq2SeqConfig",
        config_module="configuration_seq2seq",
        heads={
            "AutoModel": "AnyformerSeq2SeqModel",
            "AutoModelForSeq2SeqLM": "AnyformerSeq2SeqForConditionalGeneration",
            "AutoModelForTextEncoding": "AnyformerSeq2SeqEncoderModel",
            "AutoModelForSequenceClassification": "AnyformerSeq2SeqForSequenceClassification",
        },
        pretraining="AutoModelForSeq2SeqLM",
        objective="span_corruption",
        has_decoder=True,
    ),
    VIT: Family(
        "a vision transformer",
        module="vit",
        config="AnyformerViTConfig",
        config_module="configuration_vit",
        heads=_heads("AnyformerViT", "ImageClassification", "MaskedImageModeling"),
        pretraining="AutoModelForImageClassification",
        objective="image_classification",
        bidirectional=True,
        of_images=True,
    ),
}
NORM_TYPES = {"layernorm": Norm(has_bias=True), "rmsnorm": Norm(has_bias=False)}
MLP_TYPES = {"mlp": FeedForward(gated=False), "glu": FeedForward(gated=True)}
POSITION_SCHEMES = {
    "none": Scheme(acts_on=None, plane=True),
    "learned": Scheme(
        acts_on="embeddings",
        absolute=True,
        plane=True,
        fields=("max_position_embeddings", "position_offset"),
        parameters=lambda sizes, layers: sizes.learned_positions() * sizes.E,
    ),
    "sinusoidal": Scheme(
        acts_on="embeddings",
        absolute=True,
        plane=True,
        plane_rules=(
            (
                lambda c: c.hidden_size % 4 != 0,
                lambda c: (
                    f"hidden_size={c.hidden_size} is no multiple of 4, but position_encoding='sinusoidal' has sines "
                    f"and cosines of rows and of columns"
                ),
            ),
        ),
    ),
    "rotary": Scheme(
        acts_on="rotation",
        plane=True,
        fields=("rope_parameters", "max_position_embeddings"),
        plane_rules=(
            (
                lambda c: _plane_rope_type(c) != "default",
                lambda c: (
                    f"rope_parameters.rope_type={_plane_rope_type(c)!r} stretches rows of tokens; a vision transformer "
                    f"has 'default', and interpolate_pos_encoding for larger images"
                ),
            ),
            (
                lambda c: _plane_rotated(c) % 4 != 0,
                lambda c: (
                    f"position_encoding='rotary' rotates {_plane_rotated(c)} channels of each head, half of them by "
                    f"the row and half by the column of a patch, in pairs; the number must be a multiple of 4"
                ),
            ),
        ),
    ),
    "alibi": Scheme(acts_on="scores", splits_heads=False, fields=("alibi_bias_max",)),
    "relative": Scheme(
        acts_on="scores",
        trained_bias=True,
        splits_heads=False,
        fields=(
            "relative_attention_num_buckets",
            "relative_attention_max_distance",
            "relative_attention_shared",
        ),
        rules=(
            (
                _too_few_buckets,
                lambda c: (
                    f"relative_attention_max_distance={c.relative_attention_max_distance} must be above half of "
                    f"relative_attention_num_buckets={c.relative_attention_num_buckets} (at least 2): the first half "
                    f"of the buckets holds one distance each"
                ),
            ),
        ),
        parameters=lambda sizes, layers: (
            sizes.c.relative_attention_num_buckets * sizes.H * (1 if sizes.c.relative_attention_shared else layers)
        ),
    ),
    "disentangled": Scheme(
        acts_on="attention",
        bidirectional=True,
        splits_heads=False,
        fields=(
            "pos_att_type",
            "share_att_key",
            "position_buckets",
            "max_relative_positions",
            "relative_embedding_norm",
        ),
        parameters=_distance_table,
        attention_parameters=_distance_projections,
        module="attention_disentangled",
    ),
}
ATTENTION_KINDS = {
    PLAIN: Kind(families=FAMILIES, flash=True, separable=True),  # every family has it
    "sliding_attention": Kind(
        families=(DECODER, MOE, ENCODER),
        needs=WINDOW,
        companions={"sliding_window": 4},
        layer_type="sliding_attention",
        windowed=True,
        near=_window,
        flash=True,
        separable=True,
    ),
    "strided_attention": Kind(  # any past token may be needed again: nothing can leave the cache
        families=(DECODER, MOE),
        needs=STRIDE,
        companions={"attention_stride": 3},
        near=lambda c: (c.attention_stride - 1, 0),
        stride=lambda c: c.attention_stride,
    ),
    "local_global_attention": Kind(
        families=(ENCODER,),
        needs=WINDOW,
        companions={"sliding_window": 3},
        windowed=True,
        near=_window,
        global_tokens=True,
        own_scores=True,
        splits_heads=False,
        parameters=_global_projections,
        module="attention_local_global",
    ),
    "linear_attention": Kind(
        families=(DECODER,),
        layer_type=STATE_LAYER_TYPE,
        lookback=lambda c: 0,
        memories=1,
        flash=True,
        own_scores=True,
        rules=(
            (
                _adds_single_scores,
                lambda c: (
                    f"position_encoding={c.position_encoding!r} adds to single scores, which linear_attention does not "
                    f"have; rotary, learned, sinusoidal and none go with it"
                ),
            ),
            _no_single_scores("attn_logit_softcapping", None, "leave it null"),
            _no_single_scores("attention_dropout", 0, "set it to 0 and use hidden_dropout"),
            _no_single_scores("attention_multiplier", None, "leave it null"),
        ),
        module="attention_linear",
    ),
    "compressive_attention": Kind(
        families=(DECODER,),
        needs=SEGMENT,
        companions={"segment_length": 4},
        layer_type=STATE_LAYER_TYPE,
        lookback=lambda c: c.segment_length,
        memories=2,
        segments=True,
        own_scores=True,
        splits_heads=False,
        parameters=lambda sizes: sizes.H,
        module="attention_recurrent",
    ),
    "recurrent_attention": Kind(
        families=(DECODER,),
        needs=SEGMENT | MEMORY,
        companions={"segment_length": 4, "memory_length": 4},
        layer_type=STATE_LAYER_TYPE,
        implied_by="memory_length",
        lookback=lambda c: c.segment_length + c.memory_length,
        segments=True,
        own_scores=True,
        rules=(
            (
                lambda c: POSITION_SCHEMES[c.position_encoding].absolute,
                lambda c: (
                    f"position_encoding={c.position_encoding!r} numbers the tokens of a row, but recurrent_attention "
                    f"remembers tokens of any number of segments; rotary, alibi, relative and none know distances"
                ),
            ),
        ),
        module="attention_recurrent",
    ),
}

# (role, name) -> class or function; roles: "position", "patch position", "scheme attention", "attention", "mask",
# "feed forward".
_implementations: dict[tuple[str, str], Callable] = {}


def implements(role: str, *names: str):
    """Decorator: enter a class or function for a role and each of `names`."""

    def enter(thing):
        _implementations.update({(role, name): thing for name in names})
        return thing

    return enter


def implementation(role: str, name: str, module: str | None = None) -> Callable | None:
    """The class or function of a role and name, or None. `module`: the file of this folder that enters it.

    A model on the Hub has the file because its family's file imports it, too: see `decoder_memory.py`, `encoder.py`.

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
    A field of its own is a keyword argument of a config like any other, once it is named in `scheme.fields`.
    """
    POSITION_SCHEMES[name] = scheme
    implements("position", name)(make)
    if patches is not None:
        implements("patch position", name)(patches)


def register_attention_kind(name: str, kind: Kind, make: Callable | None = None, mask: Callable | None = None) -> None:
    """Add a name for `attention_pattern`: give `mask`, or for a kind with own scores `make`.

    mask: config -> mask_function(batch_idx, head_idx, q_idx, kv_idx), true where a query sees a key, as in
    transformers.masking_utils; the future, padding and other documents are hidden beside it. make: (config, layer_idx)
    -> a subclass of attention.Attention, with `own_scores=True`. `kind.needs` may name fields that no config has.
    """
    ATTENTION_KINDS[name] = kind
    if make is not None:
        implements("attention", name)(make)
    if mask is not None:
        implements("mask", name)(mask)


def own_fields() -> set[str]:
    """All config fields that belong to schemes or kinds of attention."""
    of_schemes = {name for scheme in POSITION_SCHEMES.values() for name in scheme.fields}
    return of_schemes | {name for kind in ATTENTION_KINDS.values() for name in kind.needs}


def unregister(name: str) -> None:
    """Take back what `register_position_scheme` or `register_attention_kind` added under a name."""
    POSITION_SCHEMES.pop(name, None)
    ATTENTION_KINDS.pop(name, None)
    for key in [key for key in _implementations if key[1] == name]:
        del _implementations[key]

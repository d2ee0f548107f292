"""Bytes that a training step of our models holds beside weights, gradients and optimizer states.

What each operation keeps for its backward pass is counted by arithmetic, as torch's autograd keeps it for
modeling/block.py and the files beside it (the idea: Korthikanti et al. 2022, section 4). Standard library only.

D hidden size, F feed-forward width, H query heads, G key/value heads, K head size, V vocabulary.
"""

from dataclasses import dataclass

from anyformer.modeling.families import FAMILIES
from anyformer.modeling.traits import ATTENTION_KINDS, MLP_TYPES, PLAIN, POSITION_SCHEMES, attention_kinds, mlp_kinds

FP32, HALF = 4, 2
# Logits are made by such shares, but by at least so many bytes (modeling/lm_head.py, which needs torch).
CHUNK_SHARE, CHUNK_BYTES = 8, 1 << 24
# Tokens of a tile, of the shortest row in tiles, and the share of tiles up to which there are some
# (modeling/kernels/tiles.py, which needs torch).
TILE, SHORTEST_ROW, MOST_TILES = 64, 256, 0.75
# Rough, from torch's profiler (8 rows of 96 tokens, 4 heads of 32): matrices of scores that disentangled attention
# keeps, and values for each channel of a query that linear attention and memories keep in fp32.
SCORES_OF_DISENTANGLED, KEPT_BY_STATES = 5, 13
# Values for each channel of a query that global tokens keep, whose own keys and values are made (2 rows of 4,096).
KEPT_BY_GLOBAL_TOKENS = 5
# Values that an activation function keeps for each channel, its output included; transformers' tanh GELU is Python.
KEPT_BY_ACTIVATION = {"relu": 1, "gelu_new": 5}


@dataclass(frozen=True)
class Batch:
    """What a forward pass reads.

    tokens: of a row that the model, or its encoder, reads. targets: of a row that the decoder of an encoder-decoder
    writes. labelled: share of the positions that the head predicts. vocabulary: rows of that head; 0: one vector per
    row is classified, which costs nothing worth counting.
    """

    rows: int
    tokens: int
    targets: int = 0
    labelled: float = 1.0
    vocabulary: int = 0


@dataclass(frozen=True)
class Activations:
    """Bytes. peak: the most at once. layers: what all layers keep. logits: of all positions, in fp32, if they were made
    at once; chunk: what is made of them at a time."""

    peak: int
    layers: int
    logits: int
    chunk: int


@dataclass(frozen=True)
class How:
    """How a step computes. half: bf16 or fp16 autocast. on_cpu: torch keeps more of some operations there.
    checkpointing: layers keep their input, and are computed once more in the backward pass."""

    half: bool = False
    on_cpu: bool = False
    checkpointing: bool = False
    eager: bool = False


def activations(config, batch: Batch, how: How) -> Activations:
    """The activations of a batch.

    config: of one of our families, nothing left to derive.
    """
    layer = _Layer(config, how)
    kinds, mlps = attention_kinds(config), mlp_kinds(config)
    stacks = [layer.stack(batch.rows, batch.tokens, list(zip(kinds, mlps)))]
    predicted = batch.rows * batch.tokens
    if FAMILIES[config.model_type].has_decoder:
        predicted = batch.rows * batch.targets
        if hasattr(config, "stack_config"):
            mlps = mlp_kinds(config.stack_config(is_causal=True))
        stacks.append(layer.stack(batch.rows, batch.targets, [(kinds[0], mlp) for mlp in mlps], batch.tokens))
    labelled = round(predicted * batch.labelled)
    of_all = any(getattr(config, name, 0) for name in ("mask_decoder_layers", "conv_kernel_size"))
    all_tokens = mlps[-1] == "sparse" or of_all or how.checkpointing
    if config.model_type == "anyformer_encoder" and batch.vocabulary and not all_tokens:
        stacks[0].kept[-1] -= (predicted - labelled) * layer.feed_forward_part()  # it runs on labelled tokens alone
    head, logits, chunk = layer.head(labelled, batch.vocabulary)
    kept = sum(sum(stack.kept) for stack in stacks)
    before, most = 0.0, 0.0  # what lies there when a stack's last layer is gone through backwards, and the peak so far
    for stack in stacks:
        before += stack.ends + sum(stack.kept)
        most = max(most, before + stack.again + stack.working)
    return Activations(round(max(most, before + head)), round(kept), logits, chunk)


@dataclass(frozen=True)
class _Stack:
    """Bytes. kept: of each layer. ends: before the first layer and after the last. again: a checkpointed layer that is
    computed once more. working: what a layer's backward pass holds besides."""

    kept: list[float]
    ends: float
    again: float
    working: float


class _Layer:
    """Bytes of one layer's parts. `fp32` is the width of the residual stream, `compute` that of products."""

    def __init__(self, config, how: How):
        c = self.c = config
        self.how, self.compute = how, HALF if how.half else FP32
        self.D, self.H = c.hidden_size, c.num_attention_heads
        self.G, self.K = c.num_key_value_heads, c.head_dim
        self.gated = MLP_TYPES[c.mlp_type].gated

    def stream(self, tokens: int) -> int:
        """The residual stream."""
        return tokens * self.D * FP32

    def norm(self, width: int) -> int:
        """Of a token: the norm's input; torch composes an RMSNorm on CPUs, and keeps the normalised input, too."""
        return width * FP32 * (2 if self.how.on_cpu and self.c.norm_type == "rmsnorm" else 1)

    def read(self, width: int, products: int) -> int:
        """Of a token: what linear layers with one input keep of it. Autocast makes a copy for each of them."""
        return width * (HALF * products if self.how.half else FP32)

    def dropout(self) -> int:
        """Of a token: which channels stay; on CPUs torch keeps what it multiplies with."""
        return self.D * (FP32 if self.how.on_cpu else 1) if self.c.hidden_dropout > 0 else 0

    def keys_in_tiles(self, kind: str, tokens: int) -> int | None:
        """The keys that a tile of queries meets; None: attention is in one piece, under a mask of all pairs."""
        traits = ATTENTION_KINDS[kind]
        acts_on = POSITION_SCHEMES[self.c.position_encoding].acts_on
        if traits.near is None or self.how.eager or acts_on == "attention" or tokens < SHORTEST_ROW:
            return None
        keys = TILE * (1 + -(-sum(traits.near(self.c)) // TILE) + traits.global_tokens)
        if traits.stride is not None:
            keys += round(tokens / 2 * min(1, 2 * TILE / traits.stride(self.c)))
        return keys if keys <= MOST_TILES * tokens else None

    def scores_by_products(self, kind: str, tokens: int) -> int:
        """Of a token: its scores, where CPUs compute a trained bias's gradient by plain products."""
        if not (self.how.on_cpu and POSITION_SCHEMES[self.c.position_encoding].trained_bias):
            return 0
        return self.H * FP32 * (self.keys_in_tiles(kind, tokens) or tokens)

    def attention(self, kind: str, tokens: int, keys: int, reads: int = 3) -> tuple[float, float]:
        """Of a query's token, of a key's token: projections, output, and scores where they are kept."""
        traits, scheme = ATTENTION_KINDS[kind], POSITION_SCHEMES[self.c.position_encoding]
        masked = traits.windowed or traits.needs or scheme.acts_on == "scores"
        whole = self.how.eager or scheme.acts_on == "attention"  # its scores are kept, head by head
        shared = self.G if not masked and not whole else self.H  # a mask makes torch repeat keys and values
        in_tiles, value = self.keys_in_tiles(kind, tokens), self.compute
        per_query = 2 * self.H * self.K * value + self.H * FP32 + self.read(self.D, reads)
        if whole:
            matrices = SCORES_OF_DISENTANGLED if scheme.acts_on == "attention" else 1
            per_query += matrices * self.H * keys * (FP32 + (HALF if self.how.half else 0))
        if traits.memories:
            per_query += KEPT_BY_STATES * self.H * self.K * FP32
        if traits.global_tokens:
            per_query += KEPT_BY_GLOBAL_TOKENS * self.H * self.K * value
        # A tile of keys is copied for each tile of queries that meets it, as many heads as there are.
        per_key = 2 * self.K * value * (shared if in_tiles is None else self.G * in_tiles / TILE)
        if self.c.qk_norm:
            per_query += self.norm(self.H * self.K)
            per_key += self.norm(self.G * self.K)
        return per_query, per_key

    def feed_forward(self, width: int) -> float:
        """Of a token: from the feed-forward's input to that of its last product."""
        kept = KEPT_BY_ACTIVATION.get(self.c.hidden_act, 2) + (2 if self.gated else 0)
        return kept * width * self.compute + self.read(self.D, 2 if self.gated else 1)

    def feed_forward_part(self) -> float:
        """Of a token: with what stands around the feed-forward in its layer."""
        return self.feed_forward(self.c.intermediate_size) + self.norm(self.D) + self.dropout()

    def experts(self) -> float:
        """Of a token: its copies for the experts it is given to, what they keep, the router's scores."""
        c = self.c
        width, chosen = c.moe_intermediate_size or c.intermediate_size, c.num_experts_per_tok
        kept = (KEPT_BY_ACTIVATION.get(c.hidden_act, 2) + (3 if self.gated else 0)) * width + self.D
        shared = self.feed_forward(c.shared_expert_intermediate_size) if c.shared_expert_intermediate_size else 0
        return chosen * kept * self.compute + self.D * FP32 + 4 * c.num_experts * FP32 + shared

    def size(self, rows: int, tokens: int, kind: str, mlp: str, source: int | None = None) -> float:
        """All that a layer keeps. source: tokens of a row of the encoder that it attends to as well."""
        per_query, per_key = self.attention(kind, tokens, tokens)
        if self.keys_in_tiles(kind, tokens) is None:
            per_query += self.scores_by_products(kind, tokens)
        per_token = per_query + per_key + 2 * self.norm(self.D) + 2 * self.dropout()
        per_token += self.experts() if mlp == "sparse" else self.feed_forward(self.c.intermediate_size)
        total = rows * tokens * per_token
        if source is not None:
            per_query, per_key = self.attention(PLAIN, tokens, source, reads=1)
            casts = self.read(self.D, 2) if self.how.half else 0  # in fp32 all layers read the encoder's one output
            total += rows * tokens * (per_query + self.norm(self.D) + self.dropout()) + rows * source * (
                per_key + casts
            )
        return total

    def stack(self, rows: int, tokens: int, layers: list[tuple[str, str]], source: int | None = None) -> _Stack:
        """layers: kind of attention and of feed-forward of each. source: see `size`."""
        sizes = [self.size(rows, tokens, kind, mlp, source) for kind, mlp in layers]
        kinds = [kind for kind, _ in layers]
        ends, working = self.ends(rows * tokens, tokens, kinds), self.working(rows * tokens)
        if not self.how.checkpointing:
            return _Stack(sizes, ends, 0, working)
        trained = rows * tokens * max((self.scores_by_products(kind, tokens) for kind in kinds), default=0)
        inputs = [self.stream(rows * tokens)] * len(sizes)
        return _Stack(inputs, ends, max(sizes, default=0), working + 2 * trained)  # and the sum of the bias's gradients

    def working(self, tokens: int) -> float:
        """What the backward pass of the last layer holds before it frees what the layer kept."""
        width = self.c.intermediate_size
        if getattr(self.c, "num_experts", None):
            width = max(width, self.c.num_experts_per_tok * (self.c.moe_intermediate_size or width))
        return tokens * ((2 if self.gated else 1) * width * self.compute + self.D * FP32)

    def ends(self, tokens: int, length: int, kinds: list[str]) -> float:
        """What is kept before the first layer and after the last one; score biases and masks of all layers."""
        last = self.D * FP32 if self.c.norm_position == "pre" else 0
        first = self.norm(self.D) if self.c.embedding_norm else 0
        scheme = POSITION_SCHEMES[self.c.position_encoding]
        biased = scheme.acts_on == "scores"
        pairs = 0
        for kind in set(kinds):
            in_tiles = self.keys_in_tiles(kind, length)
            if biased:
                pairs += length * self.H * self.compute
            if in_tiles is not None:
                pairs += in_tiles * FP32 * (self.H if biased else 1)
            elif not biased and (ATTENTION_KINDS[kind].windowed or ATTENTION_KINDS[kind].needs):
                pairs += length
        return tokens * (last + first + self.dropout() + pairs)

    def head(self, positions: int, vocabulary: int) -> tuple[int, int, int]:
        """(what the loss holds, logits of all positions in fp32, logits at a time).

        The loss makes its gradients at once: those of the hidden states, twice where they are put together, and that of
        the weight (see modeling/lm_head.py).
        """
        if not vocabulary or not positions:
            return 0, 0, 0
        width = getattr(self.c, "embedding_size", None) or self.D
        logits = FP32 * positions * vocabulary
        half = HALF / FP32 if self.how.half and not self.how.on_cpu else 0
        chunk = min(round(logits * (1 + half)), max(CHUNK_BYTES, logits // CHUNK_SHARE))
        return chunk + 3 * positions * width * FP32 + vocabulary * width * FP32, logits, chunk

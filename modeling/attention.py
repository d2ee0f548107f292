"""Multi-head, multi-query and grouped-query attention over transformers' attention backends.

Shapes: B batch, T query length, S key length, H query heads, G key/value heads, K head size, D hidden size.
"""

import inspect

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention_masks import CACHE
from .block import build_norm
from .positions import rotate
from .traits import AT_QUERIES_KEYS, ATTENTION_KINDS, PARTS, POSITION_SCHEMES, adjustments


def eager_attention(
    module, query, key, value, attention_mask, scaling, dropout=0.0, position_bias=None, softcap=None, **kwargs
) -> tuple:
    """softmax(q k^T * scaling + bias + mask) v, Vaswani et al. 2017, eq. 1: the readable reference backend.

    With `softcap` the scaled scores s become softcap * tanh(s / softcap) first (Gemma Team 2024, section 2).
    `s_aux` (H,) in kwargs holds the scores of attention sinks (attention_sinks.py).

    query (B, H, T, K); key, value (B, G, S, K); attention_mask additive (B, 1, T, S) or None.
    Returns the output (B, T, H, K) and the weights (B, H, T, S).
    """
    key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    for extra in (position_bias, attention_mask):
        scores = scores if extra is None else scores + extra
    if (sinks := kwargs.get("s_aux")) is not None:
        scores = torch.cat((scores, sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)), dim=-1)
    # At least fp32. fp64 is kept: masks hold its lowest number, which would be -inf in fp32 and give nan.
    at_least_fp32 = torch.promote_types(scores.dtype, torch.float32)
    weights = nn.functional.softmax(scores, dim=-1, dtype=at_least_fp32).to(query.dtype)[..., : key.shape[2]]
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def paged_eager_attention(module, query, key, value, attention_mask, scaling, cache=None, **kwargs) -> tuple:
    """`eager_attention` on the keys and values of a paged cache; transformers' own drops soft caps and score biases."""
    if cache is None:  # `Attention.forward` has read the pages
        return eager_attention(module, query, key, value, attention_mask, scaling, **kwargs)
    states = {"key_states": key, "value_states": value, "layer_idx": module.layer_idx}
    if "read_index" in inspect.signature(cache.update).parameters:  # transformers < 5.23
        # The cache returns lists of tokens (T, heads, K), and there is a mask for each layer type.
        cached = cache.update(**states, read_index=kwargs["read_index"], write_index=kwargs["write_index"])
        key, value = (x.transpose(0, 1).unsqueeze(0) for x in cached)
        if isinstance(attention_mask, dict):
            attention_mask = attention_mask[module.config.layer_types[module.layer_idx]]
    else:
        key, value = cache.update(**states, kwargs=kwargs)
    return eager_attention(module, query, key, value, attention_mask, scaling, **kwargs)


class Attention(nn.Module):
    """Attention with `num_key_value_heads` key/value heads: as many as heads (MHA), fewer (GQA), one (MQA).

    Keys and values come from the same states as the queries, or from `key_value_states`: an encoder's tokens in
    `cross_attention` (Vaswani et al. 2017, section 3.2.3), or hidden states other than those of the queries (DeBERTa).
    """

    reads_other_states = False  # whether keys and values may come from other states than queries, as in cross-attention

    def __init__(self, config, layer_idx: int, cross_attention: bool = False):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.cross_attention, self.is_causal = cross_attention, config.is_causal and not cross_attention
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5 if config.attention_multiplier is None else config.attention_multiplier
        # Passed to the backend only if set: flash kernels apply the window by themselves, sdpa refuses a softcap.
        self.backend_kwargs = {}
        kind = ATTENTION_KINDS[config.attention_kinds[layer_idx]]
        if kind.windowed and not kind.own_scores and not cross_attention:
            # Kernels count the query itself, as our causal windows do; an encoder's window counts tokens on each side.
            self.backend_kwargs["sliding_window"] = config.sliding_window + (not config.is_causal)
        if config.attn_logit_softcapping is not None:
            self.backend_kwargs["softcap"] = config.attn_logit_softcapping
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.q_proj.init_gain = self.head_dim**-0.5 / self.scaling  # read by `_init_weights`: scores of variance 1
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_key_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.attention_out_bias)
        self.o_proj.writes_residual = True  # read by `_init_weights`
        sizes = (queries, keys) if config.qk_norm_width else (self.head_dim,) * 2
        self.q_norm, self.k_norm = (build_norm(config, size) if config.qk_norm else None for size in sizes)
        gate = config.attention_gate
        self.output_gate = None if gate is None else PARTS.options["attention_gate"].load()(config)
        rows = [] if cross_attention else adjustments(config)
        self.adjusted_by = [row.module for row in rows]
        for row in rows:
            self.add_module(row.module, row.load()(config, layer_idx))

    def score_bias(self, q_BHTK, k_BGSK, **kwargs) -> tuple:
        """Return (a score bias to add to `position_bias`, or None; the kwargs left for the backend)."""
        return None, kwargs

    def implementation(self) -> str:
        """The name of the backend."""
        return self.config._attn_implementation

    def heads(self, x, norm=None):
        """(B, T, H * K) -> (B, H, T, K). norm: applied to each head, or with `qk_norm_width` to all at once."""
        if norm is not None and self.config.qk_norm_width:
            x, norm = norm(x), None
        x_BTHK = x.view(*x.shape[:-1], -1, self.head_dim)
        return (x_BTHK if norm is None else norm(x_BTHK)).transpose(1, 2)

    def queries(self, hidden_states):
        """(B, T, D) -> (B, H, T, K)."""
        return self.heads(self.q_proj(hidden_states), self.q_norm)

    def keys_and_values(self, hidden_states) -> tuple:
        """(B, S, D) -> keys and values, each (B, G, S, K)."""
        return self.heads(self.k_proj(hidden_states), self.k_norm), self.heads(self.v_proj(hidden_states))

    def forward(
        self,
        hidden_states,
        attention_mask=None,
        position_embeddings=None,
        past_key_values=None,
        key_value_states=None,
        **kwargs,
    ) -> tuple:
        """(B, T, D) -> (B, T, D) and the attention weights (B, H, T, S), or None if the backend keeps none.

        vLLM reads this source: it takes the layer's scale from the call of what `get_interface` returned, and fuses
        three calls on one input into one product (vllm/model_executor/models/transformers/fusers).
        """
        if self.cross_attention or self.reads_other_states:
            q_BHTK = self.queries(hidden_states)
            k_BGSK, v_BGSK = self.keys_and_values_of_others(hidden_states, key_value_states, past_key_values)
        else:
            q, k, v = self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
            q_BHTK, k_BGSK, v_BGSK = self.heads(q, self.q_norm), self.heads(k, self.k_norm), self.heads(v)
        if position_embeddings is not None:
            q_BHTK, k_BGSK = rotate(q_BHTK, *position_embeddings), rotate(k_BGSK, *position_embeddings)
        for name in self.adjusted_by:
            q_BHTK, k_BGSK, v_BGSK, kwargs = getattr(self, name)(q_BHTK, k_BGSK, v_BGSK, **kwargs)
        if past_key_values is not None and not self.cross_attention:
            k_BGSK, v_BGSK = past_key_values.update(k_BGSK, v_BGSK, self.layer_idx)
        if "cache" in kwargs and CACHE == "cache":  # pages of continuous batching; backends read them in older versions
            k_BGSK, v_BGSK = kwargs.pop("cache").update(k_BGSK, v_BGSK, self.layer_idx, kwargs=kwargs)
        bias, kwargs = self.score_bias(q_BHTK, k_BGSK, **kwargs)
        if bias is not None:
            kwargs["position_bias"] = bias if kwargs.get("position_bias") is None else bias + kwargs["position_bias"]
        run = ALL_ATTENTION_FUNCTIONS.get_interface(self.implementation(), eager_attention)
        run = self.own_backend(**kwargs) or run
        out_BTHK, weights = run(
            self, q_BHTK, k_BGSK, v_BGSK, attention_mask, scaling=self.scaling, **self.backend_arguments(), **kwargs
        )
        if self.output_gate is not None:
            out_BTHK = self.output_gate(out_BTHK, hidden_states)
        return self.o_proj(out_BTHK.reshape(*hidden_states.shape[:-1], -1)), weights

    def attend(self, q_BHTK, k_BGSK, v_BGSK, attention_mask, **kwargs) -> tuple:
        """Run the backend, as `forward` does: (B, T, H, K) and the weights it keeps."""
        name = self.implementation()
        run = self.own_backend(**kwargs) or ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention)
        kwargs |= self.backend_arguments()
        return run(self, q_BHTK, k_BGSK, v_BGSK, attention_mask, scaling=self.scaling, **kwargs)

    def backend_arguments(self) -> dict:
        """Arguments of the backend beside the mask and the scale."""
        return self.backend_kwargs | {"dropout": self.config.attention_dropout if self.training else 0.0}

    def own_backend(self, **kwargs):
        """A function to run in place of the backend, or None."""
        return paged_eager_attention if self.implementation() == "paged|eager" else None

    def keys_and_values_of_others(self, hidden_states, key_value_states, past_key_values) -> tuple:
        """Keys and values of `key_value_states`, or if it is None of the queries' tokens.

        Those of an encoder's tokens are projected at the first step and read from the cache at all later ones.
        """
        if not self.cross_attention or past_key_values is None:
            return self.keys_and_values(hidden_states if key_value_states is None else key_value_states)
        cache = past_key_values.cross_attention_cache
        if past_key_values.is_updated.get(self.layer_idx):
            return cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values
        keys_and_values = cache.update(*self.keys_and_values(key_value_states), self.layer_idx)
        past_key_values.is_updated[self.layer_idx] = True
        return keys_and_values


def build_attention(config, layer_idx: int) -> Attention:
    """The self-attention of a layer: plain, or the class of its kind or position scheme."""
    kind, scheme = ATTENTION_KINDS[config.attention_kinds[layer_idx]], POSITION_SCHEMES[config.position_encoding]
    part = next((part for name, part in PARTS.attention_class.items() if getattr(config, name, False)), None)
    if kind.own_scores:
        part = kind
    elif scheme.attention is not None:
        part = scheme.attention
    elif config.position_at == "queries_keys":
        part = AT_QUERIES_KEYS
    make = Attention if part is None else part.load()
    return make(config, layer_idx)

"""A forward pass of one new token through the layers, as `generate` asks for it, without calling their modules.

It computes what the modules would. In a small model most of a token's time goes into calling modules, in a large one,
on a CPU, into reading weights.
Shapes as in attention.py, with N rows of one token each, and R query heads for each key/value head.
"""

import torch
from torch import nn
from torch.nn.modules import module as every_module
from transformers import DynamicCache

from .attention import Attention
from .block import TransformerBlock
from .cache_growing import GrowingLayer
from .feed_forward import MLP, GatedMLP
from .normalization import RMSNorm
from .positions_rotary import rotate
from .products import product

# Keyword arguments of all layers that say nothing about one token or are read here, and those of each layer.
OF_ALL = {
    "use_cache",
    "position_ids",
    "past_key_values",
    "is_causal",
    "encoder_hidden_states",
    "encoder_attention_mask",
}
OF_EACH = {"attention_mask", "position_embeddings"}


def one_token(stack, x_N1D, per_layer: list[dict], past_key_values=None, encoder_attention_mask=None, **context):
    """(N, 1, D) -> (N, 1, D) after the last layer; None where the layers have to be called instead.

    That is with more tokens, with gradients, and wherever a module is not as it was built: adapted, quantised, sharded,
    hooked. It is asked anew for each token, since all this comes and goes.
    """
    if (
        past_key_values is None
        or torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or type(x_N1D) is not torch.Tensor
        or x_N1D.shape[1] != 1
        or torch.jit.is_tracing()
        or torch.is_autocast_enabled(x_N1D.device.type)
        or stack.training
        or stack.layers_per_group != 1
        or stack.config._attn_implementation != "sdpa"
        or context.keys() - OF_ALL
        or any(own.keys() - OF_EACH for own in per_layer)
        or every_module._global_forward_hooks
        or every_module._global_forward_pre_hooks
    ):
        return None
    caches = past_key_values, None
    if hasattr(past_key_values, "cross_attention_cache"):
        caches = past_key_values.self_attention_cache, past_key_values.cross_attention_cache
        if not all(past_key_values.is_updated.get(number) for number in range(len(per_layer))):
            return None
    if len(stack.layers) != len(per_layer) or not all(is_as_built(layer) for layer in stack.layers):
        return None
    x_ND = x_N1D[:, 0]
    for layer, own in zip(stack.layers, per_layer):
        x_ND = add(layer, layer.input_layernorm, x_ND, attend, layer.self_attn, caches[0], **own)
        if layer.cross_attn is not None:
            cross = layer.cross_attn, caches[1], encoder_attention_mask
            x_ND = add(layer, layer.cross_attention_layernorm, x_ND, attend_to_encoder, *cross)
        x_ND = add(layer, layer.post_attention_layernorm, x_ND, feed_forward, layer.mlp)
    return x_ND[:, None]


def is_as_built(layer: nn.Module) -> bool:
    """Whether nothing else than in block.py, attention.py and feed_forward.py happens where a layer is called."""
    parts = layer._modules
    if not is_plain(layer, TransformerBlock):
        return False
    attentions = [parts["self_attn"]] if parts.get("cross_attn") is None else [parts["self_attn"], parts["cross_attn"]]
    if not all(is_plain(part, Attention) for part in attentions) or not is_plain(parts["mlp"], MLP, GatedMLP):
        return False
    return all(
        is_plain(linear, nn.Linear) and type(linear._parameters["weight"]) is nn.Parameter
        for part in (*attentions, parts["mlp"])
        for name, linear in part._modules.items()
        if name.endswith("_proj")
    )


def is_plain(module: nn.Module, *classes: type) -> bool:
    """Whether a module is of one of these classes, and calling it is its class's `forward` and nothing else."""
    own = module.__dict__
    return (
        module.__class__ in classes
        and not own["_forward_hooks"]
        and not own["_forward_pre_hooks"]
        and own.get("_compiled_call_impl") is None
        and "forward" not in own
    )


def add(layer, norm, x_ND, part, *arguments, **named):
    """TransformerBlock's `residual`, without dropout."""
    if layer.is_pre_norm:
        return x_ND + part(normalised(norm, x_ND), *arguments, **named)
    return normalised(norm, x_ND + part(x_ND, *arguments, **named))


def normalised(norm, x):
    if not is_plain(norm, RMSNorm) or x.dtype != norm.weight.dtype:
        return norm(x)
    return torch.rms_norm(x, norm.normalized_shape, norm.weight, norm.eps)


def attend(x_ND, attention, cache, attention_mask=None, position_embeddings=None):
    """Self-attention: (N, D) -> (N, D). attention_mask: None, or bool or additive, (N or 1, H or 1, 1, S)."""
    q_NH1K, k_NG1K, v_NG1K = (heads(x_ND, attention, name) for name in ("q_proj", "k_proj", "v_proj"))
    if attention.q_norm is not None:
        q_NH1K, k_NG1K = normalised(attention.q_norm, q_NH1K), normalised(attention.k_norm, k_NG1K)
    if position_embeddings is not None:
        both, queries = rotate(torch.cat((q_NH1K, k_NG1K), dim=1), *position_embeddings), q_NH1K.shape[1]
        q_NH1K, k_NG1K = both.narrow(1, 0, queries), both.narrow(1, queries, k_NG1K.shape[1])
    held = cache.layers[attention.layer_idx] if type(cache) is DynamicCache and not cache.offloading else None
    if type(held) is GrowingLayer:
        k_NGSK, v_NGSK = held.update(k_NG1K, v_NG1K)
    else:
        k_NGSK, v_NGSK = cache.update(k_NG1K, v_NG1K, attention.layer_idx)
    return values_seen(attention, q_NH1K, k_NGSK, v_NGSK, attention_mask)


def attend_to_encoder(x_ND, attention, cache, attention_mask):
    """Cross-attention, whose keys and values the cache has since the first token: (N, D) -> (N, D)."""
    q_NH1K, held = heads(x_ND, attention, "q_proj"), cache.layers[attention.layer_idx]
    if attention.q_norm is not None:
        q_NH1K = normalised(attention.q_norm, q_NH1K)
    return values_seen(attention, q_NH1K, held.keys, held.values, attention_mask)


def heads(x_ND, attention, name: str):
    """A projection of (N, D), as (N, H, 1, K)."""
    return project(x_ND, attention, name).view(x_ND.shape[0], -1, 1, attention.head_dim)


def project(x_ND, part, name: str):
    weights = part._modules[name]._parameters
    return product(x_ND, weights["weight"], weights["bias"])


def values_seen(attention, q_NH1K, k_NGSK, v_NGSK, mask):
    """Softmax attention and output projection: (N, D). Heads that share keys stand where other queries would."""
    rows, groups, shared = q_NH1K.shape[0], k_NGSK.shape[1], attention.num_key_value_groups
    if mask is not None and shared > 1 and mask.shape[1] > 1:
        mask = mask.reshape(mask.shape[0], groups, shared, mask.shape[-1])
    q_NGRK = q_NH1K.reshape(rows, groups, shared, attention.head_dim)
    out_NGRK = nn.functional.scaled_dot_product_attention(
        q_NGRK, k_NGSK, v_NGSK, attn_mask=mask, scale=attention.scaling
    )
    return project(out_NGRK.reshape(rows, -1), attention, "o_proj")


def feed_forward(x_ND, mlp):
    """MLP's or GatedMLP's: (N, D) -> (N, D)."""
    up = project(x_ND, mlp, "up_proj")
    wide = mlp.act_fn(project(x_ND, mlp, "gate_proj")) * up if isinstance(mlp, GatedMLP) else mlp.act_fn(up)
    return project(wide, mlp, "down_proj")

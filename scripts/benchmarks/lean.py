"""A decoder of LLaMA's architecture with nothing around it, as a peer: no cache, padding, masks or other architectures.

Queries, keys and values are one product, gate and up another; causal sdpa takes no mask; tables of rotary angles are
made once. The loss is ours, so that the difference lies in the layers.
"""

import torch
from anyformer.modeling.linear_cross_entropy import linear_cross_entropy, shift_left
from torch import nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu
from transformers.modeling_outputs import CausalLMOutput

# B rows of T tokens, D channels, H heads of K channels, I channels of the feed-forward part


class LeanBlock(nn.Module):
    def __init__(self, layer, heads: int, eps: float):
        """layer: a layer of transformers' LLaMA, whose weights are copied."""
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.heads, self.eps = heads, eps
        self.norms = nn.ParameterList(
            norm.weight.detach().clone() for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        self.qkv = joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.gate_up = joined(mlp.gate_proj, mlp.up_proj)
        self.out, self.down = joined(attention.o_proj), joined(mlp.down_proj)

    def forward(self, x_BTD, cos_TK, sin_TK):
        normed = rms_norm(x_BTD, x_BTD.shape[-1:], self.norms[0], self.eps)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(normed).chunk(3, dim=-1))
        q, k = (x * cos_TK + torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1) * sin_TK for x in (q, k))
        seen = scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        x_BTD = x_BTD + self.out(seen.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(rms_norm(x_BTD, x_BTD.shape[-1:], self.norms[1], self.eps)).chunk(2, dim=-1)
        return x_BTD + self.down(silu(gate) * up)


class LeanDecoder(nn.Module):
    """(input_ids, labels) (B, T) -> an output with the loss, as transformers' LLaMA with the same weights has it."""

    def __init__(self, native):
        super().__init__()
        config, body = native.config, native.model
        self.eps = config.rms_norm_eps
        self.embed = nn.Embedding.from_pretrained(body.embed_tokens.weight.detach().clone(), freeze=False)
        self.layers = nn.ModuleList(LeanBlock(layer, config.num_attention_heads, self.eps) for layer in body.layers)
        self.norm = nn.Parameter(body.norm.weight.detach().clone())
        self.head = joined(native.lm_head)
        angles = torch.outer(torch.arange(config.max_position_embeddings).float(), body.rotary_emb.inv_freq.float())
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin(), persistent=False)

    def forward(self, input_ids, labels, use_cache=False):
        x_BTD, length = self.embed(input_ids), input_ids.shape[1]
        for layer in self.layers:
            x_BTD = layer(x_BTD, self.cos[:length], self.sin[:length])
        x_BTD = rms_norm(x_BTD, x_BTD.shape[-1:], self.norm, self.eps)
        loss = linear_cross_entropy(x_BTD.flatten(0, 1), self.head.weight, shift_left(labels).flatten())
        return CausalLMOutput(loss=loss)


def joined(*linears) -> nn.Linear:
    """Linear layers of one input as one product."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight)
    return made

"""Kimi Linear's layers of delta attention; its layers of full attention are latent attention."""

from ..weights import Weights, renamed

GATES = ("f_a_proj", "f_b_proj", "dt_bias")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "b_proj", "g_a_proj", "g_b_proj", "o_proj")
KIMI_DELTA = {
    **{f"layers.*.self_attn.{part}": renamed(f"layers.*.self_attn.{part}") for part in PROJECTIONS},
    **{f"layers.*.self_attn.forget_gate.{part}": renamed(f"layers.*.self_attn.{part}") for part in GATES},
    "layers.*.self_attn.forget_gate.A_log": renamed("layers.*.self_attn.A_log", ones=(0, 1, 3)),
    "layers.*.self_attn.conv1d.weight": Weights(("layers.*.self_attn.conv_weight",), ones=(1,)),
    "layers.*.self_attn.o_norm": renamed("layers.*.self_attn.norm"),
}

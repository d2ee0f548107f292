"""Laws of local and global attention; whole models are compared with Longformer in test_encoder.py."""

import pytest
import torch
from anyformer.modeling.attention import Attention
from anyformer.modeling.attention_local_global import LocalGlobalAttention, global_attention_context
from anyformer.modeling.attention_masks import make_masks
from anyformer.modeling.configuration_encoder import AnyformerEncoderConfig
from native_models import with_random_weights
from watching import Watch

EXACT = {"atol": 1e-5, "rtol": 1e-5}  # fp32, other orders of the same sums
BATCH, HEADS, HIDDEN, WINDOW = 2, 4, 32, 3


def make_config(backend="eager", kind="local_global_attention", **fields):
    common = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "position_encoding": "none", "attention_bias": True}
    common |= {"num_hidden_layers": 1, "attention_pattern": [kind]}
    common |= {"sliding_window": WINDOW} if kind != "full_attention" else {}
    config = AnyformerEncoderConfig(**(common | fields))
    config._attn_implementation = backend
    return config


def contexts(config, x, global_tokens=None, padding=None, documents=None):
    """The keyword arguments of a layer, made once per forward pass."""
    masks = make_masks(config, x, padding, document_ids=documents, seen_by_all=global_tokens)
    context = global_attention_context(config, x, global_tokens, padding, documents)
    return {"attention_mask": masks[config.attention_kinds[0]], "global_context": context}


def globals_at(length, *rows):
    mask = torch.zeros(len(rows), length, dtype=torch.long)
    for row, columns in enumerate(rows):
        mask[row, list(columns)] = 1
    return mask


def test_global_tokens_are_rotated_by_the_positions_of_their_places():
    """With one set of weights for both parts, global rows are those of full attention."""
    ours, full = LocalGlobalAttention(make_config(), 0), Attention(make_config(kind="full_attention"), 0)
    with_random_weights(full)
    ours.load_state_dict(full.state_dict() | {f"global_{k}": v for k, v in full.state_dict().items() if k[0] != "o"})
    x, global_tokens = torch.randn(BATCH, 14, HIDDEN), globals_at(14, (1, 13), (6,))
    angles = torch.arange(14.0)[None, None, :, None] * torch.rand(4)
    rotation = angles.cos().repeat(1, 1, 1, 2), torch.cat((-angles.sin(), angles.sin()), dim=-1)
    out, weights = ours.eval()(x, position_embeddings=rotation, **contexts(ours.config, x, global_tokens))
    expected, full_weights = full(x, position_embeddings=rotation)
    at = global_tokens.bool()
    torch.testing.assert_close(out[at], expected[at], **EXACT)
    torch.testing.assert_close(weights.transpose(1, 2)[at], full_weights.transpose(1, 2)[at], **EXACT)
    assert not torch.allclose(out[~at], expected[~at], atol=1e-3)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_one_value_is_read_on_the_host_and_none_in_the_layers(backend):
    ours, x = LocalGlobalAttention(make_config(backend), 0), torch.randn(BATCH, 14, HIDDEN)
    global_tokens, padding = globals_at(14, (1, 13), (6,)), torch.ones(BATCH, 14, dtype=torch.long)
    with Watch() as watch:
        context = global_attention_context(ours.config, x, global_tokens, padding, torch.zeros_like(padding))
    assert len(watch.reads) == 1 and context[0].shape == (BATCH, 2)
    with Watch() as watch:
        ours(x, global_context=context)
    assert watch.reads == []


def test_without_global_tokens_there_is_no_context_and_padding_is_never_global():
    config, x, padding = make_config(), torch.randn(BATCH, 14, HIDDEN), torch.ones(BATCH, 14, dtype=torch.long)
    padding[:, 10:] = 0
    assert global_attention_context(config, x, None) is None
    assert global_attention_context(config, x, torch.zeros(BATCH, 14)) is None
    assert global_attention_context(config, x, globals_at(14, (12,), (13,)), padding) is None


def test_a_ready_mask_gives_global_tokens_their_rows():
    ours, x = with_random_weights(LocalGlobalAttention(make_config(), 0)), torch.randn(BATCH, 14, HIDDEN)
    global_tokens, padding = globals_at(14, (1, 10), (6,)), torch.ones(BATCH, 14, dtype=torch.long)
    padding[0, 11:] = 0
    expected = ours(x, **contexts(ours.config, x, global_tokens, padding))[0]
    visible = (torch.arange(14)[:, None] - torch.arange(14)).abs() <= WINDOW
    visible = visible | (global_tokens[:, :, None] | global_tokens[:, None, :]).bool()
    visible = (visible & padding[:, None, :].bool())[:, None]
    ready = torch.where(visible, 0.0, torch.finfo(torch.float).min)
    context = global_attention_context(ours.config, x, global_tokens, ready)
    torch.testing.assert_close(ours(x, ready, global_context=context)[0], expected, **EXACT)

"""Laws of segments with a memory beside those of test_laws.py: the papers' equations, written out slowly."""

import pytest
import torch
from anyformer.modeling.attention_linear import feature_map
from family_variants import COMPRESSIVE, tokens

from anyformer import AnyformerDecoderForCausalLM

TOLERANCE = 1e-5  # fp32, sums in another order


def build(config, **options):
    torch.manual_seed(0)
    model = AnyformerDecoderForCausalLM._from_config(config, **options).eval()
    for name, p in model.named_parameters():
        if name.endswith("gate"):
            torch.nn.init.normal_(p)
    return model


def heads(attention, x):
    """Queries, keys and values (B, H, T, K) of each head, and what makes (B, T, D) of (B, H, T, K)."""
    q, (k, v) = attention.queries(x), attention.keys_and_values(x)
    k, v = (each.repeat_interleave(attention.num_key_value_groups, dim=1) for each in (k, v))
    return q, k, v, lambda out: attention.o_proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("length", [1, 5, 13, 20])
def test_compressive_attention_is_the_papers_loop_over_segments(tiny_config, length, backend):
    config = tiny_config(**COMPRESSIVE, position_encoding="none")
    attention = build(config, attn_implementation=backend).model.layers[0].self_attn
    x = torch.randn(2, length, 32)
    q, k, v, project = heads(attention, x)
    gate, size = attention.gate.sigmoid()[:, None, None], 5
    memory, z, outputs = torch.zeros(2, 4, 8, 8), torch.zeros(2, 4, 8, 1), []
    for a in range(0, length, size):
        qs, ks, vs = (each[:, :, a : a + size] for each in (q, k, v))
        dot = torch.nn.functional.scaled_dot_product_attention(qs, ks, vs, is_causal=True)
        fq, fk = feature_map(qs), feature_map(ks)
        read = fq @ memory / (fq @ z).clamp(min=1e-12)
        old = fk @ memory / (fk @ z).clamp(min=1e-12)
        memory, z = memory + fk.transpose(-1, -2) @ (vs - old), z + fk.sum(2)[..., None]
        outputs.append(gate * read + (1 - gate) * dot)
    torch.testing.assert_close(attention(x)[0], project(torch.cat(outputs, 2)), atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_segment_after_segment_with_kept_states_is_the_whole_row(tiny_config, backend):
    """Dai et al. 2019, section 3.2, as the paper runs it: layer inputs of the last tokens are kept and detached."""
    model = build(tiny_config(segment_length=4, memory_length=6, position_encoding="none"), attn_implementation=backend)
    ids = tokens(2, 15)
    blocks, kept, outputs = model.model.layers, [None, None], []
    for part in ids.split(4, dim=1):
        x = model.get_input_embeddings()(part)
        for i, block in enumerate(blocks):
            before = x if kept[i] is None else torch.cat((kept[i], x), dim=1)
            kept[i] = before[:, -6:].detach()
            q, _, _, project = heads(block.self_attn, block.input_layernorm(x))
            _, k, v, _ = heads(block.self_attn, block.input_layernorm(before))
            past, length = before.shape[1] - x.shape[1], x.shape[1]
            seen = torch.ones(length, past + length, dtype=torch.bool).tril(past)
            x = x + project(torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen))
            x = x + block.mlp(block.post_attention_layernorm(x))[0]
        outputs.append(model.lm_head(model.model.norm(x)))
    expected, got = torch.cat(outputs, 1), model(ids, use_cache=False).logits
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=1e-5)
    parameters = [p for name, p in model.named_parameters() if "layernorm" not in name]
    wanted = torch.autograd.grad(expected.square().sum(), parameters)
    for found, gradient in zip(torch.autograd.grad(got.square().sum(), parameters), wanted):
        torch.testing.assert_close(found, gradient, atol=1e-5, rtol=1e-4)


def influence(model, length=21) -> tuple[set, set]:
    """Positions that the last token's output depends on, and those that it sends a gradient to."""
    embeds = torch.randn(1, length, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out = model(inputs_embeds=embeds, use_cache=False).logits[0, -1]
    (gradient,) = torch.autograd.grad(out.square().sum(), embeds)
    moved = set()
    with torch.no_grad():
        for t in range(length):
            other = embeds.clone()
            other[0, t] += 1
            if not torch.equal(model(inputs_embeds=other, use_cache=False).logits[0, -1], out):
                moved.add(t)
    return moved, set(gradient[0].abs().sum(-1).nonzero()[:, 0].tolist())


def test_what_is_beyond_the_window_has_influence(tiny_config):
    one, every = {"num_hidden_layers": 1}, set(range(21))
    sliding = influence(build(tiny_config(**one, attention_pattern=["sliding_attention"], sliding_window=4)))
    assert sliding == ({17, 18, 19, 20},) * 2
    assert influence(build(tiny_config(**one, attention_pattern=["linear_attention"]))) == (every, every)
    assert influence(build(tiny_config(**(one | COMPRESSIVE | {"segment_length": 4})))) == (every, every)
    # Segments of 4: token 20 begins one. Its memory counts, but no gradient goes there.
    recurrent = build(tiny_config(**one, segment_length=4, memory_length=6))
    assert influence(recurrent) == (set(range(14, 21)), {20})


def test_flash_and_serving_engines_are_refused_where_they_would_see_another_row(tiny_config):
    for fields, flash in ((COMPRESSIVE, False), ({"attention_pattern": ["linear_attention"]}, True)):
        model = build(tiny_config(**fields))
        assert model._supports_flash_attn is flash and not model._supports_attention_backend
    assert "layers.*.self_attn.q_proj" not in tiny_config(**COMPRESSIVE).base_model_tp_plan
    assert "layers.*.self_attn.q_proj" in tiny_config(segment_length=4, memory_length=4).base_model_tp_plan

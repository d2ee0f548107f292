"""Laws of disentangled attention and DeBERTa-v2's convolution: equal to native, on every backend."""

import pytest
import torch
from anyformer.modeling.attention_disentangled import DisentangledAttention, DisentangledPositions
from anyformer.modeling.configuration_encoder import AnyformerEncoderConfig
from anyformer.modeling.deberta_convolution import ConvolutionLayer
from native_models import with_random_weights
from torch import nn
from transformers import DebertaConfig, DebertaV2Config
from transformers.models.deberta import modeling_deberta as v1
from transformers.models.deberta_v2 import modeling_deberta_v2 as v2
from watching import Watch

EXACT = {"atol": 1e-5, "rtol": 1e-5}  # fp32, other orders of the same sums
# float64; transformers < 5.23 takes an fp32 root in a script
SCRIPTED = isinstance(v2.scaled_size_sqrt, torch.jit.ScriptFunction)
NATIVE = {"atol": 1e-6, "rtol": 1e-6} if SCRIPTED else {"atol": 1e-9, "rtol": 1e-9}
BATCH, HEADS, SIZE, HIDDEN = 2, 4, 8, 32
BOTH, TERMS = ["c2p", "p2c"], [["c2p"], ["p2c"], ["c2p", "p2c"]]


def make_config(backend="eager", **fields):
    common = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "norm_type": "layernorm", "norm_eps": 1e-7}
    common |= {"position_encoding": "disentangled", "attention_bias": True, "max_position_embeddings": 64}
    config = AnyformerEncoderConfig(**(common | {"num_hidden_layers": 1} | fields))
    config._attn_implementation = backend
    return config


def native_config(cls, **fields):
    common = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "relative_attention": True, "hidden_dropout_prob": 0}
    common |= {"max_position_embeddings": 64, "attention_probs_dropout_prob": 0, "num_hidden_layers": 1}
    return cls(**(common | fields))


def identity_output(attention):
    with torch.no_grad():
        attention.o_proj.weight.copy_(torch.eye(HIDDEN))
        attention.o_proj.bias.zero_()
    return attention


def ours_of_v1(native, read):
    """Our parameters' names to native's tensors, read as `read` says (the values or their gradients)."""
    in_proj = read(native.in_proj.weight).view(HEADS, 3, SIZE, HIDDEN)
    tensors = {f"{name}_proj.weight": in_proj[:, i].reshape(HIDDEN, HIDDEN) for i, name in enumerate("qkv")}
    tensors |= {"q_proj.bias": read(native.q_bias), "v_proj.bias": read(native.v_bias)}
    if "c2p" in native.pos_att_type:
        tensors["pos_key_proj.weight"] = read(native.pos_proj.weight)
    if "p2c" in native.pos_att_type:
        tensors |= {f"pos_query_proj.{name}": read(p) for name, p in native.pos_q_proj.named_parameters()}
    return tensors


def ours_of_v2(native, read):
    names = {"query_proj": "q_proj", "key_proj": "k_proj", "value_proj": "v_proj"}
    names |= {"pos_key_proj": "pos_key_proj", "pos_query_proj": "pos_query_proj"}
    by_module = ((*name.split("."), p) for name, p in native.named_parameters())
    return {f"{names[module]}.{name}": read(p) for module, name, p in by_module}


def load(attention, tensors):
    missing, unexpected = attention.load_state_dict(tensors, strict=False)
    assert unexpected == [] and set(missing) <= {"o_proj.weight", "o_proj.bias"}
    return identity_output(attention)


def compare(native, ours, positions, table_rows, inputs, padding, tensors_of, **native_kwargs):
    """Outputs at real tokens, and the gradients of inputs, table and every weight, must agree."""
    wanted = torch.randn(*inputs[0].shape) * padding[..., None]
    mask_native = padding[:, None, None, :] * padding[:, None, :, None]
    mask = torch.where(padding[:, None, None, :].bool(), 0.0, torch.finfo(torch.float).min)
    if ours.config._attn_implementation == "sdpa":
        mask = (mask == 0).expand(-1, 1, inputs[0].shape[1], -1)
    separate = len(inputs) == 2

    theirs = [x.clone().requires_grad_() for x in inputs]
    table = table_rows.clone().requires_grad_()
    kwargs = native_kwargs | ({"query_states": theirs[0]} if separate else {})
    out_native = native(theirs[-1], mask_native, rel_embeddings=table, **kwargs)[0]
    (out_native * wanted).sum().backward()

    own = [x.clone().requires_grad_() for x in inputs]
    rows, index = positions(own[0])
    kwargs = {"key_value_states": own[1]} if separate else {}
    out = ours(own[0], mask, relative_table=rows, relative_index=index, **kwargs)[0]
    (out * wanted).sum().backward()

    real = padding.bool()
    torch.testing.assert_close(out[real], out_native[real], **NATIVE)
    for mine, native_input in zip(own, theirs):
        torch.testing.assert_close(mine.grad, native_input.grad, **NATIVE)
    torch.testing.assert_close(positions.rel_embeddings.weight.grad, table.grad, **NATIVE)
    gradients = {name: p.grad for name, p in ours.named_parameters() if not name.startswith("o_proj")}
    for name, gradient in tensors_of(native, lambda p: p.grad).items():
        torch.testing.assert_close(gradients[name], gradient, **NATIVE, msg=lambda m, name=name: f"{name}: {m}")


def random_padding(length):
    padding = torch.ones(BATCH, length, dtype=torch.long)
    padding[0, length - length // 4 :] = 0
    return padding


def own_table(config):
    positions = DisentangledPositions(config)
    nn.init.normal_(positions.rel_embeddings.weight)
    return positions


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("length", [11, 40])
@pytest.mark.parametrize("terms", TERMS, ids="+".join)
def test_the_first_version_equals_native_with_all_gradients(terms, length, backend):
    native = v1.DisentangledSelfAttention(native_config(DebertaConfig, pos_att_type=terms, max_relative_positions=20))
    native = with_random_weights(native)
    config = make_config(backend, pos_att_type=terms, max_relative_positions=20, attention_key_bias=False)
    ours, positions = DisentangledAttention(config, 0), own_table(config)
    load(ours, ours_of_v1(native, lambda p: p.detach()))
    x, table = torch.randn(BATCH, length, HIDDEN), positions.rel_embeddings.weight.detach()
    distances = v1.build_relative_position(x, x)
    compare(native, ours, positions, table, [x], random_padding(length), ours_of_v1, relative_pos=distances)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("length", [7, 40])  # all distances exact, and far ones
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("buckets", [None, 16])
@pytest.mark.parametrize("terms", TERMS, ids="+".join)
def test_the_second_version_equals_native_with_all_gradients(terms, buckets, share, length, backend):
    fields = {"pos_att_type": terms, "share_att_key": share, "max_relative_positions": 32}
    native = v2.DisentangledSelfAttention(native_config(DebertaV2Config, **fields, position_buckets=buckets or -1))
    native = with_random_weights(native)
    config = make_config(backend, **fields, position_buckets=buckets)
    ours, positions = DisentangledAttention(config, 0), own_table(config)
    load(ours, ours_of_v2(native, lambda p: p.detach()))
    x, table = torch.randn(BATCH, length, HIDDEN), positions.rel_embeddings.weight.detach()
    compare(native, ours, positions, table, [x], random_padding(length), ours_of_v2)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_queries_of_an_own_making_equal_native(backend):
    """What the enhanced mask decoder does (He et al. 2021a, section 3.2)."""
    native = with_random_weights(v2.DisentangledSelfAttention(native_config(DebertaV2Config, pos_att_type=BOTH)))
    config = make_config(backend)
    ours, positions = DisentangledAttention(config, 0), own_table(config)
    load(ours, ours_of_v2(native, lambda p: p.detach()))
    inputs, table = [torch.randn(BATCH, 13, HIDDEN) for _ in range(2)], positions.rel_embeddings.weight.detach()
    compare(native, ours, positions, table, inputs, random_padding(13), ours_of_v2)


@pytest.mark.parametrize("buckets, reach", [(16, 64), (16, 16), (256, 512), (256, 256), (32, 512), (6, 4000)])
def test_buckets_are_natives_at_every_distance(buckets, reach):
    positions = DisentangledPositions(make_config(position_buckets=buckets, max_relative_positions=reach))
    distances = torch.arange(-5000, 5001)
    expected = v2.make_log_bucket_position(distances, buckets, reach).long()
    assert torch.equal(positions.buckets(distances), expected)
    assert torch.equal(positions.buckets(-distances), -expected)  # one index serves both terms


@pytest.mark.parametrize("share", [False, True])
def test_few_key_heads_equal_as_many_repeated(share):
    config = make_config(share_att_key=share, num_key_value_heads=2)
    few = with_random_weights(DisentangledAttention(config, 0))
    many = DisentangledAttention(make_config(share_att_key=share), 0)
    tensors = {}
    for name, value in few.state_dict().items():
        if name.split(".")[0] in ("k_proj", "v_proj", "pos_key_proj"):
            value = value.unflatten(0, (2, SIZE)).repeat_interleave(2, dim=0).flatten(0, 1)
        tensors[name] = value
    many.load_state_dict(tensors)
    x = torch.randn(BATCH, 9, HIDDEN)
    table, index = own_table(few.config)(x)
    outs = [attention(x, relative_table=table, relative_index=index)[0] for attention in (few, many.eval())]
    torch.testing.assert_close(*outs, **EXACT)


def test_the_terms_make_two_squares_and_read_nothing_on_the_host():
    config, x = make_config(position_buckets=16), torch.randn(BATCH, 40, HIDDEN)
    ours, positions = DisentangledAttention(config, 0).train(), own_table(config)
    q, k = ours.queries(x), ours.keys_and_values(x)[0]

    def is_square(tensor, operation):
        return tensor.shape[-3:] == (HEADS, 40, 40) and not operation.is_view

    with Watch(is_square) as watch:
        table, index = positions(x)
        bias, _ = ours.score_bias(q, k, table, index)
    assert bias.shape == (BATCH, HEADS, 40, 40)
    assert watch.made == ["gather", "gather", "add_"] and watch.reads == []


# The convolution of DeBERTa-v2.


def convolutions(size, groups):
    fields = {"conv_kernel_size": size, "conv_groups": groups, "conv_act": "gelu"}
    native = with_random_weights(v2.ConvLayer(native_config(DebertaV2Config, **fields)))
    ours = ConvolutionLayer(make_config(**fields)).eval()
    names = {"conv": "conv", "LayerNorm": "norm"}
    by_module = ((*name.split("."), p.detach()) for name, p in native.named_parameters())
    ours.load_state_dict({f"{names[module]}.{name}": p for module, name, p in by_module})
    return native, ours


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("size, groups", [(3, 1), (5, 4)])
def test_the_convolution_equals_native_with_padding(size, groups, side):
    native, ours = convolutions(size, groups)
    padding = random_padding(14) if side == "right" else random_padding(14).flip(1)
    embeddings, first = torch.randn(2, BATCH, 14, HIDDEN)
    expected = native(embeddings * padding[..., None], first, padding)  # native's embeddings are zero at padding
    torch.testing.assert_close(ours(embeddings, first, padding), expected, **NATIVE)
    everything = torch.ones_like(padding)
    torch.testing.assert_close(ours(embeddings, first), native(embeddings, first, everything), **NATIVE)


def test_convolved_documents_of_whole_rows_have_the_plain_gradients():
    _, ours = convolutions(3, 2)
    embeddings, first, padding = *torch.randn(2, BATCH, 10, HIDDEN), random_padding(10)
    gradients = []
    for documents in (None, torch.zeros(BATCH, 10, dtype=torch.long)):
        ours.zero_grad()
        ours(embeddings, first, padding, documents).square().sum().backward()
        gradients.append([p.grad.clone() for p in ours.parameters()])
    for plain, by_taps in zip(*gradients):
        torch.testing.assert_close(plain, by_taps, atol=1e-4, rtol=1e-5)

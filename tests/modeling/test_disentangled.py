"""Laws of disentangled attention and DeBERTa-v2's convolution; whole models are compared in test_encoder.py."""

import pytest
import torch
from anyformer.modeling.attention_disentangled import DisentangledAttention, DisentangledPositions
from anyformer.modeling.configuration_encoder import AnyformerEncoderConfig
from anyformer.modeling.deberta_convolution import ConvolutionLayer
from native_models import with_random_weights
from torch import nn
from transformers import DebertaV2Config
from transformers.models.deberta_v2 import modeling_deberta_v2 as v2
from watching import Watch

EXACT = {"atol": 1e-5, "rtol": 1e-5}  # fp32, other orders of the same sums
# float64; transformers < 5.23 takes an fp32 root in a script
SCRIPTED = isinstance(v2.scaled_size_sqrt, torch.jit.ScriptFunction)
NATIVE = {"atol": 1e-6, "rtol": 1e-6} if SCRIPTED else {"atol": 1e-9, "rtol": 1e-9}
BATCH, HEADS, SIZE, HIDDEN = 2, 4, 8, 32
NAMES = {"query_proj": "q_proj", "key_proj": "k_proj", "value_proj": "v_proj"}


def make_config(backend="eager", **fields):
    common = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "norm_type": "layernorm", "norm_eps": 1e-7}
    common |= {"position_encoding": "disentangled", "attention_bias": True, "max_position_embeddings": 64}
    config = AnyformerEncoderConfig(**(common | {"num_hidden_layers": 1} | fields))
    config._attn_implementation = backend
    return config


def own_table(config):
    positions = DisentangledPositions(config)
    nn.init.normal_(positions.rel_embeddings.weight)
    return positions


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_queries_of_an_own_making_equal_native(backend):
    """What the enhanced mask decoder does (He et al. 2021a, section 3.2), which no native model has; the rest of the
    layer is compared in whole models: test_encoder.py."""
    common = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "relative_attention": True, "hidden_dropout_prob": 0}
    common |= {"max_position_embeddings": 64, "attention_probs_dropout_prob": 0, "num_hidden_layers": 1}
    native_config = DebertaV2Config(**common, pos_att_type=["c2p", "p2c"])
    native = with_random_weights(v2.DisentangledSelfAttention(native_config))
    config = make_config(backend)
    ours, positions = DisentangledAttention(config, 0), own_table(config)
    by_module = ((*name.split("."), p.detach()) for name, p in native.named_parameters())
    weights = {f"{NAMES.get(module, module)}.{name}": p for module, name, p in by_module}
    ours.load_state_dict(weights | {"o_proj.weight": torch.eye(HIDDEN), "o_proj.bias": torch.zeros(HIDDEN)})
    queries, states = torch.randn(2, BATCH, 13, HIDDEN)
    table, index = positions(queries)
    found = ours(queries, relative_table=table, relative_index=index, key_value_states=states)[0]
    everything = torch.ones(BATCH, 1, 13, 13)
    how = {"query_states": queries, "rel_embeddings": positions.rel_embeddings.weight}
    torch.testing.assert_close(found, native(states, everything, **how)[0], **NATIVE)


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


def test_convolved_documents_of_whole_rows_have_the_plain_gradients():
    ours = with_random_weights(ConvolutionLayer(make_config(conv_kernel_size=3, conv_groups=2, conv_act="gelu")))
    embeddings, first = torch.randn(2, BATCH, 10, HIDDEN)
    padding = (torch.arange(10) < torch.tensor([[8], [10]])).long()
    gradients = []
    for documents in (None, torch.zeros(BATCH, 10, dtype=torch.long)):
        ours.zero_grad()
        ours(embeddings, first, padding, documents).square().sum().backward()
        gradients.append([p.grad.clone() for p in ours.parameters()])
    for plain, by_taps in zip(*gradients):
        torch.testing.assert_close(plain, by_taps, atol=1e-4, rtol=1e-5)

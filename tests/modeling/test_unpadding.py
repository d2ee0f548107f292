"""Padded rows run without their padding, and nothing but time can tell."""

import pytest
import torch
from anyformer.modeling import unpadding
from anyformer.modeling.unpadding import Unpadded

from anyformer import AnyformerEncoderConfig, AnyformerEncoderModel, AnyformerSeq2SeqConfig, AnyformerSeq2SeqModel

TOLERANCE = 1e-5  # fp32, the same sums in another order
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
VARIANTS = {
    "rotary": {},
    "learned_post_norm": {"position_encoding": "learned", "norm_position": "post", "embedding_norm": True},
    "segments_narrow": {"type_vocab_size": 2, "embedding_size": 16, "position_encoding": "sinusoidal"},
    "windows": {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 2},
    "convolution": {"conv_kernel_size": 3},
}


def padded_batch(side: str = "right"):
    lengths = torch.tensor([12, 5, 1, 9])
    mask = (torch.arange(12)[None] < lengths[:, None]).long()
    mask = mask if side == "right" else mask.flip(1)
    ids = torch.randint(3, 60, mask.shape, generator=torch.Generator().manual_seed(1)) * mask
    return ids, mask


@pytest.fixture
def rounded(monkeypatch):
    """Numbers of rows are rounded up as those of large batches are: 27 tokens to 32."""
    monkeypatch.setattr(unpadding, "FEWEST_ROWS", 1)
    monkeypatch.setattr(unpadding, "ROWS_MULTIPLE", 8)


def without_unpadding(monkeypatch):
    monkeypatch.setattr(unpadding.PaddedTextStack, "can_unpad", lambda *_: False)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_real_tokens_and_gradients_are_those_of_padded_rows(variant, side, monkeypatch):
    model = AnyformerEncoderModel(AnyformerEncoderConfig(**SIZES, **VARIANTS[variant]))
    ids, mask = padded_batch(side)
    results = []
    for _ in range(2):
        model.zero_grad()
        out = model(ids, attention_mask=mask).last_hidden_state * mask[..., None]
        out.pow(2).sum().backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((out.detach(), grads))
        without_unpadding(monkeypatch)
    (ours, our_grads), (padded, padded_grads) = results
    torch.testing.assert_close(ours, padded, atol=TOLERANCE, rtol=0)
    for name, grad in padded_grads.items():
        torch.testing.assert_close(our_grads[name], grad, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_that_fill_up_a_round_number_change_nothing(variant, monkeypatch, rounded):
    test_real_tokens_and_gradients_are_those_of_padded_rows(variant, "right", monkeypatch)


def test_large_batches_are_filled_up_to_few_numbers_of_rows_and_padding_comes_back_as_zeros():
    lengths = torch.tensor([300, 400, 500])
    mask = (torch.arange(600)[None] < lengths[:, None]).long()
    found, x = Unpadded.of(mask), torch.randn(3, 600, 2)
    assert found.tokens == 1200 and found.index.numel() == 1280 == found.index.unique().numel()
    assert found.documents.unique(return_counts=True)[1].tolist() == [300, 400, 500, 80]
    assert torch.equal(found.put_back(found.take(x)), x * mask[..., None])
    assert {unpadding.rounded_up(rows) for rows in range(2049, 2177)} == {2176}
    assert unpadding.rounded_up(1000) == 1000


def test_an_encoder_of_a_pair_is_unpadded_too_and_the_decoder_sees_no_difference(monkeypatch):
    model = AnyformerSeq2SeqModel(AnyformerSeq2SeqConfig(**SIZES, decoder_start_token_id=0)).eval()
    ids, mask = padded_batch()
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :4]}
    ours = model(**inputs).last_hidden_state
    without_unpadding(monkeypatch)
    torch.testing.assert_close(ours, model(**inputs).last_hidden_state, atol=TOLERANCE, rtol=0)


def test_little_padding_and_padding_amid_a_text_are_left_alone():
    mask = torch.ones(4, 40, dtype=torch.long)
    assert Unpadded.of(mask) is None
    mask[0, -1] = 0
    assert Unpadded.of(mask) is None
    mask[:, 10:30] = 0
    assert Unpadded.of(mask) is None
    assert Unpadded.of(torch.zeros(2, 3, dtype=torch.long)) is None
    mask[:, 10:] = 0
    assert Unpadded.of(mask).documents.tolist() == [[row for row in range(4) for _ in range(10)]]

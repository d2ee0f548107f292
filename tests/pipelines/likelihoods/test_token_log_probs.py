"""Log-probabilities of tokens: sums by answer, by row and by position are of the same numbers."""

import pytest
import torch
from anyformer.modeling.lm_head import shift_left
from anyformer.pipelines.data.batch_keys import IGNORE_INDEX
from anyformer.pipelines.evaluation.position_perplexity import nll_by_position
from anyformer.pipelines.likelihoods.likelihood import log_likelihoods
from anyformer.pipelines.likelihoods.token_log_probs import token_log_probs
from transformers import GPT2Config, GPT2LMHeadModel

EXACT = 1e-10  # float64, sums in another order
SINGLE = 1e-4  # logarithms in float32, sums of six tokens


class TextRows(list):
    sequence_length = 7


def test_answers_rows_and_positions_are_sums_of_the_same_log_probabilities():
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)).double().eval()
    ids = torch.randint(40, (5, 7))
    with torch.no_grad():
        expected = model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    of_rows = token_log_probs(model, {"input_ids": ids}, shift_left(ids))
    assert of_rows[:, -1].eq(0).all() and of_rows[:, :-1].numpy() == pytest.approx(expected.numpy(), abs=EXACT)
    some = shift_left(ids.masked_fill(torch.arange(7) < 3, IGNORE_INDEX))
    answers = [(row[:3], row[3:]) for row in ids.tolist()]
    summed = log_likelihoods(model, answers, batch_size=2, most=64)
    assert summed == pytest.approx(token_log_probs(model, {"input_ids": ids}, some).sum(-1).tolist(), abs=EXACT)
    by_position = nll_by_position(model, TextRows({"input_ids": row} for row in ids), [0, 1, 2, 3, 4], 2)
    assert by_position.tolist() == pytest.approx((-expected.sum(0)).tolist(), abs=SINGLE)

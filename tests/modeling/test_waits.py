"""On a GPU the forward pass of a training step reads no value on the host, which would wait for all kernels before it.

The tensors are fake: they have a device and a shape, and a read of their values is an error.
"""

import pytest
import torch
from family_variants import TINY_FIELDS, config_class
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from transformers.modeling_utils import local_torch_dtype

import anyformer

SLIDING = {"attention_pattern": ["full_attention", "sliding_attention"], "sliding_window": 5}
MODELS = {
    "decoder": ("decoder", "DecoderForCausalLM", {}),
    "sliding": ("decoder", "DecoderForCausalLM", SLIDING),
    "alibi": ("decoder", "DecoderForCausalLM", {"position_encoding": "alibi"}),
    "moe": ("moe", "MoeForCausalLM", {"router_aux_loss_coef": 0.1}),
    "seq2seq": ("seq2seq", "Seq2SeqForConditionalGeneration", {}),
    "classifier": ("encoder", "EncoderForSequenceClassification", {}),
    "masked": ("encoder", "EncoderForMaskedLM", {}),
}


def forward(family: str, name: str, fields: dict, packed: bool) -> None:
    # In bf16: torch < 2.15 knows the shapes of grouped products of it alone.
    with FakeTensorMode(), torch.device("cuda"), local_torch_dtype(torch.bfloat16):
        model = getattr(anyformer, f"Anyformer{name}")(config_class(family)(**TINY_FIELDS[family] | fields)).train()
        ids = torch.zeros(2, 24, dtype=torch.long)
        batch = {"input_ids": ids, "labels": ids[:, 0] if "Classification" in name else ids}
        if packed:
            batch |= {"position_ids": ids} | ({"decoder_position_ids": ids} if family == "seq2seq" else {})
        else:
            batch |= {"attention_mask": ids} if family == "encoder" else {}
        assert model(**batch).loss.device.type == "cuda"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_a_training_step_reads_no_value_of_a_gpu(model, packed):
    if model == "masked":  # the number of labelled tokens is read once, before the layers
        with pytest.raises(DynamicOutputShapeException, match="nonzero"):
            forward(*MODELS[model], packed)
    else:
        forward(*MODELS[model], packed)

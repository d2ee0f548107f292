"""A tokenizer of characters, a model that speaks it, and that model's native twin."""

import string

import pytest
import torch
from tiny_tokenizers import of_words


@pytest.fixture
def tokenizer():
    """One token for each printable character."""
    special = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}
    tokenizer = of_words([*special.values(), *string.printable], by_characters=True, **special)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'][0] + ':' + m['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    tokenizer.model_max_length = 128
    return tokenizer


@pytest.fixture
def speaking_config(tiny_config, tokenizer):
    """Factory of tiny configs with the tokenizer's vocabulary and room for a few sentences."""

    def make(**overrides):
        return tiny_config(**({"vocab_size": len(tokenizer), "max_position_embeddings": 256} | overrides))

    return make


@pytest.fixture
def model(speaking_config):
    from anyformer import AnyformerDecoderForCausalLM

    torch.manual_seed(0)
    return AnyformerDecoderForCausalLM(speaking_config()).eval()


@pytest.fixture
def native(model):
    """transformers' own LLaMA with the same weights."""
    from anyformer import to_native

    return to_native(model)

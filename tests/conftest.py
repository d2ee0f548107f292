"""Shared helpers: offline environment, real data, tiny models."""

import gc
import os
from pathlib import Path

# Before anything imports huggingface_hub: tests never reach the network, and two workers do not fight over threads.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest
import torch

# One thread: results do not depend on the machine's cores, and forked children (processes.py) can compute.
torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_finish():
    """What imports have left stays: Trainers collect garbage by hand, and would walk through all of it each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real data sets, where this machine has them: $ANYFORMER_DATA, or the folder beside the repository."""
    folder = Path(os.environ.get("ANYFORMER_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data sets are not on this machine ({folder}); set ANYFORMER_DATA")
    return folder


@pytest.fixture(autouse=True)
def own_cache_and_seed(tmp_path, monkeypatch):
    """Each test has its own cache folder and starts from the same seed: none depends on another or on the user's."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "anyformer-cache"))
    torch.manual_seed(0)


@pytest.fixture
def tiny_config():
    """Factory of a decoder config of a few thousand parameters; keyword arguments override."""
    from anyformer import AnyformerDecoderConfig

    def make(**overrides):
        fields = {
            "vocab_size": 97,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        return AnyformerDecoderConfig(**(fields | overrides))

    return make


TINY = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "norm_type": "layernorm",
    "norm_position": "post",
    "mlp_type": "mlp",
    "attention_bias": True,
    "mlp_bias": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture
def tiny_moe_config(tiny_config):
    """Factory of a decoder config with four experts in each layer; keyword arguments override."""
    from anyformer import AnyformerMoeConfig

    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    names += ("max_position_embeddings", "pad_token_id", "bos_token_id", "eos_token_id")
    fields = {name: getattr(tiny_config(), name) for name in names} | {"num_experts": 4, "intermediate_size": 48}

    def make(**overrides):
        return AnyformerMoeConfig(**(fields | overrides))

    return make


@pytest.fixture
def tiny_encoder_config():
    """Factory of an encoder config, BERT-like unless keyword arguments say otherwise."""
    from anyformer import AnyformerEncoderConfig

    def make(**overrides):
        own = {"position_encoding": "learned", "embedding_norm": True, "type_vocab_size": 2, "hidden_act": "gelu"}
        own |= {"cls_token_id": 1, "sep_token_id": 2, "mask_token_id": 3}
        return AnyformerEncoderConfig(**(TINY | own | overrides))

    return make


@pytest.fixture
def tiny_seq2seq_config():
    """Factory of a sequence-to-sequence config, the original Transformer unless keyword arguments say otherwise."""
    from anyformer import AnyformerSeq2SeqConfig

    def make(**overrides):
        own = {"position_encoding": "sinusoidal", "embedding_multiplier": 32**0.5, "hidden_act": "relu"}
        own |= {"decoder_start_token_id": 1}
        return AnyformerSeq2SeqConfig(**(TINY | own | overrides))

    return make


@pytest.fixture
def tiny_vit_config():
    """Factory of a vision transformer's config, images of 3 x 4 patches unless keyword arguments say otherwise."""
    from anyformer import AnyformerViTConfig

    def make(**overrides):
        own = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
        own |= {"image_size": [12, 16], "patch_size": 4, "num_labels": 5}
        return AnyformerViTConfig(**(own | overrides))

    return make

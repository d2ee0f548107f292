"""Kinds of attention and backends, by the length of a row.

A model of 2 layers without a head processes one row: a forward pass without gradients, or a forward and backward pass.
"""

import copy

import torch
from models import Step, autocast, forward_backward
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig, MistralConfig

import anyformer
from anyformer import (
    AnyformerDecoderConfig,
    AnyformerDecoderForCausalLM,
    AnyformerDecoderModel,
    AnyformerEncoderConfig,
    AnyformerEncoderModel,
)

WINDOW, STRIDE = 128, 64
# "none" passes values through in place of attention: what no kind can be faster than.
KINDS = {
    "full": {"attention_pattern": ["full_attention"]},
    "full, two-sided": {"attention_pattern": ["full_attention"]},
    "sliding": {"attention_pattern": ["sliding_attention"], "sliding_window": WINDOW},
    "strided": {"attention_pattern": ["strided_attention"], "attention_stride": STRIDE},
    "local+global": {"attention_pattern": ["local_global_attention"], "sliding_window": WINDOW // 2},
    "linear": {"attention_pattern": ["linear_attention"]},
    "compressive": {"attention_pattern": ["compressive_attention"], "segment_length": WINDOW},
    "recurrent": {"segment_length": WINDOW, "memory_length": WINDOW},
    "none": {"attention_pattern": ["full_attention"], "attn_implementation": "values_passed_through"},
}
ENCODERS = {"full, two-sided", "local+global"}
AttentionInterface.register("values_passed_through", lambda module, q, k, v, *_, **__: (v.transpose(1, 2), None))


def trunk(kind: str, length: int, hidden: int, heads: int):
    """A model without a head."""
    config_class, model_class = AnyformerDecoderConfig, AnyformerDecoderModel
    fields = {"use_cache": False}
    if kind in ENCODERS:
        config_class, model_class = AnyformerEncoderConfig, AnyformerEncoderModel
        fields = {"add_pooling_layer": False}
    torch.manual_seed(0)
    config = config_class(
        vocab_size=64,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_hidden_layers=2,
        max_position_embeddings=length,
        **fields,
        **KINDS[kind],
    )
    return model_class(config)


def pass_of(model, passes: str, dtype: str, batch: dict):
    """passes: "forward" or "training"."""
    if passes == "training":
        return forward_backward(model, batch, dtype, lambda outputs: outputs.last_hidden_state.square().mean())

    @torch.no_grad()
    def forward() -> torch.Tensor:
        with autocast(dtype):
            return model.eval()(**batch).last_hidden_state

    return forward


def row_of(length: int) -> dict:
    return {"input_ids": torch.randint(64, (1, length), generator=torch.Generator().manual_seed(0))}


def kinds(setting, dtype: str, passes: str, length: int, hidden: int, heads: int) -> dict:
    """The kinds compute different functions, so only their costs are compared."""
    found = {}
    for kind in KINDS:
        batch = row_of(length)
        if kind == "local+global":  # one token that sees all and is seen by all, as [CLS] is
            batch["global_attention_mask"] = torch.nn.functional.pad(torch.ones(1, 1), (0, length - 1)).long()
        found[kind] = pass_of(trunk(kind, length, hidden, heads), passes, dtype, batch)
    return found


def backends(setting, passes: str, length: int, hidden: int, heads: int) -> dict:
    """Of full attention. On a CPU flex_attention has no backward pass."""
    found = {}
    for name in ("eager", "sdpa", "flex_attention")[: 3 if passes == "forward" else 2]:
        model = trunk("full", length, hidden, heads)
        model.set_attn_implementation(name)
        found[name] = pass_of(model, passes, "fp32", row_of(length))
    return found


def documents(length: int) -> torch.Tensor:
    """(1, T): positions that restart at each document of 50 to 400 tokens."""
    drawn, row = torch.Generator().manual_seed(0), []
    while len(row) < length:
        row += range(int(torch.randint(50, 400, (1,), generator=drawn)))
    return torch.tensor([row[:length]])


def native(setting, rows: str, length: int, hidden: int, heads: int) -> dict:
    """Passes of native LLaMA or Mistral under sdpa and under our backend, and of our decoder with equal weights.

    rows: "plain", or "packed" with documents, or of a model with a "window" of 128 tokens, or both.
    """
    sizes = {
        "vocab_size": 512,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "max_position_embeddings": length,
    }
    config = MistralConfig(**sizes, sliding_window=WINDOW) if "window" in rows else LlamaConfig(**sizes)
    torch.manual_seed(0)
    # The backend's name is kept in the config, which models share.
    models = {
        f"native {name}": AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=name)
        for name in ("sdpa", "anyformer")
    }
    models["native anyformer"].load_state_dict(models["native sdpa"].state_dict())
    models["ours"] = anyformer.from_native(models["native sdpa"])
    ids = torch.randint(512, (2, length), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids, "labels": ids, "use_cache": False}
    if "packed" in rows:
        batch["position_ids"] = documents(length).expand(2, -1)
    return {name: forward_backward(model, batch) for name, model in models.items()}


def window(setting, dtype: str, length: int, hidden: int, heads: int) -> dict:
    """A decoder's training step on one row that sees 1,024 tokens back, by the backends that are installed."""
    sizes = {"vocab_size": 8192, "hidden_size": hidden, "num_hidden_layers": 4, "num_attention_heads": heads}
    sizes |= {"max_position_embeddings": length, "use_cache": False}
    ids = torch.randint(8192, (1, length), generator=torch.Generator().manual_seed(0)).to(setting.device)
    found = {}
    for name in (
        "full",
        "window, sdpa",
        "window, flex_attention",
        "window, flash_attention_2",
        "window, flash_attention_3",
    ):
        torch.manual_seed(0)
        fields = {} if name == "full" else {"attention_pattern": ["sliding_attention"], "sliding_window": 1024}
        with torch.device(setting.device):
            model = AnyformerDecoderForCausalLM(AnyformerDecoderConfig(**sizes, **fields))
        if name == "window, flex_attention" and setting.device == "cpu":
            continue  # without a backward pass there
        try:
            model.set_attn_implementation("sdpa" if name == "full" else name.split()[1])
        except (ImportError, ValueError) as error:
            print(f"{name}: not installed ({error})")
            continue
        found[name] = Step(model, {"input_ids": ids, "labels": ids}, dtype)
    return found

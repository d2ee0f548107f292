"""Small models of each family, their batches, and how far apart two results are; for the checks of gpu.py.

Tolerances. fp32 on another device or by another kernel differs in the order of sums: FP32 of the largest value. A
product rounded to bf16 is off by 2^-9; how far that carries depends on the model, so bf16 is measured against itself:
a backend may be at most TWICE as far from fp32 as the readable eager backend is in bf16, on the same inputs.
"""

import torch
from anyformer.pipelines.recipes.introspection import family_row
from steps import autocast

FP32 = 2e-4
TWICE = 2.0
BF16 = 2**-9  # least error that is granted in bf16: a backend may be exact where eager is
CURVE = (
    0.02  # of a loss in bf16 against fp32, at each of 20 steps: rounding is averaged over all tokens, a fault is not
)
STEPS = 20

FAMILIES = {
    "decoder": {"num_key_value_heads": 2},
    "moe": {"num_key_value_heads": 2, "num_experts": 8},
    "encoder": {},
    "seq2seq": {"decoder_start_token_id": 1},
    "vit": {"image_size": 64, "patch_size": 16, "num_labels": 5},
}
# Other models of a family that attend differently: name -> (family, fields).
KINDS = {
    "sliding": ("decoder", {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 16}),
    "alibi": ("decoder", {"position_encoding": "alibi"}),
    "encoder sliding": (
        "encoder",
        {
            "position_encoding": "rotary",
            "attention_pattern": ["full_attention", "sliding_attention"],
            "sliding_window": 16,
        },
    ),
}


def model_of(setup, family: str, **more):
    """A small model on the device in fp32, without dropout. Heads of 64 channels, which every kernel takes."""
    row, fields = family_row(family), FAMILIES[family]
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "num_hidden_layers": 2}
    if not setup.tiny:
        sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512, "num_hidden_layers": 4}
    if family != "vit":
        sizes |= {"vocab_size": 512, "max_position_embeddings": 512, "hidden_dropout": 0.0}
        sizes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    config = row.load(row.config)(**(sizes | fields | more))
    return row.load(row.heads[row.pretraining])(config).to(setup.device)


def batch_of(setup, family: str, seed: int = 0, rows: int = 4, length: int | None = None) -> dict:
    """Random inputs with labels, on the device."""
    drawn = torch.Generator().manual_seed(seed)
    length = length or (48 if setup.tiny else 192)
    if family == "vit":
        batch = {"pixel_values": torch.randn(rows, 3, 64, 64, generator=drawn), "labels": torch.arange(rows) % 5}
    else:
        ids = torch.randint(4, 512, (rows, length), generator=drawn)
        batch = {"input_ids": ids, "labels": ids.clone()}
        if family == "encoder":
            batch["labels"] = ids.masked_fill(torch.rand(ids.shape, generator=drawn) > 0.15, -100)
        if family == "seq2seq":
            batch["labels"] = torch.randint(4, 512, (rows, length // 2), generator=drawn)
    return {name: x.to(setup.device) for name, x in batch.items()}


def outcome(model, batch: dict, bf16: bool = False, real=None) -> list:
    """[logits, gradients of all parameters as one vector] of a pass; `real` (B, T): logits that are not padding's."""
    model.zero_grad(set_to_none=True)
    kwargs = {} if "pixel_values" in batch else {"return_logits": True}
    with autocast(batch, bf16):
        outputs = model(**batch, **kwargs)
    outputs.loss.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    logits = outputs.logits if real is None else outputs.logits[real]
    return [logits.detach().float(), torch.cat([g.flatten() for g in gradients]).float()]


def apart(got: list, expected: list) -> float:
    """The largest difference, as a share of the largest value: the worst of the tensors. nan is infinitely far."""
    worst = 0.0
    for a, b in zip(got, expected):
        difference = ((a - b).abs().max() / b.abs().max().clamp(min=1e-12)).item()
        worst = max(worst, difference if difference == difference else float("inf"))
    return worst


def compare(setup, what: str, error: float, most: float) -> None:
    setup.check(what, error <= most, f"off by {error:.1e}, at most {most:.1e}")


def set_backend(setup, what: str, model, name: str) -> bool:
    """Switch the attention backend; where that cannot be, a row says why."""
    if name == "flex_attention" and setup.device == "cpu":
        setup.absent(what, "on a CPU it has no backward pass and compiles for minutes")
        return False
    try:
        model.set_attn_implementation(name)
    except (ImportError, ValueError) as error:
        setup.absent(what, str(error))
        return False
    return True

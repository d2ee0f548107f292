"""Training steps and generation of native models and of ours, and the loss of a large head."""

import torch
from anyformer.modeling.lm_head import linear_cross_entropy
from anyformer.pipelines.patches import write
from models import Step, batch_of, model_of
from transformers import CompileConfig


def family(device: str, name: str, variants: tuple[str, ...], dtype: str, **sizes) -> dict:
    """An optimizer step of each variant of a family (`models.model_of`), with equal weights and batches."""
    batch = batch_of(name, sizes, device)
    return {
        variant: Step(model_of(name, variant, sizes, device), batch, dtype, is_compiled=variant.endswith("compiled"))
        for variant in variants
    }


def full_logits(hidden, weight, labels):
    """The computation of transformers' models: logits in the model's dtype, cross-entropy of their fp32 copy."""
    return torch.nn.functional.cross_entropy((hidden @ weight.t()).float(), labels)


def head_loss(device: str, dtype: str, tokens: int, vocab: int, hidden: int) -> dict:
    """Forward and backward of `hidden @ weight.T` and its cross-entropy."""
    generator = torch.Generator().manual_seed(0)
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    states = torch.randn(tokens, hidden, generator=generator).to(device, kind).requires_grad_()
    weight = (torch.randn(vocab, hidden, generator=generator) * 0.05).to(device, kind).requires_grad_()
    labels = torch.randint(vocab, (tokens,), generator=generator).to(device)

    def step(loss) -> torch.Tensor:
        states.grad = weight.grad = None
        value = loss(states, weight, labels)
        value.backward()
        return value.detach()

    return {"full logits": lambda: step(full_logits), "ours": lambda: step(linear_cross_entropy)}


def generate(device: str, dtype: str, batch: int, prompt: int, tokens: int, cache: str = "growing", **sizes) -> dict:
    """Greedy tokens of the same call. cache: "static": of a fixed size, with the step of one token compiled."""
    sizes |= {"length": prompt + tokens}
    ids = torch.randint(sizes["vocab"], (batch, prompt), generator=torch.Generator().manual_seed(0)).to(device)
    arguments = {"attention_mask": torch.ones_like(ids), "max_new_tokens": tokens, "min_new_tokens": tokens}
    arguments |= {"do_sample": False, "pad_token_id": 0, "use_cache": True}
    if cache == "static":
        compiled = CompileConfig(fullgraph=False)
        write(compiled, "_compile_all_devices", True)
        arguments |= {"cache_implementation": "static", "compile_config": compiled}
    variants = {}
    for name in ("native", "ours"):
        model = model_of("decoder", name, sizes, device).eval()
        if dtype == "bf16":
            model.to(torch.bfloat16)
        variants[name] = lambda model=model: model.generate(ids, **arguments)
    return variants

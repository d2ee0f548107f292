"""LoRA on every linear layer: the adapted model computes what the merged one does, and only adapters are trained."""

import importlib.util
from collections.abc import Iterator

import torch

from ..findings import Finding, of_fact
from ..subject import Subject


def unclaimed(subject: Subject) -> str:
    return "" if importlib.util.find_spec("peft") else "PEFT is not installed"


def ask(subject: Subject) -> Iterator[Finding]:
    from peft import LoraConfig, get_peft_model

    base, batch = subject.fresh(), subject.rows()
    with torch.no_grad():
        expected = base(**batch).logits
    model = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear")).eval()
    with torch.no_grad():
        yield subject.compared("new adapters change nothing", model(**batch).logits, expected)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
        adapted = model(**batch).logits
    others = [name for name, p in model.named_parameters() if p.requires_grad and "lora_" not in name]
    yield of_fact("adapters alone are trained", not others, why=", ".join(others[:3]))
    moved = (adapted - expected).abs().max().item() > 1e-9
    yield of_fact("adapters reach the outputs", moved)
    with torch.no_grad():
        yield subject.compared("merged and not", model.merge_and_unload()(**batch).logits, adapted)

"""Every implementation of attention and of experts that the class claims computes what eager does."""

from collections.abc import Iterator
from functools import partial

import torch

from ...errors import first_line
from ..findings import Finding, Verdict, difference, not_claimed, of_difference
from ..subject import Subject

FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
BF16 = 2**-9  # the rounding error of bf16: the smallest tolerance


@torch.no_grad()
def ask(subject: Subject) -> Iterator[Finding]:
    batches = subject.full_and_padded()
    expected = outputs(subject.fresh("eager"), batches)
    for backend in subject.backends[1:]:
        got = outputs(subject.fresh(backend), batches)
        for name, batch in batches.items():
            real = subject.real(batch) if "padded" in name else slice(None)
            yield subject.compared(f"{name}, {backend} and eager", got[name][real], expected[name][real])
    if len(subject.backends) == 1:
        yield not_claimed("sdpa", "its class says _supports_sdpa = False")
    if subject.device.type == "cuda" and getattr(subject.fresh(), "_supports_flash_attn", False):
        yield from flash(subject, batches, expected)
    yield from experts(subject, batches["rows"])


def outputs(model, batches: dict) -> dict[str, torch.Tensor]:
    return {name: model(**batch).logits for name, batch in batches.items()}


def flash(subject: Subject, batches: dict, expected: dict) -> Iterator[Finding]:
    """Flash kernels, in bf16 as they have no fp32: at most twice as far from fp32 as eager in bf16."""
    rounded = outputs(subject.fresh("eager", torch.bfloat16), batches)
    for name in FLASH:
        try:
            got = outputs(subject.fresh(name, torch.bfloat16), batches)
        except (ImportError, ValueError) as error:
            yield Finding(name, Verdict.NOT_ASKED, why=first_line(error))
            continue
        for what, batch in batches.items():
            real = subject.real(batch) if "padded" in what else slice(None)
            of_eager = difference(rounded[what][real], expected[what][real])
            apart = difference(got[what][real], expected[what][real])
            yield of_difference(f"{what}, {name} in bf16", apart, max(2 * of_eager, BF16))


def experts(subject: Subject, batch: dict) -> Iterator[Finding]:
    """Compare the expert implementations that run on any device, in fp32: grouped_mm takes no fp64."""
    model = subject.fresh(dtype=torch.float32)
    batch = {name: x.float() if x.is_floating_point() else x for name, x in batch.items()}
    if not model._can_set_experts_implementation() or not getattr(model.config, "_experts_implementation", None):
        return
    compared = partial(subject.compared, tolerance=subject.fp32_tolerance)
    default = model.config._experts_implementation
    model.set_experts_implementation("eager")
    expected = model(**batch).logits
    for name in dict.fromkeys((default, "batched_mm", "grouped_mm")):
        what = f"experts by {name} and eager"
        try:
            model.set_experts_implementation(name)
        except ValueError as error:  # the implementation does not support this config
            yield not_claimed(what, first_line(error))
            continue
        yield subject.tried(what, lambda what=what: compared(what, model(**batch).logits, expected))

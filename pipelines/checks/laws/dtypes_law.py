"""In half precision the outputs stay close, and the weights that a class keeps in fp32 stay in it."""

import tempfile
from collections.abc import Iterator

import torch

from ..findings import Finding, of_difference, of_fact
from ..subject import Subject, gradients_of

# (type, mean difference in units of the mean output): bf16 has 8 bits and fp16 has 11, and each layer rounds again.
BOUNDS = ((torch.bfloat16, 0.15), (torch.float16, 0.03))

BOUND_OF_LOSS = 0.02


@torch.no_grad()
def ask(subject: Subject) -> Iterator[Finding]:
    batch = subject.rows()
    expected = subject.fresh()(**batch).logits
    with tempfile.TemporaryDirectory() as folder:
        subject.fresh(dtype=torch.float32).save_pretrained(folder)
        for dtype, bound in BOUNDS:
            name = str(dtype).removeprefix("torch.")
            model = type(subject.fresh()).from_pretrained(folder, dtype=dtype).eval()
            halves = {key: x.to(dtype) if x.is_floating_point() else x for key, x in batch.items()}
            logits = model(**halves).logits
            yield of_fact(f"{name} gives numbers", bool(logits.isfinite().all()))
            apart = (logits.double() - expected).abs().mean() / expected.abs().mean()
            yield of_difference(f"{name} and fp32, on average", apart.item(), bound)
            for words in sorted(kept_in_fp32(model, dtype)):
                dtypes = {x.dtype for key, x in model.state_dict().items() if words in key.split(".")}
                if dtypes:
                    yield of_fact(f"{words} stays in fp32 beside {name}", dtypes == {torch.float32})
    if subject.takes("labels"):
        yield from autocast(subject)


@torch.enable_grad()
def autocast(subject: Subject) -> Iterator[Finding]:
    """Compare the loss under bf16 autocast, with weights in fp32, with that in fp32."""
    model, batch = subject.fresh(dtype=torch.float32), subject.labelled()
    batch = {name: x.float() if x.is_floating_point() else x for name, x in batch.items()}
    expected = model(**batch).loss
    with torch.autocast(model.device.type, torch.bfloat16):
        loss = model(**batch).loss
    yield subject.compared("loss under autocast to bfloat16", loss, expected, tolerance=BOUND_OF_LOSS)
    wrong = [name for name, gradient in gradients_of(model, loss).items() if not gradient.isfinite().all()]
    yield of_fact("gradients under autocast are numbers", not wrong, why=", ".join(wrong[:3]))


def kept_in_fp32(model, dtype: torch.dtype) -> set[str]:
    """The names of the modules that a class keeps in fp32 when it is loaded in `dtype`."""
    strict = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    return strict | set(getattr(model, "_keep_in_fp32_modules", None) or ()) if dtype == torch.float16 else strict

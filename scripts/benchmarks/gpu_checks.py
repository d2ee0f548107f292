"""The first checks of gpu.py: a GPU computes what the CPU computes, by every backend and in every arrangement."""

import copy

import torch
from gpu_models import (
    BF16,
    CURVE,
    FAMILIES,
    FP32,
    KINDS,
    STEPS,
    TWICE,
    apart,
    batch_of,
    compare,
    model_of,
    outcome,
    set_backend,
)
from steps import Step, autocast
from torch import nn

# --------------------------------------------------------------------------------------------------------- backends


def backends(setup) -> None:
    """Every attention backend, and every kernel of sdpa, against eager: logits and gradients."""
    names = ["sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4"]
    kinds = {family: (family, {}) for family in FAMILIES if family != "moe"} | KINDS
    for kind, (family, fields) in kinds.items():
        model, batch, real = model_of(setup, family, **fields).train(), batch_of(setup, family), None
        if family == "encoder":  # rows of different lengths
            lengths = torch.linspace(0.4, 1.0, 4, device=setup.device) * batch["input_ids"].shape[1]
            real = torch.arange(batch["input_ids"].shape[1], device=setup.device) < lengths[:, None]
            batch |= {"attention_mask": real.long(), "labels": batch["labels"].masked_fill(~real, -100)}
        model.set_attn_implementation("eager")
        expected, rounded = outcome(model, batch, real=real), outcome(model, batch, bf16=True, real=real)
        granted = max(TWICE * apart(rounded, expected), BF16)
        for name in names:
            setup.attempt(
                f"{kind}: {name}", backend, setup, f"{kind}: {name}", model, batch, real, name, expected, granted
            )
        model.set_attn_implementation("sdpa")
        for kernel in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
            setup.attempt(
                f"{kind}: sdpa {kernel}", kernel_of_sdpa, setup, kind, model, batch, real, kernel, expected, granted
            )


def backend(setup, what, model, batch, real, name, expected, granted) -> None:
    if not set_backend(setup, what, model, name):
        return
    if not name.startswith("flash"):  # which knows half types only
        compare(setup, f"{what}, fp32", apart(outcome(model, batch, real=real), expected), FP32)
    compare(setup, f"{what}, bf16", apart(outcome(model, batch, bf16=True, real=real), expected), granted)


def kernel_of_sdpa(setup, kind, model, batch, real, kernel, expected, granted) -> None:
    """One kernel alone; where it does not take these inputs that is no fault."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    what = f"{kind}: sdpa {kernel}"
    try:
        with sdpa_kernel(getattr(SDPBackend, kernel)):
            got = outcome(model, batch, bf16=True, real=real)
    except RuntimeError as error:
        if not any(text in str(error) for text in ("No available kernel", "No viable backend", "No valid backend")):
            raise
        setup.write(part=setup.part, what=what, result="refused", detail="the kernel does not take this mask or device")
        return
    compare(setup, f"{what}, bf16", apart(got, expected), granted)


# ------------------------------------------------------------------------------------------------------------- steps

ZOO_FP32 = 1e-3  # the zoo's weights are large, so that each one counts, and carry rounding further


def steps(setup) -> None:
    """A training step of each model of the tests' zoo on the device and on the CPU; without tests/, of each family."""
    try:
        from family_variants import ZOO
    except ImportError:
        for family in FAMILIES:
            batch = batch_of(setup, family)
            pair = [model_of(setup, family).to(device).train() for device in ("cpu", setup.device)]
            on_cpu, on_device = (outcome(m, {k: x.to(m.device) for k, x in batch.items()}) for m in pair)
            compare(setup, family, apart([x.cpu() for x in on_device], on_cpu), FP32)
        return
    for family in FAMILIES:
        errors, failed = {}, 0
        variants = [variant for variant in ZOO if variant.family == family]
        for variant in variants[: 1 if setup.tiny else None]:
            error = setup.attempt(f"{variant}", step_of_variant, setup, variant)
            failed += error is None
            if error is not None:
                errors[variant.name] = error
        if not errors:
            continue
        for name, error in errors.items():
            if error > ZOO_FP32:
                failed += 1
                compare(setup, f"{family}-{name}", error, ZOO_FP32)
        worst = max(errors, key=errors.get)
        detail = f"of {len(errors)} models the worst, {worst}, is off by {errors[worst]:.1e}; {failed} failed"
        setup.check(f"{family}: logits and gradients, {setup.device} against cpu", failed == 0, detail)


def step_of_variant(setup, variant) -> float:
    """How far loss, hidden outputs and gradients on the device are from those on the CPU, in fp32."""
    model = variant.model(torch.float32).train()
    batch = variant.labelled(model)
    batch = {name: x.float() if x.is_floating_point() else x for name, x in batch.items()}
    for module in model.modules():  # what is drawn at random differs between devices
        module.__dict__.update({name: 0.0 for name in ("jitter",) if name in module.__dict__})
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        config = getattr(module, "config", None)
        for name in ("attention_dropout", "hidden_dropout"):
            if hasattr(config, name):
                setattr(config, name, 0.0)
    expected = outcome(model, batch)
    model = copy.deepcopy(model).to(setup.device)
    got = outcome(model, {name: x.to(setup.device) for name, x in batch.items()})
    return apart([x.cpu() for x in got], expected)


# ------------------------------------------------------------------------------------------------------------ packed


def packed(setup) -> None:
    """Documents packed into a row, and rows of different lengths in a batch, against the documents alone."""
    lengths = (7, 21, 5, 40) if setup.tiny else (60, 7, 133, 41)
    for family in ("decoder", "moe", "encoder", "seq2seq"):
        model = model_of(setup, family, **({"router_aux_loss_coef": 0.0} if family == "moe" else {})).eval()
        documents = [batch_of(setup, family, seed, 1, n) for seed, n in enumerate(lengths)]
        row = {name: torch.cat([each[name] for each in documents], dim=1) for name in documents[0]}
        row["position_ids"] = positions(setup, [each["input_ids"].shape[1] for each in documents])
        if family == "seq2seq":
            row["decoder_position_ids"] = positions(setup, [each["labels"].shape[1] for each in documents])
        for name in ("sdpa", "eager", "flex_attention", "flash_attention_2", "flash_attention_3"):
            what = f"{family}: packed, {name}"
            if set_backend(setup, what, model, name):
                setup.attempt(what, documents_alone, setup, what, model, documents, row, name)
        if family == "encoder":
            model.set_attn_implementation("sdpa")
            setup.attempt("encoder: padded rows", padded_rows, setup, model.train(), documents)


def positions(setup, lengths) -> torch.Tensor:
    return torch.cat([torch.arange(n) for n in lengths])[None].to(setup.device)


@torch.no_grad()
def documents_alone(setup, what, model, documents, row, name) -> None:
    def logits(batches, bf16):
        with autocast(row, bf16):
            return [torch.cat([model(**batch).logits for batch in batches], dim=1).float()]

    if not name.startswith("flash"):
        compare(setup, f"{what}, fp32", apart(logits([row], False), logits(documents, False)), FP32)
    alone = logits(documents, True)
    if not name.startswith("flash"):
        granted = max(TWICE * apart(alone, logits(documents, False)), BF16)
    else:
        granted = 2**-5  # a few roundings of 2^-9 on top of each other; a document that sees another is off by a tenth
    compare(setup, f"{what}, bf16", apart(logits([row], True), alone), granted)


def padded_rows(setup, model, documents) -> None:
    """Rows run as one without padding, by torch's flash kernel in bf16: loss and gradients of the computed padding."""
    longest = max(each["input_ids"].shape[1] for each in documents)

    def padded(name, value):
        rows = [nn.functional.pad(x, (0, longest - x.shape[1]), value=value) for x in (d[name] for d in documents)]
        return torch.cat(rows)

    batch = {"input_ids": padded("input_ids", 0), "labels": padded("labels", -100)}
    batch["attention_mask"] = torch.cat(
        [(torch.arange(longest, device=setup.device) < d["input_ids"].shape[1]).long()[None] for d in documents]
    )
    real = batch["attention_mask"].bool()
    model.can_unpad = model.model.can_unpad = lambda *_: False
    try:
        expected, rounded = outcome(model, batch, real=real), outcome(model, batch, bf16=True, real=real)
    finally:
        del model.can_unpad, model.model.can_unpad
    compare(setup, "encoder: padded rows, fp32", apart(outcome(model, batch, real=real), expected), FP32)
    granted = max(TWICE * apart(rounded, expected), BF16)
    compare(setup, "encoder: padded rows, bf16", apart(outcome(model, batch, bf16=True, real=real), expected), granted)


# ------------------------------------------------------------------------------------------------------------ golden


def golden(setup) -> None:
    """Losses of 20 steps of each family: fp32 on the device against the CPU, bf16 against fp32."""
    for family in FAMILIES:
        setup.attempt(family, loss_curves, setup, family)


def loss_curves(setup, family) -> None:
    batches = [batch_of(setup, family, seed) for seed in range(4)]

    def losses(device, dtype):
        model = model_of(setup, family).to(device)
        here = [{name: x.to(device) for name, x in batch.items()} for batch in batches]
        step, found = Step(model, here[0], dtype, lr=1e-3), []
        for number in range(6 if setup.tiny else STEPS):
            step.batch = here[number % len(here)]
            found.append(step().detach().float().cpu())
        return torch.stack(found)

    on_cpu, fp32, bf16 = losses("cpu", "fp32"), losses(setup.device, "fp32"), losses(setup.device, "bf16")
    # Adam divides by the gradient's size: what is nearly nothing is as good as random in its first steps.
    compare(setup, f"{family}: fp32 against the CPU", ((fp32 - on_cpu).abs() / on_cpu).max().item(), 1e-3)
    compare(setup, f"{family}: bf16 against fp32", ((bf16 - fp32).abs() / fp32).max().item(), CURVE)
    setup.check(f"{family}: bf16 learns", bf16[-4:].mean() < bf16[:4].mean(), f"{bf16[0]:.3f} -> {bf16[-1]:.3f}")

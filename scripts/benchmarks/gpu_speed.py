"""The timed parts of gpu.py: steps of native models and of ours, eager and compiled, with equal weights and batches.

Arms take turns in blocks of steps between two events; a figure is the median over rounds, and "guard" is the reference
a second time. Arms must compute the reference's loss before they are timed. Compiled arms are compiled layer by layer,
and their loss apart ("whole graph" is a part of its own): compiling a graph of 24 layers takes minutes. MFU: PaLM's
convention (all of the scores), and with a causal mask's half of them counted; against the data sheet's peak.
"""

import gc
import math
import time

import method
import torch
from anyformer.pipelines.accounting.flops import FlopCount, count_tokens, peak_flops
from gpu_models import set_backend
from steps import BF16_TOLERANCE, Step, host_reads
from torch import nn
from twins import twins

import anyformer

ROUNDS, BLOCK = 5, 0.3  # seconds a block of steps lasts at least


class Arm:
    """A step with its model's layers compiled or not: both share weights and optimizer, so that two models fit."""

    def __init__(self, step: Step, is_compiled: bool):
        self.step, self.is_compiled = step, is_compiled

    def __call__(self):
        switch_compiled(self.step.model, self.is_compiled)
        return self.step()

    def loss(self, dtype: str | None = None) -> float:
        switch_compiled(self.step.model, self.is_compiled)
        with torch.no_grad():
            return self.step.loss(dtype).item()


def compile_parts(model, backend: str) -> None:
    """Compile each layer and the loss in place; `switch_compiled` chooses."""
    layers = [layer for each in model.modules() if isinstance(each, nn.ModuleList) for layer in each]
    for part in layers + (
        [model.lm_head] if type(model).__name__.startswith("Anyformer") and hasattr(model, "lm_head") else []
    ):
        part.compile(dynamic=False, backend=backend)
        part.kept_compiled = part._compiled_call_impl
    if hasattr(model, "loss_function") and not type(model).__name__.startswith("Anyformer"):
        model.kept_losses = model.loss_function, torch.compile(model.loss_function, dynamic=False, backend=backend)


def switch_compiled(model, on: bool) -> None:
    for part in model.modules():
        if "kept_compiled" in part.__dict__:
            part._compiled_call_impl = part.kept_compiled if on else None
    if "kept_losses" in model.__dict__:
        model.loss_function = model.kept_losses[on]


def compiler(setup) -> str:
    return "inductor" if setup.device == "cuda" else "aot_eager"  # a CPU's compiler takes minutes for this test of us


def waited(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(arm, device: str, times: int) -> float:
    """Seconds of one call, of `times` calls in a row; on a GPU by its own events."""
    if device != "cuda":
        start = time.perf_counter()
        for _ in range(times):
            arm()
        return (time.perf_counter() - start) / times
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        arm()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


def peak_gib(setup, arm) -> float:
    """Most memory during a step: its own allocations, and the model's weights and moments, not those of other arms."""
    model = arm.step.model if isinstance(arm, Arm) else None
    own = 0 if model is None else 3 * sum(p.nbytes for p in model.parameters())
    if setup.device != "cuda":
        return (method.peak_bytes(arm) + own) / 2**30
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    arm()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before + own) / 2**30


def measure(setup, what: str, arms: dict, per_call: float = 0, flops: dict | None = None) -> None:
    """Time `arms`, the first of which is the reference, and write a row for each.

    Args:
        per_call: tokens or images of a call. flops: {convention: FLOPs of a call} for "mfu_palm" and "mfu_causal".
    """
    rounds, blocks = (2, {}) if setup.tiny else (ROUNDS, {})
    for name, arm in list(arms.items()):
        for _ in range(2):  # the first call compiles and fills caches
            if setup.attempt(f"{what}: {name}", lambda a=arm: (a(), waited(setup.device))) is None:
                arms.pop(name)
                break
        else:
            last = seconds_of(arm, setup.device, 1)
            blocks[arm] = 1 if setup.tiny else min(50, max(1, math.ceil(BLOCK / max(last, 1e-4))))
    if not arms:
        return
    reference = next(iter(arms))
    clock = lambda arm: seconds_of(arm, setup.device, blocks[arm])  # noqa: E731
    timings = method.compare(arms, reference, rounds, warm=1, clock=clock, shortest=0)
    peak = 1.0
    if flops and setup.device == "cuda":
        peak, _ = peak_flops(torch.device("cuda"), torch.bfloat16)
    for name, timing in timings.items():
        seconds, numbers = timing.milliseconds / 1e3, {}
        if per_call:
            numbers["per_second"] = per_call / seconds
        for convention, count in (flops or {}).items():
            numbers[convention] = count / seconds / peak if setup.device == "cuda" else None
        if name != method.GUARD:
            numbers["peak_gib"] = peak_gib(setup, arms[name])
            numbers["syncs"] = len(host_reads(arms[name], setup.device))
        low, high = timing.interval
        setup.timed(what, name, ms=1e3 * seconds, ratio=timing.ratio, low=low, high=high, **numbers)


def equal_arms(setup, what: str, arms: dict[str, Arm]) -> dict[str, Arm]:
    """Those that compute the first one's loss: in fp32 where they are not compiled, and in the type that is timed."""
    reference, kept = next(iter(arms)), {}
    expected = {dtype: arms[reference].loss(dtype) for dtype in ("fp32", None)}
    for name, arm in arms.items():
        dtypes = ["fp32", None] if not arm.is_compiled else [None]
        losses = setup.attempt(f"{what}: {name}", lambda a=arm, d=dtypes: [a.loss(dtype) for dtype in d])
        if losses is None:
            continue
        most = [method.LOSS_TOLERANCE if dtype == "fp32" else BF16_TOLERANCE for dtype in dtypes]
        pairs = list(zip(losses, (expected[dtype] for dtype in dtypes), most))
        if all(abs(loss - e) <= tolerance * abs(e) for loss, e, tolerance in pairs):
            kept[name] = arm
        else:
            setup.check(f"{what}: {name} has the loss of {reference}", False, f"{losses}, expected {expected}")
    return kept


def measure_steps(setup, what: str, models: dict, batch: dict, not_compiled=(), unit: int | None = None) -> None:
    """Arms of steps: each model, and each with its layers compiled. unit: images of a batch; None: its tokens."""
    arms = {}
    for name, model in models.items():
        step = Step(model, batch, "bf16")
        arms[name] = Arm(step, False)
        if name not in not_compiled:
            compile_parts(model, compiler(setup))
            arms[f"{name} compiled"] = Arm(step, True)
    arms = dict(sorted(arms.items(), key=lambda pair: pair[1].is_compiled))
    model = next(iter(models.values()))
    count = FlopCount(model)
    palm = float(count.of_batch(batch))
    flops = {"mfu_palm": palm}
    if "attention_mask" in batch:  # models differ in what they leave out of such a batch
        flops = None
    elif "input_ids" in batch:
        rows, length = batch["input_ids"].shape
        flops["mfu_causal"] = palm - 6 * count.width * count.layers * length * rows * length
    per_call = unit or int(count_tokens(batch, model.config))
    measure(setup, what, equal_arms(setup, what, arms), per_call, flops)


def tokens(setup, vocab: int, rows: int, length: int) -> dict:
    ids = torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(0)).to(setup.device)
    return {"input_ids": ids, "labels": ids}


def fitting(setup, rows: int, function) -> None:
    """function(rows); on a full card with half the rows, and so on."""
    while True:
        setup.raises = (torch.cuda.OutOfMemoryError,) if rows > 1 else ()
        try:
            return function(rows)
        except torch.cuda.OutOfMemoryError as error:
            if rows == 1:
                raise
            print(f"{rows} rows: {error}", flush=True)
        rows //= 2
        gc.collect()
        torch.cuda.empty_cache()


# ----------------------------------------------------------------------------------------------------------- decoder


def decoder(setup, name: str, layers: int, hidden: int, heads: int, rows: int) -> None:
    length, vocab = (32, 128) if setup.tiny else (2048, 32000)
    if setup.tiny:
        layers, hidden, heads, rows = 2, 32, 2, 2

    def run(rows):
        with torch.device(setup.device):
            native, ours = twins(vocab, hidden, layers, heads, length)
        native.config.use_cache = ours.config.use_cache = False
        what = f"decoder {name} T={length} B={rows} L={layers} D={hidden} V={vocab}"
        measure_steps(setup, what, {"native": native, "ours": ours}, tokens(setup, vocab, rows, length))

    fitting(setup, rows, run)


def decoder_350m(setup) -> None:
    """24 layers of 1,024 channels, 2,048 tokens a row."""
    decoder(setup, "350M", 24, 1024, 16, 8)


def decoder_1b(setup) -> None:
    """16 layers of 2,048 channels, 2,048 tokens a row."""
    decoder(setup, "1B", 16, 2048, 16, 8)


def whole(model, batch, backend: str):
    """The loss of a batch by one compiled graph."""
    graph = torch.compile(model, dynamic=False, backend=backend)
    return lambda: graph(**batch).loss


def whole_graph(setup) -> None:
    """Six layers of the 350M decoder as one compiled graph, native and ours: with transformers' mask, which it then
    always builds. All 24 would take longer to compile than the part may."""
    length, vocab, layers, hidden, heads, rows = (32, 128, 2, 32, 2, 2) if setup.tiny else (2048, 32000, 6, 1024, 16, 8)
    with torch.device(setup.device):
        native, ours = twins(vocab, hidden, layers, heads, length)
    batch, arms, expected = tokens(setup, vocab, rows, length), {}, None
    for name, model in {"native": native, "ours": ours}.items():
        model.config.use_cache = False
        step = Step(model, batch, "bf16")
        step.forward_loss = whole(model, batch, compiler(setup))
        loss = setup.attempt(f"whole graph: {name}", lambda s=step: s.loss().item())
        if loss is None:
            continue
        expected = loss if expected is None else expected
        setup.check(f"whole graph: {name} has the loss of the first", abs(loss - expected) <= BF16_TOLERANCE * expected)
        arms[f"{name} compiled whole"] = Arm(step, False)
    palm = float(FlopCount(native).of_batch(batch))
    flops = {"mfu_palm": palm, "mfu_causal": palm - 6 * layers * hidden * length * rows * length}
    measure(setup, f"decoder T={length} B={rows} L={layers} D={hidden}, one graph", arms, rows * length, flops)


# ------------------------------------------------------------------------------------------------------ other models


def moe(setup) -> None:
    """Mixtral with 8 experts of which 2 are used: transformers' ways to compute experts, and ours."""
    import copy

    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = (2, 32, 2, 32, 4, 2, 16, 64) if setup.tiny else (8, 1024, 16, 1792, 8, 8, 2048, 32000)
    layers, hidden, heads, channels, experts, rows, length, vocab = sizes
    config = MixtralConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=channels,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        num_local_experts=experts,
        num_experts_per_tok=2,
        max_position_embeddings=length,
        router_aux_loss_coef=0.0,
        use_cache=False,
    )
    with torch.device(setup.device):
        original = MixtralForCausalLM._from_config(config, attn_implementation="sdpa")
    models = {}
    for name in ("grouped_mm", "eager"):
        models[f"native {name}"] = copy.deepcopy(original)
        models[f"native {name}"].set_experts_implementation(name)
    models["ours"] = anyformer.from_native(original).to(setup.device)
    models["ours"].config.use_cache = False
    del original
    what = f"MoE T={length} B={rows} L={layers} D={hidden} E={experts} K=2 F={channels}"
    measure_steps(setup, what, models, tokens(setup, vocab, rows, length), not_compiled=["native eager"])


def bert(setup) -> None:
    """BERT-base, rows of 20 to 100 % of 512 tokens, 15 % of them labelled: padded in native, one packed row in ours."""
    from mlm_step import batch_of
    from transformers import BertConfig, BertForMaskedLM

    layers, hidden, heads, rows, length, vocab = (2, 32, 2, 4, 32, 64) if setup.tiny else (12, 768, 12, 32, 512, 30522)
    config = BertConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.device(setup.device):
        native = BertForMaskedLM._from_config(config, attn_implementation="sdpa")
    ours = anyformer.from_native(native).to(setup.device)
    batch = {name: x.to(setup.device) for name, x in batch_of(rows, length, vocab).items()}
    measure_steps(setup, f"BERT T={length} B={rows} L={layers} D={hidden}", {"native": native, "ours": ours}, batch)


def vit(setup) -> None:
    """ViT-B/16, images of 224 x 224."""
    from transformers import ViTConfig, ViTForImageClassification

    layers, hidden, heads, rows, image = (2, 32, 2, 2, 32) if setup.tiny else (12, 768, 12, 128, 224)
    config = ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        image_size=image,
        patch_size=16,
        num_labels=1000,
    )
    with torch.device(setup.device):
        native = ViTForImageClassification._from_config(config, attn_implementation="sdpa")
    ours = anyformer.from_native(native).to(setup.device)
    drawn = torch.Generator().manual_seed(0)
    batch = {
        "pixel_values": torch.randn(rows, 3, image, image, generator=drawn).to(setup.device),
        "labels": torch.randint(1000, (rows,), generator=drawn).to(setup.device),
    }
    what = f"ViT {image}/16 B={rows} L={layers} D={hidden}"
    measure_steps(setup, what, {"native": native, "ours": ours}, batch, unit=rows)


# ------------------------------------------------------------------------------------------------------------- parts


def cross_entropy(setup) -> None:
    """Head and loss, forward and backward: ours without the logits, and cross-entropy of all logits."""
    from anyformer.modeling.linear_cross_entropy import linear_cross_entropy
    from cross_entropy import full_logits

    for tokens_, vocab, hidden in ((64, 256, 16),) if setup.tiny else ((16384, 32000, 1024), (8192, 128256, 2048)):
        drawn = torch.Generator(setup.device).manual_seed(0)
        options = {"device": setup.device, "generator": drawn}
        x = torch.randn(tokens_, hidden, **options).to(torch.bfloat16).requires_grad_()
        weight = (torch.randn(vocab, hidden, **options) * 0.05).to(torch.bfloat16).requires_grad_()
        labels = torch.randint(vocab, (tokens_,), **options)

        def step_of(loss, x=x, weight=weight, labels=labels):
            def step():
                value = loss(x, weight, labels)
                value.backward()
                x.grad = weight.grad = None  # here, or the next step's memory would be counted without its gradients
                return value

            return step

        graph = {"dynamic": False, "backend": compiler(setup)}
        losses = {"full logits": full_logits, "ours": linear_cross_entropy}
        losses |= {f"{name} compiled": torch.compile(loss, **graph) for name, loss in losses.items()}
        arms, what = (
            {name: step_of(loss) for name, loss in losses.items()},
            f"head + loss N={tokens_} V={vocab} D={hidden}",
        )
        expected = full_logits(x, weight, labels).item()
        for name in list(arms):
            value = setup.attempt(f"{what}: {name}", lambda a=arms[name]: a().item())
            if value is None or abs(value - expected) > BF16_TOLERANCE * expected:
                setup.check(f"{what}: {name} has the loss of full logits", False, f"{value}, expected {expected}")
                arms.pop(name)
        products = 6.0 * tokens_ * vocab * hidden
        measure(setup, what, arms, tokens_, {"mfu_palm": products})


def sliding(setup) -> None:
    """A step on one row of 32,768 tokens that see 1,024 back: masks, flex attention, flash kernels where present."""
    length, window, layers, hidden, heads, vocab = (
        (64, 8, 2, 32, 2, 64) if setup.tiny else (32768, 1024, 4, 1024, 16, 8192)
    )
    batch = tokens(setup, vocab, 1, length)
    found = []
    for name, fields in (
        ("full attention, sdpa", {}),
        *((f"window, {each}", each) for each in ("sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")),
    ):
        torch.manual_seed(0)
        config = anyformer.AnyformerDecoderConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=length,
            use_cache=False,
            **({"attention_pattern": ["sliding_attention"], "sliding_window": window} if fields else {}),
        )
        with torch.device(setup.device):
            model = anyformer.AnyformerDecoderForCausalLM(config)
        if not set_backend(setup, name, model, fields or "sdpa"):
            continue
        found.append((name, Arm(Step(model, batch, "bf16"), False)))
    losses = {name: setup.attempt(name, arm.loss) for name, arm in found[1:]}
    losses = {name: loss for name, loss in losses.items() if loss is not None}
    for name, loss in losses.items():
        expected = next(iter(losses.values()))
        setup.check(f"T={length}: {name} has the loss of the first", abs(loss - expected) <= BF16_TOLERANCE * expected)
    measure(setup, f"T={length} w={window} L={layers} D={hidden}", dict(found), length)


def generate(setup) -> None:
    """Greedy tokens of a 12-layer decoder in bf16: growing and static cache, native and ours."""
    layers, hidden, heads, prompt, new = (2, 32, 2, 8, 4) if setup.tiny else (12, 1024, 16, 128, 64)
    with torch.device(setup.device):
        pair = twins(128 if setup.tiny else 32000, hidden, layers, heads, prompt + new)
    native, ours = (model.to(torch.bfloat16).eval() for model in pair)
    static = {"cache_implementation": "static"}
    for rows, cache in ((16, {}), (1, {}), (1, static)):  # the compiled ones last: they may take all the time there is
        ids = torch.randint(100, (rows, prompt), generator=torch.Generator().manual_seed(0)).to(setup.device)
        asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": new, "min_new_tokens": new}
        asked |= {"do_sample": False, "pad_token_id": 0}
        arms = {}
        for name, model in {"native": native, "ours": ours}.items():
            label = f"{name}, static cache" if cache else name
            arms[label] = lambda model=model, ids=ids, asked=asked | cache: model.generate(ids, **asked)
        measure(setup, f"generate {prompt}+{new} tokens B={rows} L={layers} D={hidden}", arms, rows * new)

"""The other checks of gpu.py: compiled, generating, sharded, and what the host waits for."""

import contextlib
import os
import tempfile
import warnings

import torch
from gpu_models import BF16, FAMILIES, FP32, KINDS, TWICE, apart, batch_of, compare, model_of
from steps import Step, autocast, counted_reads, host_reads

# -------------------------------------------------------------------------------------------------------- generation


def generation(setup) -> None:
    """Greedy tokens with a static cache (compiled by `generate` on a GPU) equal those of a growing one."""
    kinds = {name: (name, {}) for name in ("decoder", "moe", "seq2seq")}
    kinds |= {
        "alibi": ("decoder", {"position_encoding": "alibi"}),
        "sliding": KINDS["sliding"],
        "linear attention": ("decoder", {"attention_pattern": ["linear_attention"]}),
        "T5-like": ("seq2seq", {"position_encoding": "relative", "norm_position": "pre", "norm_type": "rmsnorm"}),
    }
    for name, (family, fields) in kinds.items():
        setup.attempt(
            name, static_cache, setup, name, model_of(setup, family, num_hidden_layers=2, **fields).eval(), family
        )


def static_cache(setup, name, model, family) -> None:
    prompt = batch_of(setup, family, rows=2, length=12)["input_ids"]
    asked = {"do_sample": False, "max_new_tokens": 6 if setup.tiny else 24, "pad_token_id": 0}
    asked["min_new_tokens"] = asked["max_new_tokens"]
    expected = model.generate(prompt, **asked)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    got = model.generate(prompt, cache_implementation="static", **asked)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    most = 3  # the compiled step, and once more where a length or a first call was taken for a constant
    equal = got.shape == expected.shape and torch.equal(got, expected)
    setup.check(f"{name}: static cache", equal, "equal tokens" if equal else "other tokens")
    setup.check(f"{name}: static cache, graphs", graphs <= most, f"{graphs} graphs, at most {most}")


# ---------------------------------------------------------------------------------------------------------- compiled


def compiled(setup) -> None:
    """Loss and gradients of each family as one compiled graph."""
    for family in FAMILIES:
        for bf16 in (True, False):
            what = f"{family}, {'bf16' if bf16 else 'fp32'}"
            # A compiler has grouped products for bf16 only.
            if family == "moe" and (setup.device == "cpu" or not bf16) and not followed_by_compilers():
                setup.absent(
                    what, "transformers >= 5.23, whose grouped product in fp32 a compiler can follow backwards"
                )
            else:
                setup.attempt(what, compiled_family, setup, family, bf16)


def followed_by_compilers() -> bool:
    return hasattr(torch.ops.transformers, "grouped_mm_fallback_backward")  # transformers < 5.23


def compiled_family(setup, family, bf16) -> None:
    layers = 1 if setup.tiny else 2  # a compiler takes its time for each
    model, batch = model_of(setup, family, num_hidden_layers=layers).train(), batch_of(setup, family)
    backend = "inductor" if setup.device == "cuda" else "aot_eager"  # a CPU's compiler takes minutes here

    def result(function, bf16):
        model.zero_grad(set_to_none=True)
        with autocast(batch, bf16):
            loss = function(**batch).loss
        loss.backward()
        return [
            loss.detach()[None].float(),
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]),
        ]

    torch.compiler.reset()
    graph = torch.compile(model, fullgraph=True, dynamic=False, backend=backend)
    plain, got = result(model, bf16), result(graph, bf16)
    granted = FP32 if not bf16 else max(TWICE * apart(plain, result(model, False)), BF16)
    compare(setup, f"{family}, {'bf16' if bf16 else 'fp32'}", apart(got, plain), granted)


# ------------------------------------------------------------------------------------------------------------- syncs

READS = {"encoder": 2}  # which positions are labelled, and how often; nothing else waits for the device


def syncs(setup) -> None:
    """How often the host waits for the device in a training step, and what is not deterministic."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it no product counts as deterministic
    for family in FAMILIES:
        setup.attempt(family, syncs_of_family, setup, family)
    setup.attempt("AnyformerTrainer", syncs_of_trainer, setup)


def syncs_of_family(setup, family) -> None:
    step = Step(model_of(setup, family), batch_of(setup, family), "bf16")
    for _ in range(2):
        step()
    reads, most = host_reads(step, setup.device), READS.get(family, 0)
    setup.check(
        f"{family}: host syncs per step", len(reads) <= most, f"{len(reads)}, at most {most}; {sorted(set(reads))}"
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
    finally:
        torch.use_deterministic_algorithms(False)
    found = sorted({str(w.message).split(" does not have")[0] for w in caught if "deterministic" in str(w.message)})
    row = {"part": setup.part, "what": f"{family}: deterministic on request"}  # kernels' matter more than ours
    setup.write(**row, result="noted" if found else "ok", detail="; ".join(found) or "all operations")


def syncs_of_trainer(setup) -> None:
    """Between two logs, with what a run of ours switches on."""
    from anyformer.pipelines.training.trainer import AnyformerTrainer
    from transformers import TrainerCallback, TrainingArguments, default_data_collator

    reads, begun = [], {}

    class Counted(TrainerCallback):
        """Counts in steps 4 to 8; the log comes after step 10."""

        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 3:
                begun["of"] = counting = host_reads_until_closed(setup.device, reads)
                counting.__enter__()

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 8:
                begun.pop("of").__exit__(None, None, None)

    batch = batch_of(setup, "decoder", rows=40)
    rows = [{"input_ids": ids.cpu(), "labels": ids.cpu()} for ids in batch["input_ids"]]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=10,
            per_device_train_batch_size=4,
            logging_steps=10,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            bf16=setup.device == "cuda",
            use_cpu=setup.device == "cpu",
            accelerator_config={"non_blocking": True},
        )
        model = model_of(setup, "decoder")
        trainer = AnyformerTrainer(model=model, args=arguments, train_dataset=rows, data_collator=default_data_collator)
        trainer.add_callback(Counted())
        trainer.train()
    setup.check("AnyformerTrainer: host syncs in five steps", not reads, f"{len(reads)}; {sorted(set(reads))}")


@contextlib.contextmanager
def host_reads_until_closed(device, reads: list):
    with counted_reads(device) as found:
        yield
    reads.extend(found)


# ----------------------------------------------------------------------------------------------------------- sharded


def sharded(setup) -> None:
    """A step under FSDP2 and under ZeRO-3, each of one rank, against the plain step: losses of three steps."""
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29531",
    }
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "nccl" if setup.device == "cuda" else "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        try:
            for family in ("decoder", "moe", "encoder", "seq2seq", "vit"):
                setup.attempt(f"{family}: FSDP2", fsdp2, setup, family)
            setup.attempt("decoder: ZeRO-3", zero3, setup, "decoder")
        finally:
            torch.distributed.destroy_process_group()


def three_losses(step) -> torch.Tensor:
    return torch.stack([step().detach().float().cpu() for _ in range(3)])


def fsdp2(setup, family) -> None:
    from torch.distributed.fsdp import fully_shard

    batch = batch_of(setup, family)
    expected = three_losses(Step(model_of(setup, family), batch, "fp32", lr=1e-3))
    model = model_of(setup, family)
    for layer in [m for m in model.modules() if type(m).__name__ in model._no_split_modules]:
        fully_shard(layer)
    fully_shard(model)
    got = three_losses(Step(model, batch, "fp32", lr=1e-3))
    compare(setup, f"{family}: FSDP2", ((got - expected).abs() / expected).max().item(), FP32)


def zero3(setup, family) -> None:
    import deepspeed

    if setup.device == "cpu":
        setup.absent("decoder: ZeRO-3", "on a CPU its first start compiles for minutes; tests/ runs it there")
        return
    batch, model = batch_of(setup, family), model_of(setup, family)
    expected = three_losses(Step(model_of(setup, family), batch, "fp32", lr=1e-3))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 3},
            "zero_allow_untested_optimizer": True,
        },
    )

    def step():
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        return loss

    compare(setup, f"{family}: ZeRO-3", ((three_losses(step) - expected).abs() / expected).max().item(), 1e-3)

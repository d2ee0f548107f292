"""A rehearsed step is the step that real processes make: messages, bytes, peak of memory."""

from contextlib import contextmanager

import pytest
import yaml
from anyformer.pipelines.accounting.devices import devices_of
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.rehearsal.rehearse import rehearsable, rehearse
from anyformer.pipelines.rehearsal.step import made_step
from processes import in_fresh_process, run_ranks
from torch.distributed.tensor.debug import CommDebugMode
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, PreTrainedConfig

NEAR = 0.10  # of a peak: kernels of a CPU have memory of their own, which no operation shows
WIDE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE |= {"num_key_value_heads": 4, "max_position_embeddings": 256, "hidden_dropout": 0.0, "vocab_size": 2048}
MIXTURE = WIDE | {"family": "moe", "num_experts": 4, "experts_implementation": "batched_mm"}
LORA, OF_BASE = "training.lora={r: 8}", ["tokenizer={}", "model.attn_implementation=sdpa"]
NATIVE = {name: value for name, value in WIDE.items() if name != "hidden_dropout"}
NATIVE = LlamaConfig(**NATIVE, architectures=["LlamaForCausalLM"])
HALF, LESS = "training.bf16=true", "training.gradient_checkpointing=true"
# name: (processes, training.parallelism, model, documents of a row, further settings)
MESHES = {
    "one": (1, "null", WIDE, 1, []),
    "ddp": (2, "null", WIDE, 1, []),
    "dp_shard": (2, "{dp_shard: 2}", WIDE, 1, []),
    "dp_shard-of-four": (4, "{dp_shard: 4}", WIDE, 1, [HALF]),
    "dp_shard-tp": (4, "{dp_shard: 2, tp: 2}", WIDE, 1, [HALF]),
    "tp": (2, "{tp: 2}", WIDE, 1, []),
    "tp-half": (2, "{tp: 2}", WIDE, 1, [HALF]),
    "hsdp": (4, "{dp_shard: 2, dp_replicate: 2}", WIDE, 1, []),
    "mixture": (2, "{dp_shard: 2}", MIXTURE, 1, []),
    "mixed-precision": (2, "{dp_shard: 2, fsdp_mixed_precision: true}", WIDE, 1, [HALF]),
    "checkpointing": (2, "{dp_shard: 2}", WIDE, 1, [LESS]),
    "packed": (2, "{dp_shard: 2}", WIDE, 4, []),
    "lora": (2, "{dp_shard: 2}", NATIVE, 1, [LORA, *OF_BASE]),
    "native": (2, "{dp_shard: 2}", NATIVE, 1, OF_BASE),
    "accumulated": (2, "{dp_shard: 2}", WIDE, 1, ["training.gradient_accumulation_steps=2"]),
    "muon": (2, "{dp_shard: 2}", WIDE, 1, ["training.optim=muon"]),
}


@pytest.fixture
def recipe_of(tiny_recipe, tmp_path):
    """Of one of MESHES."""

    def make(name):
        _, shares, model, _, more = MESHES[name]
        fields = {} if isinstance(model, PreTrainedConfig) else model
        sections = {"model": fields | {"attn_implementation": "sdpa"}, "objective": {"sequence_length": 256}}
        path = tiny_recipe(name, **sections)
        if isinstance(model, PreTrainedConfig):  # of a checkpoint, whose weights are not read
            model.save_pretrained(tmp_path / "base")
            own = {"model": {"name_or_path": str(tmp_path / "base")}}
            path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | own))
        return load_recipe(str(path), [f"training.parallelism={shares}", *more])

    return make


class NoHooks:
    """In place of CommDebugMode's hooks on modules, beside which torch forbids to scale the loss in place."""

    name, is_bw, activation_checkpointing, module_parents_dict = "Global", False, False, {"Global": set()}

    def __enter__(self):
        return self

    def __exit__(self, *args):
        """Nothing to remove."""


def really_made(recipe, devices, documents):
    """In a rank: a real step -> (what its ledger says, its collectives by CommDebugMode, its peak by the profiler)."""
    messages, memory = CommDebugMode(), profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    messages.advanced_module_tracker = NoHooks()

    @contextmanager
    def watched():
        with memory, messages:
            yield

    found = made_step(recipe, devices, None, documents, watched)
    changes = [e for e in memory.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for change in sorted(changes, key=lambda e: e.start_ns()):
        now += change.nbytes()
        most = max(most, now)
    return found, sum(messages.get_comm_counts().values()), most


@pytest.mark.parametrize(
    "name", [name if name == "dp_shard" else pytest.param(name, marks=pytest.mark.slow) for name in MESHES]
)
@in_fresh_process
def test_a_rehearsed_step_is_what_real_processes_do(name, recipe_of, tmp_path):
    count, _, _, documents, _ = MESHES[name]
    devices = devices_of(f"{count}xcpu")
    launch = "ddp" if name == "ddp" else None
    recipe = recipe_of(name)
    rehearsed = rehearse(recipe, devices, launch=launch, documents=documents)
    recipe = rehearsable(recipe, devices, launch)
    if count == 1:
        real, messages, added = really_made(recipe, devices, documents)
    else:
        real, messages, added = run_ranks(count, really_made, recipe, devices, documents, folder=tmp_path)[0]
    assert sorted(map(str, rehearsed.collectives)) == sorted(map(str, real.collectives))
    assert sum(one.count for one in rehearsed.collectives) == messages
    for part in ("weights_bytes", "gradients_bytes", "states_bytes", "flops_of", "mesh"):
        assert getattr(rehearsed, part) == getattr(real, part), part
    peak = real.weights_bytes + real.states_bytes + added
    print(name, rehearsed.peak_bytes, real.peak_bytes, peak, rehearsed.peak_bytes / peak - 1)
    assert rehearsed.peak_bytes == pytest.approx(peak, rel=NEAR)

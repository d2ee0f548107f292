"""A rehearsed step is the step that real processes make: messages, bytes, peak of memory."""

import json
from contextlib import contextmanager

import pytest
import yaml
from anyformer.pipelines.accounting.devices import devices_of
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.preset_run import planned_recipe
from anyformer.pipelines.rehearsal.rehearse import rehearsable, rehearse
from anyformer.pipelines.rehearsal.step import made_step
from processes import in_fresh_process, run_ranks
from rehearsed import needs_mesh
from task_data import task_recipe
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
    "mixed-precision": (2, "{dp_shard: 2}", WIDE, 1, [HALF]),
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


@needs_mesh
@pytest.mark.parametrize(
    "name", [name if name == "dp_shard" else pytest.param(name, marks=pytest.mark.slow) for name in MESHES]
)
@in_fresh_process
def test_a_rehearsed_step_is_what_real_processes_do(name, recipe_of, tmp_path):
    count, _, _, documents, _ = MESHES[name]
    devices = devices_of(f"{count}xcpu")
    launch = "ddp" if name == "ddp" else None
    recipe = recipe_of(name)
    made = rehearsable(recipe, devices, launch)
    if count == 1:
        real, messages, added = really_made(made, devices, documents)
    else:  # before this process has made a step, of which forks would keep threads
        real, messages, added = run_ranks(count, really_made, made, devices, documents, folder=tmp_path)[0]
    rehearsed = rehearse(recipe, devices, launch=launch, documents=documents)
    assert sorted(map(str, rehearsed.collectives)) == sorted(map(str, real.collectives))
    assert sum(one.count for one in rehearsed.collectives) == messages
    for part in ("weights_bytes", "gradients_bytes", "states_bytes", "flops_of", "mesh"):
        assert getattr(rehearsed, part) == getattr(real, part), part
    peak = real.weights_bytes + real.states_bytes + added
    assert rehearsed.peak_bytes == pytest.approx(peak, rel=NEAR)


# {task with labels of another kind: (one that reads as much of a row for its answer, how many of its sequences)}.
TASKS = {
    "multi_label_classification": ("sequence_classification", 1),
    "multiple_choice": ("sequence_classification", 4),
    "question_answering": ("token_classification", 1),
    "sentence_similarity": ("token_classification", 2),
}


@needs_mesh
@pytest.mark.parametrize("name", TASKS)
def test_each_kind_of_labels_is_rehearsed_with_all_sequences_of_a_row(name, tmp_path):
    other, sequences = TASKS[name]
    flops = []
    for task in (name, other):
        recipe = load_recipe(str(task_recipe(tmp_path, task, task, task={"max_length": 40})))
        flops.append(rehearse(recipe, devices_of("2xcpu")).flops / recipe.training.per_device_train_batch_size)
    assert flops[0] == pytest.approx(sequences * flops[1], rel=0.1)


@needs_mesh
def test_a_rehearsal_is_one_json_value_with_what_plan_counts_beside_it(tiny_recipe, command, capsys):
    words = ("--devices", "2xH100-80GB", "--json", "--against", "plan", "training.gradient_checkpointing=true")
    assert command("rehearse", tiny_recipe(), *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] and found["fits"] and found["mesh"] == {"dp_shard": 2}
    named = {(one["kind"], one["dimension"]) for one in found["collectives"]}
    assert named >= {("all_gather", "dp_shard"), ("reduce_scatter", "dp_shard")}
    assert found["peak_bytes"] == sum(found["alive"].values()) and found["peak_in"]
    assert found["flops"] == sum(found["flops_of"].values()) and found["flops_of"]["recomputed"] > 0
    assert found["states_bytes"] > 0 and 0 < found["mfu"] < 1 and found["plan"]["stages"]


def test_a_step_that_does_not_run_names_the_line_and_ends_with_one(tiny_recipe, command, capsys):
    recipe = tiny_recipe(model=MIXTURE | {"experts_implementation": "eager", "attn_implementation": "sdpa"})
    assert command("rehearse", recipe, "--devices", "1xH100-80GB", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["runs"] and "py:" in found["where"]


@pytest.mark.parametrize(
    "words, why",
    [
        (["training.parallelism={dp_shard: 2, ep: 2}"], "ep is not rehearsed: the sizes of its messages depend on"),
        (["training.parallelism={pp: 2}"], "pp is not rehearsed"),
        (["--launch", "zero3"], "--launch=zero3: DeepSpeed keeps states of its own"),
        (["training.parallelism={dp_shard: 4}"], "takes 4 devices"),
    ],
)
def test_what_is_not_rehearsed_is_one_sentence(words, why, tiny_recipe, command, capsys):
    model = MIXTURE if "ep" in words[0] else {}
    assert command("rehearse", tiny_recipe(model=model), "--devices", "2xH100-80GB", *words) == 2
    assert why in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_base", "t5_small", "bart_base", "switch_base_8", "llama_1b", "nanogpt_char"])
def test_a_preset_of_each_architecture_is_rehearsed_on_64_devices(name):
    recipe, _ = planned_recipe(name, ["model.num_hidden_layers=2", "objective.sequence_length=64"])
    found = rehearse(recipe, devices_of("64xH100-80GB"))
    assert found.fits and found.mesh == {"dp_shard": 64} and found.collectives

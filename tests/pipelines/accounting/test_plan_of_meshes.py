"""What `anyformer plan` counts of a mesh by formulas is what a rehearsal of the same step finds."""

import pytest
from anyformer.pipelines.accounting.devices import devices_of
from anyformer.pipelines.accounting.plan import plan_run
from anyformer.pipelines.recipes.preset_run import planned_recipe
from anyformer.pipelines.rehearsal.rehearse import rehearse

OF_STATES, OF_PEAKS = 0.03, 0.10
CHECKPOINTED = "training.gradient_checkpointing=true"
LLAMA = ("training.torch_compile=false", "data.streaming=false", "training.per_device_train_batch_size=2")
SMALL = ("training.optim=adamw", "training.bf16=true", "model.num_hidden_layers=4")
MESHES = {
    "shared": ("quickstart", "8xH100-80GB", "{dp_shard: 8}", SMALL),
    "llama": ("llama_1b", "64xH100-80GB", "{dp_shard: 64}", LLAMA),
    "checkpointed": ("llama_1b", "64xH100-80GB", "{dp_shard: 64}", (*LLAMA, CHECKPOINTED)),
    "tp": ("llama_1b", "64xH100-80GB", "{dp_shard: 8, tp: 8}", (*LLAMA, CHECKPOINTED)),
    "copies": ("llama_1b", "64xH100-80GB", "{dp_replicate: 8, dp_shard: 8}", LLAMA),
}


def assert_equal(recipe, devices) -> None:
    found, rehearsed = plan_run(recipe, devices), rehearse(recipe, devices)
    states, total = found.memory.chosen.states, found.memory.chosen.total
    print(f"{total / 1e9:.3f} GB planned, {rehearsed.peak_bytes / 1e9:.3f} in {rehearsed.peak_in}", rehearsed.alive)
    print(found.messages, rehearsed.collectives, sep="\n")
    assert states.weights == pytest.approx(rehearsed.weights_bytes, rel=OF_STATES)
    assert states.gradients == pytest.approx(rehearsed.gradients_bytes, rel=OF_STATES)
    assert states.optimizer == pytest.approx(rehearsed.states_bytes, rel=OF_STATES)
    assert total == pytest.approx(rehearsed.peak_bytes, rel=OF_PEAKS)
    sent = {(one.kind, one.dimension): one.bytes for one in rehearsed.collectives}
    for one in found.messages:
        assert one.bytes == pytest.approx(sent[one.kind, one.dimension], rel=OF_STATES)


@pytest.mark.parametrize(
    "mesh", [name if name == "shared" else pytest.param(name, marks=pytest.mark.slow) for name in MESHES]
)
def test_a_planned_mesh_is_the_rehearsed_one(mesh):
    name, devices, shares, settings = MESHES[mesh]
    recipe, _ = planned_recipe(name, [f"training.parallelism={shares}", *settings])
    assert_equal(recipe, devices_of(devices))

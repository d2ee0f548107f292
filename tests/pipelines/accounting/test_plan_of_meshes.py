"""What `anyformer plan` counts of a mesh by formulas is what a rehearsal of the same step finds."""

import pytest
from anyformer.pipelines.accounting.devices import devices_of
from anyformer.pipelines.recipes.preset_run import planned_recipe
from rehearsed import assert_plan_is_rehearsed, needs_mesh

pytestmark = needs_mesh

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


@pytest.mark.parametrize(
    "mesh", [name if name == "shared" else pytest.param(name, marks=pytest.mark.slow) for name in MESHES]
)
def test_a_planned_mesh_is_the_rehearsed_one(mesh):
    name, devices, shares, settings = MESHES[mesh]
    recipe, _ = planned_recipe(name, [f"training.parallelism={shares}", *settings])
    assert_plan_is_rehearsed(recipe, devices_of(devices))

"""Meshes: whether `anyformer plan` counts by formulas what a rehearsal of the same step finds."""

import pytest
from anyformer.pipelines.accounting.plan import plan_run
from anyformer.pipelines.rehearsal.rehearse import rehearse
from anyformer.pipelines.training.engines.mesh import NEEDED
from transformers.distributed import DistributedConfig

OF_STATES, OF_MESSAGES, OF_PEAKS = 0.03, 0.05, 0.10
needs_mesh = pytest.mark.skipif(
    not set(NEEDED) <= DistributedConfig.__dataclass_fields__.keys(), reason="needs the mesh of transformers 5.23"
)


def assert_plan_is_rehearsed(recipe, devices) -> None:
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
        assert one.bytes == pytest.approx(sent[one.kind, one.dimension], rel=OF_MESSAGES)

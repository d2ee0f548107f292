"""The engine of training.parallelism by transformers' own plans (mesh.py), and of stages (pipeline.py)."""

from ...errors import UserError
from ...recipes.parallelism import MESH, words_of
from .base import WAY_OUT, Engine, is_true


class Mesh(Engine):
    """The model is split while it is built; no class wraps it, and mesh.check_shared looks at its weights."""

    name = MESH
    launched_by = "mesh"
    shares_model = True
    builds_late = True
    reads_pickles = True
    uncompiled = "a mesh"

    def _check_parallelism(self, device: str) -> None:
        if is_true("ACCELERATE_USE_FSDP") or is_true("ACCELERATE_USE_DEEPSPEED"):
            asked = "FSDP" if is_true("ACCELERATE_USE_FSDP") else "DeepSpeed"
            raise UserError(
                f"training.parallelism={words_of(self.parallelism)} splits the model itself, but the launcher's file "
                f"asks for {asked}; take configs/accelerate/ddp.yaml, or write {WAY_OUT} mesh"
            )

    def check_device(self, device: str) -> None:
        if device == "cpu" and self.parallelism.fsdp_cpu_offload:
            raise UserError(
                "training.parallelism.fsdp_cpu_offload=true needs GPUs: on a CPU shards are in its memory already; set "
                "it to false"
            )

    def share(self, model, device):
        from .mesh import share_model
        from .pipeline import cut_into_stages

        if self.parallelism.pp == 1:
            return share_model(model, self.parallelism)
        return cut_into_stages(model, self.parallelism, device)

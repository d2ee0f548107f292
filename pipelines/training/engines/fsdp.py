"""FSDP2 through accelerate: weights, gradients and optimizer states are split over the processes."""

import os

from ...errors import UserError
from .engine import WAY_OUT, Engine, is_true
from .late_weights import fill, is_late, leave_empty


class FSDP(Engine):
    name = "FSDP"
    launched_by = "fsdp2"
    wrappers = ("FSDP", "FullyShardedDataParallel")  # FSDP2 makes a subclass such as FSDPAnyformerDecoderModel
    reads_pickles = True
    splits_weights = "FSDP"

    @property
    def builds_late(self) -> bool:
        """Whether accelerate sends the weights of the first process to the others, which then need not draw any."""
        efficient, version = is_true("FSDP_CPU_RAM_EFFICIENT_LOADING"), os.environ.get("FSDP_VERSION")
        return efficient and version == "2" and self.section.lora is None

    def share(self, model, device):
        if is_late(model):
            (fill if os.environ.get("RANK", "0") == "0" else leave_empty)(model)
        return model

    def check_settings(self) -> None:
        self.check_average()

    def check_device(self, device: str) -> None:
        if device == "cpu" or is_true("ACCELERATE_USE_CPU"):
            raise UserError(
                f"FSDP2 needs GPUs: on a CPU accelerate trains DDP instead; write {WAY_OUT} zero3, which shards on "
                f"CPUs too"
            )

"""FSDP2 by accelerate: weights, gradients and optimizer states are split over the processes."""

from ...errors import UserError
from .engine import WAY_OUT, Engine, is_true


class FSDP(Engine):
    name = "FSDP"
    launched_by = "fsdp2"
    wrappers = ("FSDP", "FullyShardedDataParallel")  # FSDP2 makes a subclass, FSDPAnyformerDecoderModel
    reads_pickles = True
    uncompiled = "FSDP"
    splits_weights = "FSDP"

    def check_settings(self) -> None:
        self.check_average()

    def check_device(self, device: str) -> None:
        if device == "cpu" or is_true("ACCELERATE_USE_CPU"):
            raise UserError(
                f"FSDP2 needs GPUs: on a CPU accelerate trains DDP instead; write {WAY_OUT} zero3, which shards on "
                f"CPUs too"
            )

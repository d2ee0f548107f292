"""Additions to accelerate's loaders: equally many batches per process without repeated rows, and the epoch's number."""

from collections.abc import Iterator

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader
from transformers import TrainerCallback

from ...data.sample_ids import NO_ROW


class FullRounds(BatchSampler):
    """The batches of a sampler, then batches of NO_ROW until their number is a multiple of `processes`.

    Processes take batches in turn, so all get equally many, and every row is trained once per epoch. accelerate would
    fill up with rows from the epoch's beginning, which would then be trained twice.
    """

    def __init__(self, batches: BatchSampler, processes: int):
        self.batches, self.processes = batches, processes
        self.sampler, self.batch_size, self.drop_last = batches.sampler, batches.batch_size, batches.drop_last

    def __iter__(self) -> Iterator[list]:
        yield from self.batches
        yield from [[NO_ROW]] * (len(self) - len(self.batches))

    def __len__(self) -> int:
        return -(-len(self.batches) // self.processes) * self.processes


def share_out_in_full_rounds(loader: DataLoader) -> None:
    """Let a training loader that accelerate has prepared give each process equally many batches (FullRounds).

    Nothing changes for one process, where the last batch is dropped, or where each batch is split over the processes.
    """
    shard = getattr(loader, "batch_sampler", None)
    if not isinstance(shard, BatchSamplerShard) or shard.num_processes == 1:
        return
    if shard.batch_size is not None and not shard.split_batches and not shard.drop_last:
        shard.batch_sampler, shard.even_batches = FullRounds(shard.batch_sampler, shard.num_processes), False


class SetEpochCallback(TrainerCallback):
    """Calls `set_epoch` on data set and sampler, because accelerate does not reach them in every kind of loader.

    Args:
        dataset: the training rows; their set_epoch is called if they have one.

    `sampler` may be set later, when the loader is made.
    """

    def __init__(self, dataset):
        self.dataset, self.sampler = dataset, None

    def on_epoch_begin(self, args, state, control, **kwargs):
        for listener in (self.dataset, self.sampler):
            if hasattr(listener, "set_epoch"):
                listener.set_epoch(int(state.epoch or 0))

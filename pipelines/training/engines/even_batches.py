"""What accelerate's loaders lack: equally many batches for each process without a row twice, and the epoch's number."""

from collections.abc import Iterator

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader
from transformers import TrainerCallback

from ...data.sample_ids import NO_ROW


class FullRounds(BatchSampler):
    """The batches of a sampler, then batches of NO_ROW up to a multiple of `processes`, which take one each in turn.

    Each process then has equally many, and every row is trained once an epoch. accelerate would make them equal by
    rows from the epoch's beginning, which would be trained twice.
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
    """Change a training loader that accelerate has prepared for several processes, so that it shares out full rounds.

    Nothing is changed where the last batch is dropped, or where each is split over the processes.
    """
    shard = getattr(loader, "batch_sampler", None)
    if not isinstance(shard, BatchSamplerShard) or shard.num_processes == 1:
        return
    if shard.batch_size is not None and not shard.split_batches and not shard.drop_last:
        shard.batch_sampler, shard.even_batches = FullRounds(shard.batch_sampler, shard.num_processes), False


class SetEpochCallback(TrainerCallback):
    """Calls `set_epoch` on data set and sampler: accelerate does not reach them in every arrangement of loaders.

    Args:
        dataset: training rows; those without a set_epoch are left alone.

    `sampler` may be set later, when the loader is made.
    """

    def __init__(self, dataset):
        self.dataset, self.sampler = dataset, None

    def on_epoch_begin(self, args, state, control, **kwargs):
        for listener in (self.dataset, self.sampler):
            if hasattr(listener, "set_epoch"):
                listener.set_epoch(int(state.epoch or 0))

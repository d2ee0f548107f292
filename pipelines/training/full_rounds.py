"""Equally many batches for each process, without a row that is trained twice."""

from collections.abc import Iterator

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader

from ..data.sample_ids import NO_ROW


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

"""Batching by length: a sampler that groups rows of similar length, and a collator that pads them."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch.utils.data import Sampler

from .batch_keys import EPOCH, IGNORE_INDEX, ROW_IDS, pad, real_places, row_ids

POOL = 50  # batches whose rows are sorted together: lengths in a batch are similar, the order stays mostly random
MOST_OF_SHORT = 4  # at most so many times the rows of the longest batch: answers to short texts may be long


class LengthGroupedSampler(Sampler):
    """Row numbers of one epoch in batches of similar length: a pure function of seed and epoch.

    batch_size: rows of one optimizer step; within it they come longest first.

    All rows are shuffled, cut into pools of `POOL` batches, sorted by length inside each pool, and the batches of all
    pools are shuffled. The longest batch comes first: where memory does not suffice, the first step fails.
    """

    def __init__(self, lengths: np.ndarray, batch_size: int, seed: int):
        self.lengths, self.batch_size, self.seed, self.epoch = np.asarray(lengths), batch_size, seed, 0

    def __len__(self) -> int:
        return len(self.lengths)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng((self.seed, self.epoch))
        order = generator.permutation(len(self.lengths))
        pool, size = POOL * self.batch_size, self.batch_size
        batches = []
        for start in range(0, len(order), pool):
            members = order[start : start + pool]
            members = members[np.argsort(-self.lengths[members], kind="stable")]
            batches += [members[i : i + size] for i in range(0, len(members), size)]
        # A batch that is not full stays last, so that all other batches are full.
        last = [batches.pop()] if len(batches[-1]) < size else []
        batches = [batches[i] for i in generator.permutation(len(batches))]
        if batches:
            longest = max(range(len(batches)), key=lambda i: self.lengths[batches[i]].max())
            batches.insert(0, batches.pop(longest))
        yield from (int(i) for batch in [*batches, *last] for i in batch)


def batches_by_tokens(items: Iterable, rows: int, length: Callable = len) -> list[list]:
    """Items in batches, longest first; a padded batch has at most the tokens of `rows` items of the greatest length.

    So shorter items come in larger batches, of at most `MOST_OF_SHORT * rows` items.
    """
    batches, longest_first = [], sorted(items, key=length, reverse=True)
    for item in longest_first:
        most = rows * length(longest_first[0]) // max(1, length(batches[-1][0])) if batches else 0
        if batches and len(batches[-1]) < min(most, MOST_OF_SHORT * rows):
            batches[-1].append(item)
        else:
            batches.append([item])
    return batches


class PaddingCollator:
    """Rows -> one batch, padded to its longest row: input_ids, labels and the rows' other tensors.

    labels: (B,) for one class per row, else (B, U), padded with -100. Only batches with padding have an attention_mask:
    a mask of ones would make attention slower. The rows' epoch is left out, because nothing is random here.
    left: padding comes first. labels_of_tokens: each token has a label, so that labels are padded on the same side.
    """

    def __init__(self, pad_token_id: int, left: bool = False, labels_of_tokens: bool = False):
        self.padding, self.left = {"input_ids": pad_token_id, "labels": IGNORE_INDEX}, left
        self.labels_left = left and labels_of_tokens

    def __call__(self, rows: list[dict]) -> dict:
        batch = {}
        for name in rows[0]:
            if name in (ROW_IDS, EPOCH):
                continue
            values = [row[name] for row in rows]
            left = self.labels_left if name == "labels" else self.left
            batch[name] = torch.stack(values) if values[0].dim() == 0 else pad(values, self.padding.get(name, 0), left)
        inside = real_places([len(row["input_ids"]) for row in rows], batch["input_ids"].shape[1], self.left)
        return batch | ({} if inside.all() else {"attention_mask": inside.long()}) | row_ids(rows)

"""How many queries and keys meet in the blocks of attention_blocks.py.

Standard library only: memory is planned by it.
"""

from dataclasses import dataclass

# Queries of a block. Long blocks compute more scores of keys outside the window: on a CPU and for windows of 128,
# blocks of 256 take 1.2 x the time of 128. Short blocks copy each key more often, about MOST_COPIES times at most: in
# windows of 512, blocks of 128 take 0.73 x the time of 511. Beside a stride, plain products compute every score, and
# blocks are as long as the window. Blocks that read keys in place copy nothing.
QUERIES_PER_BLOCK, QUERIES_BESIDE_STRIDE, QUERIES_IN_PLACE, MOST_COPIES = 128, 64, 32, 5
# Rows shorter than so many times the keys that a query meets in blocks keep the mask, for which sdpa has one kernel.
LEAST_GAIN, LEAST_GAIN_BESIDE_STRIDE = 1.75, 5


@dataclass(frozen=True)
class BlockSizes:
    """near: the most tokens before and after a query that it sees one by one. stride: 0, or the distance of the tokens
    before these that it may see, too. size: queries of a block. before, after: how many keys of the neighbouring blocks
    a block meets."""

    near: tuple[int, int]
    stride: int
    size: int
    before: int
    after: int

    @property
    def keys(self) -> int:
        return self.before + self.size + self.after


def block_sizes(near: tuple[int, int], stride: int = 0, in_place: bool = False) -> BlockSizes:
    """in_place: whether blocks read keys where they are, as attention_blocks.reads_in_place says."""
    if in_place:
        size = QUERIES_IN_PLACE
    elif stride:
        size = max(QUERIES_BESIDE_STRIDE, *near)
    else:
        size = max(QUERIES_PER_BLOCK, -(-sum(near) // (MOST_COPIES - 1)))
    # Kernels on GPUs want multiples of 8, but no second neighbour is asked for their sake.
    before, after = (min(-(-side // 8) * 8, size * -(-side // size)) for side in near)
    return BlockSizes(near, stride, size, before, after)


def sizes_that_pay(config, traits, length: int, global_tokens: int = 0, in_place: bool = False) -> BlockSizes | None:
    """Blocks in which rows of so many tokens are faster than under a mask, or None.

    traits: the row of ATTENTION_KINDS. in_place: as block_sizes'; not beside strides and global tokens.
    """
    if traits.near is None:
        return None
    near, stride = traits.near(config), 0 if traits.stride is None else traits.stride(config)
    sizes, far = block_sizes(near, stride), length // stride if stride else 0
    gain = LEAST_GAIN_BESIDE_STRIDE if stride else LEAST_GAIN
    if length < gain * (sizes.size + sum(near) + far + global_tokens):
        return None
    return block_sizes(near, in_place=True) if in_place and not (stride or global_tokens) else sizes

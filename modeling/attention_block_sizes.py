"""How many queries and keys meet in the blocks of attention_blocks.py.

Standard library only: memory is planned by it.
"""

from dataclasses import dataclass

# Queries of a block, or as many as its neighbourhood reaches to one side, if that is more. On a CPU and for windows of
# 128, blocks of 256 take 1.2 x the time: their queries meet more keys that they do not see. Plain products, which
# strides need, make every score that is met.
QUERIES_PER_BLOCK, QUERIES_BESIDE_STRIDE = 128, 64
# Rows shorter than so many times the keys that a query meets in blocks keep the mask, for which sdpa has one kernel.
LEAST_GAIN, LEAST_GAIN_BESIDE_STRIDE = 1.5, 5


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


def block_sizes(near: tuple[int, int], stride: int = 0) -> BlockSizes:
    size = max(QUERIES_BESIDE_STRIDE if stride else QUERIES_PER_BLOCK, *near)
    before, after = (min(-(-side // 8) * 8, size) for side in near)  # kernels on GPUs want multiples of 8
    return BlockSizes(near, stride, size, before, after)


def sizes_that_pay(config, traits, length: int, global_tokens: int = 0) -> BlockSizes | None:
    """Blocks in which rows of so many tokens are faster than under a mask, or None.

    traits: the row of ATTENTION_KINDS.
    """
    if traits.near is None:
        return None
    near, stride = traits.near(config), 0 if traits.stride is None else traits.stride(config)
    sizes, far = block_sizes(near, stride), length // stride if stride else 0
    gain = LEAST_GAIN_BESIDE_STRIDE if stride else LEAST_GAIN
    return sizes if length >= gain * (sizes.size + sum(near) + far + global_tokens) else None

"""The mask of block-sparse attention: rows are cut into blocks, of which a query sees some as a whole."""

MIXERS = ((16, 0x45D9F3B), (15, 0x45D9F3B))  # shifts and odd factors of an integer hash
MASK = 0x7FFFFFFF  # 31 bits: a product of two such numbers fits an int64 index


def block_sparse_mask_function(config):
    """A mask over blocks of `block_size` tokens, as in BigBird (Zaheer et al. 2020, section 2), for a decoder.

    A query sees its own block and those just before it (`num_local_blocks` together), the first `num_sink_blocks`,
    every `block_stride`-th before its own (Child et al. 2019), and `num_random_blocks` drawn for its block. Blocks are
    counted from a document's first token. The draw depends only on `block_seed` and the block's number: it is the same
    in all heads, layers and row lengths, and a generated token sees what it would have seen in training.
    """
    size, local, sinks = config.block_size, config.num_local_blocks, config.num_sink_blocks
    stride, drawn, seed = config.block_stride, config.num_random_blocks, config.block_seed

    def block_sparse(batch_idx, head_idx, q_idx, kv_idx):
        query, key = q_idx // size, kv_idx // size
        seen = (query - key < local) | (key < sinks)
        if stride is not None:
            seen = seen | ((query - key) % stride == 0)
        for number in range(drawn):
            seen = seen | (key == hashed(query, number, seed) % query.clamp(min=1))
        return seen

    block_sparse.takes_tensors = True
    return block_sparse


def hashed(block, number: int, seed: int):
    """A pseudo-random integer of 31 bits for each block, draw and seed."""
    x = (block * 0x9E3779B1 + number * 0x85EBCA6B + seed * 0xC2B2AE35) & MASK
    for shift, factor in MIXERS:
        x = ((x ^ (x >> shift)) * factor) & MASK
    return x ^ (x >> 16)

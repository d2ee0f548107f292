"""The mask of chunked attention: rows are cut into chunks, outside which a query sees nothing."""


def chunked_mask_function(config):
    """A query sees its own chunk of `attention_chunk_size` tokens (Llama 4; blocks of Child et al. 2019, section 4).

    Chunks are counted from a document's first token, wherever in the row it stands.
    """
    size = config.attention_chunk_size

    def chunked(batch_idx, head_idx, q_idx, kv_idx):
        return q_idx // size == kv_idx // size

    chunked.takes_tensors = True
    return chunked

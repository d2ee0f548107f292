"""The mask of strided attention: a local band, and far keys a stride apart."""


def strided_mask_function(config):
    """A query sees a local band and every `stride`-th key before (Child et al. 2019, section 4.2, both in one head)."""
    stride = config.attention_stride

    def strided(batch_idx, head_idx, q_idx, kv_idx):
        distance = q_idx - kv_idx
        return (distance.abs() < stride) | (distance % stride == 0)

    strided.takes_tensors = True  # tensors of indices, for backends that ask about some keys only
    strided.stride = stride  # for backends that compute such a pattern by itself
    return strided

"""Numbers of parameters of schemes and kinds of attention. `sizes` is pipelines' parameter_count._Parts."""


def distance_table(sizes, layers: int) -> int:
    c = sizes.c
    span = c.position_buckets or c.max_relative_positions or c.max_position_embeddings
    return 2 * span * sizes.D + (sizes.norm(sizes.D) if c.relative_embedding_norm else 0)


def distance_projections(sizes) -> int:
    c = sizes.c
    if c.share_att_key:
        return 0
    keys, queries = sizes.linear(sizes.D, sizes.G * sizes.K, sizes.key_bias), sizes.linear(sizes.D, sizes.H * sizes.K)
    terms = {"c2p": keys, "p2c": queries}
    return sum(terms[name] for name in c.pos_att_type or terms)


def global_projections(sizes) -> int:
    queries = sizes.linear(sizes.D, sizes.H * sizes.K, sizes.c.attention_bias)
    values = sizes.linear(sizes.D, sizes.G * sizes.K, sizes.c.attention_bias)
    return queries + sizes.linear(sizes.D, sizes.G * sizes.K, sizes.key_bias) + values

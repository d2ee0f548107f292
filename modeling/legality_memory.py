"""The rows of the legality table about memories beyond a window: linear, compressive and recurrent attention.

Standard library only.
"""

# Kinds of attention whose cache is states of a fixed size, and the `layer_types` name of such a cache.
STATE_KINDS = ("linear_attention", "compressive_attention", "recurrent_attention")
SEGMENT_KINDS = ("compressive_attention", "recurrent_attention")
STATE_LAYER_TYPE = "anyformer_states"
MEMORY_UPDATES = ("delta", "linear")


def is_recurrent(c) -> bool:
    """Whether `memory_length` alone says what the layers are: segments with a memory, all of them."""
    return getattr(c, "memory_length", None) is not None and not c.attention_pattern


def memory_rows(attention_kinds, needs) -> list[tuple]:
    """(is this config illegal?, the sentence a user reads); both arguments are those of legality.py."""

    def without_scores(setting, unset, instead):
        """Linear attention has no matrix of scores for this setting to act on."""
        return (
            lambda c: "linear_attention" in attention_kinds(c) and getattr(c, setting) != unset,
            lambda c: (
                f"{setting}={getattr(c, setting)} acts on single scores, which linear_attention has not; {instead}"
            ),
        )

    return [
        *needs(SEGMENT_KINDS, "segment_length", "the number of tokens that are attended to one by one"),
        *needs(("recurrent_attention",), "memory_length", "the number of tokens before a segment that it still sees"),
        (
            lambda c: getattr(c, "memory_update", "delta") not in MEMORY_UPDATES,
            lambda c: f"memory_update={c.memory_update!r} is not known; known: {', '.join(MEMORY_UPDATES)}",
        ),
        (
            lambda c: "linear_attention" in attention_kinds(c) and c.position_encoding in ("alibi", "relative"),
            lambda c: (
                f"position_encoding={c.position_encoding!r} adds to single scores, which linear_attention does not "
                f"have; rotary, learned, sinusoidal and none go with it"
            ),
        ),
        without_scores("attn_logit_softcapping", None, "leave it null"),
        without_scores("attention_dropout", 0, "set it to 0 and use hidden_dropout"),
        without_scores("attention_multiplier", None, "leave it null"),
        (
            lambda c: "recurrent_attention" in attention_kinds(c) and c.position_encoding in ("learned", "sinusoidal"),
            lambda c: (
                f"position_encoding={c.position_encoding!r} numbers the tokens of a row, but recurrent_attention "
                f"remembers tokens of any number of segments; rotary, alibi, relative and none know distances"
            ),
        ),
    ]

"""Log-likelihoods of continuations, computed in batches, equal to those computed for one text at a time."""

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from anyformer.modeling.attention_masks import CACHE
from anyformer.modeling.rules.serving import BATCH_DEPENDENT_ROPE
from anyformer.modeling.seq2seq import shift_right
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutput

from ..data.batch_keys import pad, real_places
from ..data.length_batching import batches_by_tokens
from ..positions import UNLIMITED, most_positions
from ..words import watched
from .token_log_probs import token_log_probs

# (tokens of the context, tokens of the continuation)
Pair = tuple[list[int], list[int]]
LEAST_SHARED = 8  # a common prefix of at least this many tokens is read once, in a pass of its own


def encode_pairs(tokenizer, texts: list[tuple[str, str]], apart: bool = False) -> list[Pair]:
    """Tokens of (context, continuation) texts, split as lm-eval splits them: the whole text is tokenised.

    Tokens that the tokenizer adds before a text are kept, those it adds after one are not. apart: continuations are
    answers, tokenised by themselves, and contexts are whole texts (encoder-decoders).
    """
    if apart:
        context_ids = tokenizer([context for context, _ in texts])["input_ids"]
        return list(zip(context_ids, tokenizer([word for _, word in texts], add_special_tokens=False)["input_ids"]))
    plain, framed = tokenizer("a", add_special_tokens=False)["input_ids"], tokenizer("a")["input_ids"]
    before = framed[: framed.index(plain[0])] if plain else []
    contexts = list(dict.fromkeys(context for context, _ in texts))
    lengths = dict(zip(contexts, map(len, tokenizer(contexts, add_special_tokens=False)["input_ids"])))
    whole = tokenizer([context + word for context, word in texts], add_special_tokens=False)["input_ids"]
    # Where a token spans the end of the context and what follows, at least one token is still predicted.
    splits = [min(lengths[context], len(ids) - 1) for (context, _), ids in zip(texts, whole)]
    return [([*before, *ids[:split]], ids[split:]) for split, ids in zip(splits, whole)]


def most_tokens(config) -> int:
    """The longest text that a model can read, in tokens; UNLIMITED where its config does not say."""
    return most_positions(config) or UNLIMITED


def log_likelihoods(model, pairs: list[Pair], *, batch_size: int, most: int) -> list[float]:
    """The sum of log-probabilities of each continuation's tokens after its context, in fp64.

    A text of more than `most` tokens loses its beginning. A batch holds at most as many tokens as `batch_size` of the
    longest rows.
    """
    batches = _of_answers if model.config.is_encoder_decoder else _of_continuations
    sums = torch.zeros(len(pairs), dtype=torch.float64)
    for numbers, *asked in batches(model, pairs, batch_size, most):
        sums.index_add_(0, numbers, token_log_probs(model, *asked).cpu())
    return sums.tolist()


# The number of the pair of each asked token, and what token_log_probs takes.
Batch = tuple[torch.Tensor, dict[str, Any], torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


def _of_continuations(model, pairs: list[Pair], batch_size: int, most: int) -> Iterator[Batch]:
    """The batches of a decoder.

    Continuations that share what the model reads share a row, and the prefix that all rows share, such as the solved
    examples of a prompt, is read once.
    """
    texts = [(context + continuation)[-(most + 1) :] for context, continuation in pairs]
    # The first position of each text that predicts a token of the continuation.
    first = [len(text) - 1 - min(len(pair[1]), len(text) - 1) for text, pair in zip(texts, pairs)]
    inputs = [tuple(text[:-1]) for text in texts]
    row_of = shared_rows(inputs)
    numbers_of_row: dict[tuple, list[int]] = {}
    for number, text in enumerate(inputs):
        numbers_of_row.setdefault(row_of[text], []).append(number)
    whole = [number for number, pair in enumerate(pairs) if len(pair[0]) + len(pair[1]) <= most + 1]
    prefix, cache = _read_once(model, [inputs[number] for number in whole], [first[number] for number in whole])
    batches = []
    for shares in (True, False):  # rows with the shared prefix, then those that were cut and lost it
        rows = [row for row in numbers_of_row if (row[: len(prefix)] == prefix) == shares]
        past = len(prefix) if shares else 0
        batches += [(past, batch) for batch in batches_by_tokens(rows, batch_size)]
    for past, batch in watched(batches, "asking, batch"):
        ids, mask = _padded([row[past:] for row in batch])
        asked = []  # (number of the pair, row of the batch, position that predicts, token)
        for i, row in enumerate(batch):
            for number in numbers_of_row[row]:
                text = texts[number]
                asked += [(number, i, at - past, text[at + 1]) for at in range(first[number], len(text) - 1)]
        numbers, rows, places, tokens = (torch.tensor(column) for column in zip(*asked))
        read = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        if past:
            read["attention_mask"] = torch.cat((mask.new_ones(len(batch), past), mask), dim=1)
            own = copy.deepcopy(cache)  # the model adds to it
            own.batch_repeat_interleave(len(batch))
            read |= {_cache_argument(model): own, "use_cache": True}
        if "logits_to_keep" in inspect.signature(model.forward).parameters:
            read["logits_to_keep"] = kept = places.unique()
            places = torch.searchsorted(kept, places)
        yield numbers, read, tokens, (rows, places)


def _read_once(model, rows: list[tuple], first: list[int]) -> tuple:
    """(the prefix that all rows share, the cache of a model that read it), or ((), None) where it cannot help.

    It needs a cache of keys and values that do not depend on later tokens: no recurrent states, no sliding windows, no
    experts with a capacity for each row, no rotary frequencies that depend on the length.
    """
    config, nothing = model.config, ((), None)
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {each.get("rope_type") for each in (rope, *rope.values()) if isinstance(each, dict)}
    if len(rows) < 2 or _cache_argument(model) is None or getattr(config, "expert_capacity", None) is not None:
        return nothing
    both = list(zip(min(rows), max(rows)))  # lexicographically all other rows lie between these two
    length = min(next((at for at, (one, other) in enumerate(both) if one != other), len(both)), *first)
    if length < LEAST_SHARED or kinds & set(BATCH_DEPENDENT_ROPE):
        return nothing
    prefix = rows[0][:length]
    with torch.no_grad():  # inference mode makes tensors that cannot be copied
        cache = model(input_ids=torch.tensor([prefix], device=model.device), use_cache=True).get(CACHE)
    if type(cache) is not DynamicCache or not all(
        isinstance(layer, DynamicLayer) and not layer.is_sliding for layer in cache.layers
    ):
        return nothing
    return prefix, cache


def _cache_argument(model) -> str | None:
    """The name of a model's cache argument; transformers renamed its own in 5.24."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in parameters), None)


def shared_rows(texts: list[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Each text -> the longest text that begins with it and, as attention is causal, has the same logits there."""
    ordered, longest_of = sorted(set(texts)), {}
    for here, after in zip(reversed(ordered), [None, *reversed(ordered)]):
        begins = after is not None and after[: len(here)] == here
        longest_of[here] = longest_of[after] if begins else here
    return longest_of


def _of_answers(model, pairs: list[Pair], batch_size: int, most: int) -> Iterator[Batch]:
    """The batches of an encoder-decoder: the encoder reads each context once, the decoder the continuations."""
    numbers_of_context: dict[tuple, list[int]] = {}
    for number, (context, _) in enumerate(pairs):
        numbers_of_context.setdefault(tuple(context[-most:]), []).append(number)
    for contexts in watched(batches_by_tokens(list(numbers_of_context), batch_size), "asking, batch"):
        ids, mask = (each.to(model.device) for each in _padded(contexts))
        with torch.inference_mode():
            states = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        numbers = [(number, row) for row, context in enumerate(contexts) for number in numbers_of_context[context]]
        for start in range(0, len(numbers), batch_size):
            part, rows = torch.tensor(numbers[start : start + batch_size]).T
            answers, counted = _padded([pairs[number][1] for number in part])
            starts = shift_right(answers, model.config.decoder_start_token_id, model.config.pad_token_id)
            read = {
                "encoder_outputs": BaseModelOutput(last_hidden_state=states[rows]),
                "attention_mask": mask[rows],
                "decoder_input_ids": starts,
                "use_cache": False,
            }
            at = counted.nonzero(as_tuple=True)
            yield part[at[0]], read, answers[at], at


def _padded(rows) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) of rows padded at their ends with token 0, which no token before it attends to."""
    ids = pad(list(rows), 0)
    return ids, real_places(list(map(len, rows)), ids.shape[1]).long()

"""Log-likelihoods of continuations, in batches, equal to those of one text at a time."""

import inspect

import torch

from ..objectives.text import UNLIMITED
from ..words import watched

# (tokens of the context, tokens of the continuation)
Pair = tuple[list[int], list[int]]


def encode_pairs(tokenizer, texts: list[tuple[str, str]], apart: bool = False) -> list[Pair]:
    """Tokens of contexts and of what follows them, split as lm-eval splits them: the whole text is tokenised.

    What the tokenizer puts before a text is kept, what it puts after one is not. apart: continuations are answers,
    tokenised by themselves, and contexts are whole texts (encoder-decoders).
    """
    if apart:
        read = tokenizer([context for context, _ in texts])["input_ids"]
        return list(zip(read, tokenizer([word for _, word in texts], add_special_tokens=False)["input_ids"]))
    plain, framed = tokenizer("a", add_special_tokens=False)["input_ids"], tokenizer("a")["input_ids"]
    before = framed[: framed.index(plain[0])] if plain else []
    contexts = list(dict.fromkeys(context for context, _ in texts))
    lengths = dict(zip(contexts, map(len, tokenizer(contexts, add_special_tokens=False)["input_ids"])))
    whole = tokenizer([context + word for context, word in texts], add_special_tokens=False)["input_ids"]
    # At least one token is predicted, where a tokenizer makes one of the context's end and what follows.
    splits = [min(lengths[context], len(ids) - 1) for (context, _), ids in zip(texts, whole)]
    return [([*before, *ids[:split]], ids[split:]) for split, ids in zip(splits, whole)]


def most_tokens(config) -> int:
    """The longest text that a model was made for, where its config says one."""
    return getattr(config, "max_position_embeddings", None) or UNLIMITED


def log_likelihoods(model, pairs: list[Pair], *, batch_size: int, most: int) -> list[float]:
    """The sum of log-probabilities of each continuation's tokens after its context, in fp64.

    A text of more than `most` tokens loses its beginning. Continuations that share what the model reads share a row.
    """
    if model.config.is_encoder_decoder:
        return _of_answers(model, pairs, batch_size, most)
    texts = [(context + continuation)[-(most + 1) :] for context, continuation in pairs]
    read = [tuple(text[:-1]) for text in texts]
    row_of = shared_rows(read)
    rows = sorted(set(row_of.values()), key=len, reverse=True)
    asked: dict[tuple, list[int]] = {row: [] for row in rows}
    for number, text in enumerate(read):
        asked[row_of[text]].append(number)
    found = [0.0] * len(pairs)
    keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
    for start in watched(range(0, len(rows), batch_size), "asking, batch"):
        batch = rows[start : start + batch_size]
        ids, mask = _padded(batch, model.device)
        targets = []  # (number of the pair, row of the batch, position that predicts, token)
        for i, row in enumerate(batch):
            for number in asked[row]:
                text, length = texts[number], len(pairs[number][1])
                first = len(text) - 1 - min(length, len(text) - 1)
                targets += [(number, i, place, text[place + 1]) for place in range(first, len(text) - 1)]
        numbers, at, places, tokens = (list(column) for column in zip(*targets))
        kept = torch.tensor(sorted(set(places)), device=model.device)
        with torch.inference_mode():
            options = {"logits_to_keep": kept} if keeps else {}
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **options).logits
        columns = torch.searchsorted(kept, torch.tensor(places, device=model.device)) if keeps else torch.tensor(places)
        chosen = logits[torch.tensor(at, device=model.device), columns.to(model.device)].double().log_softmax(-1)
        chosen = chosen.gather(-1, torch.tensor(tokens, device=model.device)[:, None])[:, 0].tolist()
        for number, value in zip(numbers, chosen):
            found[number] += value
    return found


def shared_rows(texts: list[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Each text -> the longest one that begins with it, whose logits are its own as well (causal attention)."""
    ordered, found = sorted(set(texts)), {}
    for here, after in zip(reversed(ordered), [None, *reversed(ordered)]):
        begins = after is not None and after[: len(here)] == here
        found[here] = found[after] if begins else here
    return found


def _of_answers(model, pairs: list[Pair], batch_size: int, most: int) -> list[float]:
    """log_likelihoods of an encoder-decoder: contexts are read, continuations answered."""
    found = [0.0] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda number: -len(pairs[number][0]))
    for start in watched(range(0, len(order), batch_size), "asking, batch"):
        batch = order[start : start + batch_size]
        ids, mask = _padded([pairs[number][0][-most:] for number in batch], model.device)
        answers, counted = _padded([pairs[number][1] for number in batch], model.device)
        begun = model.prepare_decoder_input_ids_from_labels(labels=answers)
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=begun, use_cache=False).logits
        chosen = logits.double().log_softmax(-1).gather(-1, answers[..., None])[..., 0]
        for number, value in zip(batch, (chosen * counted).sum(-1).tolist()):
            found[number] = value
    return found


def _padded(rows, device) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask) of rows padded at their ends with token 0, which nothing before it can see."""
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
    return ids.to(device), mask.to(device)

"""Answers to rows without labels, in batches of similar length, by transformers' pipelines where the head has one."""

from collections.abc import Callable, Sequence
from typing import Any

from ..data.account import Account
from ..data.documents import in_batches
from ..generation import free_positions
from ..lazy import torch, transformers
from .answers import FinishedModel
from .base import Objective


def count_cut(account: Account, texts: int) -> None:
    """Count texts that were truncated to what the model can read."""
    account.cut("text", "cut to what the model reads at once", texts, is_usual=False)


def by_length(items: Sequence, lengths: Sequence[int], answer: Callable[[list], list]) -> list:
    """Call `answer` with all items, longest first, and return its results in the order of `items`."""
    order = sorted(range(len(items)), key=lambda number: -lengths[number])
    results = dict(zip(order, answer([items[number] for number in order]), strict=True))
    return [results[number] for number in range(len(items))]


def piped(objective: Objective, finished: FinishedModel, kind: str, asked: list, **options) -> list:
    """The results of transformers' pipeline of a kind, such as TextClassification, for each of `asked`.

    asked: texts, pairs {"text", "text_pair"}, or images. options: keyword arguments of the pipeline's call. Without a
    padding token the batch size is 1.
    """
    processor, lengths, keyword = objective.tokenizer, [0] * len(asked), "image_processor"
    if processor is None:
        processor = objective.processor
    elif asked:
        columns = zip(*(item.values() if isinstance(item, dict) else [item] for item in asked))
        lengths, keyword = list(map(len, processor(*map(list, columns), verbose=False)["input_ids"])), "tokenizer"
        count_cut(objective.account, sum(length > processor.model_max_length for length in lengths))
        options["batch_size"] = 1 if processor.pad_token_id is None else finished.batch_size
    device = finished.model.device
    pipe = getattr(transformers, f"{kind}Pipeline")(model=finished.model, device=device, **{keyword: processor})

    def answer(items: list) -> list:
        results = pipe(items, **{"batch_size": finished.batch_size} | options)
        return [results] if kind == "FillMask" and len(items) == 1 else results  # it unpacks a list of one

    return by_length(asked, lengths, answer) if asked else []


OF_SCORES = ("prediction", "score", "scores")


def of_scores(found: list[dict[str, Any]]) -> dict[str, Any]:
    """{"prediction": the likeliest class, "score": its score, "scores": {class: score}} of a pipeline's result."""
    best = max(found, key=lambda each: each["score"])
    scores = {each["label"]: each["score"] for each in found}
    return {"prediction": best["label"], "score": best["score"], "scores": scores}


def continuations(finished: FinishedModel, tokenizer, prompts: list[list[int]], most: int | None = None) -> list[str]:
    """The texts that a decoder writes after prompts of token ids.

    most: new tokens; None: as the generation config says. A prompt so long that fewer fit into the model's positions is
    answered in a batch of its own, so that it shortens no other answer. Raises UserError for a prompt that fills them.
    """
    model, most = finished.model, most or finished.model.generation_config.max_new_tokens
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    def write(batch: list[list[int]]) -> list[str]:
        width = max(map(len, batch))
        ids = torch.tensor([[padding or 0] * (width - len(row)) + row for row in batch], device=model.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch], device=model.device)
        room = min(most, free_positions(model.config, width))
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=room, do_sample=False, pad_token_id=padding
            )
        return tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)

    def answer(longest_first: list[list[int]]) -> list[str]:
        long_prompts = [row for row in longest_first if free_positions(model.config, len(row)) < most]
        rest, size = longest_first[len(long_prompts) :], finished.batch_size
        batches = [[row] for row in long_prompts] + [rest[i : i + size] for i in range(0, len(rest), size)]
        return [text for batch in batches for text in write(batch)]

    return by_length(prompts, list(map(len, prompts)), answer)


def vectors_of_texts(
    objective: Objective, finished: FinishedModel, texts: list[str], pooling: str
) -> list[list[float]]:
    """A vector for each text: the mean of its tokens' vectors (pooling="mean") or the first token's ("first")."""
    from anyformer.modeling.encoder import pool_tokens

    def answer(states, mask) -> list[list[float]]:
        return pool_tokens(states.float(), mask, "cls" if pooling == "first" else "mean").cpu().tolist()

    read = objective.tokenizer(texts, truncation=True)["input_ids"]
    return of_read_texts(objective, finished, texts, read, answer)


def of_read_texts(
    objective: Objective, finished: FinishedModel, texts: list[str], read: list[list[int]], answer: Callable
) -> list:
    """The answers to texts, in their order, with one model call per batch.

    read: their token ids, cut at model_max_length. answer: (the model's first output (B, T, ...), attention mask (B, T)
    or None) -> the batch's answers.
    """
    from ..data.length_batching import PaddingCollator

    model, tokenizer = finished.model, objective.tokenizer
    most = tokenizer.model_max_length
    full = [text for text, ids in zip(texts, read, strict=True) if len(ids) == most]
    whole = tokenizer(full, verbose=False)["input_ids"] if full else []
    count_cut(objective.account, sum(len(ids) > most for ids in whole))
    collate = PaddingCollator(tokenizer.pad_token_id or 0)

    def of_some(texts: list[list[int]]) -> list:
        answers = []
        for chunk in in_batches(texts, finished.batch_size):
            batch = collate([{"input_ids": torch.tensor(ids)} for ids in chunk])
            inputs = {name: tensor.to(model.device) for name, tensor in batch.items()}
            with torch.inference_mode():
                answers += answer(model(**inputs)[0], inputs.get("attention_mask"))
        return answers

    return by_length(read, list(map(len, read)), of_some)


def vectors_of_images(finished: FinishedModel, processor, images: list) -> list[list[float]]:
    """A vector for each image: the mean over its patches, or over all positions of a convolutional model's output."""
    vectors = []
    for start in range(0, len(images), finished.batch_size):
        inputs = processor(images=images[start : start + finished.batch_size], return_tensors="pt")
        with torch.inference_mode():
            states = finished.model(**inputs.to(finished.model.device))[0].float()
        pooled = states.flatten(2).mean(-1) if states.dim() == 4 else states.mean(1)
        vectors += pooled.cpu().tolist()
    return vectors

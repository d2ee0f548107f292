"""Answers to rows without labels, computed in batches of similar length; transformers' pipelines where it has one.

Every answer is a mapping of columns, of which `prediction` is the first.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..data.documents import in_batches
from ..generation import free_positions
from ..lazy import torch, transformers
from .base import Objective
from .finished_model import FinishedModel


def by_length(items: Sequence, lengths: Sequence[int], answer: Callable[[list], list]) -> list:
    """`answer` of the items, which it gets longest first, in the order of the items."""
    order = sorted(range(len(items)), key=lambda number: -lengths[number])
    found = dict(zip(order, answer([items[number] for number in order]), strict=True))
    return [found[number] for number in range(len(items))]


def piped(objective: Objective, finished: FinishedModel, kind: str, asked: list, **options) -> list:
    """What transformers' pipeline of a kind, such as TextClassification, gives of each of `asked`.

    asked: texts, pairs {"text", "text_pair"}, or images, which are all of one size. Without a padding token rows cannot
    share a batch. options: those of the pipeline's call.
    """
    processor, lengths, what = objective.processor, [0] * len(asked), "image_processor"
    if objective.tokenizer is not None and asked:
        columns = zip(*(each.values() if isinstance(each, dict) else [each] for each in asked))
        lengths, what = list(map(len, processor(*map(list, columns), verbose=False)["input_ids"])), "tokenizer"
        objective.cut += sum(length > processor.model_max_length for length in lengths)
        options["batch_size"] = 1 if processor.pad_token_id is None else finished.batch_size
    device = finished.model.device
    pipe = getattr(transformers, f"{kind}Pipeline")(model=finished.model, device=device, **{what: processor})

    def answer(items: list) -> list:
        found = pipe(items, **{"batch_size": finished.batch_size} | options)
        return [found] if kind == "FillMask" and len(items) == 1 else found  # which unpacks a single one

    return by_length(asked, lengths, answer) if asked else []


def of_scores(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The likeliest of the classes that a pipeline gives scores of, its score, and all scores by the classes' names."""
    best = max(found, key=lambda each: each["score"])
    scores = {each["label"]: each["score"] for each in found}
    return {"prediction": best["label"], "score": best["score"], "scores": scores}


def continuations(finished: FinishedModel, tokenizer, prompts: list[list[int]], most: int | None = None) -> list[str]:
    """What a decoder writes after each of the prompts, token ids; most: tokens, else as its generation config says.

    A prompt that leaves it less room than that asks for is answered by itself, so that no other loses room. Raises
    UserError for a prompt that is longer than the model's positions.
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
        alone = [row for row in longest_first if free_positions(model.config, len(row)) < most]
        rest, size = longest_first[len(alone) :], finished.batch_size
        batches = [[row] for row in alone] + [rest[i : i + size] for i in range(0, len(rest), size)]
        return [text for batch in batches for text in write(batch)]

    return by_length(prompts, list(map(len, prompts)), answer)


def vectors_of_texts(
    objective: Objective, finished: FinishedModel, texts: list[str], pooling: str
) -> list[list[float]]:
    """A vector for each text, pooled from those of its tokens: "mean" or "first"."""
    from anyformer.modeling.encoder import pool_tokens

    def answer(states, mask) -> list[list[float]]:
        return pool_tokens(states.float(), mask, "cls" if pooling == "first" else "mean").cpu().tolist()

    return of_read_texts(objective, finished, objective.tokenizer(texts, truncation=True)["input_ids"], answer)


def of_read_texts(objective: Objective, finished: FinishedModel, read: list[list[int]], answer: Callable) -> list:
    """`answer` of each text, in their order. It gets a batch's first output, (B, T, ...), and its mask or None."""
    from ..data.length_batching import PaddingCollator

    model, tokenizer = finished.model, objective.tokenizer
    objective.cut += sum(len(ids) >= tokenizer.model_max_length for ids in read)
    collate = PaddingCollator(tokenizer.pad_token_id or 0)

    def of_some(texts: list[list[int]]) -> list:
        found = []
        for some in in_batches(texts, finished.batch_size):
            batch = collate([{"input_ids": torch.tensor(ids)} for ids in some])
            inputs = {name: tensor.to(model.device) for name, tensor in batch.items()}
            with torch.inference_mode():
                found += answer(model(**inputs)[0], inputs.get("attention_mask"))
        return found

    return by_length(read, list(map(len, read)), of_some)


def vectors_of_images(finished: FinishedModel, processor, images: list) -> list[list[float]]:
    """A vector for each image, the mean of those of its patches (or of its places, of a model of convolutions)."""
    found = []
    for start in range(0, len(images), finished.batch_size):
        inputs = processor(images=images[start : start + finished.batch_size], return_tensors="pt")
        with torch.inference_mode():
            states = finished.model(**inputs.to(finished.model.device))[0].float()
        pooled = states.flatten(2).mean(-1) if states.dim() == 4 else states.mean(1)
        found += pooled.cpu().tolist()
    return found

"""`anyformer inspect`: the page of a model's texts or images: maps, heads, norms, the lens, the loads of experts."""

import base64
import gzip
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ..errors import UserError
from ..words import counted, short_number, watched
from .attention_maps import AttentionMap, attention_maps
from .lens import readings
from .maps_page import write_page

# Square roots of shares are stored in this many levels, a byte each: fine for small shares, right to half a hundredth.
LEVELS = 255


def packed(weights: torch.Tensor) -> dict[str, Any]:
    """Shares (H, T, S) as {"largest": of each head, "data": square roots of the parts of it, compressed, in base64}."""
    largest = weights.float().amax((1, 2))
    levels = (weights / largest.clamp_min(1e-30)[:, None, None]).clamp(0, 1).sqrt().mul(LEVELS).round().to(torch.uint8)
    data = base64.b64encode(gzip.compress(levels.contiguous().numpy().tobytes(), 9, mtime=0)).decode()
    return {"largest": [round(share, 6) for share in largest.tolist()], "data": data}


def summaries(
    weights: torch.Tensor, kind: str, places: Mapping[str, Sequence[int]] = MappingProxyType({})
) -> dict[str, list[float]]:
    """The means over queries of each head (H, T, S): {"entropy" in nats, "first": share of the first key, ...}.

    For self-attention also "distance" (|query - key| in tokens, weighted by the shares) and "previous" (the share of
    the token before); for each word of `places`, "to WORD": the share of its keys, over the queries of other tokens.
    """
    _, queries, keys = weights.shape
    w = weights.double()
    means = {"entropy": -(w * w.clamp_min(1e-30).log()).sum(-1).mean(-1), "first": w[..., 0].mean(-1)}
    if kind == "self" and queries == keys:
        place = torch.arange(keys)
        means["distance"] = (w * (place[:, None] - place[None]).abs()).sum(-1).mean(-1)
        if keys > 1:
            means["previous"] = w.diagonal(-1, 1, 2).mean(-1)
    for word, of_word in places.items():
        others = [q for q in range(queries) if kind != "self" or q not in of_word] or list(range(queries))
        means[f"to {word}"] = w[:, others][..., list(of_word)].sum(-1).mean(-1)
    return {name: [round(value, 4) for value in values.tolist()] for name, values in means.items()}


@dataclass(frozen=True)
class Wanted:
    """What a page shows: layers, by number (None: all), words that are looked for, and heads, as L3.H2, for figures."""

    layers: Collection[int] | None = None
    words: Sequence[str] = ()
    heads: Sequence[str] = ()


def view(model, inputs: dict, queries: dict[str, list[str]], keys: dict, wanted: Wanted, places: dict) -> dict:
    """Maps and readings of a model on some inputs; under "heads" {name: ((T, S), queries, keys)} of the wanted ones.

    Args:
        inputs: of one text or image, as tensors of a batch of one.
        queries, keys: {side: the words of its tokens}; side: "self" with one stack, else such as "decoder cross".
        places: {side: {word: positions of its tokens}}.

    Raises UserError for a head that the model does not have.
    """
    heads, there = {}, {}

    def each(layer: AttentionMap) -> dict:
        side = f"{layer.stack} {layer.kind}".strip()
        short = f"{'cross' if layer.kind == 'cross' else layer.stack}.L{layer.layer}".removeprefix(".")
        shown = {"name": layer.name, "short": short, "stack": layer.stack, "kind": layer.kind, "note": layer.note}
        shown |= {"queries": queries[side], "keys": keys[side]}
        if layer.weights is None:
            return shown
        weights = layer.weights[0].cpu()
        there[short] = len(weights)
        of_heads = {f"{short}.H{number}": (head, queries[side], keys[side]) for number, head in enumerate(weights)}
        heads.update({name: of_heads[name] for name in wanted.heads if name in of_heads})
        shown |= {"heads": len(weights), "summary": summaries(weights, layer.kind, places.get(side, {}))}
        return shown | (packed(weights) if wanted.layers is None or layer.layer in wanted.layers else {})

    maps = attention_maps(model, each, **inputs)
    for name in (name for name in wanted.heads if name not in heads):
        known = ", ".join(f"{short} with H0 to H{count - 1}" for short, count in there.items())
        raise UserError(f"--figure {name}: the model has no such head; it has {known}")
    return {"maps": maps, "heads": heads} | readings(model, inputs)


def words_of(tokenizer, ids: Sequence[int]) -> list[str]:
    """Each token as it is shown: a leading space stays, a line break is an arrow."""
    pieces = [tokenizer.decode([number]) or tokenizer.convert_ids_to_tokens(number) for number in ids]
    return [piece.replace("\n", "↵") for piece in pieces]


def places_of_word(encoded, texts: Sequence[str], word: str) -> list[int]:
    """The tokens that overlap with any occurrence of the word. encoded: the texts together, with their offsets."""
    places = []
    spans = list(enumerate(zip(encoded["offset_mapping"][0].tolist(), encoded.sequence_ids(0))))
    for number, text in enumerate(texts):
        for found in re.finditer(re.escape(word), text, re.IGNORECASE):
            begin, end = found.span()
            inside = (place for place, ((first, last), of) in spans if of == number and first < end and last > begin)
            places += inside
    return sorted(set(places))


def view_of_text(model, tokenizer, texts: Sequence[str], wanted: Wanted, target: str | None) -> dict:
    """The page's data for a model on a text, or on several that it reads together; target: what a decoder writes."""
    encoded = tokenizer(*texts, return_tensors="pt", return_offsets_mapping=bool(wanted.words))
    names = ("input_ids", "attention_mask", *(["token_type_ids"] if len(texts) > 1 else []))
    inputs = {name: encoded[name] for name in names if name in encoded}
    if not inputs["input_ids"].numel():
        raise UserError("an empty text has no tokens to look at")
    source = words_of(tokenizer, inputs["input_ids"][0].tolist())
    found = {word: places_of_word(encoded, texts, word) for word in wanted.words}
    found = {word: places for word, places in found.items() if places}
    queries, keys, places = {"self": source}, {"self": source}, {"self": found}
    if model.config.is_encoder_decoder:
        if target is None:
            raise UserError(f"{type(model).__name__} has no head that writes; say what its decoder reads by --target")
        ids = tokenizer(text_target=target, return_tensors="pt")["input_ids"]
        start = torch.full((1, 1), model.config.decoder_start_token_id)
        inputs["decoder_input_ids"] = torch.cat((start, ids[:, :-1]), dim=1)
        answer = words_of(tokenizer, inputs["decoder_input_ids"][0].tolist())
        queries = {"encoder self": source, "decoder self": answer, "decoder cross": answer}
        keys = {"encoder self": source, "decoder self": answer, "decoder cross": source}
        places = {"encoder self": found, "decoder cross": found}
    shown = view(model, inputs, queries, keys, wanted, places)
    if "lens" in shown:
        shown["lens"] = [[[tokenizer.decode([n]), share] for n, share in layer] for layer in shown["lens"]]
    return {"words": found} | shown


def view_of_image(model, processor, image, wanted: Wanted) -> dict:
    """The page's data for a vision transformer on a Pillow image: its patches are the tokens, row by row."""
    inputs = {"pixel_values": processor(image, return_tensors="pt")["pixel_values"]}
    height, width = inputs["pixel_values"].shape[-2:]
    size = model.config.patch_size
    size = size if isinstance(size, (tuple, list)) else (size, size)
    rows, columns = height // size[0], width // size[1]
    seen = (layer.weights for layer in attention_maps(model, **inputs) if layer.weights is not None)
    before = max((weights.shape[-1] for weights in seen), default=rows * columns) - rows * columns
    words = [f"[{number}]" for number in range(before)]
    words += [f"row {row + 1}, column {column + 1}" for row in range(rows) for column in range(columns)]
    buffer = BytesIO()
    image.convert("RGB").resize((width, height)).save(buffer, "PNG")
    picture = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    shown = view(model, inputs, {"self": words}, {"self": words}, wanted, {})
    shown.pop("lens", None)
    return {"image": picture, "grid": [rows, columns, before], "words": {}} | shown


def inspect_model(
    name: str,
    model,
    processor,
    shown: Sequence[tuple[str, Any, str | None]],
    out: Path,
    wanted: Wanted,
    target: str | None = None,
) -> tuple[int, list[dict]]:
    """Write the page of a model on texts or images; returns its bytes, and view's heads for each of them.

    Args:
        processor: the model's tokenizer or image processor.
        shown: (title, texts that are read together or a Pillow image, the model's answer; None: there is none).
        target: what an encoder-decoder writes; None: its answer.

    Raises UserError for layers or heads that the model does not have, and for a word that is in no text.
    """
    count, views, heads = getattr(model.config, "num_hidden_layers", 0), [], []
    wrong = [layer for layer in wanted.layers or [] if not 0 <= layer < count]
    if wrong:
        raise UserError(f"--layers {wrong[0]}: the model has {counted(count, 'layer')}, from 0 to {count - 1}")
    for title, read, answer in watched(shown, "looking at"):
        if isinstance(read, list):
            one = view_of_text(model, processor, read, wanted, answer if target is None else target)
        else:
            one = view_of_image(model, processor, read, wanted)
        if answer is None and model.can_generate() and "lens" in one:
            answer = ", ".join(f"{token!r} {share:.1%}" for token, share in one["lens"][-1]) + " comes next"
        heads.append(one.pop("heads"))
        views.append({"title": title, "answer": answer} | one)
    for word in wanted.words:
        if not any(word in one["words"] for one in views):
            raise UserError(f"--word {word!r} is in none of the texts")
    about = f"{type(model).__name__}, {short_number(sum(p.numel() for p in model.parameters()))} parameters"
    return write_page(out, {"model": Path(name).name or name, "about": about, "views": views}), heads

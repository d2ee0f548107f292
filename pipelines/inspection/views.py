"""The data of a page for one text or image: maps, summaries of heads, norms, the lens, the loads of experts."""

import base64
import gzip
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import torch

from ..errors import UserError, need_package
from .attention_maps import AttentionMap, attention_maps
from .lens import readings

# Square roots of shares are stored in this many levels, a byte each: fine for small shares, few enough to compress.
LEVELS = 100


def packed(weights: torch.Tensor) -> str:
    """Shares (H, T, S) as text: their square roots as bytes, compressed, in base64."""
    levels = weights.float().clamp(0, 1).sqrt().mul(LEVELS).round().to(torch.uint8)
    return base64.b64encode(gzip.compress(levels.contiguous().numpy().tobytes(), 9, mtime=0)).decode()


def summaries(weights: torch.Tensor, kind: str, places: Sequence[int] = ()) -> dict[str, list[float]]:
    """The means over queries of each head (H, T, S): {"entropy" in nats, "first": share of the first key, ...}.

    For self-attention also "distance" (|query - key| in tokens, weighted by the shares) and "previous" (the share of
    the token before); with places, "word": the share of these keys, over the queries of other tokens.
    """
    _, queries, keys = weights.shape
    w = weights.double()
    means = {"entropy": -(w * w.clamp_min(1e-30).log()).sum(-1).mean(-1), "first": w[..., 0].mean(-1)}
    if kind == "self" and queries == keys:
        place = torch.arange(keys)
        means["distance"] = (w * (place[:, None] - place[None]).abs()).sum(-1).mean(-1)
        if keys > 1:
            means["previous"] = w.diagonal(-1, 1, 2).mean(-1)
    if places:
        others = [q for q in range(queries) if kind != "self" or q not in places] or list(range(queries))
        means["word"] = w[:, others][..., list(places)].sum(-1).mean(-1)
    return {name: [round(value, 4) for value in values.tolist()] for name, values in means.items()}


def view(model, inputs: dict, queries: dict[str, list[str]], keys: dict, layers: set[int] | None, places: dict) -> dict:
    """Maps and readings of a model on some inputs.

    Args:
        inputs: of one text or image, as tensors of a batch of one.
        queries, keys: {side: the words of its tokens}; side: "self" with one stack, else such as "decoder cross".
        layers: numbers of the layers whose maps are shown; None: all.
        places: {side: positions of the tokens that the user asked for}.
    """

    def each(layer: AttentionMap) -> dict:
        side = f"{layer.stack} {layer.kind}".strip()
        shown = {"name": layer.name, "stack": layer.stack, "kind": layer.kind, "note": layer.note}
        shown |= {"queries": queries[side], "keys": keys[side]}
        if layer.weights is None:
            return shown
        weights = layer.weights[0].cpu()
        shown |= {"heads": len(weights), "summary": summaries(weights, layer.kind, places.get(side, ()))}
        return shown | ({"data": packed(weights)} if layers is None or layer.layer in layers else {})

    return {"maps": attention_maps(model, each, **inputs)} | readings(model, inputs)


# --------------------------------------------------------------------------------------------------------- texts


def words_of(tokenizer, ids: Sequence[int]) -> list[str]:
    """Each token as it is shown: a leading space stays, a line break is an arrow."""
    pieces = [tokenizer.decode([number]) or tokenizer.convert_ids_to_tokens(number) for number in ids]
    return [piece.replace("\n", "↵") for piece in pieces]


def places_of_word(tokenizer, text: str, word: str) -> list[int]:
    """The tokens that overlap with any occurrence of the word. Raises UserError where the text has no such word."""
    encoded = tokenizer(text, return_offsets_mapping=True)
    spans, places = encoded["offset_mapping"], []
    for found in re.finditer(re.escape(word), text, re.IGNORECASE):
        begin, end = found.span()
        places += [place for place, (first, last) in enumerate(spans) if first < end and last > begin and last > first]
    if not places:
        raise UserError(f"--word {word!r} is not in the text {text[:60]!r}")
    return sorted(set(places))


def view_of_text(model, tokenizer, text: str, word: str | None, layers: set[int] | None, target: str | None) -> dict:
    """The page's data for a model on a text; for an encoder-decoder with the target, or with what it generates."""
    encoded = tokenizer(text, return_tensors="pt")
    inputs = {name: encoded[name] for name in ("input_ids", "attention_mask") if name in encoded}
    if not inputs["input_ids"].numel():
        raise UserError("an empty text has no tokens to look at")
    source = words_of(tokenizer, inputs["input_ids"][0].tolist())
    word_places = places_of_word(tokenizer, text, word) if word else []
    queries, keys, places = {"self": source}, {"self": source}, {"self": word_places}
    if model.config.is_encoder_decoder:
        written = target_ids(model, tokenizer, inputs, target)
        inputs["decoder_input_ids"] = written
        answer = words_of(tokenizer, written[0].tolist())
        queries = {"encoder self": source, "decoder self": answer, "decoder cross": answer}
        keys = {"encoder self": source, "decoder self": answer, "decoder cross": source}
        places = {"encoder self": word_places, "decoder cross": word_places}
    shown = view(model, inputs, queries, keys, layers, places)
    if "lens" in shown:
        shown["lens"] = [[[tokenizer.decode([n]), share] for n, share in layer] for layer in shown["lens"]]
    return {"title": text, "word": word, "places": word_places} | shown


def target_ids(model, tokenizer, inputs: dict, target: str | None) -> torch.Tensor:
    """(1, T), what the decoder reads: the start token and the target, or what the model generates.

    Raises UserError where it generates nothing, and no target is given.
    """
    if target is None and not model.can_generate():
        raise UserError(f"{type(model).__name__} has no head that writes; say what its decoder reads by --target")
    if target is None:
        return model.generate(**inputs, max_new_tokens=48, num_beams=1, do_sample=False)[:, :-1]
    ids = tokenizer(text_target=target, return_tensors="pt")["input_ids"]
    return torch.cat((torch.full((1, 1), model.config.decoder_start_token_id), ids[:, :-1]), dim=1)


# --------------------------------------------------------------------------------------------------------- images


def view_of_image(model, processor, file: Path, layers: set[int] | None) -> dict:
    """The page's data for a vision transformer on an image: its patches are the tokens, row by row."""
    need_package(str(file), "pillow", "vision", module="PIL")
    from anyformer.modeling.image_processing import put_on_white
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(file)
        image.load()
        image = put_on_white(image)
        image = image.convert("RGB") if "was_transparent" in image.info else image
    except (OSError, UnidentifiedImageError) as error:
        raise UserError(f"{file} cannot be read as an image ({error})") from error
    inputs = {"pixel_values": processor(image, return_tensors="pt")["pixel_values"]}
    height, width = inputs["pixel_values"].shape[-2:]
    size = model.config.patch_size
    size = size if isinstance(size, (tuple, list)) else (size, size)
    rows, columns = height // size[0], width // size[1]
    key_counts = []

    def count(layer: AttentionMap):
        key_counts.append(0 if layer.weights is None else layer.weights.shape[-1])

    attention_maps(model, count, **inputs)
    before = max(key_counts, default=rows * columns) - rows * columns
    words = [f"[{number}]" for number in range(before)]
    words += [f"row {row + 1}, column {column + 1}" for row in range(rows) for column in range(columns)]
    buffer = BytesIO()
    image.convert("RGB").resize((width, height)).save(buffer, "PNG")
    picture = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    shown = view(model, inputs, {"self": words}, {"self": words}, layers, {})
    shown.pop("lens", None)
    return {"title": file.name, "image": picture, "grid": [rows, columns, before], "word": None, "places": []} | shown

"""Rows for people: tokens, documents, masks, images, which the objectives' `show` methods print; and for programs.

A row's tokens are made as pieces, (text, style, whether the model learns to predict it), which `tokens_text` joins.
"""

import base64
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any

from ..data.batch_keys import IGNORE_INDEX, ROW_IDS
from ..lazy import rich_text, torch

Piece = tuple[str, str, bool]
DOCUMENT_COLORS = ("cyan", "magenta", "green", "yellow", "blue")
NOT_PREDICTED = "underline"
PREDICTED = "bold reverse"
PADDING = "dim strike"
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")  # as SentencePiece names the bytes that it falls back on
SHADES, MOST_PIXELS = " .:-=+*#%@", 56


def legend(words: str) -> "rich_text.Text":
    """A legend from words in rich's markup, which may name these styles: [predicted]text[/], [unpredicted], [padding].

    [shades] stands for the characters that images are drawn with.
    """
    styles = {"predicted": PREDICTED, "unpredicted": NOT_PREDICTED, "padding": PADDING}
    for name, style in styles.items():
        words = words.replace(f"[{name}]", f"[{style}]")
    return rich_text.Text.from_markup(words.replace("[shades]", f"[bold]{SHADES}[/]"))


def is_label(labels):
    """Mask of the labels that are predicted."""
    return labels != IGNORE_INDEX


def visible(token: str) -> str:
    """A token's text with its white space made visible, so that every token takes space on the screen."""
    return token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") or "∅"


def token_piece(tokenizer, number: int) -> str:
    """A token as it stands in the text, also where the vocabulary marks continued words (##) instead of spaces."""
    if type(tokenizer.backend_tokenizer.decoder).__name__ == "WordPiece":
        token = tokenizer.convert_ids_to_tokens(number)
        begins = not token.startswith("##") and token not in tokenizer.all_special_tokens
        return f" {token}" if begins else token.removeprefix("##")
    text = tokenizer.decode([number])
    if text == "\ufffd":  # a byte of a character; its name says more
        name = tokenizer.convert_ids_to_tokens(number)
        text = name if BYTE_TOKEN.fullmatch(name) else text
    return text


def token_text(tokenizer, number: int) -> str:
    """A token as it is printed."""
    return visible(token_piece(tokenizer, number))


def tokens_text(console, pieces: Iterable[Piece]) -> "rich_text.Text":
    """The pieces in their styles; on a console without colours [[ ]] stand around each run of learned ones."""
    is_plain, text, inside = console.no_color or console.color_system is None, rich_text.Text(), False
    for piece, style, is_learned in [*pieces, ("", "", False)]:
        if is_plain and is_learned != inside:
            text.append("[[" if is_learned else "]]")
        inside = is_learned
        text.append(piece, style=style)
    return text


def documents_line(documents: list) -> str:
    return "documents: " + ", ".join(
        f"{document} from token {start} ({length})" for document, start, length in documents
    )


def row_pieces(row: dict, documents: list, tokenizer, marked: Collection[int] = ()) -> Iterator[Piece]:
    """A row: a colour per document, tokens without a label underlined, `marked` highlighted, padding struck through."""
    labels = row["labels"].tolist()

    def token(place: int, number: int, color: str) -> Piece:
        style, is_learned = PREDICTED if number in marked else color, labels[place] != IGNORE_INDEX
        return token_text(tokenizer, number), style if is_learned else f"{style} {NOT_PREDICTED}", is_learned

    return documents_pieces(row["input_ids"].tolist(), documents, tokenizer, token)


def documents_pieces(ids: list[int], documents: list, tokenizer, token) -> Iterator[Piece]:
    """The tokens of a row, document by document; token(place, id, color) returns the piece of one."""
    at = 0
    for number, (_, _, length) in enumerate(documents):
        if number:
            yield "│", "bold white", False
        color = DOCUMENT_COLORS[number % len(DOCUMENT_COLORS)]
        for place in range(at, at + length):
            yield token(place, ids[place], color)
        at += length
    if at < len(ids):
        yield f" {len(ids) - at} x {tokenizer.decode([ids[-1]])}", PADDING, False


def masked_pieces(row: dict, batch: dict, documents: list, tokenizer) -> Iterator[Piece]:
    """The original row, with each predicted token in brackets, beside what the model sees in its place."""
    seen, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()

    def token(place: int, number: int, color: str) -> Piece:
        word = token_text(tokenizer, number)
        if labels[place] == IGNORE_INDEX:
            return word, color, False
        change = {tokenizer.mask_token_id: "", number: "="}.get(seen[place], f"→{token_text(tokenizer, seen[place])}")
        return f"[[{word}{change}]]", f"{color} {PREDICTED}", False  # in brackets of its own

    return documents_pieces(row["input_ids"].tolist(), documents, tokenizer, token)


def sequence_pieces(
    ids: list[int], tokenizer, answer: Sequence[int] = (), name: str = "", is_learned: bool = False
) -> Iterator[Piece]:
    """Tokens of one sequence, special ones and the positions `answer` highlighted; padding of labels is left out.

    name: stands before them. is_learned: all of them are, not only the answer.
    """
    special = set(tokenizer.all_special_ids)
    yield name, "bold", False
    for place, number in enumerate(ids):
        if number != IGNORE_INDEX:
            style = PREDICTED if number in special else "cyan"
            style = f"magenta {NOT_PREDICTED}" if place in answer else style
            yield token_text(tokenizer, number), style, is_learned or place in answer


def tagged_pieces(ids: list[int], tags: list[str | None], kinds: list[str], tokenizer, first: bool) -> Iterator[Piece]:
    """Tokens in the colour of their word's kind, and the word's tag behind it; tags of no kind are left out.

    tags: one for each token, None without a tag. kinds: types of entities, or plain tags; each has a colour. first:
    whether a word has its tag at its first token, so that the tokens after it belong to the word, too.
    """
    special, tag, color = set(tokenizer.all_special_ids), None, "default"
    for number, token_tag in [*zip(ids, tags), (None, None)]:
        token = "" if number is None else token_text(tokenizer, number)
        if tag is not None and (token_tag is not None or not first or token[:1] in ("", "·") or number in special):
            yield f"/{tag}", f"dim {color}", False
            tag, color = None, "default"
        if token_tag is not None:
            kind = token_tag.partition("-")[2] or token_tag
            color = DOCUMENT_COLORS[kinds.index(kind) % len(DOCUMENT_COLORS)] if kind in kinds else "default"
            tag = token_tag if kind in kinds else None
        unpredicted = PREDICTED if number in special else f"{color} {NOT_PREDICTED}"
        yield token, unpredicted if token_tag is None else color, token_tag is not None


def image_text(pixels) -> "rich_text.Text":
    """(C, H, W) normalised pixels as shades of grey, scaled down to at most MOST_PIXELS a side."""
    grey = pixels.float().mean(dim=0)
    step = -(-max(grey.shape) // MOST_PIXELS)
    grey = torch.nn.functional.avg_pool2d(grey[None], step, ceil_mode=True)[0]
    low, high = grey.min(), grey.max()
    levels = ((grey - low) / (high - low).clamp_min(1e-6) * (len(SHADES) - 1)).round().int()
    return rich_text.Text("\n".join("".join(SHADES[level] * 2 for level in line) for line in levels.tolist()))


def as_png(pixels, most: int | None = None) -> str:
    """(C, H, W) bytes as a PNG in base64. most: pixels of the longer side, to which a larger image is scaled down."""
    from PIL import Image

    buffer = BytesIO()
    image = Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy())
    if most is not None:
        image.thumbnail((most, most))
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def shares_text(label, names: list[str]) -> str:
    """The text of a label: a class, or the shares of several classes."""
    if not label.is_floating_point():
        return names[int(label)]
    shares = sorted(((share, name) for share, name in zip(label.tolist(), names) if share > 0.0005), reverse=True)
    return ", ".join(f"{share:.0%} {name}" for share, name in shares)


def show_source_and_target(reads, console, data, rows, number: int, row: dict) -> None:
    """The `show` of a Reads whose rows are an encoder-decoder's: print what is read and what has to be written."""
    batch, documents = reads.collated(data, rows, number, row), rows.documents(number, row)
    source, target = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
    title = f"row {number}: {len(source)} source tokens, {len(target)} target tokens"
    if documents:
        title += f", from {sum(length for _, _, length in documents)} tokens of text"
    console.rule(title, align="left")
    if documents:
        console.print(documents_line(documents), markup=False)
    for name, ids in (("source", source), ("target", target)):
        pieces = sequence_pieces(ids, data.tokenizer, name=f"{name}: ", is_learned=name == "target")
        console.print(tokens_text(console, pieces))


def row_values(data, rows, number: int, row: dict) -> dict[str, Any]:
    """A row as a batch of its own holds it in the first epoch, in the form of docs/your_data.md."""
    batch = data.reads.collated(data, rows, number, row)
    batch = {name: plain_values(value) for name, value in batch.items() if name != ROW_IDS}
    values = {"row": number} | {name: batch.pop(name) for name in ("input_ids", "labels") if name in batch}
    if data.tokenizer is not None and "input_ids" in values:
        values["tokens"] = pieces_of(values["input_ids"], data.tokenizer)
    return values | batch


def pieces_of(ids: list, tokenizer) -> list:
    """The tokens of ids as they stand in the text, nested as the ids are."""
    return [pieces_of(one, tokenizer) if isinstance(one, list) else token_piece(tokenizer, one) for one in ids]


def plain_values(value: Any) -> Any:
    """A value of a batch of one row without the batch's dimension; of pixels and the like only shape and type."""
    if not torch.is_tensor(value):
        return value
    value = value[0] if len(value) == 1 else value
    if value.is_floating_point() and value.dim() > 1:
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    return value.tolist()

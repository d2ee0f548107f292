"""How one row of each kind is printed: what the model reads, and what it has to answer."""

import torch
from rich.console import Console
from rich.text import Text

from ..data.batch_keys import EPOCH, IGNORE_INDEX, ROW_IDS

DOCUMENT_COLOURS = ("cyan", "magenta", "green", "yellow", "blue")
NOT_PREDICTED = "underline"
PREDICTED = "bold reverse"
PADDING = "dim strike"
MOST = 12  # lines of a table
SHADES, MOST_PIXELS = " .:-=+*#%@", 56


def visible(token: str) -> str:
    """A token's text with its white space made visible, so that every token takes space on the screen."""
    return token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") or "∅"


def shown(tokenizer, number: int) -> str:
    """A token as it stands in the text, also where the vocabulary marks continued words (##) instead of spaces."""
    if type(tokenizer.backend_tokenizer.decoder).__name__ == "WordPiece":
        token = tokenizer.convert_ids_to_tokens(number)
        begins = not token.startswith("##") and token not in tokenizer.all_special_tokens
        return visible(f" {token}" if begins else token.removeprefix("##"))
    return visible(tokenizer.decode([number]))


def documents_line(segments: list) -> str:
    return "documents: " + ", ".join(
        f"{document} from token {start} ({length})" for document, start, length in segments
    )


# ------------------------------------------------------------------------------------------ the next token

CAUSAL_LEGEND = Text.assemble(
    "a colour per document, ",
    ("underlined", NOT_PREDICTED),
    ": not predicted (no context in this row), │ where a document ends: no attention across, ",
    ("struck through", PADDING),
    ": padding; labels stand beside their own token, and the model shifts them by one",
)


def row_text(row: dict, segments: list, tokenizer) -> Text:
    """One row: a colour per document, tokens without a label underlined, padding struck through."""
    labels = row["labels"].tolist()

    def token(place: int, number: int, colour: str) -> tuple[str, str]:
        return shown(tokenizer, number), f"{colour} {NOT_PREDICTED}" if labels[place] == IGNORE_INDEX else colour

    return _documents_text(row["input_ids"].tolist(), segments, tokenizer, token)


def _documents_text(ids: list[int], segments: list, tokenizer, token) -> Text:
    """The tokens of a row, document by document; token(place, id, colour) gives each one's text and style."""
    text, at = Text(), 0
    for number, (_, _, length) in enumerate(segments):
        if number:
            text.append("│", style="bold white")
        colour = DOCUMENT_COLOURS[number % len(DOCUMENT_COLOURS)]
        for place in range(at, at + length):
            text.append(*token(place, ids[place], colour))
        at += length
    if at < len(ids):
        text.append(f" {len(ids) - at} x {tokenizer.decode([ids[-1]])}", style=PADDING)
    return text


def head_table(row: dict, tokenizer) -> list[str]:
    """The first positions of a row as numbers: position, token, input id, label."""
    lines = [f"{'position':>8}  {'input':>7}  {'label':>7}  token"]
    for i in range(min(MOST, len(row["input_ids"]))):
        label, number = row["labels"][i].item(), row["input_ids"][i].item()
        text = "-" if label == IGNORE_INDEX else str(label)
        lines.append(f"{row['position_ids'][i].item():>8}  {number:>7}  {text:>7}  {shown(tokenizer, number)}")
    return lines


def print_causal(console: Console, data, number: int, row: dict, segments: list) -> None:
    predicted = int((row["labels"] != IGNORE_INDEX).sum())
    console.rule(f"row {number}: {len(row['input_ids'])} tokens, {predicted} predicted", align="left")
    console.print(documents_line(segments), markup=False)
    console.print(row_text(row, segments, data.tokenizer))
    _print_table(console, head_table(row, data.tokenizer))


# ------------------------------------------------------------------------------------------- hidden tokens

MASKED_LEGEND = Text.assemble(
    "what each token really is; a colour per document, │ where one ends: no attention across; predicted are ",
    ("⟦word⟧", PREDICTED),
    ": the model sees the mask token, ",
    ("⟦word→other⟧", PREDICTED),
    ": it sees another token, ",
    ("⟦word=⟧", PREDICTED),
    ": it sees the word itself; as in the first epoch, others in each further one",
)


def masked_text(row: dict, batch: dict, segments: list, tokenizer) -> Text:
    """One row as it was, what is predicted in brackets with what the model sees in its place.

    row: as the data set has it. batch: of this row alone, as the collator has changed it.
    """
    seen, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()

    def token(place: int, number: int, colour: str) -> tuple[str, str]:
        word = shown(tokenizer, number)
        if labels[place] == IGNORE_INDEX:
            return word, colour
        change = {tokenizer.mask_token_id: "", number: "="}.get(seen[place], f"→{shown(tokenizer, seen[place])}")
        return f"⟦{word}{change}⟧", f"{colour} {PREDICTED}"

    return _documents_text(row["input_ids"].tolist(), segments, tokenizer, token)


def masked_table(row: dict, batch: dict, tokenizer) -> list[str]:
    """The first predicted positions of a row as numbers."""
    seen, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
    lines = [f"{'place':>8}  {'position':>8}  {'input':>7}  {'label':>7}  seen → predicted"]
    for i in [i for i, label in enumerate(labels) if label != IGNORE_INDEX][:MOST]:
        position = row["position_ids"][i].item()
        words = f"{shown(tokenizer, seen[i])} → {shown(tokenizer, labels[i])}"
        lines.append(f"{i:>8}  {position:>8}  {seen[i]:>7}  {labels[i]:>7}  {words}")
    return lines


def print_masked(console: Console, data, number: int, row: dict, segments: list) -> None:
    batch = collated(data, number, row)
    predicted = batch["labels"][0] != IGNORE_INDEX
    seen = batch["input_ids"][0][predicted]
    hidden, kept = (int((seen == other).sum()) for other in (data.tokenizer.mask_token_id, row["input_ids"][predicted]))
    console.rule(
        f"row {number}: {len(row['input_ids'])} tokens, {len(seen)} predicted: {hidden} masked, "
        f"{len(seen) - hidden - kept} replaced, {kept} kept",
        align="left",
    )
    console.print(documents_line(segments), markup=False)
    console.print(masked_text(row, batch, segments, data.tokenizer))
    _print_table(console, masked_table(row, batch, data.tokenizer))


# ----------------------------------------------------------------------------------- sources and targets

SPAN_LEGEND = Text.assemble(
    "source: what the encoder reads, ",
    ("<extra_id_N>", PREDICTED),
    " where a span was left out; target: each of them with its span; as in the first epoch, others in each further one",
)
PAIR_LEGEND = Text.assemble("source: what the encoder reads; target: what the decoder has to write")
CLASS_LEGEND = Text.assemble(
    "the text as the model reads it, ", ("special tokens", PREDICTED), " included, and its class"
)


def sequence_text(ids: list[int], tokenizer) -> Text:
    """Tokens of one sequence, special ones set off; labels' padding is left out."""
    special, text = set(tokenizer.all_special_ids), Text()
    for number in ids:
        if number != IGNORE_INDEX:
            text.append(shown(tokenizer, number), style=PREDICTED if number in special else "cyan")
    return text


def print_pair(console: Console, data, number: int, row: dict, segments: list) -> None:
    batch = collated(data, number, row)
    source, target = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
    title = f"row {number}: {len(source)} source tokens, {len(target)} target tokens"
    if segments:
        title += f", from {sum(length for _, _, length in segments)} tokens of text"
    console.rule(title, align="left")
    if segments:
        console.print(documents_line(segments), markup=False)
    for name, ids in (("source", source), ("target", target)):
        console.print(Text.assemble((f"{name}: ", "bold"), sequence_text(ids, data.tokenizer)))


def print_class(console: Console, data, number: int, row: dict, segments: list) -> None:
    label = data.objective.label_names[int(row["labels"])]
    console.rule(f"row {number}: {len(row['input_ids'])} tokens, class {label}", align="left")
    console.print(sequence_text(row["input_ids"].tolist(), data.tokenizer))


IMAGE_LEGEND = Text.assemble(
    "a training image as the model sees it in the first epoch (shifted, mirrored and mixed as the recipe says), darker "
    "to brighter ",
    (SHADES, "bold"),
    ", two characters for a pixel or a block of them, and what has to be answered",
)


def image_text(pixels) -> Text:
    """(C, H, W) normalised pixels as shades of grey, scaled down to at most MOST_PIXELS wide."""
    grey = pixels.float().mean(dim=0)
    step = -(-max(grey.shape) // MOST_PIXELS)
    grey = torch.nn.functional.avg_pool2d(grey[None], step, ceil_mode=True)[0]
    low, high = grey.min(), grey.max()
    levels = ((grey - low) / (high - low).clamp_min(1e-6) * (len(SHADES) - 1)).round().int()
    return Text("\n".join("".join(SHADES[level] * 2 for level in line) for line in levels.tolist()))


def shares_text(label, names: list[str]) -> str:
    """A class, or the shares of several."""
    if not label.is_floating_point():
        return names[int(label)]
    shares = sorted(((share, name) for share, name in zip(label.tolist(), names) if share > 0.0005), reverse=True)
    return ", ".join(f"{share:.0%} {name}" for share, name in shares)


def print_image(console: Console, data, number: int, row: dict, segments: list) -> None:
    batch = collated(data, number, row)
    pixels, names = batch["pixel_values"][0], data.objective.label_names
    console.rule(f"row {number}: class {names[int(row['labels'])]}", align="left")
    console.print(image_text(pixels))
    answer = shares_text(batch["labels"][0], names)
    low, high, mean, std = (float(value) for value in (pixels.min(), pixels.max(), pixels.mean(), pixels.std()))
    size = " x ".join(map(str, pixels.shape))
    console.print(
        f"answer: {answer}; {size} numbers from {low:.2f} to {high:.2f}, mean {mean:.2f}, deviation {std:.2f}",
        markup=False,
    )


PIXELS_LEGEND = Text.assemble(
    "an image reduced to the recipe's colours, darker to brighter ",
    (SHADES, "bold"),
    "; its pixels are predicted row by row, each from those before it",
)
PATCHES_LEGEND = Text.assemble(
    "a training image as the model sees it, ",
    ("▒", PREDICTED),
    " where a patch is hidden and has to be predicted; as in the first epoch, others in each further one",
)


def print_pixels(console: Console, data, number: int, row: dict, segments: list) -> None:
    codes = row["labels"].tolist()
    console.rule(f"row {number}: {len(codes)} pixels, {len(set(codes))} colours", align="left")
    picture = torch.from_numpy(data.objective.pictures([codes])[0])
    console.print(image_text(picture.permute(2, 0, 1)))
    tokens = " ".join(map(str, row["input_ids"][:MOST].tolist()))
    console.print(f"read: {tokens} ...; predicted: {' '.join(map(str, codes[:MOST]))} ...", markup=False, style="dim")


def print_patches(console: Console, data, number: int, row: dict, segments: list) -> None:
    batch = collated(data, number, row)
    pixels, masked = batch["pixel_values"][0], batch["bool_masked_pos"][0]
    console.rule(f"row {number}: {int(masked.sum())} of {len(masked)} patches hidden", align="left")
    rows, columns = data.objective.grid
    hidden = masked.view(1, rows, columns).float()
    hidden = torch.nn.functional.interpolate(hidden[None], pixels.shape[-2:])[0, 0] > 0
    text = image_text(pixels)
    if max(pixels.shape[-2:]) <= MOST_PIXELS:  # one character pair per pixel
        lines = [list(line) for line in text.plain.split("\n")]
        for y, x in hidden.nonzero().tolist():
            lines[y][2 * x : 2 * x + 2] = "▒▒"
        text = Text("\n".join(map("".join, lines)))
    console.print(text)


def collated(data, number: int, row: dict) -> dict:
    """The batch of this row alone, as training sees it in its first epoch."""
    return data.objective.collator(data.packed)([{ROW_IDS: number, EPOCH: 0} | row])


def _print_table(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, markup=False, style="dim")


# name of an objective or task -> (what the marks mean, how a row is printed)
KINDS = {
    "causal": (CAUSAL_LEGEND, print_causal),
    "masked": (MASKED_LEGEND, print_masked),
    "span_corruption": (SPAN_LEGEND, print_pair),
    "translation": (PAIR_LEGEND, print_pair),
    "sequence_classification": (CLASS_LEGEND, print_class),
    "image_classification": (IMAGE_LEGEND, print_image),
    "pixels": (PIXELS_LEGEND, print_pixels),
    "masked_image": (PATCHES_LEGEND, print_patches),
}

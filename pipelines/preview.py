"""Real rows as the model will see them: tokens, labels, documents, positions, and what is not predicted."""

from rich.console import Console
from rich.text import Text

from .data import describe_data, prepare_data
from .schema import Recipe

DOCUMENT_COLOURS = ("cyan", "magenta", "green", "yellow", "blue")
NOT_PREDICTED = "underline"
PADDING = "dim strike"
IGNORED = -100


def visible(token: str) -> str:
    """A token's text with its white space made visible, so that every token takes space on the screen."""
    return token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") or "∅"


def row_text(row: dict, segments: list, tokenizer) -> Text:
    """One row: a colour per document, tokens without a label underlined, padding struck through."""
    ids, labels = row["input_ids"].tolist(), row["labels"].tolist()
    text, at = Text(), 0
    for number, (_, _, length) in enumerate(segments):
        if number:
            text.append("│", style="bold white")
        colour = DOCUMENT_COLOURS[number % len(DOCUMENT_COLOURS)]
        for i in range(at, at + length):
            style = f"{colour} {NOT_PREDICTED}" if labels[i] == IGNORED else colour
            text.append(visible(tokenizer.decode([ids[i]])), style=style)
        at += length
    if at < len(ids):
        text.append(f" {len(ids) - at} x {tokenizer.decode([ids[-1]])}", style=PADDING)
    return text


def head_table(row: dict, tokenizer, most: int = 12) -> list[str]:
    """The first positions of a row as numbers: position, token, input id, label."""
    lines = [f"{'position':>8}  {'input':>7}  {'label':>7}  token"]
    for i in range(min(most, len(row["input_ids"]))):
        label = row["labels"][i].item()
        token = visible(tokenizer.decode([row["input_ids"][i].item()]))
        shown = "-" if label == IGNORED else str(label)
        lines.append(f"{row['position_ids'][i].item():>8}  {row['input_ids'][i].item():>7}  {shown:>7}  {token}")
    return lines


def spread(total: int, wanted: int) -> list[int]:
    """`wanted` row numbers from first to last, evenly spread."""
    wanted = min(wanted, total)
    return sorted({round(i * (total - 1) / max(1, wanted - 1)) for i in range(wanted)})


def rows_to_show(train, wanted: int) -> list[int]:
    """Evenly spread rows, one of which holds several documents if any row does."""
    chosen = spread(len(train), wanted)
    if any(len(train.segments(i)) > 1 for i in chosen):
        return chosen
    for i in range(len(train)):
        if len(train.segments(i)) > 1:
            nearest = min(range(len(chosen)), key=lambda n: abs(chosen[n] - i))
            return sorted({*chosen[:nearest], i, *chosen[nearest + 1 :]})
    return chosen


def preview(recipe: Recipe, rows: int = 5, console: Console | None = None) -> int:
    """Print `rows` rows of the training data of a recipe; nothing is trained. Returns the exit code 0."""
    console = console or Console(highlight=False, soft_wrap=True)
    data = prepare_data(recipe, progress=console.is_terminal)
    console.print(describe_data(data), markup=False)
    console.print(
        Text.assemble(
            "a colour per document, ",
            ("underlined", NOT_PREDICTED),
            ": not predicted (no context in this row), │ where a document ends: no attention across, ",
            ("struck through", PADDING),
            ": padding; labels stand beside their own token, and the model shifts them by one",
        )
    )
    train = data.rows["train"]
    if hasattr(train, "segments"):
        chosen = [(i, train[i], train.segments(i)) for i in rows_to_show(train, rows)]
    else:
        chosen = [(i, row, segments_from_positions(row)) for i, row in zip(range(rows), train)]
    for number, row, segments in chosen:
        documents = ", ".join(f"{document} from token {start} ({length})" for document, start, length in segments)
        predicted = int((row["labels"] != IGNORED).sum())
        console.rule(f"row {number}: {len(row['input_ids'])} tokens, {predicted} predicted", align="left")
        console.print(f"documents: {documents}", markup=False)
        console.print(row_text(row, segments, data.tokenizer))
        for line in head_table(row, data.tokenizer):
            console.print(line, markup=False, style="dim")
    return 0


def segments_from_positions(row: dict) -> list[tuple[int, int, int]]:
    """Documents of a streamed row, numbered within the row: (number, first position, length)."""
    positions = row["position_ids"].tolist()
    starts = [i for i, p in enumerate(positions) if p == 0 or i == 0]
    ends = [*starts[1:], len(positions)]
    return [(number, positions[s], e - s) for number, (s, e) in enumerate(zip(starts, ends))]

"""The scores of single classes as tables for a terminal; what does not fit there is in the JSON."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..reporting.console import table_of

MOST_CLASSES, MOST_PAIRS, MOST_MISTAKES, MOST_CHARACTERS = 20, 8, 5, 100


def print_classes(console: Console, report: dict) -> None:
    """Print a report on classes (Scores.class_report): scores of each class, confusions, calibration, mistakes."""
    if report.get("classes"):
        console.print("", classes_table(report["classes"]), sep="\n")
    if report.get("confused"):
        console.print("", confused_table(report["confused"]), sep="\n")
    sure = report["calibration"]
    console.print(
        f"\ncalibration: {sure['confidence']:.1%} sure on average and {sure['accuracy']:.1%} right, of all "
        f"{report['unit']}; expected calibration error {sure['ece']:.4f} (0: none)",
        markup=False,
    )
    if report["mistakes"]:
        console.print("", mistakes_table(report["mistakes"]), sep="\n")


def classes_table(classes: list[dict]) -> Table:
    """A row for each class; of more than MOST_CLASSES classes, those with the lowest F1."""
    has_counts, title = "missed" in classes[0], None
    if len(classes) > MOST_CLASSES:
        title = f"the {MOST_CLASSES} of {len(classes)} classes with the lowest F1"
        classes = sorted(classes, key=lambda one: one["f1"])[:MOST_CLASSES]
    counts = ["found", "missed", "wrong"] * has_counts
    table = table_of(["class", "precision", "recall", "F1", "examples", *counts], slice(1, None), title)
    for one in classes:
        scores = [f"{one[name]:.4f}" for name in ("precision", "recall", "f1")]
        table.add_row(Text(one["name"]), *scores, *(f"{one[name]:,}" for name in ["support", *counts]))
    return table


def confused_table(confused: list[dict]) -> Table:
    table = table_of(["is", "was taken for", "how often"], slice(2, None), "most often confused")
    for one in confused[:MOST_PAIRS]:
        table.add_row(Text(one["true"]), Text(one["given"]), f"{one['number']:,}")
    return table


def mistakes_table(mistakes: list[dict]) -> Table:
    table = table_of(["row", "sure", "said", "is", "where"], slice(0), "surest mistakes")
    if any("text" in one for one in mistakes):
        table.add_column("text", overflow="ellipsis", no_wrap=True, max_width=MOST_CHARACTERS)
    for one in mistakes[:MOST_MISTAKES]:
        text = [Text(from_mark(one["text"]))] if "text" in one else []
        named = Text(one["given"]), Text(one["true"])
        table.add_row(f"{one['row']:,}", f"{one['confidence']:.1%}", *named, one["place"], *text)
    return table


def from_mark(text: str) -> str:
    """A text that begins shortly before its marked word, where the word would otherwise be cut off."""
    start = text.find("[[") - MOST_CHARACTERS // 2
    return f"… {text[start:]}" if start > 0 else text

"""The scores of single classes as tables for a terminal; what does not fit there is in the JSON."""

from typing import Any

from ..reporting.console import print_table

MOST_CLASSES, MOST_PAIRS, MOST_MISTAKES, MOST_CHARACTERS = 20, 8, 5, 100


def print_classes(report: dict[str, Any]) -> None:
    """Print a report on classes (Scores.class_report): scores of each class, confusions, calibration, mistakes."""
    if report.get("classes"):
        print_scores(report["classes"])
    if report.get("confused"):
        rows = [[one["true"], one["given"], f"{one['number']:,}"] for one in report["confused"][:MOST_PAIRS]]
        print_table("\nmost often confused", ["is", "was taken for", "how often"], rows, numbers=slice(2, None))
    sure, mistakes = report["calibration"], report["mistakes"][:MOST_MISTAKES]
    print(
        f"\ncalibration: {sure['confidence']:.1%} sure on average and {sure['accuracy']:.1%} right, of all "
        f"{report['unit']}; expected calibration error {sure['ece']:.4f} (0: none)"
    )
    if mistakes:
        texts = ["text"] if any("text" in one for one in mistakes) else []
        rows = [
            [f"{one['row']:,}", f"{one['confidence']:.1%}", one["given"], one["true"], one["place"]]
            + [shortened(one[name]) for name in texts]
            for one in mistakes
        ]
        print_table("\nsurest mistakes", ["row", "sure", "said", "is", "where", *texts], rows, numbers=slice(0))


def print_scores(classes: list[dict[str, Any]]) -> None:
    """Print a row for each class; of more than MOST_CLASSES classes, those with the lowest F1."""
    counts, title = ["found", "missed", "wrong"] if "missed" in classes[0] else [], ""
    if len(classes) > MOST_CLASSES:
        title = f"\nthe {MOST_CLASSES} of {len(classes)} classes with the lowest F1"
        classes = sorted(classes, key=lambda one: one["f1"])[:MOST_CLASSES]
    rows = [
        [one["name"], *(f"{one[name]:.4f}" for name in ("precision", "recall", "f1"))]
        + [f"{one[name]:,}" for name in ("support", *counts)]
        for one in classes
    ]
    print_table(title, ["class", "precision", "recall", "F1", "examples", *counts], rows)


def shortened(text: str) -> str:
    """A text of at most MOST_CHARACTERS; its marked word, if it has one, stands in it."""
    start = text.find("[[") - MOST_CHARACTERS // 2
    text = f"… {text[start:]}" if start > 0 else text
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"

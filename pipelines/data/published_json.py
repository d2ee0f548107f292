"""JSON as it is published: rows or columns within one object, SQuAD's questions within paragraphs within articles."""

from collections.abc import Iterator
from typing import Any

FEWEST = 10  # rows of a table that is one object; fewer may be the parts of one row


def rows_in(value: Any) -> Iterator[Any]:
    """The rows of a JSON file: those of an array, or under `data` of an object with no other array, or the object."""
    rows = value if isinstance(value, list) else [value]
    within = value.get("data") if isinstance(value, dict) else None
    if isinstance(within, list) and sum(isinstance(one, list | dict) for one in value.values()) == 1:
        rows = within if all(isinstance(one, dict) for one in within) else rows
    for row in rows:
        yield from questions_in(row) if isinstance(row, dict) and isinstance(row.get("paragraphs"), list) else [row]


def table_in(value: Any) -> list[dict[str, Any]]:
    """The rows of an object that is a table, {id: row} or {column: values} as pandas writes it; []: it is none."""
    parts = list(value.values()) if isinstance(value, dict) else []
    if parts and all(isinstance(part, dict) and part.keys() == parts[0].keys() for part in parts):
        rows, parts = parts, [list(part.values()) for part in parts]
        if len(rows) > len(rows[0]):
            return rows if len(rows) >= FEWEST else []
    if not all(isinstance(part, list) and len(part) == len(parts[0]) for part in parts):
        return []
    rows = [dict(zip(value, cells)) for cells in zip(*parts)]
    return rows if len(rows) >= max(FEWEST, len(parts)) else []


def questions_in(article: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of an article of SQuAD (Rajpurkar et al. 2016), with the columns that the Hub's data set has."""
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
            answers = {key: [one[key] for one in question.get("answers", ())] for key in ("text", "answer_start")}
            of_article = {"title": article.get("title"), "context": paragraph["context"]}
            yield of_article | {"id": question.get("id"), "question": question["question"], "answers": answers}

"""The picture of docs/learning/instructions.md: which tokens of a conversation are learned, by `task.learns`.

`python scripts/results/what_is_learned.py > docs/images/what_is_learned.svg`; a test compares the two.
"""

import json
import tempfile
from html import escape
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from anyformer import load_recipe, prepare_data

STYLES = {True: 'fill="#0a7d33" font-weight="bold"', False: 'fill="#8a8f98"'}
CONVERSATION = [
    {"role": "user", "content": "What is 6 x 7?"},
    {"role": "assistant", "content": "It is 48.", "weight": 0},
    {"role": "user", "content": "Are you sure?"},
    {"role": "assistant", "content": "No: it is 42.", "weight": 1},
    {"role": "user", "content": "And 6 x 8?"},
    {"role": "assistant", "content": "48."},
]


def row_of(learns: str) -> list[list[tuple[str, bool]]]:
    """The lines of the conversation's row: (text of a token, whether it is learned)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "chats.jsonl").write_text(json.dumps({"messages": CONVERSATION}) + "\n")
        sections = {"model": {"family": "decoder"}, "tokenizer": {"type": "char"}, "training": {"output_dir": folder}}
        sections["data"] = {"files": f"{folder}/chats.jsonl", "validation_fraction": 0, "cache_dir": folder}
        sections["task"] = {"name": "instruction_tuning", "packing": False, "learns": learns}
        Path(folder, "chats.yaml").write_text(json.dumps(sections))
        data = prepare_data(load_recipe(f"{folder}/chats.yaml"))
        row = data.rows["train"][0]
    lines: list[list[tuple[str, bool]]] = [[]]
    for number, label in zip(row["input_ids"], row["labels"]):
        text = data.tokenizer.decode([number])
        lines[-1].append((text.replace("\n", "⏎"), label.item() >= 0))
        if text == "\n":
            lines.append([])
    return lines


def picture() -> str:
    words = "A conversation by three values of task.learns: what is green and bold is learned, the rest is only read"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 300" role="img" aria-label="{words}" '
    shapes = [head + 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">']
    shapes += [f"<title>{words}</title>", '<rect width="800" height="300" rx="8" fill="#f7f8fa"/>']
    for x, learns in zip((16, 280, 544), ("answers", "last_answer", "marked")):
        shapes.append(f'<text x="{x}" y="28" fill="#1f2329">task.learns: {learns}</text>')
        for number, line in enumerate(row_of(learns)):
            runs = [(kind, "".join(text for text, _ in run)) for kind, run in groupby(line, key=itemgetter(1))]
            spans = "".join(f"<tspan {STYLES[kind]}>{escape(text)}</tspan>" for kind, text in runs)
            shapes.append(f'<text x="{x}" y="{58 + 19 * number}">{spans}</text>')
    return "\n".join([*shapes, "</svg>"])


if __name__ == "__main__":
    print(picture())

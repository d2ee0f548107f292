"""Markdown of a model card as HTML that loads nothing: pictures become links, and HTML in it is text."""

import re

DETAILS = re.compile(r"^</?details>\s*$|^<summary>(.*)</summary>\s*$", flags=re.M)
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", flags=re.S)
COMMENT = re.compile(r"<!--.*?-->", flags=re.S)


def as_html(text: str) -> str:
    """HTML of a card without its metadata."""
    from markdown_it import MarkdownIt  # rich needs it, too

    text = COMMENT.sub("", FRONT_MATTER.sub("", text))
    text = DETAILS.sub(lambda found: f"**{found[1]}**" if found[1] else "", text)
    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("image").render(text)


def section_of(text: str, heading: str) -> str:
    """What stands below `## heading`, up to the next one; empty where there is none."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S)
    return found[1].strip() if found else ""

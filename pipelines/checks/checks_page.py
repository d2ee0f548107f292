"""The HTML page of a check: a row for each law, and the findings that do not hold, each with its reproducer."""

import time
from importlib import resources

from .findings import Verdict


def page_of(report: dict) -> str:
    """HTML that needs no network. report: Report.to_dict()."""
    import jinja2

    from ..inspection.maps_page import style

    text = (resources.files(__package__) / "checks.html.jinja").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True).from_string(text)
    return template.render(report=report, style=style(), grouped=grouped, made=time.strftime("%Y-%m-%d"))


def grouped(findings: list[dict]) -> list[dict]:
    """The findings that do not hold, grouped by cause and way out: {whats, why, way_out}."""
    groups: dict[tuple, list[str]] = {}
    for finding in findings:
        if finding["verdict"] != Verdict.HOLDS:
            apart = finding["difference"]
            off = "" if apart is None else f" ({float(apart):.2g})"
            groups.setdefault((finding["why"], finding["way_out"]), []).append(finding["what"] + off)
    return [{"whats": whats, "why": why, "way_out": way_out} for (why, way_out), whats in groups.items()]

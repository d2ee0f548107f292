"""The HTML page of one check or of a survey: a row for each model, a column for each law, failures on a click."""

import time
from functools import cache
from importlib import resources

from .findings import Verdict
from .laws import LAWS

SIGNS = {Verdict.HOLDS: "●", Verdict.FAILS: "✕", Verdict.NOT_CLAIMED: "–", Verdict.NOT_ASKED: "?"}


@cache
def template():
    """The template of the page; all values are escaped."""
    import jinja2

    text = (resources.files(__package__) / "checks.html.jinja").read_text(encoding="utf-8")
    return jinja2.Environment(autoescape=True).from_string(text)


def page_of(reports: list[dict], title: str, unasked: dict[str, str] | None = None) -> str:
    """HTML that needs no network. reports: Report.to_dict() of each; unasked: {model that was not checked: why}.

    Models with most failures come first; a click on a column's name sorts by it.
    """
    from ..inspection.maps_page import style

    laws = [name for name in LAWS if any(name in report["laws"] for report in reports)]
    counts = {name: {verdict: _count(reports, name, verdict) for verdict in Verdict} for name in laws}
    return template().render(
        style=style(),
        title=title,
        reports=sorted(reports, key=lambda one: -sum(_count([one], name, Verdict.FAILS) for name in LAWS)),
        laws={name: LAWS[name] for name in laws},
        counts=counts,
        signs=SIGNS,
        order=list(Verdict),
        unasked=unasked or {},
        grouped=grouped,
        versions=reports[0]["versions"] if reports else {},
        made=time.strftime("%Y-%m-%d"),
    )


def _count(reports: list[dict], name: str, verdict: Verdict) -> int:
    return sum(report["laws"].get(name, {}).get("verdict") == verdict for report in reports)


def grouped(findings: list[dict]) -> list[dict]:
    """The findings that do not hold, grouped by cause and way out: {whats, why, way_out}."""
    groups: dict[tuple, list[str]] = {}
    for finding in findings:
        if finding["verdict"] != Verdict.HOLDS:
            apart = finding["difference"]
            off = "" if apart is None else f" ({float(apart):.2g})"
            groups.setdefault((finding["why"], finding["way_out"]), []).append(finding["what"] + off)
    return [{"whats": whats, "why": why, "way_out": way_out} for (why, way_out), whats in groups.items()]

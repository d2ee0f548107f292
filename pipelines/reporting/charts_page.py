"""Pages from templates, in the look that they share with the page of an inspection."""

import time
from functools import cache, partial
from pathlib import Path

from ..inspection.maps_page import as_script, part
from ..inspection.maps_page import style as shared_style
from ..storage.atomic import write_atomically

here = cache(partial(part, package=__package__))  # the text of a file in this folder


@cache
def environment():
    """The templates, with every value escaped."""
    import jinja2

    return jinja2.Environment(loader=jinja2.FunctionLoader(here), autoescape=True)


def write_page(path: Path, template: str, *, charts: list[dict], axes: list[dict], runs: list[str], **values) -> int:
    """Write a page and return its size in bytes. charts, axes, runs: what charts.js draws."""
    from anyformer import __version__

    text = (
        environment()
        .get_template(template)
        .render(
            style=shared_style() + here("report.css"),
            charts=charts,
            data=as_script({"charts": charts, "axes": axes, "runs": runs, "labels": values.get("labels", runs)}),
            script=here("charts.js"),
            version=__version__,
            made=time.strftime("%Y-%m-%d at %H:%M"),
            several=len(runs) > 1,
            **values,
        )
    )
    write_atomically(path, text)
    return len(text.encode())

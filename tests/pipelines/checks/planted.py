"""The planted bugs, and the table of the laws that catch each."""

import bugs_of_outputs
import bugs_of_training
from anyformer.pipelines.checks.check_report import ask
from anyformer.pipelines.checks.findings import Verdict
from anyformer.pipelines.checks.laws import LAWS
from planting import BUGS, twin

__all__ = ["BUGS", "bugs_of_outputs", "bugs_of_training", "table", "twin"]


def table() -> str:
    """Every bug, its model, and the laws that it breaks and that the clean model keeps, in Markdown."""
    clean = {model: failing(twin(model)) for model in dict.fromkeys(each.model for each in BUGS)}
    lines = ["| bug | model | caught by |", "|---|---|---|"]
    for each in BUGS:
        caught = [law for law in failing(each.subject()) if law not in clean[each.model]]
        lines.append(f"| {each.name} | {each.model} | {', '.join(caught)} |")
    return "\n".join(lines)


def failing(subject) -> list[str]:
    """The laws that fail."""
    return [law for law in LAWS if ask(subject, law).verdict is Verdict.FAILS]

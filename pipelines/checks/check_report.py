"""The report of a check: findings and verdicts, as one line, as JSON and as a page, and reproducers in Python."""

import contextlib
import io
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from ..errors import first_line
from ..inspection.maps_page import part, style
from ..transformers_logging import silent
from ..words import counted
from .findings import Finding, Verdict
from .laws import LAWS, law
from .subject import Subject

WORDS = {Verdict.HOLDS: "hold", Verdict.FAILS: "fail"}  # the verbs of several laws


@dataclass(frozen=True)
class Answer:
    """The findings of one law. seconds: how long they took."""

    law: str
    findings: list[Finding]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """FAILS if any finding fails; else the first of NOT_ASKED, HOLDS and NOT_CLAIMED that any finding has."""
        verdicts = {finding.verdict for finding in self.findings}
        order = (Verdict.FAILS, Verdict.NOT_ASKED, Verdict.HOLDS)
        return next((verdict for verdict in order if verdict in verdicts), Verdict.NOT_CLAIMED)

    @property
    def worst(self) -> Finding:
        """The finding to show: the largest difference among those with the law's verdict."""
        return max(self._of_verdict(), key=lambda finding: finding.difference or 0.0)

    @property
    def why(self) -> str:
        """The first reason among the findings with the law's verdict."""
        return next((finding.why for finding in self._of_verdict() if finding.why), "")

    def _of_verdict(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict is self.verdict]


@dataclass(frozen=True)
class Report:
    """The findings about one model. made_by: the lines of Python with which each reproducer begins."""

    name: str
    model_class: str
    parameters: int
    what: str  # the model that was checked: with its own weights, or a tiny twin of its config
    made_by: tuple[str, ...]
    versions: dict[str, str]
    answers: list[Answer]

    @property
    def failed(self) -> list[Answer]:
        """The laws that the class claims and does not keep."""
        return [answer for answer in self.answers if answer.verdict is Verdict.FAILS]

    @property
    def holds(self) -> bool:
        """Whether no law that the class claims fails."""
        return not self.failed

    def counts(self) -> dict[str, int]:
        """{verdict: number of laws}, without verdicts that no law has."""
        verdicts = [answer.verdict for answer in self.answers]
        return {str(verdict): verdicts.count(verdict) for verdict in Verdict if verdict in verdicts}

    def reproducer(self, finding: Finding) -> str:
        """At most eight lines of Python that need only transformers and show a failure; empty without steps."""
        return "\n".join((*self.made_by, *finding.steps)) if finding.steps else ""

    def line(self) -> str:
        """The report in one line, for a model card."""
        words = [f"{count} {WORDS.get(verdict, verdict)}" for verdict, count in self.counts().items()]
        if self.failed:
            words[list(self.counts()).index(Verdict.FAILS)] += f" ({', '.join(answer.law for answer in self.failed)})"
        return f"{counted(len(self.answers), 'law')} asked of {self.what}: {', '.join(words)}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        laws = {
            answer.law: {
                "promise": LAWS[answer.law],
                "verdict": str(answer.verdict),
                "seconds": round(answer.seconds, 2),
                "findings": [
                    {name: value for name, value in vars(finding).items() if name != "steps"}
                    | {"verdict": str(finding.verdict), "reproducer": self.reproducer(finding)}
                    for finding in answer.findings
                ],
            }
            for answer in self.answers
        }
        facts = {"name": self.name, "class": self.model_class, "parameters": self.parameters, "asked": self.what}
        return facts | {"versions": self.versions, "holds": self.holds, "laws": laws}


def ask(subject: Subject, name: str) -> Answer:
    """Check one law. An error that the model raises is a failure if the law sets MUST_RUN, else NOT_ASKED."""
    began, module = time.monotonic(), law(name)
    findings: list[Finding] = []
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), silent(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            why = subject.lacks(*getattr(module, "NEEDS", ()))
            if why := why or (module.unclaimed(subject) if hasattr(module, "unclaimed") else ""):
                findings.append(Finding("", Verdict.NOT_CLAIMED, why=why))
            else:
                findings.extend(module.ask(subject))
        except Exception as error:  # an unknown model may raise any error
            verdict = Verdict.FAILS if getattr(module, "MUST_RUN", False) else Verdict.NOT_ASKED
            findings.append(Finding("it raises an error", verdict, why=f"{type(error).__name__}: {first_line(error)}"))
    return Answer(name, findings, time.monotonic() - began)


def report_of(subject: Subject, name: str, laws: Iterable[str] = tuple(LAWS)) -> Report:
    """Check the laws one after another."""
    answers = [ask(subject, law_name) for law_name in laws]
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    parameters = sum(p.numel() for p in subject.fresh().parameters())
    return Report(name, subject.class_name, parameters, subject.what, subject.made_by, versions, answers)


def page_of(report: dict) -> str:
    """HTML that needs no network. report: Report.to_dict()."""
    import jinja2

    template = jinja2.Environment(autoescape=True).from_string(part("checks.html.jinja", __package__))
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

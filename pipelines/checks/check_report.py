"""The report of a check: every law, its findings and its verdict, as a table, as JSON, and as Python."""

import contextlib
import io
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import first_line
from ..transformers_logging import silent
from ..words import counted
from .findings import Finding, Verdict
from .laws import LAWS, law
from .subject import Subject

WORDS = {Verdict.HOLDS: "hold", Verdict.FAILS: "fail"}  # of several laws


@dataclass(frozen=True)
class Answer:
    """A law and what it found. seconds: how long it took."""

    law: str
    findings: list[Finding]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """Fails where one finding fails, else not asked, else holds, else not claimed."""
        found = {finding.verdict for finding in self.findings}
        order = (Verdict.FAILS, Verdict.NOT_ASKED, Verdict.HOLDS)
        return next((verdict for verdict in order if verdict in found), Verdict.NOT_CLAIMED)

    @property
    def worst(self) -> Finding:
        """The finding to show: the first of the law's verdict with the largest difference."""
        return max(self._of_verdict(), key=lambda finding: finding.difference or 0.0)

    @property
    def why(self) -> str:
        """The first cause that a finding of the law's verdict names."""
        return next((finding.why for finding in self._of_verdict() if finding.why), "")

    def _of_verdict(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict is self.verdict]


@dataclass(frozen=True)
class Report:
    """What was found about one model. made_by: the lines of Python with which each reproducer begins."""

    name: str
    model_class: str
    parameters: int
    what: str  # was asked: its own weights, or a tiny twin of its config
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
        """{verdict: laws}, without those of no law."""
        found = [answer.verdict for answer in self.answers]
        return {str(verdict): found.count(verdict) for verdict in Verdict if verdict in found}

    def reproducer(self, finding: Finding) -> str:
        """At most eight lines of Python with transformers alone that show a failure; empty where there are none."""
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
    """Ask one law of a model. An error that the model raises is a failure where the law says so, else not asked."""
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
        except Exception as error:  # of a model that we know nothing of
            verdict = Verdict.FAILS if getattr(module, "MUST_RUN", False) else Verdict.NOT_ASKED
            findings.append(Finding("it raises an error", verdict, why=f"{type(error).__name__}: {first_line(error)}"))
    return Answer(name, findings, time.monotonic() - began)


def report_of(subject: Subject, name: str, laws: Iterable[str] = tuple(LAWS)) -> Report:
    """Ask the laws, one after another."""
    import transformers

    answers = [ask(subject, each) for each in laws]
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    parameters = sum(p.numel() for p in subject.fresh().parameters())
    return Report(name, subject.class_name, parameters, subject.what, subject.made_by, versions, answers)

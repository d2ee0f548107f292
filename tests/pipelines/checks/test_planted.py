"""Laws have teeth: each planted bug is caught by the law that it breaks, and every law catches one."""

import contextlib
import functools
import io

import bugs_of_outputs  # noqa: F401 (plants them)
import bugs_of_training  # noqa: F401
import pytest
from anyformer.pipelines.checks.check_report import ask
from anyformer.pipelines.checks.findings import Verdict
from anyformer.pipelines.checks.laws import LAWS
from anyformer.pipelines.checks.subject import TOLERANCE
from planting import BUGS, twin

SLOW = ("compiled",)
FIRST = {bug.law: bug for bug in reversed(BUGS)}  # of each law; by default every second law catches it
every_bug = pytest.mark.parametrize(
    "bug",
    [
        pytest.param(
            bug, id=bug.name, marks=[pytest.mark.slow] * (bug.law in SLOW or bug not in list(FIRST.values())[::2])
        )
        for bug in BUGS
    ],
)


@functools.cache
def verdict_of_clean(model: str, law: str) -> Verdict:
    return ask(twin(model), law).verdict


@every_bug
def test_a_planted_bug_is_caught_by_its_law(bug, tmp_path, monkeypatch):
    if bug.law == "adapters":
        pytest.importorskip("peft")
    subject = bug.subject()
    subject.fresh()(**subject.rows())  # an error of the patch would count as caught
    assert verdict_of_clean(bug.model, bug.law) is Verdict.HOLDS
    found = ask(subject, bug.law)
    assert found.verdict is Verdict.FAILS
    monkeypatch.chdir(tmp_path)
    for finding in found.findings:
        if finding.verdict is Verdict.FAILS and finding.steps:
            shown, nothing = printed(subject, finding), printed(twin(bug.model), finding)
            assert shown != nothing
            assert isinstance(nothing, str) or (nothing < TOLERANCE and not abs(shown) < TOLERANCE)


def printed(subject, finding) -> float | str:
    """What the steps of a reproducer print for another model than the one that they make."""
    import torch

    out = io.StringIO()
    with contextlib.redirect_stdout(out), torch.random.fork_rng():
        exec("\n".join(finding.steps), {"torch": torch, "model": subject.fresh()})
    torch.use_deterministic_algorithms(False)
    try:
        return float(out.getvalue())
    except ValueError:
        return out.getvalue()


def test_every_law_catches_a_planted_bug():
    assert {bug.law for bug in BUGS} == set(LAWS) - {"device"}  # which needs one

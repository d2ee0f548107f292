"""A failure of a native class comes with at most eight lines of transformers alone that show it."""

import contextlib
import io

import pytest
from anyformer.pipelines.checks.check_report import report_of
from anyformer.pipelines.checks.made import subject_of_type


@pytest.mark.parametrize("model, law", [("opt", "packing"), ("bart", "accumulation"), ("roberta:causal", "cache")])
def test_a_reproducer_runs_alone_and_prints_the_failure(model, law):
    report = report_of(subject_of_type(*model.split(":")), model, [law])
    (answer,) = report.failed
    finding = next(finding for finding in answer.findings if finding.verdict == "fails" and finding.steps)
    reproducer = report.reproducer(finding)
    assert len(reproducer.splitlines()) <= 8 and "anyformer" not in reproducer
    import torch

    out = io.StringIO()
    with contextlib.redirect_stdout(out), torch.random.fork_rng():
        exec(reproducer, {})
    assert float(out.getvalue()) > finding.tolerance

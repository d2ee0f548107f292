"""`anyformer check`: its exit codes, its table, its JSON and its sentences."""

import json

import pytest
from anyformer.pipelines.cli.commands import main
from anyformer.pipelines.errors import UserError

LINE = ("import torch, transformers", "model = transformers.AutoModelForCausalLM.from_config(config).eval()")


def test_a_law_that_holds_ends_with_0_and_one_that_fails_with_1_and_its_reproducer(capsys):
    assert main(["check", "--model-type", "gpt2", "--laws", "packing"]) == 0
    held = capsys.readouterr().out
    assert "gpt2: GPT2LMHeadModel" in held and "packing" in held and LINE[0] not in held
    assert main(["check", "--model-type", "opt", "--laws", "packing, batches"]) == 1
    failed = capsys.readouterr().out
    assert "packing fails" in failed and "way out: " in failed and all(line in failed for line in LINE)
    assert "batches fails" not in failed


def test_the_page_is_written_before_a_reader_can_leave(monkeypatch, tmp_path, capsys):
    def leave(report):
        raise UserError("the reader left")

    monkeypatch.setattr("anyformer.pipelines.cli.check_command.print_report", leave)
    page = tmp_path / "check.html"
    assert main(["check", "--model-type", "gpt2", "--laws", "packing", "--html", str(page)]) == 2
    assert "the reader left" in capsys.readouterr().err and "packing" in page.read_text()


def test_json_is_one_value_that_holds_every_finding(capsys):
    assert main(["check", "--model-type", "opt", "--laws", "packing", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["class"] == "OPTForCausalLM" and not found["holds"]
    packing = found["laws"]["packing"]
    assert packing["verdict"] == "fails"
    assert any(finding["reproducer"].startswith(LINE[0]) for finding in packing["findings"])


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--model-type", "opt", "--laws", "pakcing"], "'pakcing' is none; did you mean packing?"),
        (["--model-type", "optt"], "--model-type optt: no such type; did you mean opt?"),
        (["--model-type", "opt", "--kind", "image"], "--model-type opt has no class of the kind image; it has causal"),
        (["quickstart", "--kind", "causal"], "--kind causal belongs to --model-type"),
        (["--kind", "causal"], "name one model"),
        (["quickstart", "--model-type", "opt"], "name one model"),
        (["--model-type", "opt", "--real"], "--real asks for weights"),
        (["--model-type", "opt", "--device", "tpuu"], "--device tpuu is no device"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_one_sentence_with_exit_code_2(argv, words, capsys):
    assert main(["check", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("anyformer: ") and words in err.splitlines()[-1]

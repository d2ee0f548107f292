"""The benchmarks run, compare equal work and print their table. Timings are not tested."""

import importlib
import shlex
import sys

import pytest
import torch

COLUMNS = 7


@pytest.fixture
def benchmark(repo_root, monkeypatch):
    """Load a script of scripts/benchmarks as a module, as running it there would."""
    monkeypatch.syspath_prepend(str(repo_root / "scripts" / "benchmarks"))
    yield importlib.import_module
    for script in (repo_root / "scripts" / "benchmarks").glob("*.py"):
        sys.modules.pop(script.stem, None)


@pytest.fixture(autouse=True)
def one_call_per_timing(benchmark, monkeypatch):
    method = benchmark("method")
    monkeypatch.setattr(method, "SHORTEST", 0.0)
    monkeypatch.setattr(method.gc, "collect", lambda: 0)  # takes a second each time after some hundred tests


def run(module, arguments: str) -> None:
    module.main(arguments.split())


def table(capsys) -> list[list[str]]:
    """Rows of the printed markdown table, without its head."""
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("machine: ") and lines[2].startswith("commit: ") and lines[3].startswith("command: ")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows[0][0] == "what" and all(len(row) == COLUMNS for row in rows)
    return rows[2:]


def test_decoder_step_compares_equal_losses_in_both_dtypes(benchmark, capsys):
    size = "--length 16 --layers 1 --batch 1 --vocab 64 --hidden 32 --heads 2 --rounds 2 --device cpu"
    run(benchmark("decoder_step"), f"{size} --arms native ours")
    assert [row[1] for row in table(capsys)] == ["guard", "ours"] * 2


def test_mlm_step_compares_equal_losses_and_memory(benchmark, capsys):
    run(benchmark("mlm_step"), "--shape small --length 16 --layers 1 --vocab 64 --rounds 2")
    rows = table(capsys)
    assert [row[1] for row in rows] == ["guard", *("native eager",) * 2, *("ours padded",) * 2, *("ours",) * 2]
    assert {row[5] for row in rows if row[1] == "ours"} == {">= 2.8", "<= 1"}


def test_vit_step_compares_equal_losses_and_memory(benchmark, capsys):
    size = "--image 32 --patch 16 --layers 1 --hidden 32 --heads 2 --batch 2 --classes 5 --rounds 2"
    run(benchmark("vit_step"), size)
    rows = table(capsys)
    assert [row[1] for row in rows] == ["guard", *("native sdpa",) * 2, *("ours",) * 4] * 2
    assert {row[5] for row in rows if row[1] == "ours"} == {">= 1.1", "<= 1"}


def test_seq2seq_step_compares_equal_losses_and_memory(benchmark, capsys):
    size = "--length 16 --target-length 8 --layers 1 --hidden 32 --heads 2 --intermediate 64 --batch 2 --vocab 64"
    run(benchmark("seq2seq_step"), f"{size} --rounds 2")
    rows = table(capsys)
    assert [row[1] for row in rows] == ["guard", *("native sdpa",) * 2, *("ours",) * 4]
    assert {row[5] for row in rows if row[1] == "ours"} == {">= 1.05", "<= 1"}


def test_length_measures_every_kind_of_attention_at_every_length(benchmark, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    module = benchmark("length")
    run(module, f"--length 24 48 --hidden 16 --heads 2 --rounds 1 --plot {tmp_path / 'length.png'}")
    rows = table(capsys)
    assert [row[1] for row in rows] == [*module.KINDS] * 2 and rows[0][6] == "1.00 x"
    assert (tmp_path / "length.png").read_bytes().startswith(b"\x89PNG")


def test_every_pair_of_arms_that_has_a_goal_is_compared(benchmark):
    module = benchmark("decoder_step")
    for goals in module.GOALS.values():
        assert all(peer in module.PEERS[arm] for arm, peer in goals)


def test_cross_entropy_prints_speed_and_memory_with_their_goals(benchmark, capsys):
    run(benchmark("cross_entropy"), "--tokens 64 --vocab 4096 --hidden 8 --rounds 2")
    rows = table(capsys)
    assert [row[1] for row in rows] == ["guard", "full logits", "ours", "ours"] * 2
    assert {row[5] for row in rows if row[1] == "ours"} == {">= 1.8", "<= 0.15"}


def test_extra_memory_of_the_full_logits_counts_them(benchmark):
    module = benchmark("cross_entropy")
    hidden, weight = torch.randn(64, 8).requires_grad_(), torch.randn(4096, 8).requires_grad_()
    labels = torch.zeros(64, dtype=torch.long)

    def step():
        module.full_logits(hidden, weight, labels).backward()
        return hidden.grad, weight.grad

    assert module.extra_bytes(step, (hidden, weight)) >= 64 * 4096 * 4


def test_generate_compares_equal_tokens(benchmark, capsys):
    run(benchmark("generate"), "--model small --batch 1 --prompt 4 --tokens 3 --rounds 2")
    assert [row[1] for row in table(capsys)] == ["guard", "ours"]


def test_trainers_end_with_the_bare_loops_weights(benchmark, capsys):
    size = "--steps 13 --layers 1 --hidden 16 --length 8 --batch 2 --vocab 32 --rounds 2"
    run(benchmark("trainer_overhead"), size)
    assert [row[1] for row in table(capsys)] == ["guard", "transformers' Trainer", "AnyformerTrainer"]


def test_data_pipelines_hold_the_same_tokens(benchmark, capsys):
    run(benchmark("data_pipeline"), "--bytes 20000 --vocab 300 --length 32 --rounds 2")
    assert [row[1] for row in table(capsys)] == ["guard", "ours", "bare tokenizer", "ours"]


def test_arms_that_compute_something_else_end_the_run(benchmark):
    with pytest.raises(SystemExit, match=r"not comparable: b computes 1\.01, a 1\.0"):
        benchmark("method").require_equal({"a": 1.0, "b": 1.01})
    with pytest.raises(SystemExit):
        benchmark("method").require_equal({"a": 1.0, "b": float("nan")})


def test_a_goal_is_met_only_by_the_whole_interval(benchmark):
    goal, most = benchmark("method").Goal(1.2), benchmark("method").Goal(0.15, at_least=False)
    assert [goal.verdict(*x) for x in ((1.2, 1.4), (1.1, 1.3), (1.0, 1.1))] == ["met", "open", "missed"]
    assert [most.verdict(*x) for x in ((0.1, 0.15), (0.1, 0.2), (0.2, 0.3))] == ["met", "open", "missed"]


def test_ratios_are_taken_within_a_round_and_the_guard_voids_a_run(benchmark):
    method = benchmark("method")
    slower = iter(range(1, 100))

    def clock(arm):
        return arm() * next(slower)  # a machine that gets slower and slower

    timings = method.compare({"a": lambda: 4.0, "b": lambda: 1.0}, "a", rounds=6, clock=clock)
    assert timings["b"].ratio > 2 and timings["b"].interval[0] <= timings["b"].ratio <= timings["b"].interval[1]
    assert method.relative_to(timings, "b", "a").ratio < 0.5
    timings[method.GUARD].ratios = [1.1]
    assert method.is_void(timings)
    assert "| void |" in method.row("x", "b", "a", timings["b"], method.Goal(1.5), method.is_void(timings))
    timings[method.GUARD].ratios = [1.0]
    assert not method.is_void(timings)


@pytest.mark.parametrize("script", ["decoder_step", "cross_entropy", "generate", "trainer_overhead", "data_pipeline"])
def test_every_script_explains_itself(benchmark, script, capsys):
    with pytest.raises(SystemExit) as ended:
        benchmark(script).main(["--help"])
    text = capsys.readouterr().out
    assert (
        ended.value.code == 0
        and "--quick" in text
        and benchmark(script).__doc__.split(":")[0] in " ".join(text.split())
    )


def test_moe_step_compares_equal_losses_in_every_dtype(benchmark, capsys):
    size = "--length 16 --layers 1 --batch 1 --vocab 64 --hidden 32 --heads 2 --intermediate 32 --experts 4 --rounds 2"
    arms = "'native eager' 'native grouped_mm' 'native batched_mm' ours"
    benchmark("moe_step").main(shlex.split(f"{size} --arms {arms} --dtype fp32 bf16 bf16-weights"))
    rows = table(capsys)
    assert [row[1] for row in rows] == ["guard", "native grouped_mm", "native batched_mm", "ours", "ours", "ours"] * 3
    assert {row[5] for row in rows if row[1] == "ours"} == {"-", ">= 1.25"}


def test_losses_that_differ_in_the_last_digit_are_reported(benchmark, capsys):
    module = benchmark("compare_losses")
    a = module.Result([6.0, 5.1], {"validation_loss": 5.0}, "0a")
    b = module.Result([6.0, 5.1000000000000005], {"validation_loss": 5.0}, "0b")
    assert module.print_table(["A", "B"], [{"decoder": a}, {"decoder": a}], all_steps=False)
    assert not module.print_table(["A", "B"], [{"decoder": a}, {"decoder": b}], all_steps=True)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| decoder")]
    assert rows[0] == "| decoder | 2 | 5.1 | 5.1 | equal |" and len(rows) == 3
    assert rows[2] == "| decoder | 2 | 5.1 | 5.1000000000000005 | DIFFERENT: 1 losses, first at step 2; weights |"


@pytest.mark.slow
def test_a_commit_has_the_losses_of_itself(benchmark, capsys, repo_root):
    if not (repo_root / ".git").exists():
        pytest.skip("needs a git checkout")
    code = benchmark("compare_losses").main(["HEAD", "HEAD", "--steps", "2", "--families", "decoder", "vit"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.endswith("| equal |")]
    assert code == 0 and [row.split()[1] for row in rows] == ["decoder", "vit"]

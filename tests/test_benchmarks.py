"""The laws of the benchmarks' method, and a case of their table at tiny sizes. Timings are not tested."""

import importlib
import os
import subprocess
import sys

import pytest


@pytest.fixture
def benchmark(repo_root, monkeypatch):
    """Load a script of scripts/benchmarks as a module, as running it there would."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(repo_root / "scripts" / "benchmarks"))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(repo_root / "scripts")):
            del sys.modules[name]


def test_variants_that_give_something_else_end_the_run(benchmark):
    method = benchmark("method")
    with pytest.raises(SystemExit, match=r"not comparable: b gives 1\.01, a 1\.0"):
        method.require_equal({"a": 1.0, "b": 1.01})
    with pytest.raises(SystemExit):
        method.compare({"a": lambda: 1.0, "b": lambda: float("nan")}, rounds=1, shortest=0.0)
    method.require_equal({"a": [1.0, 2.0], "none": None, "b": [1.0, 2.00001]})


def test_ratios_are_taken_within_a_round_and_the_guard_voids_a_run(benchmark):
    method = benchmark("method")
    slower = iter(range(1, 100))

    def clock(variant):
        return method.Timed(variant() * next(slower))  # a machine that gets slower and slower

    timings = method.compare({"a": lambda: 4.0, "b": lambda: 1.0}, rounds=6, clock=clock, shortest=0.0)
    assert timings["b"].ratio > 2 and timings["b"].interval[0] <= timings["b"].ratio <= timings["b"].interval[1]
    assert method.relative_to(timings, "b", "a").ratio < 0.5
    timings[method.GUARD].ratios = [1.1]
    assert method.void_reason(timings, "fp32") == "void"
    assert method.speed("x", "b", "a", timings["b"], method.Goal(1.5), "void").verdict == "void"
    timings[method.GUARD].ratios = [1.0]
    assert method.void_reason(timings, "fp32") is None


def test_a_run_in_bf16_is_void_where_the_cpu_has_no_instructions_for_it(benchmark, monkeypatch):
    method = benchmark("method")
    for sets, reason in ((["avx2"], "void: no bf16 instructions"), (["avx2", "avx512_bf16"], None)):
        monkeypatch.setattr(method, "instruction_sets", lambda sets=sets: sets)
        assert method.void_reason({}, "bf16") == reason and method.void_reason({}, "fp32") is None


def test_a_case_runs_at_tiny_sizes(benchmark, capsys):
    benchmark("run").main(["seq2seq", "--tiny"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:6]] == ["machine", "versions", "commit", "time", "load", "command"]
    rows = [line.strip("| ").split(" | ") for line in lines[8:]]
    assert [row[1] for row in rows] == ["guard", *("native sdpa",) * 2, *("ours",) * 2]


def test_kept_figures_take_the_place_of_their_cases_last_ones(benchmark, tmp_path, monkeypatch):
    kept, method = benchmark("kept"), benchmark("method")
    for name in ("FILE", "RESULTS"):
        monkeypatch.setattr(kept, name, tmp_path / getattr(kept, name).name)
    table = "\n".join([method.line(*kept.COLUMNS), "|---|", "| of another version |"])
    kept.RESULTS.write_text(f"before\n\n{table}\n\nafter\n", encoding="utf-8")
    machine = {"machine": "a CPU", "commit": "abc", "time": "2026-11-29 07:00"}
    guard = method.Figure("T=4", method.GUARD, "native", 1.0, 0.99, 1.01, goal="0.97-1.03", verdict="valid")
    for ratio in (1.5, 1.25):
        figures = [guard, method.Figure("T=4", "ours", "native", ratio, 1.2, 1.6, 3.0, ">= 1.2", "met")]
        kept.keep("moe", [*figures, method.Figure("T=4", "ours", "other", 2.0)], machine)
    rows = [line for line in kept.RESULTS.read_text(encoding="utf-8").splitlines() if "T=4" in line]
    assert rows == ["| moe | T=4 | native | 1.250 (1.200-1.600) | >= 1.2 | met |"]
    assert kept.RESULTS.read_text(encoding="utf-8").endswith("|\n\nMeasured: moe 2026-11-29 abc.\n\nafter\n")
    assert "another version" not in kept.RESULTS.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_commit_has_the_losses_of_itself(benchmark, repo_root):
    if not (repo_root / ".git").exists():
        pytest.skip("needs a git checkout")
    assert benchmark("compare_losses").main(["HEAD", "HEAD", "--steps", "2", "--families", "decoder", "vit"]) == 0


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_case_and_all_that_needs_a_gpu_runs_at_tiny_sizes_on_a_cpu(repo_root, tmp_path):
    """Nothing is left for the first run on a GPU to stumble over but the GPU."""
    scripts, environment = repo_root / "scripts" / "benchmarks", os.environ | {"OMP_NUM_THREADS": "1"}
    listed = subprocess.run([sys.executable, scripts / "run.py", "--list"], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    subprocess.run([sys.executable, scripts / "run.py", *names, "--tiny"], env=environment, check=True)
    command = [sys.executable, scripts / "gpu.py", tmp_path, "--device", "cpu", "--tiny"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

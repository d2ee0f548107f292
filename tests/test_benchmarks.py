"""The benchmarks run, compare equal work and print their table. Timings are not tested."""

import importlib
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

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
    size = "--length 16 --layers 1 --batch 1 --vocab 64 --hidden 32 --heads 2 --rounds 2"
    run(benchmark("decoder_step"), f"{size} --arms native lean ours")
    assert [row[1] for row in table(capsys)] == ["guard", "lean", "ours", "ours", "products alone"] * 2


def test_attention_backends_compute_the_same(benchmark, capsys):
    run(benchmark("attention_backends"), "--length 16 --arms eager sdpa --hidden 32 --heads 2 --rounds 2")
    assert [row[1] for row in table(capsys)] == ["eager", "sdpa"]


@pytest.mark.slow
def test_mlm_step_compares_equal_losses_and_memory(benchmark, capsys):
    run(benchmark("mlm_step"), "--shape small --length 16 --layers 1 --vocab 64 --rounds 2")
    rows = table(capsys)
    assert [row[1] for row in rows] == [
        *("guard", "native eager", "native eager", "ours padded", "ours padded", "ours", "ours", "products alone")
    ]
    assert {row[5] for row in rows if row[1] == "ours"} == {">= 2.8", "<= 1"}


@pytest.mark.slow
def test_vit_step_compares_equal_losses_and_memory(benchmark, capsys):
    size = "--image 32 --patch 16 --layers 1 --hidden 32 --heads 2 --batch 2 --classes 5 --rounds 2"
    run(benchmark("vit_step"), size)
    rows = table(capsys)
    assert [row[1] for row in rows] == ["guard", *("native sdpa",) * 2, *("ours",) * 4, *("products alone",) * 2] * 2
    assert {row[5] for row in rows if row[1] == "ours"} == {">= 1.1", "<= 1"}


def test_seq2seq_step_compares_equal_losses_and_memory(benchmark, capsys):
    size = "--length 16 --target-length 8 --layers 1 --hidden 32 --heads 2 --intermediate 64 --batch 2 --vocab 64"
    run(benchmark("seq2seq_step"), f"{size} --rounds 2")
    rows = table(capsys)
    assert [row[1] for row in rows] == ["guard", *("native sdpa",) * 2, *("ours",) * 4, *("products alone",) * 2]
    assert {row[5] for row in rows if row[1] == "ours"} == {">= 1.08", "<= 1"}


@pytest.mark.slow
def test_length_measures_every_kind_of_attention_at_every_length(benchmark, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    module = benchmark("length")
    run(module, f"--length 24 48 --hidden 16 --heads 2 --rounds 1 --plot {tmp_path / 'length.png'}")
    kinds = list(module.KINDS)
    rows = [row for row in table(capsys) if row[1] not in ("arm", "---")]
    assert [row[1] for row in rows] == [*kinds, *kinds, *["guard", *kinds[2:]] * 2] and rows[0][6] == "1.00 x"
    assert (tmp_path / "length.png").read_bytes().startswith(b"\x89PNG")


def test_every_pair_of_arms_that_has_a_goal_is_compared(benchmark):
    module = benchmark("decoder_step")
    for goals in module.GOALS.values():
        assert all(peer in module.PEERS[arm] for arm, peer in goals)


def test_cross_entropy_prints_speed_and_memory_with_their_goals(benchmark, capsys):
    run(benchmark("cross_entropy"), "--tokens 64 --vocab 4096 --hidden 8 --rounds 2")
    rows = table(capsys)
    assert [row[1] for row in rows] == ["guard", "full logits", "ours", "ours", "products alone"] * 2
    assert {row[5] for row in rows if row[1] == "ours"} == {"-", ">= 1.5", "<= 0.2"}


def test_extra_memory_of_the_full_logits_counts_them(benchmark):
    module = benchmark("cross_entropy")
    hidden, weight = torch.randn(64, 8).requires_grad_(), torch.randn(4096, 8).requires_grad_()
    labels = torch.zeros(64, dtype=torch.long)

    def step():
        module.full_logits(hidden, weight, labels).backward()
        return hidden.grad, weight.grad

    assert module.extra_bytes(step, (hidden, weight)) >= 64 * 4096 * 4


def test_decoding_throughput_compares_equal_answers(benchmark, capsys):
    size = "--texts 3 --batch 2 --solved 12 --longest 6 --rounds 2 --model small"
    run(benchmark("decoding_throughput"), f"{size} --what scoring")
    assert [row[1] for row in table(capsys)] == ["guard", "by length", "ours"]


def test_generate_compares_equal_tokens(benchmark, capsys):
    run(benchmark("generate"), "--model small --batch 1 --prompt 4 --tokens 3 --rounds 2")
    assert [row[1] for row in table(capsys)] == ["guard", "ours", "products alone"]


def test_products_alone_are_the_products_of_a_step_with_nothing_around_them(benchmark):
    products, model = benchmark("products"), torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU())
    step = benchmark("steps").Step(model, {"input": torch.randn(4, 8)}, "fp32")
    step.forward_loss = lambda: model(**step.batch).sum()
    again = products.products_alone(step)
    with FlopCounterMode(display=False) as of_step:
        step()
    with FlopCounterMode(display=False) as of_products, products.Products() as recorded:
        again()
    assert of_products.get_total_flops() == of_step.get_total_flops() == 2 * 2 * 4 * 8 * 16
    assert len(recorded.calls) == 2  # the forward product, and that of the weight's gradient
    with pytest.raises(SystemExit, match="no matrix products"):
        products.products_alone(lambda: torch.ones(2) + 1)


@pytest.mark.slow
def test_trainers_end_with_the_bare_loops_weights(benchmark, capsys):
    size = "--steps 13 --layers 1 --hidden 16 --length 8 --batch 2 --vocab 32 --rounds 2"
    run(benchmark("trainer_overhead"), size)
    assert [row[1] for row in table(capsys)] == ["guard", "transformers' Trainer", "AnyformerTrainer"]


def test_the_loader_of_images_is_timed_beside_the_steps_that_it_feeds(benchmark, capsys, monkeypatch):
    module = benchmark("images")
    sizes = {"image_size": 16, "patch_size": 8, "num_hidden_layers": 1, "hidden_size": 24}
    monkeypatch.setitem(module.SHAPES, "cifar", (8, 4, 2, sizes))
    run(module, "--shape cifar --rounds 2")
    assert [(row[1], row[5]) for row in table(capsys)] == [("guard", "0.97-1.03"), ("loader", ">= 5")]


@pytest.mark.slow
def test_the_first_step_is_timed_beside_the_libraries(benchmark, capsys):
    run(benchmark("first_step"), "--quick")
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    libraries, ours = (float(line[1]) for line in lines)
    assert 0 < libraries < ours


@pytest.mark.slow
def test_data_pipelines_hold_the_same_tokens(benchmark, capsys):
    run(benchmark("data_pipeline"), "--bytes 20000 --vocab 300 --length 32 --rounds 2")
    assert [row[1] for row in table(capsys)] == ["guard", "ours", "bare tokenizer", "ours"]


@pytest.mark.slow
def test_data_pipelines_beside_datatrove_and_by_two_processes_hold_the_same_tokens(benchmark, capsys):
    pytest.importorskip("datatrove", reason="needs anyformer[datatrove]")
    size = "--bytes 20000 --vocab 300 --length 32 --rounds 2"
    run(benchmark("data_pipeline"), f"{size} --clock wall --beside datatrove processes")
    arms = ["guard", "ours", "bare tokenizer", "ours", "datatrove", "ours", "ours, 2 processes", "ours, 2 processes"]
    assert [row[1] for row in table(capsys)] == arms


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


@pytest.mark.parametrize(
    "found, words", [(["avx2"], ("void: no bf16 instructions", "void")), (["avx2", "avx512_bf16"], ("valid", "met"))]
)
def test_a_run_in_bf16_is_valid_where_the_cpu_has_instructions_for_it(benchmark, monkeypatch, capsys, found, words):
    method = benchmark("method")
    monkeypatch.setattr(method, "instruction_sets", lambda: found)
    timings = {name: method.Timing([1.0], [1.0]) for name in ("a", "b", method.GUARD)}
    rows = (
        method.guard_row("bf16 x", "a", timings),
        method.row("bf16 x", "b", "a", timings["b"], method.Goal(1.0), False),
    )
    assert tuple(row.split(" | ")[-1].removesuffix(" |") for row in rows) == words
    assert method.row("fp32 x", "b", "a", timings["b"], method.Goal(1.0), False).endswith("| met |")
    method.start(method.parser("x"), [])
    assert f"cores ({' '.join(found)})" in capsys.readouterr().out


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


@pytest.mark.slow
def test_moe_step_compares_equal_losses_in_every_dtype(benchmark, capsys):
    size = "--length 16 --layers 1 --batch 1 --vocab 64 --hidden 32 --heads 2 --intermediate 32 --experts 4 --rounds 2"
    arms = "'native eager' 'native grouped_mm' 'native batched_mm' ours"
    benchmark("moe_step").main(shlex.split(f"{size} --arms {arms} --dtype fp32 bf16 bf16-weights"))
    rows = table(capsys)
    printed = ["guard", "native grouped_mm", "native batched_mm", *("ours",) * 3, *("products alone",) * 3]
    assert [row[1] for row in rows] == printed * 3
    assert {row[5] for row in rows if row[1] == "ours"} == {">= 1.2"}


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


def test_a_sitting_runs_every_table_once_and_goes_on_where_it_stopped(benchmark, repo_root, tmp_path, capsys):
    calls, python = tmp_path / "calls", tmp_path / "bin" / "python3"
    python.parent.mkdir()
    record = f"shift\nprintf '%s\\037' \"$@\" >> {calls}\necho >> {calls}\n"
    python.write_text(
        f"#!/bin/sh\n{record}[ $1 != cross_entropy.py ] || echo '| guard | void |'\n[ $1 != generate.py ]\n"
    )
    python.chmod(0o755)
    env = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", str(repo_root / "scripts/benchmarks/sitting.sh"), str(tmp_path / "out"), str(tmp_path)]
    first, second = (subprocess.run(command, env=env, capture_output=True, text=True) for _ in range(2))
    assert first.returncode == second.returncode == 1 and "generate: failed" in second.stderr
    assert "## decoder" in (tmp_path / "out" / "sitting.md").read_text()
    *called, again = [line.split("\037")[:-1] for line in calls.read_text().splitlines()]
    assert again[0] == "generate.py"  # alone: what was measured is kept
    assert [script for script, *_ in called].count("cross_entropy.py") == 2  # void, so once more
    assert all((tmp_path / "out" / f"loss.{kept}").read_text() == "| guard | void |\n" for kept in ("void", "md"))
    for script, *arguments in called:  # each is one that the script takes
        with pytest.raises(SystemExit) as ended:
            benchmark(script.removesuffix(".py")).main([*arguments, "--help"])
        assert ended.value.code == 0, (script, capsys.readouterr().err)


# ---------------------------------------------------------------------------------------------------- gpu.py's runner


def child(body: str):
    """A part's process that waits for its line, as gpu_part.py does, and then runs `body` with a function `write`."""
    start = "import json, os, sys, time; sys.stdin.readline()\n"
    start += "write = lambda row: open(sys.argv[1], 'a').write(json.dumps(row) + chr(10))\n"
    return [sys.executable, "-S", "-c", start + body]


def test_a_part_that_crashes_or_hangs_costs_its_own_row(benchmark, tmp_path):
    gpu = benchmark("gpu")
    good = "write({'part': 'well', 'what': 'sum', 'result': 'ok', 'detail': ''})"
    marker = tmp_path / "alive"
    bodies = {
        "crash": "print('no such kernel'); os._exit(7)",
        "hang": f"import subprocess; subprocess.Popen(['sh', '-c', 'sleep 3; touch {marker}']); time.sleep(60)",
        "well": good,
        "half": good.replace("'well'", "'half'") + "; os._exit(1)",
    }
    parts = [gpu.Part(name, limit=0.6 if name == "hang" else 30, alone=name == "well") for name in bodies]
    found, began = {}, time.monotonic()
    gpu.run(
        parts,
        lambda part, path: [*child(bodies[part.name]), str(path)],
        ends=began + 100,
        finished=lambda part, rows, log: found.update(
            {part.name: [(r["what"], r["result"], r["detail"]) for r in rows]}
        ),
        together=3,
    )
    assert found == {
        "crash": [("the part", "failed", "exit code 7: no such kernel")],
        "hang": [("the part", "failed", "no end within 1 s")],
        "well": [("sum", "ok", "")],
        "half": [("sum", "ok", ""), ("the part", "failed", "exit code 1: no output")],
    }
    assert time.monotonic() - began < 30


def test_parts_for_which_no_time_is_left_are_listed(benchmark):
    gpu, found = benchmark("gpu"), []
    parts = [gpu.Part("a", 10), gpu.Part("b", 10, alone=True)]
    gpu.run(parts, None, time.monotonic() + 1, lambda part, rows, log: found.extend(rows))
    assert found == [gpu.row(name, "the part", "not run", "out of time") for name in "ab"]


def test_timed_parts_run_alone_and_others_together(benchmark, tmp_path):
    gpu = benchmark("gpu")
    body = "write({'begin': time.monotonic()}); time.sleep(0.4); write({'end': time.monotonic()})"
    parts = [gpu.Part("a", 30), gpu.Part("b", 30), gpu.Part("c", 30, alone=True), gpu.Part("d", 30, alone=True)]
    spans = {}

    def finished(part, rows, log):
        spans[part.name] = rows[0]["begin"], rows[1]["end"]

    gpu.run(parts, lambda part, path: [*child(body), str(path)], time.monotonic() + 100, finished, together=2)
    a, b, c, d = (spans[name] for name in "abcd")
    assert max(a[0], b[0]) < min(a[1], b[1]) and max(a[1], b[1]) <= c[0] and c[1] <= d[0]


def test_tables_hold_every_row(benchmark):
    gpu = benchmark("gpu")
    speed = {"part": "vit", "what": "ViT", "arm": "ours", "ms": 1.234, "ratio": 1.5, "mfu_palm": 0.5, "syncs": 0}
    text = gpu.tables([gpu.row("x", "a|b", "failed", "two\nlines"), speed], "machine: none")
    assert "| x | a\\|b | failed | two lines |" in text and "machine: none" in text
    assert "| ViT | ours | 1.23 | - | 1.500 | 50.0% | - | - | 0 |" in text


def test_goals_on_a_gpu_have_verdicts(benchmark):
    gpu = benchmark("gpu")
    of = lambda part, arm, **numbers: {"part": part, "what": "x", "arm": arm, **numbers}  # noqa: E731
    rows = [
        of("decoder_350m", "native compiled", ratio=1.1),
        of("decoder_350m", "ours compiled", ratio=1.4, mfu_palm=0.44, syncs=0),
        of("sliding", "full attention, sdpa", ratio=1.0),
        of("sliding", "window, sdpa", ratio=0.5),
        of("sliding", "window, flex_attention", ratio=4.5),
        gpu.row("syncs", "ours", "failed", "no arm"),
    ]
    verdicts = [line.split(" | ")[1:] for line in gpu.goals(rows)[2:]]
    assert [verdict.removesuffix(" |") for _, verdict in verdicts] == [
        *("missed", "not measured", "met", "not measured", "met", "met")
    ]
    assert [figure for figure, _ in verdicts] == ["0.440", "-", "1.273", "-", "4.500", "0"]
    assert "| goal | measured | verdict |" in gpu.tables(rows, "machine: none")


def test_a_part_of_every_name_exists(benchmark):
    modules = [benchmark(name) for name in ("gpu_checks", "gpu_checks_runtime", "gpu_speed")]
    for part in benchmark("gpu").PARTS:
        assert sum(hasattr(module, part.name) for module in modules) == 1, part.name


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_all_that_needs_a_gpu_runs_on_a_cpu(benchmark, tmp_path, repo_root):
    """Every part, at tiny sizes: nothing is left for the first run on a GPU to stumble over but the GPU."""
    command = ["bash", str(repo_root / "scripts/benchmarks/gpu.sh"), str(tmp_path / "out"), "--device", "cpu", "--tiny"]
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([*command, "--seconds", "1400"], env=env, capture_output=True, text=True)
    result = json.loads((tmp_path / "out" / "gpu.json").read_text())
    bad = [row for row in result["rows"] if row.get("result") in ("failed", "not run")]
    assert not bad and done.returncode == 0, f"{bad}\n{(tmp_path / 'out' / 'gpu.log').read_text()[-3000:]}"
    assert {row["part"] for row in result["rows"]} == {part.name for part in benchmark("gpu").PARTS}
    assert (tmp_path / "out" / "gpu.md").read_text() in done.stdout

"""All that needs a GPU in one command: checks, then speed.

    python scripts/benchmarks/gpu.py FOLDER [--only PART ...]     FOLDER gets gpu.md and a log of each part
    python scripts/benchmarks/gpu.py FOLDER --device cpu --tiny   the same parts on a CPU at tiny sizes

Parts are the checks of gpu_checks.py and the cases of GPU_CASES in cases.py. Each is a process of its own with a time
limit, so that a crash or a hang costs a row and not the run. Needs torch, transformers and accelerate; nothing is
installed: the repository's own folders are made importable.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from compare_losses import ROOT, link_package

HERE = Path(__file__).resolve().parent
CHECKS = ("laws", "syncs")
SPEED = ("decoder_350m", "decoder_1b", "moe_gpu", "masked_gpu", "vit_gpu", "head_loss_gpu", "native_attention_gpu")
SPEED += ("generate_gpu",)
LIMIT = 600  # seconds of a part, its imports among them


def run_part(name: str, device: str, tiny: bool) -> None:
    """Print the rows of one part."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device; --device cpu --tiny tests the command itself")
    if device == "cpu":
        torch.set_num_threads(1)
    if name in CHECKS:
        import gpu_checks

        getattr(gpu_checks, name)(gpu_checks.Report(device, tiny))
        return
    import cases
    import method
    import run

    case = {each.name: each for each in cases.GPU_CASES}[name]
    if device == "cpu":
        case = dataclasses.replace(case, clock=method.wall_seconds)
    print(method.HEADER)
    for shape in case.tiny_shapes() if tiny else case.shapes:
        variants, timings = run.measure(case, shape, device, tiny=tiny)
        for variant, step in variants.items() if device == "cuda" else ():
            print_use(variant, step, timings[variant].milliseconds / 1e3)


def print_use(name: str, step, seconds: float) -> None:
    """Print peak memory and, for a step on whole rows of text, tokens per second and MFU (PaLM's convention).

    Memory includes what all variants hold at rest. Padded rows have no rates: models skip different parts of them.
    """
    import torch
    from anyformer.pipelines.accounting.flops import FlopCount, count_tokens, peak_flops

    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    words = [f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"]
    if hasattr(step, "batch") and set(step.batch) == {"input_ids", "labels"}:
        peak, _ = peak_flops(torch.device("cuda"), torch.bfloat16)
        share = float(FlopCount(step.model).of_batch(step.batch)) / seconds / peak
        words += [f"{int(count_tokens(step.batch, step.model.config)) / seconds:,.0f} tokens/s", f"MFU {share:.1%}"]
    print(f"\n{name}: {', '.join(words)}")


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("output", type=Path, help="folder of the results")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--tiny", action="store_true", help="sizes for a test of this command")
    p.add_argument("--only", nargs="+", choices=CHECKS + SPEED, metavar="PART", help=", ".join(CHECKS + SPEED))
    p.add_argument("--part", choices=CHECKS + SPEED, help=argparse.SUPPRESS)  # for the command's own processes
    args = p.parse_args(argv)
    if args.part:
        run_part(args.part, args.device, args.tiny)
        return 0
    args.output.mkdir(parents=True, exist_ok=True)
    report = args.output / "gpu.md"
    report.write_text("")
    failed = []
    with tempfile.TemporaryDirectory() as links:
        link_package(ROOT, Path(links))
        paths = [links, str(HERE), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
        for name in args.only or CHECKS + SPEED:
            command = [sys.executable, __file__, str(args.output), "--part", name, "--device", args.device]
            with report.open("a") as rows, (args.output / f"{name}.log").open("w") as log:
                rows.write(f"\n## {name}\n\n")
                rows.flush()
                try:
                    done = subprocess.run(
                        command + ["--tiny"] * args.tiny, env=environment, stdout=rows, stderr=log, timeout=LIMIT
                    )
                    ended = f"exit code {done.returncode}" if done.returncode else ""
                except subprocess.TimeoutExpired:
                    ended = f"no end within {LIMIT} s"
                if ended:
                    failed.append(name)
                    rows.write(f"\n{name} failed: {ended}, see {name}.log\n")
    text = report.read_text()
    print(text)
    return 1 if failed or "| failed |" in text else 0


if __name__ == "__main__":
    sys.exit(main())

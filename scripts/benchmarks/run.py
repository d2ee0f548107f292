"""Run benchmarks by name and print their tables: `python run.py decoder generate`; `--list` names them.

The table of cases is cases.py, the method method.py. `--tiny` runs each shape once at tiny sizes, which tests the case
and measures nothing.
"""

import argparse

import cases
import kept
import method
import torch


def measure(case: cases.Case, shape: cases.Shape, device: str, rounds: int | None = None, tiny: bool = False):
    """The figures of one shape of a case, the guard's first."""
    torch.compiler.reset()
    label, dtype = str(shape) or case.name, shape.sizes.get("dtype", "fp32")
    variants = case.build(device, **shape.sizes)
    timings = method.compare(
        variants,
        rounds or (1 if tiny else case.rounds),
        case.clock,
        case.warm,
        0.0 if tiny else None,
        method.TOLERANCE if dtype == "fp32" else method.BF16_TOLERANCE,
        case.same,
    )
    reference, void = next(iter(variants)), method.void_reason(timings, dtype, device)
    yield method.guard(label, reference, timings, void)
    measured = case.memory and device == "cpu"
    peaks = {name: method.peak_bytes(variant) for name, variant in variants.items()} if measured else {}
    for name in list(variants)[1:]:
        for peer in dict.fromkeys([reference, *(peer for variant, peer in shape.goals if variant == name)]):
            timing = method.relative_to(timings, peer, name)
            yield method.speed(label, name, peer, timing, shape.goals.get((name, peer)), void)
            if peaks:
                has_goal = name == "ours" and isinstance(case.memory, method.Goal) and not tiny
                yield method.memory(label, name, peer, peaks, case.memory if has_goal else None)


def main(argv: list[str] | None = None) -> None:
    names = {case.name: case for case in cases.CASES}
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", metavar="NAME", help="cases to run")
    p.add_argument("--list", action="store_true", help="name the cases")
    p.add_argument("--rounds", type=int, help="rounds, in each of which every variant runs; default: those of the case")
    p.add_argument("--keep", action="store_true", help=f"into {kept.FILE.name} and RESULTS.md, on a quiet machine")
    p.add_argument("--tiny", action="store_true", help="tiny sizes: a test, no measurement")
    args = p.parse_args(argv)
    if args.list:
        print("\n".join(f"{name:28}{case.described()}" for name, case in names.items()))
        return
    if not args.names or not set(args.names) <= set(names):
        p.error(f"name some of {', '.join(names)}")
    if args.keep and args.tiny:
        p.error("--tiny measures nothing that --keep could keep; leave one of them out")
    torch.set_num_threads(1)
    machine = method.machine()
    print("\n".join(f"{name}: {words}" for name, words in machine.items()), flush=True)
    print(method.HEADER)
    for name in args.names:
        case, figures = names[name], []
        for shape in case.tiny_shapes() if args.tiny else case.shapes:
            for figure in measure(case, shape, "cpu", args.rounds, args.tiny):
                print(figure, flush=True)
                figures.append(figure)
        if args.keep:
            kept.keep(name, figures, machine)


if __name__ == "__main__":
    main()

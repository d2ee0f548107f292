"""`anyformer rehearse`: one step of a run as it would start on a cluster, made in one process without a GPU."""

from typing import TYPE_CHECKING

from ..accounting.devices import MEMORY, devices_of
from ..errors import UserError
from ..reporting.console import wide_console
from ..words import counted, say
from .output import json_alone, plain_table, print_facts, say_loading
from .parser import add_json, add_recipe, at_least
from .plan_command import four_digits, size_words, time_words

if TYPE_CHECKING:
    from ..accounting.plan import Plan
    from ..rehearsal.result import Rehearsal


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Make one step of a recipe's training, or of a preset's, as the first device of many would make\n"
        "it, in this process, on tensors that have shapes and no values: with model, engine, optimizer and trainer of\n"
        "the run. Counted are bytes, messages and FLOPs. Where the step does not run, the line that breaks is named, and\n"
        "the exit code is 1. Nothing is read, downloaded or trained.",
        epilog="examples:\n"
        "  anyformer rehearse llama_1b --devices 64xH100-80GB\n"
        "  anyformer rehearse llama2_70b --devices 64xH100-80GB training.gradient_checkpointing=true --against plan\n"
        "  anyformer rehearse llama3_8b --devices 16xH200-141GB objective.sequence_length=32768 --fit\n"
        "  anyformer rehearse llama3_8b --devices 64xH100-80GB 'training.parallelism={dp_shard: 8, tp: 8}' --json",
    )
    add_recipe(parser, "RECIPE|PRESET", "a recipe (name or YAML file), or a preset's name")
    parser.add_argument(
        "--devices", metavar="64xH100-80GB", required=True, help=f"how many of {', '.join(MEMORY)} or cpu"
    )
    parser.add_argument("--launch", metavar="ENGINE", help="ddp, fsdp2 or mesh (default: dp_shard over all devices)")
    parser.add_argument("--documents", type=at_least(1), default=1, help="in each row of text: packed rows (1)")
    parser.add_argument("--per-node", type=at_least(1), default=8, help="devices of a machine, linked by NVLink (8)")
    parser.add_argument("--fit", action="store_true", help="where it does not fit, rehearse settings that need less")
    parser.add_argument("--against", choices=["plan"], help="show what anyformer plan counts beside it")
    add_json(parser)


def run(args) -> int:
    from ..recipes.preset_run import planned_recipe

    devices, notes = devices_of(args.devices), []
    recipe, _ = planned_recipe(args.recipe, args.overrides, notes, trust_remote_code=args.trust_remote_code)
    if args.against and recipe.stages:
        raise UserError("--against plan compares one step, and the recipe has stages; leave it out")
    say(notes)
    say_loading()
    from ..rehearsal.rehearse import DoesNotRun, rehearsable, rehearse, ways_to_fit

    options = {"launch": args.launch, "documents": args.documents, "per_node": args.per_node}
    with json_alone(args.json) as answer:
        try:
            tried = {"as asked": rehearse(recipe, devices, **options)}
            if args.fit:
                tried |= ways_to_fit(recipe, tried["as asked"], **options)
        except DoesNotRun as error:
            answer.append({"runs": False, "why": str(error), "where": error.where})
            print(f"does not run: {error}\n{error.where}")
            return 1
        found, plan = list(tried.values())[-1], None
        answer.append(found.to_dict() | {"runs": True})
        if args.fit:
            answer[-1]["tried"] = {words: one.to_dict() for words, one in tried.items()}
        if args.against:
            from ..accounting.plan import plan_run

            planned = rehearsable(recipe, devices, args.launch)
            plan = plan_run(planned, devices, stage="none" if args.launch == "ddp" else None, per_node=args.per_node)
            answer[-1]["plan"] = plan.to_dict()
        print_rehearsal(found, tried, plan)
    return 0


# ------------------------------------------------------------------------------------------------- printing


def print_rehearsal(found: "Rehearsal", tried: "dict[str, Rehearsal]", plan: "Plan | None") -> None:
    """Print facts, what is alive at the peak, and collectives. tried: {settings: rehearsal}; the last is found."""
    console = wide_console()
    if len(tried) > 1:
        table = plain_table(("tried", "peak", "", "a step", "MFU"), ("tried", ""))
        for words, one in tried.items():
            times = (time_words(one.step_seconds), f"{one.mfu:.0%}") if one.seconds_of else ("", "")
            table.add_row(words, size_words(one.peak_bytes), "fits" if one.fits else "too much", *times)
        console.print(table)
    print_facts(console, facts(found))
    table = plain_table(("alive at the peak", "bytes"), ("alive at the peak",))
    for kind, size in sorted(found.alive.items(), key=lambda pair: -pair[1]):
        table.add_row(kind, size_words(size))
    console.print(table)
    if found.collectives:
        names = ("messages of a step", "over", "ranks", "number", "bytes", *["time"] * bool(found.seconds_of))
        table = plain_table(names, names[:2])
        for one in sorted(found.collectives, key=lambda one: -one.bytes):
            row = [one.kind, one.dimension, str(len(one.ranks)), f"{one.count:,}", size_words(one.bytes)]
            time = [time_words(one.seconds(found.devices, found.per_node))] if found.seconds_of else []
            table.add_row(*row, *time)
        console.print(table)
    if plan is not None:
        console.print(beside(found, plan))


def facts(found: "Rehearsal") -> list[tuple[str, str]]:
    """(label, text) of everything but the tables."""
    mesh = " x ".join(f"{name} {size}" for name, size in found.mesh.items()) or "each with the whole model"
    precision = "bf16" if found.half else "fp32"
    step = f"{counted(found.rows, 'row')} of {counted(found.tokens, 'token')} on each device"
    step += f", {found.accumulation} times" if found.accumulation > 1 else ""
    of_all, recomputed = found.flops, found.flops_of.get("recomputed", 0)
    parts = ", ".join(f"{name} {four_digits(flops / 1e12)}" for name, flops in found.flops_of.items() if flops)
    fits = "fits" if found.fits else "too much"
    rows = [
        ("model", f"{found.model}, {found.parameters:,} parameters"),
        ("devices", f"{found.devices} of {size_words(found.devices.memory)}, {precision}; {mesh}"),
        ("step", step),
        ("peak", f"{size_words(found.peak_bytes)} on the first device: {fits}; it comes in {found.peak_in}"),
        (
            "held",
            f"weights {size_words(found.weights_bytes)}, gradients {size_words(found.gradients_bytes)}, "
            f"optimizer states {size_words(found.states_bytes)}",
        ),
        (
            "TFLOP",
            f"{four_digits(of_all / 1e12)} on each device ({parts}; {recomputed / max(of_all, 1):.0%} recomputed)",
        ),
    ]
    if found.seconds_of:
        times = {name: time_words(seconds) for name, seconds in found.times.items()}
        work = f"matrix products {times['products']}, other operations, at the speed of the memory, {times['memory']}"
        messages = f"messages {times['beside']} beside them and {times['waited for']} that they wait for"
        step = f"{time_words(found.step_seconds)} a step at the data sheet's rates: {work}, {messages}"
        rows.append(("time", f"{step}\nbound by {found.bound_by}; MFU at most {found.mfu:.0%}"))
    return rows + [("note", text) for text in found.notes]


def beside(found: "Rehearsal", plan: "Plan"):
    """A table of what was rehearsed and what `anyformer plan` counts."""
    states, sizes = plan.memory.chosen.states, plan.sizes
    tokens = found.rows * found.tokens * found.accumulation
    flops = plan.time.flops_per_token * tokens / max(1, found.mesh.get("tp", 1))
    table = plain_table(("on each device", "rehearsed", "planned", "difference"), ("on each device",))
    lines = {
        "weights": (found.weights_bytes, states.weights),
        "gradients": (found.gradients_bytes, states.gradients),
        "optimizer states": (found.states_bytes, states.optimizer),
        "peak": (found.peak_bytes, plan.memory.chosen.total),
        "FLOPs": (found.flops - found.flops_of.get("recomputed", 0), flops),
    }
    for name, (ours, planned) in lines.items():
        words = size_words if name != "FLOPs" else lambda flops: f"{four_digits(flops / 1e12)} T"
        table.add_row(name, words(ours), words(planned), f"{planned / ours - 1:+.1%}" if ours else "")
    if sizes.rows != found.rows:
        table.add_row("rows", str(found.rows), str(sizes.rows), "")
    return table

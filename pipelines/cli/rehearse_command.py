"""`anyformer rehearse`: one step of a run as it would start on a cluster, made in one process without a GPU."""

from typing import TYPE_CHECKING

from ..accounting.devices import MEMORY, devices_of
from ..reporting.console import print_facts, wide_console
from ..words import counted, say
from .output import json_alone, plain_table, say_loading
from .parser import add_json, add_recipe, at_least
from .plan_command import four_digits, size_words, time_words

if TYPE_CHECKING:
    from ..accounting.plan import Plan
    from ..rehearsal.rehearsed import Rehearsal


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Make one step of a recipe's training, or of a preset's, as the first device of many would make\n"
        "it, in this process, on tensors that have shapes and no values: with model, engine, optimizer and trainer of\n"
        "the run. Counted are bytes, messages and FLOPs. Where the step does not run, the line that breaks is named,\n"
        "and the exit code is 1. Nothing is read, downloaded or trained.",
        epilog="examples:\n"
        "  anyformer rehearse llama_1b --devices 64xH100-80GB\n"
        "  anyformer rehearse llama_1b --devices 8xA100-40GB training.bf16=true --against plan\n"
        "  anyformer rehearse llama3_8b --devices 16xH200-141GB objective.sequence_length=32768 --fit\n"
        "  anyformer rehearse llama3_8b --devices 8xH100-80GB 'training.parallelism={dp_shard: 4, tp: 2}'",
    )
    add_recipe(parser, "RECIPE|PRESET", "a recipe (name or YAML file), or a preset's name")
    parser.add_argument(
        "--devices", metavar="64xH100-80GB", required=True, help=f"how many of {', '.join(MEMORY)}, cpu"
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
    say(notes)
    say_loading()
    from ..accounting.plan import plan_run
    from ..rehearsal.rehearse import DoesNotRun, rehearsable, rehearse, ways_to_fit

    options = {"launch": args.launch, "documents": args.documents, "per_node": args.per_node}
    with json_alone(args.json) as answer:
        try:
            tried = {"as asked": rehearse(recipe, devices, **options)}
            tried |= ways_to_fit(recipe, tried["as asked"], **options) if args.fit else {}
        except DoesNotRun as error:
            answer.append({"runs": False, "why": str(error), "where": error.where})
            print(f"does not run: {error}\n{error.where}")
            return 1
        found = list(tried.values())[-1]
        answer.append(found.to_dict() | {"runs": True})
        rows = facts(found)
        if len(tried) > 1:
            answer[-1]["tried"] = {words: one.to_dict() for words, one in tried.items()}
            rows = [("tried", "\n".join(f"{words}: {outcome(one)}" for words, one in tried.items())), *rows]
        if args.against:
            stage = "none" if args.launch == "ddp" else None
            plan = plan_run(rehearsable(recipe, devices, args.launch), devices, stage=stage, per_node=args.per_node)
            answer[-1]["plan"] = plan.to_dict()
            rows.append(("plan", beside(tried["as asked"], plan)))
        print_facts(wide_console(), rows)
        print_messages(found)
    return 0


# ------------------------------------------------------------------------------------------------- printing


def facts(found: "Rehearsal") -> list[tuple[str, str]]:
    """(label, text) of everything but the messages."""
    mesh = " x ".join(f"{name} {size}" for name, size in found.mesh.items()) or "each with the whole model"
    step = f"{counted(found.rows, 'row')} of {counted(found.tokens, 'token')} on each device"
    step += f", {found.accumulation} times" if found.accumulation > 1 else ""
    alive = sorted(found.alive.items(), key=lambda pair: -pair[1])
    flops = ", ".join(f"{name} {number / found.flops:.0%}" for name, number in found.flops_of.items() if number)
    rows = [
        ("model", f"{found.model}, {found.parameters:,} parameters"),
        (
            "devices",
            f"{found.devices} of {size_words(found.devices.memory)}, {'bf16' if found.half else 'fp32'}; {mesh}",
        ),
        ("step", step),
        ("peak", f"{outcome(found)}; it comes in {found.peak_in}"),
        ("alive then", ", ".join(f"{kind} {size_words(size)}" for kind, size in alive)),
        ("FLOPs", f"{four_digits(found.flops / 1e12)} T on each device: {flops}"),
    ]
    if found.seconds_of:
        times = {name: time_words(seconds) for name, seconds in found.times.items()}
        work = f"matrix products {times['products']}, other operations, at the speed of the memory, {times['memory']}"
        messages = f"messages {times['beside']} beside them, {times['waited for']} waited for"
        rows.append(("time", f"at the data sheet's rates: {work}, {messages}; bound by {found.bound_by}"))
    return rows + [("note", text) for text in found.notes]


def outcome(found: "Rehearsal") -> str:
    words = f"{size_words(found.peak_bytes)}, {'fits' if found.fits else 'too much'}"
    return words + (
        f"; {time_words(found.step_seconds)} a step, MFU at most {found.mfu:.0%}" if found.seconds_of else ""
    )


ONCE = "FLOPs without those that are recomputed"


def beside(found: "Rehearsal", plan: "Plan") -> str:
    """What `anyformer plan` counts, with the difference from what was rehearsed."""
    states, once = plan.memory.chosen.states, found.rows * found.tokens * found.accumulation
    lines = {
        "peak": (found.peak_bytes, plan.memory.chosen.total),
        "weights": (found.weights_bytes, states.weights),
        "gradients": (found.gradients_bytes, states.gradients),
        "optimizer states": (found.states_bytes, states.optimizer),
        ONCE: (found.flops_once, plan.time.flops_per_token * once / found.mesh.get("tp", 1)),
    }
    said = [
        (name, f"{four_digits(x / 1e12)} T" if name == ONCE else size_words(x), x / y) for name, (y, x) in lines.items()
    ]
    return ", ".join(f"{name} {words} ({share - 1:+.1%})" for name, words, share in said)


def print_messages(found: "Rehearsal") -> None:
    table = plain_table(
        ("messages of a step", "over", "ranks", "number", "bytes", "time"), ("messages of a step", "over")
    )
    for one in sorted(found.collectives, key=lambda one: -one.bytes):
        time = time_words(one.seconds(found.devices, found.per_node)) if found.seconds_of else ""
        table.add_row(one.kind, one.dimension, str(len(one.ranks)), f"{one.count:,}", size_words(one.bytes), time)
    if found.collectives:
        wide_console().print(table)

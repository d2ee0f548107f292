"""`anyformer plan`: what a run would take, before there is any data or a GPU."""

from typing import TYPE_CHECKING

from ..accounting.devices import CPU, MEMORY, devices_of
from ..accounting.memory import check_stage
from ..errors import UserError
from ..reporting.console import print_facts, wide_console
from ..words import counted, say, short_number
from .output import json_alone, plain_table, quoted, say_loading, say_next
from .parser import add_json, add_price, add_recipe, at_least

if TYPE_CHECKING:
    from ..accounting.plan import Plan


def add_arguments(add_parser) -> None:
    parser = add_parser(
        description="Count what training a recipe's model, or that of a preset, takes: parameters, bytes of weights,\n"
        "gradients, optimizer states and activations on each device, the cache of generation, FLOPs, days.\n"
        "Nothing is read, downloaded or trained, and no weights are made. A name of both is the recipe's.",
        epilog="examples:\n"
        "  anyformer plan quickstart\n"
        "  anyformer plan llama2_70b --devices 64xH100-80GB --zero 3\n"
        "  anyformer plan story_8gpu --devices 8xH100-80GB\n"
        "  anyformer plan gpt2_small --devices 8xA100-40GB training.per_device_train_batch_size=64\n"
        "  anyformer plan llama3_8b --context 131072 --json",
    )
    add_recipe(parser, "RECIPE|PRESET", "a recipe (name or YAML file), or a preset's name")
    parser.add_argument("--devices", metavar="8xH100-80GB", help=f"how many of {', '.join(MEMORY)} or {CPU} (1x{CPU})")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--zero", type=int, choices=(0, 1, 2, 3), help="ZeRO stage (default: the first that fits; 0: DDP)")
    how.add_argument("--fsdp", action="store_true", help="FSDP2: weights, gradients and optimizer states are shared")
    parser.add_argument("--context", type=at_least(1), help="tokens in the cache (default: the model's positions)")
    parser.add_argument("--mfu", type=float, default=0.4, help="share of the peak FLOP/s that is reached (default 0.4)")
    parser.add_argument("--per-node", type=at_least(1), default=8, help="devices of a machine, with one memory (8)")
    add_price(parser)
    add_json(parser)


def run(args) -> None:
    from ..recipes.preset_run import planned_recipe
    from ..recipes.recipe_files import is_file_of

    devices = devices_of(args.devices or CPU)
    if not 0 < args.mfu <= 1:
        raise UserError(f"--mfu={args.mfu:g} is a share of the peak, above 0 and at most 1, such as 0.4")
    stage = "fsdp" if args.fsdp else {None: None, 0: "none"}.get(args.zero, f"zero{args.zero}")
    options = {name: getattr(args, name) for name in ("context", "mfu", "per_node", "price")}
    options["stage"] = stage
    if is_file_of(args.recipe, "stories", "steps"):
        _plan_story(args, devices, options)
        return
    notes: list[str] = []
    recipe, is_preset = planned_recipe(args.recipe, args.overrides, notes, trust_remote_code=args.trust_remote_code)
    check_stage(stage, recipe.training.optim)
    say(notes)
    say_loading()
    from ..accounting.plan import plan_run

    with json_alone(args.json) as answer:
        plan = plan_run(recipe, devices, until_trained=is_preset, **options)
        answer.append(plan.to_dict())
        print_plan(plan)
    if not is_preset:
        say_next(f"anyformer train {quoted(args.recipe)} --dry-run")


def _plan_story(args, devices, how: dict) -> None:
    """The plans of a story's steps in one table, and their sum."""
    from ..experiments.story import read_story

    story = read_story(args.recipe, args.overrides, args.trust_remote_code)
    say_loading()
    from ..accounting.plan import plan_run

    with json_alone(args.json) as answer:
        plans = {step.name: plan_run(step.planned, devices, **how) for step in story.members}
        result = {"steps": {name: plan.to_dict() for name, plan in plans.items()}}
        answer.append(result | {"seconds": sum(plan.time.seconds for plan in plans.values())})
        print_story(plans)
    say_next(f"anyformer train {quoted(args.recipe)} --dry-run")


# ------------------------------------------------------------------------------------------------- printing


def print_story(plans: "dict[str, Plan]") -> None:
    """Print a line for each step of a story, and their sum."""
    console, (first, *_) = wide_console(), plans.values()
    print_facts(console, facts(first)[:2])
    console.print(table_of("step", plans))
    notes = dict.fromkeys(note for plan in plans.values() for note in plan.notes)
    spent = spent_in(list(plans.values()))
    print_facts(console, [("rate", rate_of(first)), *spent, *(("note", note) for note in notes)])


def table_of(noun: str, plans: "dict[str, Plan]"):
    """A table with a line for each of several plans, and their sum."""
    names = (noun, "tokens a step", "steps", "tokens", "on each device", "", "a step", "time")
    table, total, seconds = plain_table(names, (noun, "")), 0, 0.0
    for name, plan in plans.items():
        tokens, chosen, time = plan.tokens_of_run, plan.memory.chosen, plan.time
        sizes = (f"{plan.sizes.tokens_per_step:,}", f"{time.steps:,}", short_number(tokens), size_words(chosen.total))
        fits = "fits" if chosen.fits else "too much"
        table.add_row(name, *sizes, fits, time_words(time.step_seconds), time_words(time.seconds))
        total += tokens
        seconds += time.seconds
    table.add_row("all", "", "", short_number(total), "", "", "", time_words(seconds))
    return table


def size_words(count: float) -> str:
    """Bytes as people say them: 1 GB is 10^9 bytes."""
    return in_unit(count, "B") if count >= 1e3 else f"{count:.0f} bytes"


def in_unit(count: float, unit: str) -> str:
    """A count of at least a thousand in thousands, millions, ...: 3.5 GB, 63,296 TFLOP."""
    prefix, size = next(((p, s) for p, s in (("T", 1e12), ("G", 1e9), ("M", 1e6)) if count >= s), ("k", 1e3))
    return f"{four_digits(count / size)} {prefix}{unit}"


def four_digits(number: float) -> str:
    """A number with four significant digits, or with all digits before the point."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def time_words(seconds: float) -> str:
    """Seconds as people say them, in one unit."""
    for unit, size in (("years", 365.25 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.001 or not seconds else f"{1e6 * seconds:.3g} µs"


def print_plan(plan: "Plan") -> None:
    """Print the facts, and a table with a column for each way of sharing states among the devices."""
    console = wide_console()
    print_facts(console, facts(plan))
    memory, columns = plan.memory, []
    for row in memory.stages:
        states = row.states
        activations = row.total - states.total
        sizes = (states.weights, states.gradients, states.optimizer, states.beside, activations, row.total)
        limits = (f"{number:,}" if number else "none" for number in (row.largest_rows, row.largest_rows_checkpointed))
        columns.append([*map(size_words, sizes), "fits" if row.fits else "too much", *limits])
    ways = [("* " if row.states.stage == memory.stage else "") + row.states.words for row in memory.stages]
    names = ("weights", "gradients", "optimizer", "beside", "activations", "total", "", "most rows", "checkpointed")
    table = plain_table(("on each device", *ways), ("on each device",))
    for line in zip(names, *columns):
        table.add_row(*line)
    console.print(table)
    if plan.by_stage:
        stage_plans = {
            f"{n}: {counted(one.sizes.tokens, 'token')} a row": one for n, one in enumerate(plan.by_stage, 1)
        }
        console.print(table_of("stage", stage_plans))
    print_facts(console, [("launch", plan.advice), *(("note", text) for text in plan.notes)])


def facts(plan: "Plan") -> list[tuple[str, str]]:
    """(label, text) of everything but the table."""
    sizes, memory, time = plan.sizes, plan.memory, plan.time
    active = "" if sizes.active_parameters == sizes.parameters else f", {sizes.active_parameters:,} at work on a token"
    active += "" if sizes.trained_parameters == sizes.parameters else f", {sizes.trained_parameters:,} of them trained"
    tokens = counted(sizes.tokens, "token") + (f", {sizes.targets:,} to write," if sizes.targets else "")
    batch = f"{counted(sizes.rows, 'row')} of {tokens} on each device"
    if sizes.accumulation > 1:
        batch += f", {sizes.accumulation} times"
    plain, less = memory.plain, memory.checkpointed
    activations = f"at most {size_words(plain.peak)}, of which the forward pass keeps {size_words(plain.kept)}"
    activations += f"; with gradient checkpointing {size_words(less.peak)} and {size_words(less.kept)}"
    precision = "half precision" if sizes.half else "fp32"
    rows = [
        ("model", f"{sizes.model}, {sizes.parameters:,} parameters{active}"),
        ("devices", f"{plan.devices} of {size_words(memory.device_memory)}, {precision}"),
    ]
    if memory.host_memory is not None:
        node = f"a node of {counted(memory.per_node, 'device')}, while their processes make the model (--per-node)"
        rows.append(("host", f"{size_words(memory.host_memory)} of memory for {node}"))
    rows += [
        ("largest stage" if plan.by_stage else "step", f"{batch}: {counted(sizes.tokens_per_step, 'token')}"),
        ("activations", activations if plain.peak else "not counted"),
    ]
    if plan.cache is not None:
        cache = plan.cache
        text = f"{cache.bytes_per_token:,} bytes for each token ({cache.per_token:,} values), "
        text += f"{size_words(cache.total_bytes)} after {counted(cache.tokens, 'token')}"
        rows.append(("cache", text + (f" and {sizes.tokens:,} of the source" if cache.source_token else "")))
    steps = f"{time_words(time.seconds)} for {counted(time.steps, 'step')} ({time.steps_source})"
    rows += [
        ("FLOPs", f"{in_unit(time.flops_per_token, 'FLOP')} for each token, forward and backward"),
        ("time", f"{time_words(time.step_seconds)} a step at {rate_of(plan)}\n{steps}"),
    ]
    if plan.messages:
        sent = {"all_gather": "gathered", "reduce_scatter": "scattered", "all_reduce": "summed"}
        words = [f"{size_words(one.bytes)} {sent[one.kind]} over {one.dimension}" for one in plan.messages]
        rows.append(("messages", f"{', '.join(words)} in a step, on each device"))
    disk = plan.disk
    text = f"{size_words(disk.checkpoint)} for a checkpoint, {size_words(disk.checkpoints)} for all that are kept"
    if disk.token_store:
        text += f"; {size_words(disk.token_store)} for the run's tokens, which one core makes of text in "
        text += time_words(3600 * disk.tokenising_hours)
    return [*rows, ("disk", text), *spent_in([plan])]


def spent_in(plans: "list[Plan]") -> list[tuple[str, str]]:
    """Money, where there is a price, of runs on the same devices."""
    first = plans[0]
    if first.hourly_price is None:
        return []
    hours, cost = sum(plan.time.seconds for plan in plans) / 3600, sum(plan.cost for plan in plans)
    return [("cost", f"{cost:,.2f}: {four_digits(hours)} hours at {first.hourly_price:g} for {first.devices}")]


def rate_of(plan: "Plan") -> str:
    """The assumed FLOP/s, and the source of the devices' peak."""
    return f"{plan.time.mfu:.0%} of {in_unit(plan.time.peak_flops, 'FLOP/s')} ({plan.time.peak_source})"

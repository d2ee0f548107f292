"""The summaries that a run prints before and after training."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...accounting.lora import plain
from ...adapters import is_adapter
from ...backends import backends_of
from ...data.rows import Rows, steps_of_epoch
from ...objectives.data import Data
from ...objectives.prepare import describe_data
from ...plugins import with_plugins
from ...recipes.own_settings import flat_settings
from ...recipes.parallelism import words_of
from ...recipes.row_words import Words
from ...recipes.schema import Recipe
from ...recipes.usual_rates import settled
from ...reporting.console import print_facts
from ...reporting.interpret import interpret, with_interval
from ...reporting.report import REPORT
from ...reporting.settings import in_words
from ...words import counted, human_time, short_number
from ..arguments import rows_of, total_steps
from ..checkpoints.run_folder import processes_of
from ..engines.engine import Engine
from ..stages.stage_run import StageRun
from .throughput_log import peak_memory

console = Console(highlight=False, soft_wrap=True)
# Muennighoff et al. 2023 (Scaling Data-Constrained Language Models): up to this many passes repeated text is nearly
# worth new text, and less and less afterwards.
MANY_PASSES = 4


def describe_model(model, engine: Engine) -> str:
    """One line: class, parameters, layers, width, heads, vocabulary."""
    config, trained = model.config, engine.parameters_of(model, trained=True)
    parameters = engine.parameters_of(model)
    active = engine.active_parameters(model)
    at_work = f" ({short_number(active)} at work on a token)" if active < parameters else ""
    at_work += f" ({short_number(trained)} of them trained)" if trained < parameters else ""
    sizes = [f"{type(plain(model)).__name__}, {short_number(parameters)} parameters{at_work}"]
    if (layers := getattr(config, "num_hidden_layers", None)) is not None:  # convolutions have stages instead
        sizes += [f"{counted(layers, 'layer')}, width {config.hidden_size}"]
    if (heads := getattr(config, "num_attention_heads", None)) is not None:  # state-space models have none
        sizes += [counted(heads, "head")]
    return ", ".join([*sizes, what_it_reads(config)])


def what_it_reads(config) -> str:
    """The size of the vocabulary, or of images and patches, or the channels of images of any size."""
    if hasattr(config, "vocab_size"):
        return f"vocabulary {config.vocab_size:,}"
    if getattr(config, "patch_size", None) is None:
        return f"images of {counted(config.num_channels, 'channel')}"
    image, patch = (size if isinstance(size, int) else size[0] for size in (config.image_size, config.patch_size))
    return f"images of {image} pixels in patches of {patch}"


def describe_stages(stages: list[StageRun]) -> list[tuple[str, str]]:
    """A line for each stage; [] without stages."""
    return [("stages", "\n".join(f"{n}: {run.words()}" for n, run in enumerate(stages, 1)))] if stages else []


def backend_words(trainer) -> str:
    """`attention by sdpa`, and the same for the experts of a model that has them."""
    return ", ".join(f"{what} by {name}" for what, name in backends_of(plain(trainer.model)).items())


def sources_of_run(
    rows: Rows, per_step: int, recipe: Recipe, tokens_after: Callable[[int], dict[str, int]]
) -> list[tuple[str, str]]:
    """Lines for the summary: the tokens that the run trains of each source, and the number of passes over it.

    per_step: rows of a step. tokens_after: number of steps -> the tokens of each source that they train.
    """
    if not tokens_after(0):  # there are no sources
        return []
    per_epoch, lines = steps_of_epoch(rows.in_epoch, per_step), []
    for name, tokens in tokens_after(total_steps(settled(recipe, per_epoch).training, per_epoch)).items():
        available = rows.parts[name].facts["tokens"]
        many = tokens > MANY_PASSES * available
        warning = f"; text that is read more than {MANY_PASSES} times teaches ever less (Muennighoff et al. 2023)"
        lines.append(
            f"{name}: {short_number(tokens)} tokens, its {short_number(available)} {tokens / available:.2f} times"
            f"{warning if many else ''}"
        )
    return [("sources", "\n".join(lines))]


def print_start(recipe: Recipe, data: Data, trainer, checkpoint: Path | None, stages: list[StageRun]) -> None:
    """Print model, data, settings of a step and devices of the run that begins."""
    arguments, section = trainer.args, recipe.training
    per_step = rows_of(arguments)
    precision = "bf16 autocast" if arguments.bf16 else "fp16 autocast" if arguments.fp16 else "fp32"
    engine = trainer.accelerator.distributed_type.value
    engine = engine if section.parallelism is None else words_of(section.parallelism)
    suffix = "" if engine == "NO" else f" ({engine})"
    optimizer = trainer.own_optimizer
    optim, does = (section.optim, None) if optimizer is None else (optimizer.words(), optimizer.describe(trainer.model))
    by = backend_words(trainer)
    batch = "by stage" if stages else f"{per_step} {data.objective.words.step}"
    rate = "by stage" if any(stage.learning_rate for stage in recipe.stages) else section.lr_scheduler_type
    values = flat_settings(recipe.to_dict())
    chosen = "\n".join(f"{name}={in_words(values[name])} ({why})" for name, why in recipe.chosen.items())
    plan = ", ".join(dict.fromkeys([batch, optim, rate, precision, by]))
    facts = [
        ("model", describe_model(trainer.model, trainer.engine)),
        *describe_data(data),
        *sources_of_run(trainer.bare_rows, per_step, recipe, trainer.source_tokens),
        ("step", plan),
        *describe_stages(stages),
        *([] if does is None else [("optimizers", does)]),
        *([("chosen", chosen)] if chosen else []),
        ("devices", f"{arguments.world_size} x {arguments.device.type}{suffix}"),
    ]
    if checkpoint is not None:
        before = processes_of(checkpoint)
        by = "" if before == arguments.world_size else f", written by {counted(before, 'process', 'processes')}"
        facts.append(("start", f"going on from {Path(arguments.output_dir) / checkpoint.name}{by}"))
    print_facts(console, facts)


def print_dry_run(data: Data, trainer, facts: dict, stages: list[StageRun]) -> None:
    """Print the result of a dry run: one step on a full batch and one batch of each other split (dry_run.py)."""
    flops = short_number(int(float(trainer.throughput.flops) // float(trainer.throughput.tokens)))
    step = (
        f"one step of {counted(facts['rows'], data.objective.words.row)}{facts['where']}: loss {facts['loss']:.4f}, "
        f"gradients {'finite' if facts['finite'] else 'NOT finite'}, peak memory "
        f"{peak_memory(trainer.args.device) / 1e9:.1f} GB"
    )
    batches = [f"one batch of {split}: loss {loss:.4f}" for split, loss in facts["other losses"].items()]
    tried = "\n".join([f"{step}, {backend_words(trainer)}", *batches, f"training costs {flops} FLOPs per token"])
    facts_of_run = [
        ("model", describe_model(trainer.model, trainer.engine)),
        *describe_data(data),
        *describe_stages(stages),
    ]
    print_facts(console, [*facts_of_run, ("tried", tried)])
    console.print("dry run: nothing was trained or written", markup=False)


def print_result(folder: Path, run: dict, words: Words, again: bool = False) -> None:
    """Print the metrics and samples of a finished run, and commands to go on with."""
    if again:
        console.print(f"{folder} is finished already; its result:", markup=False)
    table = Table("metric", "value", title=None, show_edge=False)
    for name, value in run.get("metrics", {}).items():
        split, _, metric = name.partition("_")
        shown = "no number" if value is None else with_interval(metric, value, run.get("data", {}).get(split, {}))
        table.add_row(Text(name.replace("_", " ")), Text(shown))
    console.print(table)
    for sentence in interpret(run):
        print_facts(console, [("note", sentence)])
    for sample in run.get("samples", []):
        title = Text(words.sample.format(prompt=sample["prompt"]))  # [/INST] is no markup of rich
        console.rule(title, align="left")
        console.print(sample["text"], markup=False)
        if "reference" in sample:
            console.print(f"reference: {sample['reference']}", markup=False, style="dim")
    console.rule()
    reader = "image processor" if (folder / "preprocessor_config.json").is_file() else "tokenizer"
    made = f"{run['steps'] - run['resumed_at']:,} of " if "resumed_at" in run else ""
    took = f"{made}{counted(run['steps'], 'step')} in {human_time(run['wall_seconds'])}"
    if "training_seconds" in run:
        took += f", {human_time(run['training_seconds'])} of them training,"
    what = "adapter" if is_adapter(folder) else "model"
    where = f"{what}, {reader}, card and metrics are in {folder}"
    trained, parameters = run.get("trained_parameters"), run.get("parameters")
    if trained is not None and trained < parameters:
        print_facts(console, [("trained", f"{trained:,} of {parameters:,} parameters, {trained / parameters:.2%}")])
    print_facts(console, [("done", f"{took} on {counted(run['world_size'], 'process', 'processes')}; {where}")])
    files = [
        name for name in (REPORT, "README.md", "metrics.jsonl", words.picture) if name and (folder / name).is_file()
    ]
    console.print(f"look at: {' · '.join(files)}", markup=False)
    steps = [words.use.replace("{folder}", str(folder))]
    if is_adapter(folder):
        steps.append(f"anyformer merge {folder} {folder.with_name(f'{folder.name}_merged')}")
    steps.append(f"anyformer publish {folder} your-name/your-model")
    console.print("next: " + "\n      ".join(map(with_plugins, steps)), markup=False)

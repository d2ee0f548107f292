"""`rehearse`: a step of a recipe's run as one rank of many would make it, without memory for its tensors."""

import re
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..accounting.devices import Devices
from ..accounting.lora import with_base
from ..accounting.plan import check_devices, planned_stage
from ..accounting.step_memory import planned_dtype
from ..adapters import NF4
from ..errors import UserError, did_you_mean, first_line
from ..plugins import objective_of
from ..recipes.parallelism import words_of
from ..recipes.schema import ParallelismSettings, Recipe, TrainingSection
from ..recipes.stage_plan import stages_of
from ..training.engines.launch import engines
from ..transformers_logging import silent, unsaid
from .fake_ranks import fake_ranks
from .rehearsed import Rehearsal
from .step import made_step

# Files of our code and of transformers', but for those that rehearse, by the names that errors give them.
CODE = re.compile(r".*?((?:transformers|modeling|pipelines)/(?!rehearsal/|accounting/activations).+)")
# Settings of training.parallelism -> why they are not rehearsed.
NOT_REHEARSED = {
    "pp": "its stages wait for one another's values",
    "sp": "DeepSpeed keeps states of its own",
    "ep": "the sizes of its messages depend on which experts the tokens choose",
    "fsdp_cpu_offload": "tensors without values are on one device",
}


class DoesNotRun(Exception):
    """The step of a recipe does not run. where: the line of our code, or of transformers', that breaks."""

    def __init__(self, error: Exception):
        super().__init__(f"{type(error).__name__}: {first_line(error)}")
        self.where = line_of(error)


def rehearse(
    recipe: Recipe, devices: Devices, *, launch: str | None = None, documents: int = 1, per_node: int = 8
) -> Rehearsal:
    """Rehearse a step of the recipe on these devices, as the first of them; of a recipe's stages that of most tokens.

    launch: as of `anyformer train`; None: the recipe's training.parallelism, or else dp_shard over all devices.
    documents: in each row of text. per_node: devices of a machine.

    Raises:
        UserError: for what the run itself refuses, and for what is not rehearsed.
        DoesNotRun: where the step breaks.
    """
    recipe = rehearsable(recipe, devices, launch)
    with fake_ranks(devices.count), unsaid(), silent():
        try:
            found = made_step(recipe, devices, FakeTensorMode(allow_non_fake_inputs=True), documents)
        except UserError:
            raise
        except Exception as error:  # the code of an architecture may raise any error
            raise DoesNotRun(error) from error
    return replace(found, per_node=per_node)


def rehearsable(recipe: Recipe, devices: Devices, launch: str | None) -> Recipe:
    """The recipe of the step that is rehearsed. Raises UserError for what is not rehearsed."""
    if recipe.stages:
        stages = [planned_stage(stage) for stage in stages_of(recipe)]
        recipe = max(stages, key=lambda one: one.training.per_device_train_batch_size * one.learned.sequence_length)
    section, shares = recipe.training, shares_of(recipe.training, devices, launch)
    if recipe.teacher is not None:
        raise UserError("teacher: what one says of a row depends on the row, and is not rehearsed; leave it out")
    objective = objective_of(recipe)
    if objective.row_labels is None:
        raise UserError(f"{objective.setting}: what a model says of a row is not rehearsed; plan counts its memory")
    computed = planned_dtype(section, devices)
    recipe = with_base(recipe, computed)
    lora = recipe.training.lora
    if lora is not None and lora.base in ("auto", NF4):
        raise UserError(f"training.lora.base={lora.base}: weights of few bits need kernels of a GPU; plan counts them")
    changed = {
        "parallelism": shares,
        "bf16": computed != torch.float32,  # fp16 takes the same bytes
        "extra": {name: value for name, value in section.extra.items() if name != "fp16"},
        "max_steps": section.max_steps if section.max_steps > 0 else 10**6,
        "lr_scheduler_type": "constant",
        "lr_scheduler_kwargs": {},
        "warmup_steps": 0,
        "report_to": "none",
        "stall_minutes": None,
        "audit_samples": False,
        "torch_compile": False,
    }
    validations = dict.fromkeys(("every_steps", "best_metric", "patience", "average_checkpoints", "minimal_pairs"))
    return recipe.with_(training=changed, evaluation=validations)


def shares_of(section: TrainingSection, devices: Devices, launch: str | None) -> ParallelismSettings | None:
    """What devices share; None: each has the whole model. Raises UserError for what is not rehearsed."""
    deepspeed = section.extra.get("deepspeed")
    if launch is not None and launch not in engines():
        raise UserError(f"--launch {launch}: no such engine{did_you_mean(launch, engines())}")
    if launch not in (None, "ddp", "mesh", "fsdp2") or deepspeed:
        asked = f"training.deepspeed={deepspeed}" if deepspeed else f"--launch={launch}"
        raise UserError(f"{asked}: DeepSpeed keeps states of its own and is not rehearsed; take ddp, fsdp2 or mesh")
    shares = section.parallelism
    if shares is None:
        return None if launch == "ddp" or devices.count == 1 else ParallelismSettings(dp_shard=devices.count)
    check_devices(shares, devices)
    for name, why in NOT_REHEARSED.items():
        if getattr(shares, name) not in (1, False):
            raise UserError(f"training.parallelism={words_of(shares)}: {name} is not rehearsed: {why}; plan counts it")
    return shares


def line_of(error: BaseException) -> str:
    """The last line of our code, or of transformers', in a traceback, such as modeling/decoder.py:12."""
    frames = (
        (CODE.fullmatch(Path(frame.filename).as_posix()), frame) for frame in traceback.extract_tb(error.__traceback__)
    )
    lines = [f"{file[1]}:{frame.lineno} in {frame.name}: {frame.line}" for file, frame in frames if file is not None]
    return lines[-1] if lines else ""


# ----------------------------------------------------------------------------------------------- settings that fit


def ways_to_fit(recipe: Recipe, first: Rehearsal, **options) -> dict[str, Rehearsal]:
    """{settings: rehearsal} of settings that need less and less memory, up to the first that fits.

    first: of the recipe as it is. options: as of `rehearse`.
    """
    tried, found = {}, first
    for words, changed in smaller_settings(recipe, first):
        if found.fits:
            break
        recipe = recipe.with_(training=changed)
        found = tried[words] = rehearse(recipe, first.devices, **options)
    return tried


def smaller_settings(recipe: Recipe, first: Rehearsal) -> Iterator[tuple[str, dict]]:
    """(words, settings of the training section), each beside those before it."""
    section, shards, tp = recipe.training, first.mesh.get("dp_shard", 1), min(8, first.per_node)
    if not section.gradient_checkpointing:
        yield "training.gradient_checkpointing=true", {"gradient_checkpointing": True}
    if first.rows > 1:
        same = {"gradient_accumulation_steps": first.rows * first.accumulation, "global_batch_size": None}
        yield "and training.per_device_train_batch_size=1", {"per_device_train_batch_size": 1, **same}
    if first.mesh.get("tp", 1) == 1 and shards % tp == 0 and shards > tp:
        shares = replace(section.parallelism or ParallelismSettings(), dp_shard=shards // tp, tp=tp)
        yield f"and training.parallelism={words_of(shares)}", {"parallelism": shares}

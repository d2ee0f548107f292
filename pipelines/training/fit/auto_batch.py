"""`training.auto_batch`: the most rows at a time that fit on a device, at the recipe's global batch.

The rows of an optimizer step stay what the recipe says, so the number found divides what of them a device has. On an
accelerator it is found with real steps, forward, backward and optimizer, which leave no trace: the run is that of a
recipe with the number written into it. On a CPU nothing says "full" before the system kills, so the plan's estimate is
taken. The number is kept with the run, which goes on with it.
"""

import copy
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from accelerate.utils.memory import clear_device_cache
from anyformer.modeling.experts_bias import forget_counts

from ...accounting.activations import recompute_layers
from ...accounting.devices import Devices
from ...accounting.step_memory import step_memory
from ...errors import UserError
from ...recipes.global_batch import rows_per_step
from ...recipes.schema import Recipe
from ..checkpoints.extend_run import section_of
from ..checkpoints.run_folder import stored_run
from ..engines.engine import Engine
from .out_of_memory import is_out_of_memory, this_device, ways_out

SHARE_OF_HOST = 0.8  # of a machine's memory; the rest is for the process itself, the data and the system
TRIED_STEPS = 2  # from the second one on the optimizer has its states


def with_rows(recipe: Recipe, rows: int) -> Recipe:
    """The recipe with so many rows at a time, and as many of them accumulated as keep its global batch."""
    section = recipe.training
    times = 1 if section.global_batch_size is not None else rows_per_step(section, 1) // rows
    training = replace(section, per_device_train_batch_size=rows, gradient_accumulation_steps=times)
    return replace(recipe, training=training)


def check_auto_batch(engine: Engine) -> None:
    """Raise UserError under engines that share states: what fits there depends on all processes at once."""
    name = engine.splitter
    if name is not None:
        raise UserError(
            f"training.auto_batch=true tries steps in each process alone, but {name} shares a step among all; set it "
            f"to false, and per_device_train_batch_size as anyformer plan says"
        )


def found_before(recipe: Recipe) -> dict | None:
    """What the run in output_dir has found, by its newest checkpoint or, where it is finished, its run.json."""
    stored = stored_run(Path(recipe.training.output_dir))
    if stored is None:
        return None
    same = rows_per_step(section_of(stored["recipe"]), 1) == rows_per_step(recipe.training, 1)
    return stored.get("auto_batch") if same else None


def find_batch(
    recipe: Recipe, engine: Engine, data, model, arguments, build_trainer: Callable, agree: Callable
) -> dict:
    """What fits: {"rows", "accumulated", "how"}.

    model: to be trained; it is left as it is. arguments: of the run. build_trainer: recipe -> a trainer of it, in whose
    place another will train. agree: the fewest rows of those that all processes have found. Raises UserError where not
    one row fits.
    """
    devices, each = this_device(), arguments.train_batch_size * arguments.gradient_accumulation_steps
    words = each if recipe.training.global_batch_size is not None else rows_per_step(recipe.training, 1)
    sizes = [number for number in range(1, each + 1) if math.gcd(each, words) % number == 0]
    if not says_when_full(arguments.device):
        rows, how = estimated(recipe, data.objective, model, devices, sizes)
    else:
        rows, how = tried(recipe, data, model, sizes, build_trainer)
    rows = agree(rows)
    if rows == 0:
        ways = ways_out(with_rows(recipe, 1), engine, False, devices, None)
        raise UserError(
            f"training.auto_batch=true: not even one row at a time fits ({devices.memory / 1e9:.1f} GB on "
            f"{devices.name}); set {', or '.join(ways[:2])}"
        )
    return {"rows": rows, "accumulated": each // rows, "how": how}


def says_when_full(device: torch.device) -> bool:
    """Whether memory that does not suffice is an error there; on a CPU the system may kill the process instead."""
    return device.type != "cpu"


def estimated(recipe: Recipe, objective, model, devices: Devices, sizes: list[int]) -> tuple[int, str]:
    """(the largest of some sizes that the plan says fits into the host's memory, or 0; how that was found)."""
    processes, notes = max(1, local_processes()), ["adapters are not counted"]
    memory = None if recipe.training.lora is not None else step_memory(recipe, objective, model, devices, notes)
    if memory is None or memory.activations is None:
        raise UserError(
            f"training.auto_batch=true on a CPU is the plan's estimate, but {notes[-1]}; set it to false, or use an "
            f"accelerator"
        )
    room = int(devices.memory * SHARE_OF_HOST / processes)
    left = room - memory.states("none", processes).total
    most = memory.largest_rows(left, recipe.training.gradient_checkpointing)
    return max([size for size in sizes if size <= most], default=0), (
        f"by anyformer plan: {room / 1e9:.1f} GB, {SHARE_OF_HOST:.0%} of the memory "
        f"{'of this machine' if processes == 1 else 'for each process'}"
    )


def local_processes() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def tried(recipe: Recipe, data, model, sizes: list[int], build_trainer: Callable) -> tuple[int, str]:
    """(the largest of some sizes with which real steps fit, or 0; how that was found)."""
    found: dict[int, bool] = {}
    with TemporaryDirectory(prefix="anyformer-auto-batch-") as folder, untouched(model):
        trial = with_rows(recipe, 1)
        trial.training.output_dir, trial.training.report_to, trial.training.audit_samples = folder, "none", False
        trainer = build_trainer(trial)
        if recipe.training.gradient_checkpointing:
            recompute_layers(model)
        rows = longest_rows(trainer, data, sizes[-1])
        rows_that_fit = largest(sizes, lambda size: found.setdefault(size, fits(trainer, rows, size)))
    words = ", ".join(f"{size} {'fit' if fit else 'did not'}" for size, fit in sorted(found.items()))
    return rows_that_fit, f"by {TRIED_STEPS} steps each: {words}"


def largest(sizes: list[int], fits: Callable[[int], bool]) -> int:
    """The largest of ascending sizes that fits, by bisection; 0: none. What is larger than one that does not fit, does
    not fit either."""
    low, high = -1, len(sizes)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(sizes[middle]) else (low, middle)
    return sizes[low] if low >= 0 else 0


def longest_rows(trainer, data, most: int) -> list[dict]:
    """At most so many rows to try with, the longest first: a batch of a run may hold the longest ones."""
    rows = data.rows["train"]
    if rows.is_stream:
        return [next(iter(copy.deepcopy(rows)))]  # a copy: the run begins at the stream's beginning
    many, lengths = min(len(rows), most), rows.row_lengths
    order = range(many) if lengths is None else (-torch.as_tensor(lengths)).argsort(stable=True)[:many].tolist()
    return [trainer.train_dataset[number] for number in order]


def fits(trainer, rows: list[dict], size: int) -> bool:
    """Whether steps of so many rows at a time fit on the device. Gradients and optimizer states are freed again."""
    batch = trainer.data_collator([rows[number % len(rows)] for number in range(size)])
    try:
        take_steps(trainer, batch)
        return True
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        forget_counts()
        trainer.optimizer = None
        trainer.model.zero_grad(set_to_none=True)
        clear_device_cache(garbage_collection=True)


def take_steps(trainer, batch: dict) -> None:
    """Train on a batch, on this process alone, with what the run will hold beside it."""
    parameters = sum(p.numel() * p.element_size() for p in trainer.model.parameters() if p.requires_grad)
    beside = (trainer.average is not None) + (trainer.args.world_size > 1)  # the average; DDP's buckets
    ballast = torch.empty(parameters * beside, dtype=torch.uint8, device=trainer.args.device)
    optimizer = trainer.create_optimizer()
    for _ in range(TRIED_STEPS):
        with trainer.accelerator.autocast():
            trainer.training_step(trainer.model, dict(batch), torch.ones((), device=trainer.args.device))
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        forget_counts()  # of which the step would make a sum over all processes
        optimizer.step()
        trainer.model.zero_grad(set_to_none=True)
    if trainer.args.device.type == "cuda":
        torch.cuda.synchronize()
    del ballast


@contextmanager
def untouched(model) -> Iterator[None]:
    """The model has its weights and buffers, and its config's cache setting, again after the block.

    Random numbers need no care: a Trainer sets the seed when it is made, and that of the run is made afterwards.
    """
    saved = {name: x.detach().to("cpu", copy=True) for name, x in model.state_dict().items()}
    use_cache = getattr(model.config, "use_cache", None)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, x in model.state_dict().items():
                x.copy_(saved[name])
        model.config.use_cache = use_cache
        clear_device_cache(garbage_collection=True)

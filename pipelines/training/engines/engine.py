"""Engine: how the processes of a run share its model. asked.py lists the subclasses.

This module does not import torch at its top, so that a launcher can report mistakes before it starts processes.
"""

import os
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...adapters import NF4
from ...errors import UserError
from ...plugins import objective_of
from ...recipes.parallelism import MESH, ULYSSES, engine_of, sharing_rows, words_of
from ...recipes.schema import LoraSettings, PartNorms, Recipe, TrainingSection

if TYPE_CHECKING:
    from accelerate.utils import AutocastKwargs
    from transformers import TrainingArguments

# Set only by `accelerate launch`; other variables of accelerate are also set by transformers.
BY_ACCELERATE = "ACCELERATE_DYNAMO_USE_FULLGRAPH"
# A launcher sets one of these in its ranks. Those of MPI are the ones that accelerate reads; PMI_RANK is not among
# them, because SLURM may set it for a single task.
RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
WAY_OUT = "anyformer train RECIPE --launch"


def is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on", "y", "t")


class Engine:
    """How the processes of a run share its model. Made by asked.engine_for.

    Args:
        section: the recipe's training section.
        trusts_checkpoints: whether its library may unpickle arbitrary objects from a checkpoint (safe_load.py).
    """

    name: str | None = None  # in errors and run.json; None: one plain process
    launched_by = "ddp"  # value of --launch that starts it
    whole = False  # whether each process holds all weights and optimizer states
    wrappers: tuple[str, ...] = ()  # prefixes of the names of classes that wrap the model; (): none does
    builds_late = False  # whether fresh weights are drawn while the model is split (late_weights.py)
    clips_itself = False  # whether it clips gradients itself, by the one norm of all of them
    keeps_steps = False  # whether the trainer cannot see losses and gradients of whole steps
    reads_pickles = False  # whether its checkpoints are shards that are read with pickle
    loads_by_itself = False  # whether its library reads checkpoints without torch's safe loading
    repeats_weights = True  # whether a weight that is not split is the same in all processes
    autocast: "AutocastKwargs | None" = None  # how accelerate enters it; None: as it does by itself

    def __init__(self, section: TrainingSection, trusts_checkpoints: bool = False):
        self.section, self.parallelism = section, section.parallelism
        self.trusts_checkpoints = trusts_checkpoints

    @property
    def splitter(self) -> str | None:
        """The name, for errors, of what splits the model among processes; None if each process holds it whole."""
        if self.parallelism is not None:
            return "training.parallelism"
        return None if self.whole else self.name

    @property
    def splits_weights(self) -> str | None:
        """The name, for errors, of what splits the weights; None if each process holds all of them, as under ZeRO-2."""
        return None

    def check(self, recipe: Recipe, device: str, devices: int) -> None:
        """Raise UserError for what this engine cannot train, and where another would silently run in its place.

        device: cuda, cpu, ... devices: number of accelerators of this machine.
        """
        self.check_settings()
        self._check_whole(recipe)
        self.check_launcher(device, devices)

    def _check_whole(self, recipe: Recipe) -> None:
        """Raise UserError where the recipe needs whole weights, gradients or steps that this engine does not give."""
        section, splitter, best = self.section, self.splitter, recipe.evaluation.best_metric
        averaged = recipe.evaluation.average_checkpoints
        if averaged is not None and self.splits_weights is not None:
            raise UserError(
                f"evaluation.average_checkpoints={averaged} needs a model that a process holds whole, but "
                f"{self.splits_weights} splits it; set it to null"
            )
        looks = [name for name in ("loss_spike", "grad_norm_spike") if getattr(section, name) is not None]
        looks += ["bad_step"] if section.bad_step == "skip" else []
        if looks and (self.keeps_steps or self.parallelism is not None):
            raise UserError(
                f"training.{looks[0]}={getattr(section, looks[0])} looks at losses and gradients of whole steps, but "
                f"{splitter} keeps them to itself or splits them; leave it out, or train under DDP or FSDP"
            )
        if self.clipped_parts is not None and self.clips_itself:
            raise UserError(
                f"training.max_grad_norm has a norm for each part of the model, but {splitter} clips all gradients by "
                f"one norm; set it to a number, or train under DDP, FSDP2 or a mesh without pp"
            )
        if self.clipped_parts is not None and section.log_gradient_norms_per_layer:
            raise UserError(
                "training.log_gradient_norms_per_layer=true reckons with one norm that all gradients are clipped to, "
                "but training.max_grad_norm has one for each part, which are logged anyway; set it to false"
            )
        if splitter is None:
            return
        of_whole_weights = {
            "training.lora.merge=true": section.lora is not None and section.lora.merge,
            "training.log_gradient_norms_per_layer=true": section.log_gradient_norms_per_layer,
            "evaluation.minimal_pairs": recipe.evaluation.minimal_pairs is not None,
            f"evaluation.best_metric={best}": best in objective_of(recipe).metrics_of_answers(),
        }
        name = next((name for name, is_asked in of_whole_weights.items() if is_asked), None)
        if name is not None:
            raise UserError(
                f"{name} needs whole weights, but {splitter} splits them; leave it out, or train by one process or by "
                f"DDP"
            )

    def check_base(self, lora: LoraSettings | None) -> None:
        """Raise UserError where weights that are packed into few bits would be split. lora: as with_base settles it."""
        splitter = self.splits_weights if self.parallelism is None else self.splitter
        if lora is not None and lora.base in ("auto", NF4) and splitter is not None:
            raise UserError(
                f"training.lora.base={lora.base}: weights of few bits cannot be split, and {splitter} splits weights; "
                f"take a base in bfloat16, or train by one process or by DDP"
            )

    def check_settings(self) -> None:
        """Raise UserError for an optimizer, a weight average or a settings file that the engine cannot take."""

    def check_device(self, device: str) -> None:
        """Raise UserError for a device on which this engine, or one of its settings, does not work."""

    def check_launcher(self, device: str, devices: int) -> None:
        """Raise UserError where accelerate or its launcher would silently run something else than was asked for."""
        launched = {*RANKS, "PMI_RANK"} & os.environ.keys()
        if BY_ACCELERATE in os.environ and "MASTER_ADDR" in os.environ and not launched:
            raise UserError(
                f"accelerate launch was asked for several processes and has started one, as it does on a CPU; write "
                f"{WAY_OUT} ddp --nproc 2 (where one is meant, unset MASTER_ADDR)"
            )
        self._check_parallelism()
        self.check_device(device)
        local = int(os.environ.get("LOCAL_RANK", 0))
        if device != "cpu" and local >= devices:
            raise UserError(
                f"process {local + 1} of this machine has no GPU: there are {devices}; start as many processes as GPUs"
            )

    def _check_parallelism(self) -> None:
        """Raise UserError where training.parallelism, or accelerate's launcher, asks for another engine than this."""
        if self.parallelism is None:
            if is_true("ACCELERATE_USE_FSDP"):  # fsdp.py has removed it where the run is a training
                raise UserError(f"accelerate launch was asked for FSDP, which only trains; write {WAY_OUT} fsdp2")
            return
        if engine_of(self.parallelism) == ULYSSES and self.name != "DeepSpeed":
            words = f"training.parallelism={words_of(self.parallelism)}"
            raise UserError(f"{words}: sp runs under DeepSpeed; write {WAY_OUT} zero3")

    def check_average(self) -> None:
        """Raise UserError for a moving average of weights, which this engine splits or flattens."""
        decay = self.section.ema_decay
        if decay is not None:
            other = ", or average checkpoints by evaluation.average_checkpoints"
            raise UserError(
                f"training.ema_decay={decay} needs whole weights, but {self.name} splits or flattens them; set it to "
                f"null{'' if self.splits_weights else other}"
            )

    def check_wrapped(self, wrapped) -> None:
        """Raise UserError unless the model that begins to train is wrapped by this engine.

        wrapped: the trainer's `model_wrapped`, compiled or not.
        """
        names = {type(module).__name__ for module in (wrapped, getattr(wrapped, "_orig_mod", wrapped))}
        if self.wrappers and not any(name.startswith(self.wrappers) for name in names):
            wrapping = [engine for engine in Engine.__subclasses__() if engine.wrappers]
            others = [engine.name for engine in wrapping if any(name.startswith(engine.wrappers) for name in names)]
            raise UserError(
                f"the run was started for {self.name}, but {others[0] if others else 'a plain model'} would train; "
                f"write {WAY_OUT} {self.launched_by}"
            )

    def start(self, arguments: "TrainingArguments") -> None:
        """Called before a model is built, when the process group of the arguments has started."""

    @contextmanager
    def loading(self, config, device):
        """A block that loads a checkpoint; gives the arguments of from_pretrained that split it over the processes.

        config: the model's. device: of this process.
        """
        yield {}

    def share(self, model, device):
        """The model, split over the processes by engines that split it when it is built. device: of this process."""
        return model

    def resumable(self, checkpoint: Path, processes: int, trusted: bool) -> Path:
        """The checkpoint, or one made from it for another number of processes.

        trusted: whether its files may hold more than plain data. Raises UserError if it cannot be converted.
        """
        return checkpoint

    @property
    def shares_rows(self) -> bool:
        """Whether each process gets a part of every row."""
        return self.parallelism is not None and engine_of(self.parallelism) != MESH

    def collator(self, collator):
        """The collator; where processes get parts of rows, its batches also hold the position of each token."""
        from .parts_of_rows import PositionedRows

        return PositionedRows(collator) if self.shares_rows else collator

    @property
    def attention(self) -> str | None:
        """The attention backend that the engine needs, because it hooks or replaces it; None: any."""
        return "sdpa" if self.shares_rows else None

    def parameters_of(self, model, trained: bool = False) -> int:
        """Parameters of the whole model, even if this process holds only a part. trained: only those that train."""
        from ...accounting.flops import weights_in

        return sum(weights_in(p) for p in model.parameters() if p.requires_grad or not trained)

    def active_parameters(self, model) -> int:
        """Parameters of the whole model that each token uses."""
        from ...accounting.flops import active_parameters

        return active_parameters(model)

    def running(self, wrapped) -> str:
        """The engine that is running, for run.json: the class that wraps the model, or how the model is split."""
        return type(wrapped).__name__

    # ---- called by the trainer. By default transformers and accelerate do the work.

    @property
    def sharing(self) -> int:
        """The number of consecutive processes that read the same rows, or parts of them."""
        return sharing_rows(self.parallelism)

    @property
    def reading_together(self) -> int | None:
        """Number of processes that read the same batch, by which Trainer divides its counts; None: as Trainer does."""
        return None

    @contextmanager
    def entered(self, trainer_settings: dict):
        """A block in which the trainer is made. trainer_settings: the keyword arguments for it."""
        yield

    def check_losses(self, trainer) -> None:
        """Raise UserError for a loss that the engine cannot compute."""

    def check_begun(self, trainer) -> None:
        """Raise UserError unless the model that begins to train is split or wrapped as this engine does it."""
        self.check_wrapped(trainer.model_wrapped)

    def share_rows(self, loader) -> None:
        """Change a loader that accelerate has prepared, so that processes that share rows read the same ones."""

    def train_step(self, trainer, inputs: dict, labels_counted):
        """Add the gradients of a batch and return its loss; None: Trainer does it."""
        return None

    @cached_property
    def clipped_parts(self):
        """Clips the gradients of each part of the model to its own norm; None: all are clipped together."""
        if not isinstance(self.section.max_grad_norm, PartNorms):
            return None
        from ..guards.clipped_parts import ClippedParts

        return ClippedParts(self.section.max_grad_norm)

    def clip(self, trainer):
        """Clip all gradients, or each part of max_grad_norm; return their norm before. None: Trainer clips them."""
        if self.clipped_parts is None:
            return None
        trainer.accelerator.unscale_gradients()
        return self.clipped_parts.clip(trainer.model)

    def norms_of_parts(self) -> dict[str, float]:
        """The gradient norm of each part for the log; {} where all gradients are clipped together."""
        return {} if self.clipped_parts is None else self.clipped_parts.log()

    def summed_loss(self, trainer, inputs: dict):
        """The loss summed over the labels of a batch, without gradients; None: the trainer computes it."""
        return None

    def flop_count(self, model):
        """The FlopCount of the whole model (accounting/flops.py); None: the trainer makes it from its model."""
        return None

    def as_trainer_does(self, trainer, folder: Path) -> bool:
        """Load or save a checkpoint: the weights of the whole model or adapter, or optimizer and schedule.

        Returns whether it is done; False: Trainer does it.
        """
        return False

    load_weights = save_weights = load_states = save_states = as_trainer_does

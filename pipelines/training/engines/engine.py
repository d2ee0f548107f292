"""Engine: how the processes of a run share its model. One subclass for each; asked.py has a row for each of them.

Nothing here imports torch at its top, so that mistakes are sentences before a process starts.
"""

import os
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from ...errors import UserError
from ...plugins import objective_of
from ...recipes.parallelism import MESH, RING, ULYSSES, engine_of, sharing_rows, words_of
from ...recipes.schema import PartNorms, Recipe, TrainingSection

# Only accelerate's launcher sets it. transformers sets others of accelerate's variables by itself.
BY_ACCELERATE = "ACCELERATE_DYNAMO_USE_FULLGRAPH"
# A rank of a launcher has one of these; MPI's are those that accelerate reads, and a lone task of SLURM may have PMI's.
RANKS = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
WAY_OUT = "anyformer train RECIPE --launch"


def is_true(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on", "y", "t")


class Engine:
    """How the processes of a run share its model; made by asked.engine_for.

    Args:
        section: the recipe's training section.
    """

    name: str | None = None  # as sentences and run.json call it; None: one plain process
    launched_by = "ddp"  # the --launch that starts it
    whole = False  # whether each process holds weights and optimizer states whole
    wrappers: tuple[str, ...] = ()  # how the class begins that a model is wrapped into; (): nothing wraps it
    builds_late = False  # whether fresh weights are drawn while they are shared (late_weights.py)
    clips_itself = False  # whether it clips gradients by a norm of its own, that of all together
    keeps_steps = False  # whether losses and gradients of whole steps stay inside it
    reads_pickles = False  # whether its checkpoints are shares that are read with pickle
    loads_by_itself = False  # whether a library of its own reads its checkpoints, past torch's safe loading
    repeats_weights = True  # whether a weight that no process shares is the same in all

    def __init__(self, section: TrainingSection):
        self.section, self.parallelism = section, section.parallelism

    @property
    def splitter(self) -> str | None:
        """What splits the model among processes, as an error names it; None where each process holds it whole."""
        if self.parallelism is not None:
            return "training.parallelism"
        return None if self.whole else self.name

    @property
    def splits_weights(self) -> str | None:
        """What leaves no process with all weights, as an error names it; None where ZeRO-1 or ZeRO-2 splits states."""
        return None

    def check(self, recipe: Recipe, device: str, devices: int) -> None:
        """Raise UserError for what this engine cannot train, and where another would run in its place silently.

        device: cuda, cpu, ...; devices: accelerators of this machine, 0 without any.
        """
        self.check_settings()
        self._check_whole(recipe)
        self.check_launcher(device, devices)

    def _check_whole(self, recipe: Recipe) -> None:
        """Raise UserError for what a training needs whole, and this engine splits or keeps to itself."""
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

    def check_settings(self) -> None:
        """Raise UserError for an optimizer, an average or a file that the engine cannot take."""

    def check_device(self, device: str) -> None:
        """Raise UserError for a device on which another engine would train."""

    def check_launcher(self, device: str, devices: int) -> None:
        """Raise UserError where accelerate or its launcher would run something else than was asked for, silently."""
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
        """Raise UserError where training.parallelism needs another engine than recipe and launcher ask for."""
        if self.parallelism is None:
            return
        kind, words = engine_of(self.parallelism), f"training.parallelism={words_of(self.parallelism)}"
        if kind == ULYSSES and self.name != "DeepSpeed":
            raise UserError(f"{words}: sp runs under DeepSpeed; write {WAY_OUT} zero3")
        if kind == RING and self.name != "FSDP":
            raise UserError(f"{words}: cp runs under FSDP2; write {WAY_OUT} fsdp2")

    def check_average(self) -> None:
        """Raise UserError for a moving average of weights that this engine splits."""
        decay = self.section.ema_decay
        if decay is not None:
            other = ", or average checkpoints by evaluation.average_checkpoints"
            raise UserError(
                f"training.ema_decay={decay} needs whole weights, but {self.name} splits or flattens them; set it to "
                f"null{'' if self.splits_weights else other}"
            )

    def check_wrapped(self, wrapped) -> None:
        """Raise UserError where the model that begins to train is not wrapped into this engine.

        wrapped: the trainer's `model_wrapped`, a compiled module around it or not.
        """
        names = {type(module).__name__ for module in (wrapped, getattr(wrapped, "_orig_mod", wrapped))}
        if self.wrappers and not any(name.startswith(self.wrappers) for name in names):
            wrapping = [each for each in Engine.__subclasses__() if each.wrappers]
            others = [each.name for each in wrapping if any(name.startswith(each.wrappers) for name in names)]
            raise UserError(
                f"the run was started for {self.name}, but {others[0] if others else 'a plain model'} would train; "
                f"write {WAY_OUT} {self.launched_by}"
            )

    def share(self, model, device):
        """The model, split over the processes where they share it from the beginning. device: of this process."""
        return model

    def resumable(self, checkpoint: Path, processes: int, trusted: bool) -> Path:
        """The checkpoint, or what is made of it for another number of processes.

        trusted: whether its files may hold more than plain data. Raises UserError for what cannot be shared out anew.
        """
        return checkpoint

    @property
    def shares_rows(self) -> bool:
        """Whether processes each get a part of every row."""
        return self.parallelism is not None and engine_of(self.parallelism) != MESH

    def collator(self, collator):
        """The collator, whose batches say the position of each token where a process gets a part of a row."""
        from .parts_of_rows import PositionedRows

        return PositionedRows(collator) if self.shares_rows else collator

    @property
    def attention(self) -> str | None:
        """The attention backend that it hooks or replaces; None: any."""
        return "sdpa" if self.shares_rows else None

    def parameters_of(self, model, trained: bool = False) -> int:
        """Parameters of the whole model, also where this process has some of them. trained: only those that change."""
        return sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters() if p.requires_grad or not trained)

    def active_parameters(self, model) -> int:
        """Parameters of the whole model that are at work on a token."""
        from ...accounting.flops import active_parameters

        return active_parameters(model)

    def running(self, wrapped) -> str:
        """What trains, for run.json: the class that wraps the model, or how the model is split."""
        return type(wrapped).__name__

    # ---- what the trainer asks. By default transformers and accelerate do it: `by_trainer` calls Trainer's own method.

    @property
    def sharing(self) -> int:
        """How many processes after each other read the same rows, or parts of them."""
        return sharing_rows(self.parallelism)

    @property
    def counting_together(self) -> int:
        """How many processes count the same tokens in a step: cp cuts rows after that, sp has cut them before."""
        return self.sharing if self.parallelism is None else self.sharing // self.parallelism.sp

    @property
    def reading_together(self) -> int | None:
        """How many processes read the same batch, by which Trainer divides what it counts; None: as it counts them."""
        return None

    @contextmanager
    def entered(self, trainer_settings: dict):
        """A block in which the trainer is made, from these keyword arguments of it."""
        yield

    def check_losses(self, trainer) -> None:
        """Raise UserError for a loss that the engine cannot compute."""

    def check_begun(self, trainer) -> None:
        """Raise UserError where the model that begins to train is not shared as this engine shares it."""
        self.check_wrapped(trainer.model_wrapped)

    def share_rows(self, loader) -> None:
        """Change a loader that accelerate has prepared, where processes read the same rows."""

    def train_step(self, trainer, inputs: dict, labels_counted, by_trainer):
        """Add the gradients of a batch; return its loss."""
        return by_trainer()

    @cached_property
    def clipped_parts(self):
        """What clips the gradients of each part of the model by itself; None: all are clipped together."""
        if not isinstance(self.section.max_grad_norm, PartNorms):
            return None
        from ..guards.clipped_parts import ClippedParts

        return ClippedParts(self.section.max_grad_norm)

    def grad_norm(self, trainer, by_trainer):
        """The norm that all gradients had; where parts have norms of their own, they are clipped here."""
        if self.clipped_parts is None:
            return by_trainer()
        trainer.accelerator.unscale_gradients()
        return by_trainer(grad_norm=self.clipped_parts.clip(trainer.model))

    def norms_of_parts(self) -> dict[str, float]:
        """For the log, where parts of the model are clipped by norms of their own."""
        return {} if self.clipped_parts is None else self.clipped_parts.log()

    def summed_loss(self, trainer, inputs: dict):
        """The loss summed over the labels of a batch, without gradients; None: a process can compute it by itself."""
        return None

    def flop_count(self, model):
        """The FLOPs of the whole model (accounting/flops.py), where this process holds a part; None: it has all."""
        return None

    def as_trainer_does(self, trainer, folder: Path, by_trainer) -> None:
        """Load or save a checkpoint's weights (of the whole model, or the adapter), or its optimizer and schedule."""
        by_trainer()

    load_weights = save_weights = load_states = save_states = as_trainer_does

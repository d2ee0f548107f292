"""The engines of training.parallelism: by transformers' own plans (mesh.py), and in stages (pipeline.py)."""

from contextlib import contextmanager
from pathlib import Path

from ...errors import UserError
from ...recipes.parallelism import FIELD, MESH, reading_together, words_of
from .engine import WAY_OUT, Engine, is_true

SCHEDULER_FILE = "scheduler.pt"  # as Trainer calls it


class Mesh(Engine):
    """The model is split while it is built; no class wraps it, and mesh.check_shared looks at its weights."""

    name = MESH
    launched_by = "mesh"
    builds_late = True
    reads_pickles = True

    def _check_parallelism(self, device: str) -> None:
        if is_true("ACCELERATE_USE_FSDP") or is_true("ACCELERATE_USE_DEEPSPEED"):
            asked = "FSDP" if is_true("ACCELERATE_USE_FSDP") else "DeepSpeed"
            raise UserError(
                f"training.parallelism={words_of(self.parallelism)} splits the model itself, but the launcher's file "
                f"asks for {asked}; take configs/accelerate/ddp.yaml, or write {WAY_OUT} mesh"
            )

    def check_device(self, device: str) -> None:
        if device == "cpu" and self.parallelism.fsdp_cpu_offload:
            raise UserError(
                "training.parallelism.fsdp_cpu_offload=true needs GPUs: on a CPU shards are in its memory already; set "
                "it to false"
            )

    def share(self, model, device):
        from .mesh import share_model

        return share_model(model, self.parallelism)

    def running(self, wrapped) -> str:
        from .mesh import mesh_of

        return f"DTensor({' x '.join(f'{name} {size}' for name, size in mesh_of(wrapped).items())})"

    # ---- what the trainer asks

    @property
    def reading_together(self) -> int:
        return reading_together(self.parallelism)

    @contextmanager
    def entered(self, trainer_settings: dict):
        """Hide from Trainer that states of the optimizer are saved, and from accelerate that the model is split.

        Trainer refuses to save such states, which `save_states` does. accelerate would share out rows by the split,
        which `share_rows` does, and refuses that on CPUs.
        """
        from ..lora import plain

        arguments, model = trainer_settings["args"], plain(trainer_settings["model"])
        only_model, tensors = arguments.save_only_model, getattr(model, "_tp_size", None)
        arguments.save_only_model, model._tp_size = True, None
        try:
            yield
        finally:
            arguments.save_only_model, model._tp_size = only_model, tensors

    def check_begun(self, trainer) -> None:
        from .mesh import check_shared

        check_shared(trainer.model, self.parallelism)

    def share_rows(self, loader) -> None:
        from .mesh import share_out_rows

        share_out_rows(loader, self.reading_together)

    def grad_norm(self, trainer, by_trainer):
        norm = super().grad_norm(trainer, by_trainer)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def load_weights(self, trainer, folder: Path, by_trainer) -> None:
        from ..lora import is_adapted, load_checkpoint_of
        from .mesh import load_whole_weights

        (load_checkpoint_of if is_adapted(trainer.model) else load_whole_weights)(trainer.model, folder)

    def save_weights(self, trainer, folder: Path, by_trainer) -> None:
        """The whole weights are gathered first, and no process holds on to them."""
        from .mesh import saved_as_whole

        state = self.whole_state(trainer)
        if trainer.args.should_save:
            with saved_as_whole(trainer.model.config):
                trainer._save(str(folder), state)

    def whole_state(self, trainer) -> dict:
        """The whole weights on the process that writes, nothing on others; all have to call it."""
        from ..lora import is_adapted, whole_weights_of
        from .mesh import whole_state

        model = trainer.model
        return whole_weights_of(model) if is_adapted(model) else whole_state(model, trainer.args.should_save)

    def load_states(self, trainer, folder: Path, by_trainer) -> None:
        import torch

        from .mesh import load_shared_optimizer

        load_shared_optimizer(trainer.model, trainer.optimizer, folder)
        trainer.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_FILE, weights_only=True))

    def save_states(self, trainer, folder: Path, by_trainer) -> None:
        import torch

        from .mesh import save_shared_optimizer

        save_shared_optimizer(trainer.model, trainer.optimizer, folder)
        if trainer.args.should_save:
            torch.save(trainer.lr_scheduler.state_dict(), folder / SCHEDULER_FILE)


class Stages(Mesh):
    """A mesh whose processes each have some layers (pipeline.py); `model.pipeline` trains and measures them."""

    repeats_weights = False
    clips_itself = True

    def share(self, model, device):
        from .pipeline import cut_into_stages

        return cut_into_stages(model, self.parallelism, device)

    def parameters_of(self, model, trained: bool = False) -> int:
        return model.pipeline.parameters

    def active_parameters(self, model) -> int:
        return model.pipeline.parameters

    def running(self, wrapped) -> str:
        return wrapped.pipeline.name

    # ---- what the trainer asks

    @contextmanager
    def entered(self, trainer_settings: dict):
        with super().entered(trainer_settings):
            yield
        trainer_settings["args"].max_grad_norm = 0  # Trainer would clip each stage by itself; `grad_norm` does all

    def check_begun(self, trainer) -> None:
        """Nothing: `share` has cut the model, or raised an error."""

    def check_losses(self, trainer) -> None:
        has_parts = trainer.parts.told_apart_by is not None or trainer.part_losses is not None
        if has_parts or trainer.model_loss.function is not None or trainer.scorer is not None:
            raise UserError(
                f"{FIELD}={words_of(self.parallelism)} trains the loss of a causal model alone, without metrics of its "
                f"answers and parts of its data; set pp to 1"
            )

    def load_weights(self, trainer, folder: Path, by_trainer) -> None:
        from ..checkpoints.stored_weights import stored_weights

        trainer.model.pipeline.load(stored_weights(trainer.model, folder))

    def whole_state(self, trainer) -> dict:
        return trainer.model.pipeline.whole_state()

    def train_step(self, trainer, inputs: dict, labels_counted, by_trainer):
        trainer.model.train()
        inputs, last = trainer._prepare_inputs(inputs), trainer.accelerator.sync_gradients
        return trainer.model.pipeline.train_step(inputs, labels_counted, last, trainer.accelerator.autocast)

    def grad_norm(self, trainer, by_trainer):
        most = self.section.max_grad_norm
        return by_trainer(grad_norm=trainer.model.pipeline.clip_gradients(most if most > 0 else float("inf")))

    def summed_loss(self, trainer, inputs: dict):
        return trainer.model.pipeline.summed_loss(inputs, trainer.accelerator.autocast)

    def flop_count(self, model):
        return model.pipeline.flop_count

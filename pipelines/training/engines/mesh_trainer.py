"""transformers' Trainer for models that several processes share: rows, gradients' norms, checkpoints.

Private methods of Trainer are overridden (transformers 5.23: _build_accelerator_args, _load_from_checkpoint,
_save_optimizer_and_scheduler, _load_optimizer_and_scheduler, _sync_replicated_trainable_parameters, _clip_grad_norm,
_get_grad_norm, _run_epoch and
_load_best_model in trainer.py).
"""

from pathlib import Path

import torch
from transformers import Trainer
from transformers.trainer import SCHEDULER_NAME

from ...errors import UserError
from ...recipes.parallelism import FIELD, reading_together, sharing_rows, words_of
from ...recipes.schema import ParallelismSettings
from ..lora import is_adapted, load_checkpoint_of, whole_weights_of
from .mesh import (
    check_shared,
    load_shared_optimizer,
    load_whole_weights,
    models_only,
    save_shared_optimizer,
    saved_as_whole,
    share_out_rows,
    whole_state,
)


class MeshTrainer(Trainer):
    """Trainer that knows mesh.py and pipeline.py; without parallelism it is Trainer itself.

    Args:
        parallelism: how the processes share the model; None: as an engine of the launcher does.
        on_mesh: whether they do so by transformers' plans or in stages, and not by an engine of accelerate's.
        **kwargs: as for transformers' Trainer.
    """

    def __init__(self, *, parallelism: ParallelismSettings | None = None, on_mesh: bool = False, **kwargs):
        self.parallelism, self.on_mesh = parallelism, on_mesh
        self.pipeline, self.sharing = getattr(kwargs["model"], "pipeline", None), sharing_rows(parallelism)
        with models_only(kwargs["args"], on_mesh):
            super().__init__(**kwargs)

    @property
    def readers_of_a_batch(self) -> int:
        """How many processes count the same tokens in `training_step`: cp cuts rows later, sp has cut them already."""
        return self.sharing if self.parallelism is None else self.sharing // self.parallelism.sp

    @property
    def counts_rows(self) -> bool:
        """Whether this is the first of the processes that read the same rows, which count once."""
        return self.args.process_index % self.sharing == 0

    def check_pipeline(self, has_parts: bool) -> None:
        """Raise UserError for a loss that the last stage cannot compute by itself. has_parts: it is of several."""
        if self.pipeline is None:
            return
        if has_parts or self.model_loss.function is not None or self.scorer is not None:
            raise UserError(
                f"{FIELD}={words_of(self.parallelism)} trains the loss of a causal model alone, without metrics of its "
                f"answers and parts of its data; set pp to 1"
            )

    def _build_accelerator_args(self, **kwargs):
        arguments = super()._build_accelerator_args(**kwargs)
        if self.on_mesh:  # accelerate would share out rows by it, but refuses it on CPUs: share_out_rows does
            arguments.pop("parallelism_config", None)
        return arguments

    def get_tp_size(self) -> int:
        """Processes with the same batch, by which Trainer divides what it counts on all of them."""
        return reading_together(self.parallelism) if self.on_mesh else super().get_tp_size()

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        if not self.on_mesh:
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_whole(Path(resume_from_checkpoint))

    def _load_whole(self, folder: Path) -> None:
        if is_adapted(self.model):
            load_checkpoint_of(self.model, folder)
        else:
            load_whole_weights(self.model, folder)

    def _save_optimizer_and_scheduler(self, output_dir):
        if not self.on_mesh:
            return super()._save_optimizer_and_scheduler(output_dir)
        save_shared_optimizer(self.model, self.optimizer, Path(output_dir))
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint):
        if not self.on_mesh or checkpoint is None:
            return super()._load_optimizer_and_scheduler(checkpoint)
        load_shared_optimizer(self.model, self.optimizer, Path(checkpoint))
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))

    def _sync_replicated_trainable_parameters(self, model):
        if self.pipeline is None:  # each stage has weights of its own
            super()._sync_replicated_trainable_parameters(model)

    def _clip_grad_norm(self, model):
        if self.pipeline is None:
            return super()._clip_grad_norm(model)
        return self.pipeline.clip_gradients(self.args.max_grad_norm)

    def _get_grad_norm(self, model, grad_norm=None):
        if self.pipeline is not None and grad_norm is None:
            grad_norm = self.pipeline.clip_gradients(float("inf"))
        norm = super()._get_grad_norm(model, grad_norm)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def training_step(self, model, inputs, num_items_in_batch=None):
        if self.pipeline is None:
            return super().training_step(model, inputs, num_items_in_batch)
        self.model.train()
        inputs, last = self._prepare_inputs(inputs), self.accelerator.sync_gradients
        return self.pipeline.train_step(inputs, num_items_in_batch, last, self.accelerator.autocast)

    def get_train_dataloader(self):
        loader = super().get_train_dataloader()
        share_out_rows(loader, reading_together(self.parallelism))
        return loader

    def get_eval_dataloader(self, eval_dataset=None):
        loader = super().get_eval_dataloader(eval_dataset)
        share_out_rows(loader, reading_together(self.parallelism))
        return loader

    def _run_epoch(self, *args, **kwargs):
        if self.on_mesh:
            check_shared(self.model, self.parallelism)
        return super()._run_epoch(*args, **kwargs)

    def save_model(self, output_dir=None, _internal_call=False):
        """As Trainer's; of a shared model the whole weights are gathered first, and no process holds on to them."""
        if not self.on_mesh:
            return super().save_model(output_dir, _internal_call)
        adapted = is_adapted(self.model)
        state = whole_weights_of(self.model) if adapted else whole_state(self.model, self.args.should_save)
        if self.args.should_save:
            with saved_as_whole(self.model.config):
                self._save(output_dir, state)

    def _load_best_model(self):
        if self.on_mesh:
            self._load_whole(Path(self.state.best_model_checkpoint))
        else:
            super()._load_best_model()

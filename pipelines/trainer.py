"""AnyformerTrainer: transformers' Trainer with its quiet traps set right.

What differs from Trainer: checkpoints are complete or invisible; NaN stops the run with step and rows; the evaluation
loss is exact per token; tokens per second and MFU are logged; nothing but the loss is computed in a training step.
"""

import errno
import importlib.util
import inspect
import os
import resource
import shutil
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import PrinterCallback, ProgressCallback, Trainer

from .checkpointing import RUN_FILE, STAGING, list_checkpoints, retire, seal, write_atomically
from .errors import UserError
from .guards import LossGuard
from .model_card import write_model_card
from .optimizers import build_muon
from .progress import MetricsFile, ProgressLine
from .stopping import StopSignal
from .throughput import flops_per_token, peak_flops

ROWS_KEY = "row_ids"  # which rows of the data set a batch holds: for error messages, never for the model


class NumberedRows(Dataset):
    """A map-style data set whose rows carry their own index."""

    def __init__(self, rows: Dataset):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] | {ROWS_KEY: int(index)}


class RowsWithFiller(Dataset):
    """Rows, then copies of the first one without labels, up to a multiple of `multiple`.

    Every process then evaluates equally many rows, and none is counted twice.
    """

    def __init__(self, rows: Dataset, multiple: int):
        self.rows, self.length = rows, -(-len(rows) // multiple) * multiple

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index < len(self.rows):
            return self.rows[index]
        row = dict(self.rows[0])
        return row | {"labels": torch.full_like(torch.as_tensor(row["labels"]), -100)}


class AnyformerTrainer(Trainer):
    """Trainer for causal models on packed rows.

    Args:
        run_identity: JSON text saved in each checkpoint: recipe, versions, seed, data fingerprint.
        muon_learning_rate: peak learning rate of the hidden matrices; None: plain AdamW (or `args.optim`).
        **kwargs: as for transformers' Trainer.
    """

    def __init__(self, *, run_identity: str = "{}", muon_learning_rate: float | None = None, **kwargs):
        self.run_identity, self.muon_learning_rate, self._staging = run_identity, muon_learning_rate, False
        self._use_cache = getattr(kwargs["model"].config, "use_cache", None)
        remember_absent("lomo_optim")
        super().__init__(**kwargs)
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.guard = LossGuard(self.args.output_dir)
        self.stop_signal = StopSignal(self.accelerator)
        self.progress = ProgressLine()
        for callback in (self.stop_signal, self.progress, MetricsFile(self.args.output_dir)):
            self.add_callback(callback)
        self._tokens = self._logged_tokens = 0
        self._idle = 0.0  # seconds since the last log spent on evaluation and checkpoints, not on training
        self._flops_per_token = self._peak = None

    # ---- data

    def get_train_dataloader(self):
        original = self.train_dataset
        if hasattr(original, "__getitem__") and hasattr(original, "__len__"):
            self.train_dataset = NumberedRows(original)
        try:
            return super().get_train_dataloader()
        finally:
            self.train_dataset = original

    def get_eval_dataloader(self, eval_dataset=None):
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        return super().get_eval_dataloader(RowsWithFiller(rows, self.args.eval_batch_size * self.args.world_size))

    # ---- one step

    def train(self, *args, **kwargs):
        self._clock = time.perf_counter()
        try:
            return super().train(*args, **kwargs)
        finally:
            self.progress.close()
            self.model.config.use_cache = self._use_cache

    def training_step(self, model, inputs, num_items_in_batch=None):
        rows = inputs.pop(ROWS_KEY, [])
        self._tokens += inputs["input_ids"].numel() * self.args.world_size
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.guard.watch(self.state.global_step + 1, loss, rows)
        return loss

    def floating_point_ops(self, inputs) -> int:
        if self._flops_per_token is None:
            self._flops_per_token = flops_per_token(self.model, inputs["input_ids"].shape[-1])
        return inputs["input_ids"].numel() * self._flops_per_token

    def create_optimizer(self, model=None):
        if self.optimizer is None and self.muon_learning_rate is not None:
            model = self.model if model is None else model
            self.optimizer = build_muon(
                model,
                set(self.get_decay_parameter_names(model)),
                muon_lr=self.muon_learning_rate,
                adamw_lr=self.args.learning_rate,
                weight_decay=self.args.weight_decay,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
            )
        return super().create_optimizer(model)

    def get_decay_parameter_names(self, model) -> list[str]:
        """Matrices only: no biases, no norms, and no vectors of learned positions or tokens' norms."""
        names = super().get_decay_parameter_names(model)
        vectors = {n for n, p in model.named_parameters() if len(getattr(p, "ds_shape", p.shape)) < 2}
        return [name for name in names if name not in vectors]

    # ---- what is logged

    def log(self, logs, start_time=None):
        if "loss" in logs:
            self.guard.check()
            logs.update(self._speed())
        super().log(logs, start_time)

    def _speed(self) -> dict:
        now = time.perf_counter()
        seconds = max(1e-9, now - self._clock - self._idle)
        rate = (self._tokens - self._logged_tokens) / seconds
        achieved = rate * (self._flops_per_token or 0) / self.args.world_size
        if self._peak is None or achieved > self._peak:  # a peak below the rate was measured on a busy machine
            dtype = torch.bfloat16 if self.args.bf16 else torch.float16 if self.args.fp16 else torch.float32
            peak, self.peak_source = peak_flops(self.args.device, dtype)
            self._peak = max(peak, self._peak or 0.0)
        if self.args.device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self.args.device)
        else:  # ru_maxrss counts bytes on macOS, KiB elsewhere
            unit = 1 if sys.platform == "darwin" else 1024
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        self._clock, self._logged_tokens, self._idle = time.perf_counter(), self._tokens, 0.0
        return {
            "tokens_per_second": rate,
            "mfu": achieved / self._peak,
            "memory_gb": memory / 1e9,
            "tokens": self._tokens,
        }

    # ---- evaluation

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        started = time.perf_counter()
        self._evaluated = torch.zeros(2, dtype=torch.float64, device=self._sum_device())
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        total, count = self.accelerator.reduce(self._evaluated, "sum").tolist()
        if count:
            output.metrics[f"{metric_key_prefix}_loss"] = total / count
            output.metrics[f"{metric_key_prefix}_nll"] = total
            output.metrics[f"{metric_key_prefix}_predictions"] = count
        self._idle += time.perf_counter() - started
        return output

    def _sum_device(self):
        return "cpu" if self.args.device.type == "mps" else self.args.device  # MPS has no float64

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Sum the loss over the counted labels: the mean of per-batch means would weigh short rows too much."""
        if not (prediction_loss_only and self.model_accepts_loss_kwargs):
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        forward = self.accelerator.unwrap_model(self.model).forward
        if "return_logits" in inspect.signature(forward).parameters:
            inputs = {**inputs, "return_logits": False}
        with torch.no_grad(), self.compute_loss_context_manager():
            total = model(**inputs, num_items_in_batch=1).loss
        count = (inputs["labels"][..., 1:] != -100).sum()
        self._evaluated += torch.stack([total, count]).to(self._evaluated)
        return (total / count.clamp_min(1), None, None)

    def create_model_card(self, *args, license=None, **kwargs):
        """Our card instead of Trainer's: it says how the model was made and how to load it."""
        if self.is_world_process_zero():
            write_model_card(Path(self.args.output_dir), repo_id=self.hub_model_id, license=license)

    # ---- checkpoints

    def _save(self, output_dir=None, state_dict=None):
        # Trainer switches the cache off in the live config; a saved model must generate with it again.
        config, training = self.model.config, self.model.config.use_cache
        config.use_cache = self._use_cache
        try:
            super()._save(output_dir, state_dict)
        finally:
            config.use_cache = training

    def _get_output_dir(self, trial):
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, STAGING) if self._staging else folder

    def _save_checkpoint(self, model, trial):
        started = time.perf_counter()
        self.guard.check()
        self.guard.check_weights(self.model, self.state.global_step)
        name, folder = f"checkpoint-{self.state.global_step}", Path(super()._get_output_dir(trial))
        staged = folder / STAGING / name
        self._staging, self._push_later = True, False
        try:
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                best = self.state.best_model_checkpoint
                if best and STAGING in Path(best).parts:
                    self.state.best_model_checkpoint = str(folder / name)
                    self.state.save_to_json(str(staged / "trainer_state.json"))
                write_atomically(staged / RUN_FILE, self.run_identity)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                seal(staged, folder / name)
                retire(folder, keep=self.args.save_total_limit, best=self.state.best_model_checkpoint)
                shutil.rmtree(folder / STAGING, ignore_errors=True)
        except Exception as error:
            full = is_disk_full(error, folder)  # before what was written so far is removed
            if self.args.should_save:
                shutil.rmtree(folder / STAGING, ignore_errors=True)
            if full:
                raise UserError(disk_full_sentence(folder, name)) from error
            raise
        finally:
            self._staging = False
        self.accelerator.wait_for_everyone()
        if self._push_later:
            super()._push_from_checkpoint(str(folder / name))
        self._idle += time.perf_counter() - started

    def _issue_warnings_after_load(self, load_result):
        # A tied head is not in the file and not missing either: it is the embedding.
        tied = getattr(self.model, "all_tied_weights_keys", None) or {}
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    def _push_from_checkpoint(self, checkpoint_folder):
        # The upload runs in the background: it must start from the final folder, not from the staged one.
        self._push_later = True


def remember_absent(package: str) -> None:
    """Spare accelerate the search of the whole import path for `package`, which it repeats in every training step.

    An entry of None is Python's own note that a module cannot be imported. A package that is installed is left alone.
    """
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        sys.modules[package] = None


def is_disk_full(error: BaseException | None, folder: Path) -> bool:
    """Whether an error while writing to `folder` came from a full disk.

    torch's and safetensors' writers do not always pass the OSError on, so the disk itself is asked, too.
    """
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "os error 28" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return shutil.disk_usage(folder).free < 1 << 20


def disk_full_sentence(folder: Path, name: str) -> str:
    complete = list_checkpoints(folder)
    good = f"the last complete checkpoint is {complete[0]}" if complete else "there is no earlier checkpoint"
    return f"the disk is full: {folder / name} could not be written; {good}; free some space and run the same again"

"""AnyformerTrainer: transformers' Trainer with its quiet traps set right.

What differs from Trainer: checkpoints are complete or invisible; NaN stops the run with step and rows; losses are exact
per label, in evaluation and over accumulated batches, for every model; tokens per second and MFU are logged; the best
checkpoint is saved whenever it appears; nothing but the loss is computed in a training step.
"""

import errno
import functools
import importlib.util
import inspect
import os
import resource
import shutil
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import PrinterCallback, ProgressCallback, Trainer

from ..accounting.flops import FlopCount, count_tokens, peak_flops
from ..data.length_batching import LengthGroupedSampler
from ..data.sample_ids import EPOCH_KEY, ROWS_KEY, EpochNumbers, NumberedRows, RowsWithFiller
from ..errors import UserError
from ..publishing.model_card import write_model_card
from ..storage.checkpoints import RUN_FILE, STAGING, list_checkpoints, retire, seal, write_atomically
from .cross_entropy import IGNORED, loss_of_logits
from .loss_guard import LossGuard
from .optimizers import build_muon
from .progress import MetricsFile, ProgressLine
from .router_statistics import RouterStatistics
from .stop_signal import StopSignal


class AnyformerTrainer(Trainer):
    """Trainer for any model that learns from labels: packed rows, padded examples, source and target.

    Args:
        run_identity: JSON text saved in each checkpoint: recipe, versions, seed, data fingerprint.
        muon_learning_rate: peak learning rate of the hidden matrices; None: plain AdamW (or `args.optim`).
        predicts_next: whether the model shifts labels: the first label of a row then never counts.
        scorer: has outcome(logits, labels) -> (B, K) integers and measure(outcomes) -> metrics, of all rows that are
            evaluated; None: the loss alone is measured.
        **kwargs: as for transformers' Trainer.
    """

    def __init__(
        self,
        *,
        run_identity: str = "{}",
        muon_learning_rate: float | None = None,
        predicts_next: bool = True,
        scorer=None,
        **kwargs,
    ):
        self.run_identity, self.muon_learning_rate, self._staging = run_identity, muon_learning_rate, False
        self.predicts_next, self.scorer = predicts_next, scorer
        self._use_cache = getattr(kwargs["model"].config, "use_cache", None)
        remember_absent("lomo_optim")
        super().__init__(**kwargs)
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.guard = LossGuard(self.args.output_dir)
        self.stop_signal = StopSignal(self.accelerator)
        self.progress = ProgressLine()
        self.epochs = EpochNumbers()
        self.routers = RouterStatistics(self.args.output_dir)
        files = MetricsFile(self.args.output_dir), self.routers
        for callback in (self.stop_signal, self.progress, self.epochs, *files):
            self.add_callback(callback)
        self._tokens = self._logged_tokens = self._batch_tokens = 0
        self._flops = self._logged_flops = self._stored_flops = 0
        self._idle = 0.0  # seconds since the last log spent on evaluation and checkpoints, not on training
        self._flop_count = self._peak = None
        self._choose_loss()

    def _choose_loss(self) -> None:
        """Whether the model's own loss is exact, or one is computed here from its logits.

        Exact means: divided by `num_items_in_batch`, which counts the labels of all batches of an optimizer step. Ours
        do that, and transformers' decoders; its other heads take a mean and would be trained with gradients multiplied
        by the number of accumulated batches (BERT, T5, BART).
        """
        model = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        known = inspect.signature(model.forward).parameters
        exact = "num_items_in_batch" in known or (self.predicts_next and self.model_accepts_loss_kwargs)
        smoothing = self.args.label_smoothing_factor
        self._skips_logits = "return_logits" in known
        self._training_extras = {"label_smoothing": smoothing} if smoothing and "label_smoothing" in known else {}
        self._takes_labels = "labels" in known  # otherwise they only say how many there are
        self._makes_decoder_inputs = hasattr(model, "prepare_decoder_input_ids_from_labels")
        self.label_smoother = None  # Trainer's knows only transformers' own names of models that shift
        self._loss_shifts_labels = self.predicts_next
        self._own_loss = exact
        if self.compute_loss_func is None and (not exact or (smoothing and not self._training_extras)):
            self.compute_loss_func = functools.partial(
                loss_of_logits, shift=self.predicts_next, label_smoothing=smoothing
            )

    # ---- data

    def get_train_dataloader(self):
        original = self.train_dataset
        if hasattr(original, "__getitem__") and hasattr(original, "__len__"):
            self.train_dataset = NumberedRows(original)
        self.epochs.listeners = [self.train_dataset] if hasattr(self.train_dataset, "set_epoch") else []
        try:
            return super().get_train_dataloader()
        finally:
            self.train_dataset = original

    def _get_train_sampler(self, train_dataset=None):
        rows = getattr(self.train_dataset, "rows", None)
        if getattr(rows, "row_lengths", None) is None:
            return super()._get_train_sampler(train_dataset)
        # All rows of an optimizer step together: how they are spread over processes and batches changes nothing.
        arguments = self.args
        together = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
        sampler = LengthGroupedSampler(rows.row_lengths, together, arguments.seed)
        self.epochs.listeners.append(sampler)
        return sampler

    def get_eval_dataloader(self, eval_dataset=None):
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        return super().get_eval_dataloader(RowsWithFiller(rows, self.args.eval_batch_size * self.args.world_size))

    # ---- one step

    def train(self, *args, **kwargs):
        self._clock = time.perf_counter()
        try:
            result = super().train(*args, **kwargs)
            if self.args.metric_for_best_model is not None and self.state.global_step >= self.state.max_steps:
                self._load_best()
            return result
        finally:
            self.progress.close()
            self.model.config.use_cache = self._use_cache

    def training_step(self, model, inputs, num_items_in_batch=None):
        rows = inputs.pop(ROWS_KEY, [])
        inputs.pop(EPOCH_KEY, None)
        if self._flop_count is None:
            self._flop_count = FlopCount(self.model)
        self._batch_tokens = count_tokens(inputs, self.model.config)
        self._tokens = self._tokens + self._batch_tokens
        self._flops = self._flops + self._flop_count.of_batch(inputs)
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.guard.watch(self.state.global_step + 1, loss, rows)
        return loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs = self._for_model(inputs)
        if self.compute_loss_func is not None:
            inputs = self._with_decoder_inputs(inputs)
        elif self.model.training:
            inputs = {**inputs, **self._training_extras}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.model.training:
            self.routers.add(outputs, self._batch_tokens)
        return (loss, outputs) if return_outputs else loss

    def _for_model(self, inputs: dict) -> dict:
        """Without labels that are not for the model."""
        return inputs if self._takes_labels else {name: x for name, x in inputs.items() if name != "labels"}

    def _with_decoder_inputs(self, inputs: dict) -> dict:
        """What a sequence-to-sequence model would make from the labels, which it does not see."""
        if not self._makes_decoder_inputs or "decoder_input_ids" in inputs:
            return inputs
        model = self.accelerator.unwrap_model(self.model)
        return {**inputs, "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels=inputs["labels"])}

    def floating_point_ops(self, inputs) -> int:
        return 0  # counted in training_step, without waiting for the device

    def store_flos(self):
        self.current_flos, self._stored_flops = float(self._flops) - self._stored_flops, float(self._flops)
        super().store_flos()

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
            logs.update(self.routers.collect(self.state.global_step, self.accelerator.reduce))
        super().log(logs, start_time)

    def _speed(self) -> dict:
        now = time.perf_counter()
        seconds = max(1e-9, now - self._clock - self._idle)
        local = torch.tensor([float(self._tokens), float(self._flops)], dtype=torch.float64)
        tokens, flops = self.accelerator.reduce(local.to(self._sum_device()), "sum").tolist()
        rate = (tokens - self._logged_tokens) / seconds
        achieved = (flops - self._logged_flops) / seconds / self.args.world_size
        if self._peak is None or achieved > self._peak:  # a peak below the rate was measured on a busy machine
            dtype = torch.bfloat16 if self.args.bf16 else torch.float16 if self.args.fp16 else torch.float32
            peak, self.peak_source = peak_flops(self.args.device, dtype)
            self._peak = max(peak, self._peak or 0.0)
        if self.args.device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self.args.device)
        else:  # ru_maxrss counts bytes on macOS, KiB elsewhere
            unit = 1 if sys.platform == "darwin" else 1024
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        self._clock, self._logged_tokens, self._logged_flops, self._idle = time.perf_counter(), tokens, flops, 0.0
        return {
            "tokens_per_second": rate,
            "mfu": achieved / self._peak,
            "memory_gb": memory / 1e9,
            "tokens": int(tokens),
        }

    # ---- evaluation

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        started = time.perf_counter()
        self._evaluated = torch.zeros(2, dtype=torch.float64, device=self._sum_device())
        self._outcomes = []
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        total, count = self.accelerator.reduce(self._evaluated, "sum").tolist()
        measured = {}
        if count:
            measured = {"loss": total / count, "nll": total, "predictions": count}
        if self._outcomes:
            outcomes = self.accelerator.gather(torch.cat(self._outcomes))  # equally many on each process: see filler
            measured |= self.scorer.measure(outcomes[(outcomes != IGNORED).all(dim=-1)].cpu().numpy())
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in measured.items()})
        self._idle += time.perf_counter() - started
        return output

    def _sum_device(self):
        return "cpu" if self.args.device.type == "mps" else self.args.device  # MPS has no float64

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Sum the loss over the counted labels: the mean of per-batch means would weigh short rows too much."""
        inputs.pop(ROWS_KEY, None)
        inputs.pop(EPOCH_KEY, None)
        if not prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        labels = inputs["labels"]
        with torch.no_grad(), self.compute_loss_context_manager():
            if self._own_loss and self.scorer is None:
                extras = {"return_logits": False} if self._skips_logits else {}
                total = model(**self._for_model(inputs), **extras, num_items_in_batch=1).loss
            else:
                inputs = {name: value for name, value in self._with_decoder_inputs(inputs).items() if name != "labels"}
                outputs = model(**inputs)
                total = loss_of_logits(outputs, labels, num_items_in_batch=1, shift=self.predicts_next)
                if self.scorer is not None:
                    self._outcomes.append(self.scorer.outcome(outputs.logits, labels))
        count = (labels[..., 1:] if self.predicts_next else labels).ne(IGNORED).sum()
        self._evaluated += torch.stack([total, count]).to(self._evaluated)
        return (total / count.clamp_min(1), None, None)

    def create_model_card(self, *args, license=None, **kwargs):
        """Our card instead of Trainer's: it says how the model was made and how to load it."""
        if self.is_world_process_zero():
            write_model_card(Path(self.args.output_dir), repo_id=self.hub_model_id, license=license)

    # ---- checkpoints

    def _determine_best_metric(self, metrics, trial):
        """A new best model is saved at once, whatever save_steps says."""
        is_best = super()._determine_best_metric(metrics, trial)
        if is_best:
            self.control.should_save = True
        return is_best

    def _best_checkpoint(self) -> Path | None:
        """By its step, not by the path noted in the state: a run's folder may have been moved."""
        step = self.state.best_global_step
        folder = Path(self.args.output_dir) / f"checkpoint-{step}"
        return folder if step and folder.is_dir() else None

    def _load_best(self) -> None:
        best = self._best_checkpoint()
        if best is None:
            print(
                f"anyformer: the best checkpoint (step {self.state.best_global_step}) is gone; the last model is kept"
            )
            self.state.best_global_step = None
            return
        self.state.best_model_checkpoint = str(best)
        self._load_best_model()

    def load_average(self, number: int) -> int:
        """Give the model the mean of the weights of the newest `number` checkpoints; returns how many there were."""
        found = list_checkpoints(Path(self.args.output_dir))[:number]
        total: dict[str, torch.Tensor] = {}
        for checkpoint in found:
            for file in checkpoint.glob("model*.safetensors"):  # one, or the shards of a large model
                for name, tensor in load_file(file).items():
                    total[name] = total[name] + tensor if name in total else tensor
        mean = {name: tensor / len(found) if tensor.is_floating_point() else tensor for name, tensor in total.items()}
        self._issue_warnings_after_load(self.accelerator.unwrap_model(self.model).load_state_dict(mean, strict=False))
        return len(found)

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
                retire(folder, keep=self.args.save_total_limit, best=self._best_checkpoint())
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

"""AnyformerTrainer: transformers' Trainer with exact losses, atomic checkpoints and throughput in its log.

Differences from Trainer: a checkpoint is visible only when it is complete; a NaN loss stops the run with an error that
names step and rows; losses are exact per label, in evaluation and over accumulated batches, for every model; tokens per
second and MFU are logged; a new best model is saved at once, whatever save_steps says. Each of these is a class or
function in its own file, called where Trainer has a hook. The engine (engines/) decides how processes share the model.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from transformers import PrinterCallback, ProgressCallback, Trainer
from transformers.trainer_utils import get_last_checkpoint

from ..accounting.lora import is_adapted, plain, save_adapted_config
from ..data.batch_keys import EPOCH, ROW_IDS
from ..data.sample_ids import evaluation_batches, training_rows
from ..freed_memory import give_back
from ..objectives.documents_apart import without_cache
from ..objectives.learns import Learns
from ..objectives.scores import Scored, Scores
from ..patches import write
from ..plugins import OPTIMIZERS
from ..positions import counts_from_padding
from ..recipes.optimizer_rows import own_optimizer
from ..recipes.parallelism import reading_together
from ..recipes.schema import TrainingSection
from ..storage.checkpoints import check_intact, list_checkpoints
from ..transformers_logging import without_messages
from .arguments import refusals, rows_of
from .checkpoints.checkpoint_staging import CheckpointStaging, SaveTheBest, locate_best
from .checkpoints.resume import SAID_BY_TRAINER, ResumedSettings
from .checkpoints.run_folder import processes_of
from .checkpoints.safe_load import plain_data_alone
from .checkpoints.weight_average import WeightAverage, load_average
from .engines.elastic import draw_anew
from .engines.engine import Engine
from .engines.even_batches import SetEpochCallback, share_out_in_full_rounds
from .engines.main_process import broadcast_from_main
from .engines.whole import OneProcess
from .guards.audit import SampleAudit
from .guards.early_stopping import EarlyStopping
from .guards.keep_padding import KeepPadding
from .guards.loss_guard import LossGuard
from .guards.router_statistics import RouterStatistics
from .guards.stall_watchdog import StallWatchdog
from .guards.step_guard import StepGuard
from .guards.stop_signal import StopSignal
from .learning_rate import begin_above_zero, own_shares, replace_shares
from .log.progress import MetricsFile, ProgressLine, is_new, with_split_names
from .log.throughput_log import ThroughputLog
from .log.trackers import replace_trackers
from .losses.evaluation_sums import EvaluationSums, random_states_kept
from .losses.loss_parts import LossParts, parts_of_rows
from .losses.model_loss import ModelLoss
from .losses.validation_metrics import ValidationMetrics
from .models import transferred
from .optimizers import matrices_only
from .transfer import scale_rates


class AnyformerTrainer(Trainer):
    """Trainer for any model that learns from labels: packed rows, padded examples, source and target.

    Args:
        section: the settings that TrainingArguments does not have: the guards (guards/), optimizers and schedules of
            our own, rates that transfer, and a moving average of the weights, which validations measure and which is
            the model after training. None: the default settings, without stall watchdog and router warning.
        engine: DDP, DeepSpeed, FSDP or mesh (engines/): an error is raised where another would train; None: any may.
        learns: the loss, and what is saved beside the model (objectives/learns.py); None: the model's own loss.
        scores: what evaluation measures beside the loss (objectives/scores.py); None: only the loss is measured.
        measures: the validations (validation_metrics.py): their rows and scores, further metrics, and after how many of
            them without a better one the training ends. None: `eval_dataset` and `scores` alone.
        run_identity: JSON text saved in each checkpoint: recipe, versions, seed, data fingerprint.
        **kwargs: as for transformers' Trainer.

    Attributes: `scored` is what the last evaluation scored, `shifts_labels` whether labels are aligned with the inputs,
    so that the first of a row never counts; it is that of `learns`, if given.
    """

    shifts_labels = True
    scored: Scored | None = None
    last_pass: tuple | None = None  # the last evaluation of a whole split: (split, step, {name: value})
    _row_ids: "torch.Tensor | list[int]" = []  # of the batch whose loss is computed
    _sums: EvaluationSums | None = None  # of the evaluation that runs

    def __init__(
        self,
        *,
        section: TrainingSection | None = None,
        engine: Engine | None = None,
        learns: Learns | None = None,
        scores: Scores | None = None,
        measures: ValidationMetrics | None = None,
        run_identity: str = "{}",
        **kwargs,
    ):
        self.section = section = section or TrainingSection(stall_minutes=None, router_warning=None)
        self.engine = engine = engine or OneProcess(section)
        self.measures, self.scores = measures, scores
        if measures is not None:
            self.scores, kwargs["eval_dataset"] = measures.scores, measures.validated()
        self.own_loss = loss_parts = None
        if learns is not None:
            self.own_loss, loss_parts = learns.data.lesson or learns.loss(), learns.loss_parts()
            self.shifts_labels = learns.shifts_labels
            kwargs.setdefault("processing_class", learns.data.processor)
        self.own_optimizer = own_optimizer(section)
        if section.optim in OPTIMIZERS:  # a plug-in's
            kwargs["optimizer_cls_and_kwargs"] = OPTIMIZERS[section.optim], {"lr": section.learning_rate}
        self._use_cache = getattr(kwargs["model"].config, "use_cache", None)  # Trainer sets it to False for training
        self.rows = kwargs["train_dataset"] = training_rows(kwargs.get("train_dataset") or ())
        self.bare_rows = self.rows.rows
        self.rows.enter(kwargs)
        with engine.entered(kwargs), warnings.catch_warnings():
            # Trainer warns that it does not smooth several labels; our loss of them does (losses.SeveralLabels).
            warnings.filterwarnings("ignore", "Label smoothing is not compatible", UserWarning)
            super().__init__(**kwargs)
        self.accelerator.autocast_handler = engine.autocast
        args, folder = self.args, self.args.output_dir
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or ())  # a tied head is not saved a second time
        write(self.model, "_keys_to_ignore_on_save", self.model._keys_to_ignore_on_save | tied)
        self.scales = None if section.transfer is None else transferred(learns.recipe, learns.data, self.model)

        # The loss, and what is summed up of each step until the next log
        self._tr_loss = torch.zeros(())  # sum of losses since the last log; Trainer replaces it when training begins
        self.model_loss = ModelLoss(
            self.model,
            shifts_labels=self.shifts_labels,
            accepts_loss_kwargs=self.model_accepts_loss_kwargs,
            label_smoothing=args.label_smoothing_factor,
            own=self.own_loss,
            logits_of=loss_parts and loss_parts.logits_of,
        )
        if self.compute_loss_func is None:
            self.compute_loss_func = self.model_loss.function
        if self.own_loss is not None:
            self.model_accepts_loss_kwargs = False  # a base model takes no num_items_in_batch
        self.label_smoother = None  # Trainer's knows only the models of transformers that shift labels
        self._loss_shifts_labels = self.shifts_labels  # decides which labels Trainer counts for num_items_in_batch
        of_rows = None if engine.shares_rows else parts_of_rows(self.rows)
        self.parts = LossParts(loss_parts, of_rows, self.shifts_labels)
        self.routers = RouterStatistics(folder, section.router_warning, self.get_tp_size())
        self.own_rates = {}  # learning rates of the last step: Trainer logs only that of the optimizer's first group

        # Guards, checkpoints and the log
        self.guard = LossGuard(folder)
        self.steps = StepGuard(section, self.guard, (self.routers, self.parts))
        self.stop_signal = StopSignal(self.accelerator)
        self.watchdog = StallWatchdog(folder, section.stall_minutes, args.process_index)
        self.throughput = ThroughputLog(args, reading_together(section.parallelism), engine.flop_count(self.model))
        self.progress = ProgressLine()
        self.epochs = SetEpochCallback(self.train_dataset)
        self.staging = CheckpointStaging(run_identity, writes=args.should_save)
        self.resumed = ResumedSettings(run_identity)
        patience = None if measures is None else measures.patience
        self.early_stopping = None if patience is None else EarlyStopping(patience)
        has_average = section.ema_decay is not None
        self.average = WeightAverage(section.ema_decay, section.ema_warmup) if has_average else None
        audits = section.audit_samples and self.counts_rows
        self.audit = SampleAudit(folder, self.rows, args.process_index) if audits else None
        self._replace_callbacks()
        self.trackers = replace_trackers(self)
        engine.check_losses(self)

    def _replace_callbacks(self) -> None:
        for theirs in (PrinterCallback, ProgressCallback):
            self.remove_callback(theirs)
        for ours in (
            KeepPadding(plain(self.model).config.get_text_config()) if counts_from_padding(self.model) else None,
            self.watchdog,
            self.stop_signal,
            self.progress,
            self.epochs,
            MetricsFile(self.args.output_dir),
            self.routers,
            self.resumed,  # before the callbacks that read the best metric
            SaveTheBest(),
            self.early_stopping,
            self.average,
            self.audit,
        ):
            if ours is not None:
                self.add_callback(ours)

    @property
    def counts_rows(self) -> bool:
        """Whether this process is the first of those that read the same rows."""
        return self.args.process_index % self.engine.sharing == 0

    def get_train_dataloader(self):
        loader = super().get_train_dataloader()
        self.rows.begin_loading(loader)
        self.engine.share_rows(loader)
        share_out_in_full_rounds(loader)  # after share_rows, which sets how many processes read different rows
        return loader

    def _get_train_sampler(self, train_dataset=None):
        at_random = partial(super()._get_train_sampler, train_dataset)
        self.epochs.sampler = self.bare_rows.sampler(rows_of(self.args), self.args.seed, at_random)
        return self.epochs.sampler

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """As Trainer's, except that a loss of the objective is divided by its own count, `own_loss.weight`."""
        with self.throughput.loading():
            batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.own_loss is None or not batches:
            return batches, count
        count = sum(self.own_loss.weight(batch) for batch in batches).to(device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            count = self.accelerator.gather(count).sum()
        same_batch = self.get_tp_size() * self.get_cp_size() * self.get_sp_size()  # devices that have the same batch
        return batches, count / same_batch

    def get_eval_dataloader(self, eval_dataset=None):
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        with evaluation_batches(self.args, rows) as padded:
            loader = super().get_eval_dataloader(padded)
        self.engine.share_rows(loader)
        return loader

    def get_tp_size(self) -> int:
        together = self.engine.reading_together
        return super().get_tp_size() if together is None else together

    # ---- training

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        if resume_from_checkpoint:
            self.args.eval_on_start = False  # the start was measured; another validation would count for the patience
        for part in (self.rows, self.steps, self.resumed, self.average):
            if part is not None:
                part.begin(resume_from_checkpoint or None)
        self.throughput.start()
        try:
            with self._plain_data(), without_messages(*SAID_BY_TRAINER):
                result = super().train(resume_from_checkpoint, *args, **kwargs)
            self.accelerator.wait_for_everyone()  # until the main process has written the last checkpoint
            if self.state.best_global_step and self.has_ended and locate_best(self.state, self.args.output_dir):
                self.load_best()
            if self.average is not None:
                self.average.settle(self.model)
                self.average = None  # the model itself is the average from here on
            return result
        finally:
            self.stop_signal.close()
            self.watchdog.close()
            self.progress.close()
            self.model.config.use_cache = self._use_cache

    @property
    def stopped_early(self) -> bool:
        """Whether early stopping ended the training."""
        return self.early_stopping is not None and self.early_stopping.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether the training has no steps left."""
        return self.stopped_early or self.state.global_step >= self.state.max_steps

    def _plain_data(self):
        return plain_data_alone(self.is_deepspeed_enabled and not self.engine.trusts_checkpoints)

    def _run_epoch(self, *args, resume_from_checkpoint=None, epoch, epochs_trained, **kwargs):
        """A run that was killed after its last step resumes without a step; Trainer would train one step too many."""
        self.engine.check_begun(self)
        if self.has_ended:
            self._load_rng_state(resume_from_checkpoint)
            self.control.should_training_stop = True
            return
        if resume_from_checkpoint is not None and epoch == epochs_trained:
            before = processes_of(Path(resume_from_checkpoint))
            if before not in (None, self.args.world_size):  # its random states do not fit another number of processes
                draw_anew(self.args.seed, self.state.global_step, self.args.process_index // self.get_tp_size())
                resume_from_checkpoint = self.args.output_dir  # a folder without random states, so none are loaded
        epochs = {"epoch": epoch, "epochs_trained": epochs_trained}
        super()._run_epoch(*args, resume_from_checkpoint=resume_from_checkpoint, **epochs, **kwargs)

    def _sync_replicated_trainable_parameters(self, model):
        if self.engine.repeats_weights:
            super()._sync_replicated_trainable_parameters(model)

    def training_step(self, model, inputs, num_items_in_batch=None):
        rows = self._row_ids = inputs.pop(ROW_IDS, [])
        inputs.pop(EPOCH, None)
        self.rows.trained(inputs)
        if self.audit is not None:
            self.audit.trained(self.state.global_step + 1, int(self.rows.epoch(self.state.epoch) or 0), rows)
        self.throughput.add_batch(self.model, inputs)
        self.steps.remember(self.state.global_step + 1, self._tr_loss)
        loss = self.engine.train_step(self, inputs, num_items_in_batch)
        if loss is None:
            loss = super().training_step(model, inputs, num_items_in_batch)
        self.guard.watch(self.state.global_step + 1, loss, rows)
        give_back(self.args.device.type)
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        """Trainer calls this last before the optimizer: a bad step loses its gradients here, so it changes nothing."""
        if self.own_optimizer is not None:
            self.own_rates = self.own_optimizer.rates_of(self.optimizer)
        clipped = self.engine.clip(self)
        norm = super()._get_grad_norm(model, grad_norm=grad_norm if clipped is None else clipped)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        verdict = self.steps.judge(self.state.global_step + 1, norm, self.accelerator)
        if verdict is not None:
            self.steps.count(verdict, speaks=self.accelerator.is_main_process)
            if verdict.why is not None:
                self.steps.undo(verdict.step, self._tr_loss)
                model.zero_grad(set_to_none=True)
        return norm

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs = self.model_loss.model_inputs(inputs)
        labels = inputs.get("labels")  # before inputs_for_logits, which may put the whole batch in their place
        if self.compute_loss_func is not None:
            inputs = self.model_loss.inputs_for_logits(inputs)
        elif self.model.training:
            inputs = {**inputs, **self.model_loss.training_extras}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.model.training:
            self.routers.add(outputs, self.throughput.batch_tokens)
            self.parts.add(outputs, inputs, num_items_in_batch)
            if self.parts.of_rows is not None:
                self.parts.add_rows(*self.model_loss.of_rows(outputs), labels, self._row_ids)
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self, model=None):
        fresh, built = self.optimizer is None, self.model if model is None else model
        if fresh and self.own_optimizer is not None:
            self.optimizer = self.own_optimizer.build(built, set(self.get_decay_parameter_names(built)), self.args)
        with refusals():
            optimizer = super().create_optimizer(model)
        if fresh and self.scales is not None:
            scale_rates(optimizer, built, self.scales)
        return optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        fresh = self.lr_scheduler is None
        with refusals():
            scheduler = super().create_scheduler(num_training_steps, optimizer)
        share = self.share_of_steps(num_training_steps) if fresh else None
        if share is not None:
            replace_shares(scheduler, [share] * len(scheduler.base_lrs))
        elif fresh:
            begin_above_zero(scheduler, self.args.get_warmup_steps(num_training_steps))
        return scheduler

    def share_of_steps(self, total: int) -> Callable[[int], float] | None:
        """step -> share of the peak learning rate, in a run of `total` steps; None: as args.lr_scheduler_type says."""
        return own_shares(self.section, total)

    def get_decay_parameter_names(self, model) -> list[str]:
        """Weight decay applies to matrices only: to no biases, norm weights, vectors of positions or of token norms."""
        return matrices_only(model, super().get_decay_parameter_names(model))

    # ---- the log

    def log(self, logs, start_time=None):
        self.state.epoch = self.rows.epoch(self.state.epoch)
        if "loss" in logs or "train_loss" in logs:
            self.steps.count_steps(logs, self.state)
        if "loss" in logs:
            self.guard.check()
            logs.update(self.own_rates | self.engine.norms_of_parts())
            logs.update(self.throughput.collect(self.accelerator.reduce, self.accelerator.gather))
            # Computed from the step's number, so that a resumed run needs no stored counts.
            logs.update({f"tokens_{name}": n for name, n in self.source_tokens(self.state.global_step).items()})
            logs.update(self.routers.collect(self.state.global_step, self.accelerator.reduce))
            logs.update(self.parts.collect(self.accelerator.reduce))
            self.steps.collect(logs, speaks=self.is_world_process_zero())
        logs = with_split_names(logs)
        if "loss" in logs or "train_loss" in logs or is_new(logs, self.state):
            super().log(logs, start_time)

    def source_tokens(self, steps: int) -> dict[str, int]:
        """The tokens of each source that the first steps train; {} for rows without sources."""
        return self.bare_rows.tokens_after(steps, rows_of(self.args))

    def floating_point_ops(self, inputs) -> int:
        return 0  # ThroughputLog counts them, without waiting for the device

    def store_flos(self):
        self.current_flos = self.throughput.new_flops()
        super().store_flos()

    # ---- evaluation

    def evaluation_loop(self, dataloader, *args, metric_key_prefix="eval", **kwargs):
        has_average = self.average is not None and self.average.weights  # empty before training begins
        averaged = self.average.swapped_in(self.model) if has_average else nullcontext()
        undrawn = random_states_kept(self.args.device) if self.state.global_step == 0 else nullcontext()
        with self.throughput.paused(), averaged, without_cache(self.model), undrawn:
            self._sums = EvaluationSums(self, dataloader.dataset)
            output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
            metrics, self.scored = self._sums.metrics(self.accelerator)
            if self.measures is not None:
                metrics |= self.measures.measure(metrics, self, metric_key_prefix)
            numbered = dataloader.dataset.dataset
            self.last_pass = None if numbered.chosen else (numbered.split, self.state.global_step, metrics)
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        return output

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        give_back(self.args.device.type)
        rows = inputs.pop(ROW_IDS, None)
        inputs.pop(EPOCH, None)
        if not prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        count = self.model_loss.count(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            total = self.engine.summed_loss(self, inputs)
            if total is not None:
                self._sums.add(total, count)
            elif self.parts.told_apart_by is not None:
                outputs = self.model_loss.outputs(model, inputs)
                total = self._sums.add_parts(outputs, inputs, *self.model_loss.of_rows(outputs), rows)
            else:
                needed = self._sums.scores is not None, self._sums.parts.of_rows is not None
                total, *of_rows = self.model_loss.sum(model, inputs, *needed)
                self._sums.add(total, count, *of_rows, inputs["labels"], rows)
        return (total / count.clamp_min(1), None, None)

    # ---- checkpoints

    def load_best(self) -> None:
        """Give the model the weights of the best checkpoint."""
        best, words = Path(self.state.best_model_checkpoint), f"the best by {self.args.metric_for_best_model}"
        self._check_intact([best], words, "keeps the last model")
        if self.state.best_global_step != self.state.global_step:
            self.last_pass = None
        with self._plain_data():
            if not self.engine.load_weights(self, best):
                self._load_best_model()
        if self.average is not None:
            self.average.load(best)

    def load_average(self, number: int) -> int:
        """Give the model the mean weights of the newest `number` checkpoints; returns how many there were."""
        model = self.accelerator.unwrap_model(self.model)
        newest = list_checkpoints(Path(self.args.output_dir))[:number]
        self._check_intact(newest, "one of those to average", "averages the others")
        result = load_average(model, newest)
        self.last_pass = None
        if result is not None:
            self._issue_warnings_after_load(result)
        return len(newest)

    def _check_intact(self, *checkpoints_and_words) -> None:
        broadcast_from_main(self.is_world_process_zero(), partial(check_intact, *checkpoints_and_words))

    def _save_checkpoint(self, model, trial):
        folder, name = Path(self.args.output_dir), f"checkpoint-{self.state.global_step}"
        with self.throughput.paused():
            self.guard.check()
            self.guard.check_weights(self.model, self.state.global_step)
            with self.staging.stage(self.args, name) as staged:
                super()._save_checkpoint(model, trial)
                self.rows.save(staged, self.accelerator)
                if self.args.should_save:
                    self.steps.save(staged)
                    if self.average is not None:
                        self.average.save(staged)
                self.accelerator.wait_for_everyone()
                self.staging.commit(staged, self.state, self.args.save_total_limit)
            self.accelerator.wait_for_everyone()
            if self.args.push_to_hub:
                self._push_from_checkpoint(str(folder / name))

    def _save_optimizer_and_scheduler(self, output_dir):
        if not self.engine.save_states(self, Path(output_dir)):
            super()._save_optimizer_and_scheduler(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is not None and not self.engine.load_states(self, Path(checkpoint)):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        if not self.engine.load_weights(self, Path(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def save_model(self, output_dir=None, _internal_call=False):
        # The saved model must generate with its original value.
        config, training = self.model.config, self.model.config.use_cache
        folder, config.use_cache = Path(output_dir or self.args.output_dir), self._use_cache
        try:
            if not self.engine.save_weights(self, folder):
                super().save_model(output_dir, _internal_call)
            if self.args.should_save and is_adapted(self.model):
                save_adapted_config(self.model, folder)
        finally:
            config.use_cache = training

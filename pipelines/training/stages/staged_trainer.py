"""StagedTrainer: rows, batches and weight decay change between the stages of a run.

Each stage is one epoch of Trainer's loop, with the loader and the numbers of batches and steps of that stage. So steps,
logs, validations and checkpoints are made by the same code as in every run; a resumed run begins in the stage of its
step, and skips the batches that this stage has trained, as Trainer does within an epoch.
"""

from ..trainer import AnyformerTrainer
from .stage_run import StagedTraining


class StagedTrainer(AnyformerTrainer):
    """The trainer of a run with stages. Args: stages; the others are AnyformerTrainer's."""

    def __init__(self, *, stages: StagedTraining, **kwargs):
        self.stages = stages
        super().__init__(**kwargs)
        self.progress.work = stages.work

    def train(self, *args, **kwargs):
        sizes = self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps
        try:
            return super().train(*args, **kwargs)
        finally:  # outside training they hold the recipe's values
            self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps = sizes

    def set_initial_training_values(self, args, dataloader):
        _, *others = super().set_initial_training_values(args, dataloader)
        return len(self.stages.runs), *others

    def _init_training_state(self, max_steps, *args, **kwargs):
        super()._init_training_state(max_steps, *args, **kwargs)
        step, run = self.state.global_step, self.stages.at(self.state.global_step)
        return run.stage.number, max(0, step - run.stage.begin) * run.accumulated if step < max_steps else 0

    def get_train_dataloader(self):
        run, before = self.stages.current, (self.data_collator, self._train_batch_size)
        self.data_collator, self._train_batch_size = self.stages.collator(run.data), run.micro_batch
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator, self._train_batch_size = before  # validations use those of the recipe

    def _get_train_sampler(self, train_dataset=None):
        return self.stages.current.numbers

    def _run_epoch(self, *args, epoch, **kwargs):
        run = self.stages.current = self.stages.runs[epoch]
        self.args.per_device_train_batch_size = run.micro_batch
        self.args.gradient_accumulation_steps = run.accumulated
        self.stages.set_weight_decay(self.optimizer, self.args.weight_decay)
        if self.is_world_process_zero() and not self.has_ended:
            self.progress.say(f"stage {epoch + 1} of {len(self.stages.runs)}: {run.words()}")
        loader = self.callback_handler.train_dataloader = self.get_train_dataloader()
        new = {"train_dataloader": loader, "steps_in_epoch": len(loader), "num_update_steps_per_epoch": run.stage.steps}
        super()._run_epoch(*args, epoch=epoch, **(kwargs | new))

    def source_tokens(self, steps):
        return self.stages.rows.tokens_before(self.stages.trained(steps))

    def share_of_steps(self, total):
        return super().share_of_steps(total) if self.stages.shares is None else self.stages.shares(total)

    def create_optimizer(self, model=None):
        fresh = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if fresh:
            self.stages.remember(self.optimizer)
        return optimizer

    def training_step(self, *args, **kwargs):
        self.state.epoch = self.stages.passes(self.state.global_step)  # Trainer counts a stage as an epoch
        return super().training_step(*args, **kwargs)

    def log(self, logs, start_time=None):
        self.state.epoch = self.stages.passes(self.state.global_step)
        if "loss" in logs:
            logs["stage"] = self.stages.current.stage.number + 1
        super().log(logs, start_time)

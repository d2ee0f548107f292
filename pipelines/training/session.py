"""The session of a run: the objects that are made once from its recipe, such as engine, data and trainer."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from transformers import TrainingArguments

from ..adapters import weights_identity
from ..data.rows import Rows, steps_of_epoch
from ..errors import UserError
from ..generation import locate_model
from ..likelihoods.minimal_pairs import MinimalPairs, open_pairs
from ..objectives.data import Data, is_packed
from ..objectives.prepare import cache_of, prepare_data
from ..plugins import OPTIMIZERS, SCHEDULES
from ..recipes.checks import check_schedule
from ..recipes.parallelism import check_processes, words_of
from ..recipes.schema import MINIMAL_PAIRS, Recipe
from ..recipes.secrets import without_signatures
from ..recipes.usual_rates import settled
from ..storage.cache import sha
from ..storage.record import data_identity
from .arguments import data_ranks, rows_of, total_steps, training_arguments
from .checkpoints.going_on import with_values_of_run
from .checkpoints.run_folder import RunFolder
from .engines.asked import check_one_device, engine_for
from .engines.deepspeed_engine import gather_experts_whole, start_deepspeed
from .engines.engine import Engine
from .engines.main_process import broadcast_from_main
from .engines.parts_of_rows import check_rows_can_be_shared
from .learning_rate import share_of_steps
from .stages.stage_run import StagedTraining, StageRun, rows_of_run, stage_runs


@dataclass
class Session:
    """One run in this process. `data` is None until `prepare`.

    began: time.monotonic() when the command began (monotonic: the clock may be set back). stages: the stages of the
    recipe as this run trains them. staged: tracks the stage that is trained. pairs: those of evaluation.minimal_pairs.
    """

    recipe: Recipe
    engine: Engine
    arguments: TrainingArguments
    folder: RunFolder
    began: float
    quiet: bool = False
    data: Data | None = None
    stages: list[StageRun] = field(default_factory=list)
    staged: StagedTraining | None = None
    pairs: MinimalPairs | None = None

    @classmethod
    def of(cls, recipe: Recipe, began: float, quiet: bool) -> "Session":
        """Make the session and start the process group; raises UserError for a recipe that cannot be trained here."""
        section, engine = recipe.training, engine_for(recipe.training)
        recipe = with_values_of_run(recipe)
        arguments = training_arguments(recipe, engine)
        check_one_device(arguments.n_gpu)
        if section.parallelism is not None:
            check_processes(section.parallelism, arguments.world_size, f"WORLD_SIZE={arguments.world_size}")
        return cls(recipe, engine, arguments, RunFolder(recipe, {}), began, quiet)

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.arguments.process_index == 0

    def from_main(self, look):
        """Call `look` in the main process only; all processes return its result, or raise its UserError."""
        return broadcast_from_main(self.is_main, look)

    def prepare(self, per_step: int | None = None) -> None:
        """Prepare the data, in the main process first.

        per_step: rows of a step of a resumed run, which may have had another number of processes; None: as the recipe
        says.
        """
        recipe = self.recipe
        if recipe.model.name_or_path is not None:
            from .models import check_rows_fit

            locate_model(recipe.model.name_or_path, "model.name_or_path")
            check_rows_fit(recipe)
        cache_of(recipe)  # where the hashes of the data are kept
        self.folder.read = self.from_main(partial(data_identity, recipe.to_dict()))  # as it was before it was read
        with self.arguments.main_process_first(local=False, desc="preparing data"):
            if recipe.evaluation.minimal_pairs is not None:
                self.pairs = open_pairs(recipe.evaluation.minimal_pairs)
            self.data = prepare_data(recipe, progress=self.is_main and sys.stdout.isatty(), for_training=True)
        for name, section in (("base_weights", recipe.model), ("teacher_weights", recipe.teacher)):
            if section is not None and section.name_or_path is not None:
                alone = section is recipe.model
                self.data.facts[name] = self.from_main(partial(weights_identity, section.name_or_path, alone=alone))
        validated = [rows.identity for split, rows in self.data.rows.items() if split == "validation"]
        if recipe.evaluation.best_metric == MINIMAL_PAIRS and self.pairs is not None:
            validated = [self.pairs.good, self.pairs.bad]
        if validated:
            self.data.facts["validated_on"] = sha(validated)
        if per_step not in (None, rows_of(self.arguments)):
            self.arguments = training_arguments(recipe, self.engine, per_step)
        folder, rows = self.folder, self.data.rows["train"]
        folder.data, folder.rows_per_step = self.data.facts, rows_of(self.arguments)
        per_epoch = steps_of_epoch(rows.in_epoch, folder.rows_per_step)
        recipe = self.settle(per_epoch)
        folder.total_steps = partial(total_steps, per_epoch=per_epoch)
        total = folder.total_steps(recipe.training)
        if total is not None:
            check_schedule(recipe.training, total)
        check_rows_can_be_shared(recipe, rows)
        batch = self.arguments.train_batch_size * data_ranks(recipe.training, self.arguments.world_size)
        if self.arguments.dataloader_drop_last and rows.in_epoch < batch:
            raise UserError(
                f"training.parallelism={words_of(recipe.training.parallelism)} needs whole batches of {batch} rows, "
                f"and the data has {len(rows)}; lower training.per_device_train_batch_size"
            )
        ranks = data_ranks(recipe.training, self.arguments.world_size)
        self.stages = stage_runs(self.data.stages, ranks, rows_of(self.arguments))
        for run in self.stages:
            check_rows_can_be_shared(run.stage.recipe, run.rows)
        start_deepspeed(self.arguments)

    def settle(self, per_epoch: int | None) -> Recipe:
        """Settle the values of the session's recipe that depend on the data's size. per_epoch: steps of an epoch."""
        recipe = settled(self.recipe, per_epoch)
        if recipe != self.recipe:
            self.recipe = self.folder.recipe = recipe
            self.arguments = training_arguments(recipe, self.engine, rows_of(self.arguments))
        return recipe

    def identity_text(self) -> str:
        """The JSON text that identifies the run in each checkpoint."""
        sizes = {"world_size": self.arguments.world_size, "rows_per_step": rows_of(self.arguments)}
        return json.dumps(self.folder.identity() | sizes)

    def facts_of_stages(self) -> dict:
        """The entry of run.json about the stages; {} without stages."""
        return {"stages": [run.facts() for run in self.stages]} if self.stages else {}

    def collator(self, data: Data):
        """The collator for the rows of some data under this engine."""
        return self.engine.collator(data.collator_of(is_packed(self.data)))

    def adjust(self, recipe: Recipe, model) -> Callable | None:
        """The function (optimizer, model) that scales a new optimizer's rates by training.transfer, if that is set."""
        from .models import transferred
        from .transfer import scale_rates

        if recipe.training.transfer is None:
            return None
        return partial(scale_rates, scales=transferred(recipe, self.data, model))

    def trainer(
        self,
        model,
        recipe: Recipe | None = None,
        arguments: TrainingArguments | None = None,
        trained: Rows | None = None,
        data: Data | None = None,
    ):
        """The trainer of a model. The other arguments replace those of the run in a trial; None: those of the run."""
        from .compiled_layers import CompiledLayers
        from .log.trackers import keep_in_run
        from .lora import plain
        from .losses.validation_metrics import ValidationMetrics
        from .trainer import AnyformerTrainer

        recipe, arguments = recipe or self.recipe, arguments or self.arguments
        section, data, rows = recipe.training, data or self.data, self.data.rows
        if self.pairs is not None:
            self.pairs.check(plain(model), data.tokenizer)
        scores = data.scores()
        measures = ValidationMetrics(data, scores, rows.get("validation"), recipe.evaluation, self.pairs)
        gather_experts_whole(model)
        of_stages = any(stage.learning_rate is not None for stage in recipe.stages)
        own_schedule = of_stages or section.restarts or section.lr_scheduler_type in SCHEDULES
        of_plugin = (OPTIMIZERS[section.optim], {"lr": section.learning_rate}) if section.optim in OPTIMIZERS else None
        if "trackio" in arguments.report_to:
            keep_in_run(arguments.output_dir)
        trained, trainer_class = trained or rows["train"], AnyformerTrainer
        if recipe.stages:
            from .stages.staged_trainer import StagedTrainer

            trained = rows_of_run(self.stages, section.seed)
            self.staged = StagedTraining(self.stages, trained, self.collator)
            trainer_class = partial(StagedTrainer, stages=self.staged)
        trainer = trainer_class(
            model=model,
            args=arguments,
            train_dataset=trained,
            eval_dataset=measures.validated(),
            data_collator=self.collator(data),
            processing_class=self.data.processor,
            engine=self.engine,
            run_identity=self.identity_text(),
            adjust=self.adjust(recipe, model),
            optimizer_cls_and_kwargs=of_plugin,
            shares=partial(share_of_steps, recipe) if own_schedule else None,
            patience=recipe.evaluation.patience,
            section=section,
            trusts_checkpoints=recipe.trust_remote_code,
            validation_metrics=measures,
            learns=data.learns(),
            scores=scores,
        )
        for tracker in trainer.trackers:
            tracker.recipe = without_signatures(recipe.to_dict())
        if section.torch_compile:
            trainer.add_callback(CompiledLayers(section))
        return trainer

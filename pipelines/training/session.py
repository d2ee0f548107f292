"""The session of a run: the objects that are made once from its recipe, such as engine, data and trainer."""

import json
from dataclasses import dataclass, field
from functools import partial

from transformers import TrainingArguments

from ..accounting.lora import plain, with_base
from ..adapters import weights_identity
from ..data.rows import steps_of_epoch
from ..errors import UserError
from ..generation import locate_model
from ..likelihoods.minimal_pairs import MinimalPairs, open_pairs
from ..likelihoods.without_logits import without_logits
from ..objectives.data import Data, is_packed
from ..objectives.prepare import cache_of, prepare_data
from ..recipes.checks import check_schedule
from ..recipes.parallelism import check_processes, words_of
from ..recipes.schema import MINIMAL_PAIRS, Recipe
from ..recipes.secrets import without_signatures
from ..recipes.usual_rates import settled
from ..storage.cache import sha
from ..storage.record import data_identity
from .arguments import data_ranks, rows_of, settle, total_steps, training_arguments
from .checkpoints.resume import Resume, rows_per_step_before
from .checkpoints.run_folder import RunFolder
from .compiled_layers import CompiledLayers
from .engines.asked import check_one_device, engine_for
from .engines.deepspeed_engine import whole_weights
from .engines.engine import Engine
from .engines.fsdp import as_accelerate_asks
from .engines.main_process import broadcast_from_main
from .engines.parts_of_rows import check_rows_can_be_shared
from .learning_rate import share_of_steps
from .log.trackers import keep_in_run
from .losses.validation_metrics import ValidationMetrics
from .models import check_rows_fit
from .stages.stage_run import StagedTraining, StageRun, rows_of_run, stage_runs
from .stages.staged_trainer import StagedTrainer
from .trainer import AnyformerTrainer


@dataclass
class Session:
    """One run in this process. `data` and `resume` are None until `prepare`.

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
    resume: Resume | None = None

    @classmethod
    def of(cls, recipe: Recipe, began: float, quiet: bool = False, is_trial: bool = False) -> "Session":
        """Choose the engine, and start the process group with the run's TrainingArguments.

        is_trial: whether nothing is resumed. Raises UserError for a recipe that cannot be trained here.
        """
        recipe = as_accelerate_asks(recipe)
        section = recipe.training
        engine = engine_for(section, trusts_checkpoints=recipe.trust_remote_code)
        # A resumed run has the rows per step of before, also if it had another number of processes then.
        arguments = training_arguments(recipe, engine, None if is_trial else rows_per_step_before(recipe))
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

    def prepare(self) -> None:
        """Prepare the data, in the main process first, and settle what depends on their size."""
        recipe = self.recipe
        if recipe.model.name_or_path is not None:
            locate_model(recipe.model.name_or_path, "model.name_or_path")
            check_rows_fit(recipe)
            self.recipe = recipe = with_base(recipe)
            self.engine.check_base(recipe.training.lora)
        cache_of(recipe)  # where the hashes of the data are kept
        self.folder.read = self.from_main(partial(data_identity, recipe.to_dict()))  # as it was before it was read
        with self.arguments.main_process_first(local=False, desc="preparing data"):
            if recipe.evaluation.minimal_pairs is not None:
                self.pairs = open_pairs(recipe.evaluation.minimal_pairs)
            self.data = prepare_data(recipe, for_training=True)
        rows, folder = self.data.rows["train"], self.folder
        self.add_facts()
        folder.data, per_step = self.data.facts, rows_of(self.arguments)
        per_epoch = steps_of_epoch(rows.in_epoch, per_step)
        steps = partial(total_steps, per_epoch=per_epoch)
        self.recipe = folder.recipe = recipe = settled(recipe, per_epoch)
        settle(self.arguments, recipe, validates="validation" in self.data.rows)
        self.resume = Resume(folder, self.engine, self.arguments.world_size, per_step, steps)
        total = steps(recipe.training)
        if total is not None:
            check_schedule(recipe.training, total)
        self.stages = stage_runs(self.data.stages, self.ranks, per_step)
        self.check_rows()
        self.engine.start(self.arguments)

    def add_facts(self) -> None:
        """Add to the data's facts the weights that the run begins from or learns from, and what validations measure."""
        recipe, facts = self.recipe, self.data.facts
        for name, section in (("base_weights", recipe.model), ("teacher_weights", recipe.teacher)):
            if section is not None and section.name_or_path is not None:
                alone = section is recipe.model
                facts[name] = self.from_main(partial(weights_identity, section.name_or_path, alone=alone))
        validated = [rows.identity for split, rows in self.data.rows.items() if split == "validation"]
        if recipe.evaluation.best_metric == MINIMAL_PAIRS and self.pairs is not None:
            validated = [self.pairs.good, self.pairs.bad]
        if validated:
            facts["validated_on"] = sha(validated)

    @property
    def ranks(self) -> int:
        """The number of processes that read different rows."""
        return data_ranks(self.recipe.training, self.arguments.world_size)

    def check_rows(self) -> None:
        """Raise UserError for rows that the engine cannot share, or too few of them."""
        rows = self.data.rows["train"]
        check_rows_can_be_shared(self.recipe, rows)
        batch = self.arguments.train_batch_size * self.ranks
        if self.arguments.dataloader_drop_last and rows.in_epoch < batch:
            raise UserError(
                f"training.parallelism={words_of(self.recipe.training.parallelism)} needs whole batches of {batch} "
                f"rows, and the data has {len(rows)}; lower training.per_device_train_batch_size"
            )
        for run in self.stages:
            check_rows_can_be_shared(run.stage.recipe, run.rows)

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

    def trainer(self, model):
        """The trainer of a model."""
        recipe, arguments, data = self.recipe, self.arguments, self.data
        if self.pairs is not None:
            self.pairs.check(plain(model), data.tokenizer)
        if "trackio" in arguments.report_to:
            keep_in_run(arguments.output_dir)
        trained, trainer_class = data.rows["train"], AnyformerTrainer
        if recipe.stages:
            trained = rows_of_run(self.stages, recipe.training.seed)
            of_stages = any(stage.learning_rate is not None for stage in recipe.stages)
            shares = partial(share_of_steps, recipe) if of_stages else None
            self.staged = StagedTraining(self.stages, trained, self.collator, shares)
            trainer_class = partial(StagedTrainer, stages=self.staged)
        with whole_weights(arguments):  # of the tiny twin
            why = without_logits(plain(model))
        if why and self.is_main and not self.quiet:
            print(why)
        trainer = trainer_class(
            model=model,
            args=arguments,
            train_dataset=trained,
            data_collator=self.collator(data),
            section=recipe.training,
            engine=self.engine,
            learns=data.learns(),
            measures=ValidationMetrics(data, data.scores(), data.rows.get("validation"), recipe.evaluation, self.pairs),
            run_identity=self.identity_text(),
        )
        for tracker in trainer.trackers:
            tracker.recipe = without_signatures(recipe.to_dict())
        if recipe.training.torch_compile:
            trainer.add_callback(CompiledLayers(recipe.training))
        return trainer

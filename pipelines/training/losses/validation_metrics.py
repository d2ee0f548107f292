"""The metrics of validations besides the loss."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from accelerate.utils import gather_object
from torch.utils.data import Dataset, Subset

from ...accounting.lora import plain
from ...data.rows import evenly_spread
from ...errors import UserError
from ...likelihoods.minimal_pairs import MinimalPairs, is_right
from ...metrics import of_validations
from ...objectives.answers import FinishedModel
from ...objectives.base import Objective
from ...objectives.data import Data
from ...objectives.scores import Scores
from ...recipes.schema import MINIMAL_PAIRS, EvaluationSection


class ValidationMetrics:
    """Metrics of the validations of one training: of the pass over the rows, of minimal pairs, and of generated answers
    if the best model is chosen by them.

    names: the metrics that the log of a validation may hold. rows: the validation split or None. patience: training
    ends after this many validations without a better best_metric; None: never.

    Raises UserError if the best model is to be chosen by a metric that applies to none of the rows.
    """

    def __init__(
        self,
        data: Data,
        scores: Scores,
        rows: Dataset | None,
        section: EvaluationSection,
        pairs: MinimalPairs | None = None,
    ):
        objective = data.objective
        self.scores, self.tokenizer = scores, data.tokenizer
        self.rows, self.most, self.pairs = rows, section.max_rows, pairs
        self.patience = section.patience
        self.of_pass, answered = of_validations(objective), objective.metrics_of_answers()
        self.of_answers = answered if section.best_metric in answered else []
        self.names = list(dict.fromkeys([*section.metrics, *self.of_answers, *([MINIMAL_PAIRS] if pairs else [])]))
        if self.of_answers and rows is not None and section.best_metric in self._unanswered(objective):
            raise UserError(
                f"evaluation.best_metric={section.best_metric} has no row to be measured on: none of the "
                f"{len(self.numbers):,} rows that are validated is of its part; give the part validation data, or "
                f"raise evaluation.max_rows"
            )

    def _unanswered(self, objective: Objective) -> list[str]:
        """The metrics of answers of parts that none of the validated rows is of."""
        present = {self.rows.place(number)[0] for number in self.numbers}
        missing = {name: part for name, part in objective.parts.items() if name not in present}
        return [f"{metric}_{name}" for name, part in missing.items() for metric in part.metrics_of_answers()]

    @cached_property
    def numbers(self) -> Sequence[int]:
        """The numbers of the rows that are validated, spread over the split: the first rows would be of few documents,
        whose loss says little about the rest."""
        total = len(self.rows)
        return range(total) if self.most is None else evenly_spread(total, self.most)

    def validated(self) -> Dataset | None:
        if self.rows is None or self.most is None or self.most >= len(self.rows):
            return self.rows
        return Subset(self.rows, self.numbers)

    def measure(self, result: dict[str, float], trainer, split: str) -> dict[str, float]:
        """The metrics of a validation; the trainer's model is in evaluation mode.

        result: {"loss", "nll", "predictions"} of the pass over the rows. split: "eval" during training, afterwards the
        name of the split. Answers are measured here only during training: those of the finished model come later.
        """
        metrics = {}
        if split == "eval" and self.of_answers:
            with self._answering(trainer) as model:
                metrics = dict(self.scores.of_answers(model, self.rows, self.numbers).values)
        if split in ("eval", "validation") and self.pairs is not None:
            with self._answering(trainer) as model:
                metrics[MINIMAL_PAIRS] = self._share_of_pairs(model)
        if "loss" in result:  # it is missing if no row has a label
            metrics |= self.scores.of_pass(self.of_pass, result, self.validated(), None)
        return metrics

    def _share_of_pairs(self, answering: FinishedModel) -> float:
        def right(numbers: list[int]) -> list[bool]:
            return list(map(is_right, self.pairs.scores(answering.model, self.tokenizer, numbers)))

        are_right = answering.shared(range(len(self.pairs)), right)
        return sum(are_right) / len(are_right)

    @contextmanager
    def _answering(self, trainer) -> Iterator[FinishedModel]:
        """The model in training as a FinishedModel, which generates answers; processes share the questions."""
        model, args = trainer.accelerator.unwrap_model(trainer.model), trainer.args
        share = args.process_index, args.world_size, gather_object
        answering = FinishedModel(args.output_dir, lambda: model, args.per_device_eval_batch_size, *share)
        # The hook is on the inner model, because a wrapper's `generate` calls that. It tells the watchdog of progress.
        beat = plain(model).register_forward_hook(lambda *_: trainer.watchdog.beat(trainer.state, "an answer went on"))
        try:
            # Eager, because compiled layers would be compiled again for each length of an answer.
            with torch.compiler.set_stance("force_eager"):
                yield answering
        finally:
            beat.remove()

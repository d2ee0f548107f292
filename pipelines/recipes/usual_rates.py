"""Default learning rates and epochs by what is trained, for recipes that set none; and epochs converted to steps.

The values are those of papers and examples: 2e-5 to 5e-5 over three epochs for BERT and transformers' run_glue.py, 1e-4
to 2e-4 for LoRA (Hu et al. 2021, Dettmers et al. 2023), 2e-5 for decoders that learn instructions (Taori et al. 2023).
A few hundred examples of a classifier need more epochs (Mosbach et al. 2021 train for 20); of an LLM that learns
instructions or preferences they do not: it would know them by heart.
"""

import json
from bisect import bisect_left
from pathlib import Path

from ..errors import UserError
from ..plugins import OBJECTIVES
from ..words import counted, epochs_of
from .schema import ObjectiveSettings, Recipe
from .stage_plan import LENGTH, stages_of
from .types import show

MOST_STEPS = 10**12
PRETRAINED_EPOCHS, MOST_EPOCHS = 3, 20  # of many examples and of few
RATES = {
    "fresh weights": 1e-3,
    "an adapter (LoRA)": 2e-4,
    "a pretrained image model": 5e-5,
    "a pretrained decoder": 2e-5,
    "a pretrained encoder": 5e-5,
}


def what_is_trained(recipe: Recipe) -> str:
    """What a recipe trains, as a key of RATES."""
    objective = OBJECTIVES[recipe.learned.name]
    name = recipe.model.name_or_path
    if name is None:
        return "fresh weights"
    if recipe.training.lora is not None:
        return "an adapter (LoRA)"
    if objective.tokens is None:
        return "a pretrained image model"
    try:  # the classes named in a local folder's config; errors are reported when the model is loaded
        heads = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))["architectures"] or []
    except (OSError, ValueError, KeyError, TypeError):
        heads = []
    heads = [objective.auto_class, *heads]  # where auto_class depends on the model it is a property, not text
    is_decoder = any(str(head).endswith(("ForCausalLM", "LMHeadModel")) for head in heads)
    return "a pretrained decoder" if is_decoder else "a pretrained encoder"


def choose(recipe: Recipe, left_open: set[str]) -> Recipe:
    """The recipe with its open learning rate; a checkpoint's epochs are "auto" until the rows are known (`settled`).

    left_open: which of learning_rate and num_train_epochs the recipe does not set, or sets to auto.
    """
    kind = what_is_trained(recipe)
    values = {}
    if "learning_rate" in left_open:
        values["learning_rate"] = RATES[kind] * recipe.learned.share_of_usual_rate
    if "num_train_epochs" in left_open and recipe.training.max_steps < 1:
        values["num_train_epochs"] = 1.0 if recipe.model.name_or_path is None else "auto"
    chosen = {f"training.{name}": f"usual for {kind}" for name in values}
    return recipe.with_(training=values, chosen=recipe.chosen | chosen)


def with_steps_of_tokens(recipe: Recipe) -> Recipe:
    """The recipe with training.max_steps in place of training.max_tokens: the fewest steps that read so many tokens.

    Raises UserError where the recipe leaves the tokens of a step open, or names a number of steps, too.
    """
    training = recipe.training
    if training.max_tokens is None:
        return recipe
    where = f"training.max_tokens={training.max_tokens}"
    if training.max_steps != -1:
        raise UserError(
            f"{where} and training.max_steps={training.max_steps} both say how long the run is; set max_tokens to "
            f"null, or max_steps to -1"
        )
    if not recipe.learned.fills_rows:
        raise UserError(
            f"{where} needs rows of {LENGTH} tokens, and those of {recipe.learned.name} vary; set max_steps"
        )
    sections = recipe.stages or [training]
    if training.global_batch_size is None and any(section.global_batch_size is None for section in sections):
        raise UserError(f"{where} needs training.global_batch_size, the rows of a step over all processes; set it")

    def tokens_of_step(recipe: Recipe) -> int:
        return recipe.training.global_batch_size * getattr(recipe.learned, LENGTH)

    def tokens(steps: int) -> int:
        stages = stages_of(recipe.with_(training={"max_steps": steps}))
        return sum(stage.steps * tokens_of_step(stage.recipe) for stage in stages) or steps * tokens_of_step(recipe)

    steps = bisect_left(range(MOST_STEPS), training.max_tokens, key=tokens)
    chosen = {"training.max_steps": f"the fewest that read {training.max_tokens:,} tokens"}
    return recipe.with_(training={"max_steps": steps, "max_tokens": None}, chosen=recipe.chosen | chosen)


def settled(recipe: Recipe, per_epoch: int | None) -> Recipe:
    """The recipe with numbers in place of `auto` and steps in place of epochs; few rows get more epochs.

    per_epoch: optimizer steps of a pass over the data; None: not known.
    """
    if recipe.training.num_train_epochs == "auto":
        labelled = recipe.task is not None and recipe.model.name_or_path is not None
        usual = PRETRAINED_EPOCHS if labelled else 1
        epochs = usual if per_epoch is None else enough_epochs(recipe.learned, usual, per_epoch)
        chosen = dict(recipe.chosen)
        if epochs > usual and recipe.training.max_steps < 1:
            reason = f"{usual} are usual, but make {usual * per_epoch} steps of these rows, too few to learn from"
            chosen["training.num_train_epochs"] = reason
        else:
            epochs = usual
        recipe = recipe.with_(training={"num_train_epochs": float(epochs)}, chosen=chosen)
    return in_steps(recipe, per_epoch)


def enough_epochs(learned: type[ObjectiveSettings] | ObjectiveSettings, usual: int, per_epoch: int) -> int:
    """The usual epochs, or of few rows as many as make enough steps. per_epoch: optimizer steps of an epoch."""
    return max(usual, min(MOST_EPOCHS, -(-learned.enough_steps // per_epoch)))


def in_steps(recipe: Recipe, per_epoch: int | None) -> Recipe:
    """The recipe with steps and validations in place of epochs; `chosen` tells from which epochs they were converted.

    per_epoch: optimizer steps of a pass over the data; None: not known, and UserError where the recipe names epochs.
    """
    evaluation = recipe.evaluation
    chosen = dict(recipe.chosen)

    def steps(value, setting: str, each: int = 1, noun: str = "step"):
        if not isinstance(value, str):
            return value
        if per_epoch is None:
            raise UserError(
                f"{setting}={show(value)} is of passes over the data, and a stream has no known length; set {noun}s"
            )
        chosen[setting] = f"{value}, each of {counted(per_epoch, 'step')}"
        return max(1, round(epochs_of(value) * per_epoch / each))

    save = steps(recipe.training.save_steps, "training.save_steps")
    every = steps(evaluation.every_steps, "evaluation.every_steps")
    patience = steps(evaluation.patience, "evaluation.patience", each=every or 1, noun="validation")
    validations = {"every_steps": every, "patience": patience}
    return recipe.with_(training={"save_steps": save}, evaluation=validations, chosen=chosen)

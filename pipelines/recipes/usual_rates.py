"""Learning rate and epochs of a recipe that leaves them open, by what is trained.

The rates are those that the papers and examples of each kind use: BERT and run_glue.py of transformers 2e-5 to 5e-5
over three epochs, LoRA 1e-4 to 2e-4 (Hu et al. 2021, Dettmers et al. 2023), instruction tuning of decoders 2e-5 (Taori
et al. 2023). A few hundred examples need more passes (Mosbach et al. 2021, who make 20 of them).
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from ..plugins import OBJECTIVES
from ..words import counted
from .epochs import in_steps
from .schema import Recipe

ENOUGH_STEPS = 250  # of fine-tuning: 270 on 357 questions of TREC reach what 135 do not (RESULTS.md)
MOST_EPOCHS = 20


@dataclass(frozen=True)
class Usual:
    """what: is trained, in words. rate: its learning rate. epochs: passes over labelled examples."""

    what: str
    rate: float
    epochs: float


FRESH = Usual("fresh weights", 1e-3, 1)
ADAPTER = Usual("an adapter (LoRA)", 2e-4, 3)
DECODER = Usual("a pretrained decoder", 2e-5, 3)
IMAGES = Usual("a pretrained image model", 5e-5, 3)
ENCODER = Usual("a pretrained encoder", 5e-5, 3)


def usual(recipe: Recipe) -> Usual:
    """What is usual for that which the recipe trains; an objective on plain text or images passes over them once."""
    objective, name = OBJECTIVES[recipe.learned.name], recipe.model.name_or_path
    if name is None:
        found = FRESH
    elif recipe.training.lora is not None:
        found = ADAPTER
    elif objective.special_tokens is None:
        found = IMAGES
    else:
        heads = (objective.auto_class, *architectures(name))  # the first may depend on the model, and is no text then
        found = DECODER if any(str(head).endswith(("ForCausalLM", "LMHeadModel")) for head in heads) else ENCODER
    epochs = found.epochs if recipe.task is not None else FRESH.epochs
    return replace(found, rate=found.rate * objective.share_of_usual_rate, epochs=epochs)


def architectures(name: str) -> list[str]:
    """The classes that the config of a checkpoint's folder names; none of a checkpoint that lies elsewhere."""
    try:
        named = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))["architectures"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # whoever loads it says what is wrong
    return named if isinstance(named, list) else []


def choose(recipe: Recipe, left_open: set[str]) -> None:
    """Set the learning rate, where it is left open, and leave epochs of pretrained weights open until rows are known.

    left_open: those of learning_rate and num_train_epochs that the recipe does not set, or sets to auto.
    """
    known, training = usual(recipe), recipe.training
    if "learning_rate" in left_open:
        training.learning_rate = known.rate
        recipe.chosen["training.learning_rate"] = f"usual for {known.what}"
    if "num_train_epochs" in left_open and training.max_steps < 1:
        if recipe.model.name_or_path is not None:
            training.num_train_epochs = "auto"
        recipe.chosen["training.num_train_epochs"] = f"usual for {known.what}"


def settled(recipe: Recipe, per_epoch: int | None) -> Recipe:
    """The recipe with numbers in place of `auto` and of epochs (epochs.py).

    per_epoch: optimizer steps of a pass over the data; None: not known. Few rows are passed over more often than is
    usual, until ENOUGH_STEPS are made.
    """
    if recipe.training.num_train_epochs == "auto":
        known, chosen = usual(recipe), dict(recipe.chosen)
        needed = 0 if per_epoch is None else min(MOST_EPOCHS, -(-ENOUGH_STEPS // per_epoch))
        epochs = float(max(known.epochs, needed))
        if recipe.training.max_steps < 1:
            chosen["training.num_train_epochs"] = f"usual for {known.what}" + (
                f" are {known.epochs:g}, but of {counted(per_epoch, 'step')} each; this makes {ENOUGH_STEPS} or most"
                if epochs > known.epochs
                else ""
            )
        recipe = replace(recipe, training=replace(recipe.training, num_train_epochs=epochs), chosen=chosen)
    return in_steps(recipe, per_epoch)

"""The place of each weight in a model, from the embeddings to the head: for freezing, and for clipping by parts.

This works for our families and native models: their layers are ModuleLists, and all other weights come before, between
or after these, in the order of definition.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..errors import UserError

OUTERMOST = re.compile(r"(.+?)\.(\d+)\.")  # in a weight's name: the list of layers, and the layer's index
PART = re.compile(r"embeddings|(?:([a-z_][\w.]*)\.)?(\d+)(?:-(\d+))?")  # embeddings, 3, 0-3, encoder.0-3
EMBEDDED = ("embed", "position")  # in the names of embeddings that some models define after the layers


@dataclass(frozen=True)
class Places:
    """The names of a model's parameters by their place.

    embeddings: those before all layers. after: those after all layers. numbers: name -> (its stack, such as encoder,
    and the index of its layer there). layers: stack -> its number of layers.
    """

    embeddings: set[str]
    after: set[str]
    numbers: dict[str, tuple[str, int]]
    layers: dict[str, int]

    @property
    def words(self) -> str:
        """The parts that can be frozen: `embeddings, 0-5`; of several stacks `embeddings, encoder.0-5, decoder.0-5`."""
        spans = {stack: f"0-{count - 1}" if count > 1 else "0" for stack, count in self.layers.items()}
        named = spans.values() if len(spans) == 1 else (f"{stack}.{span}" for stack, span in spans.items())
        return ", ".join(["embeddings", *named])

    def names_in(self, part: str) -> set[str] | None:
        """The names of the parameters in a part, such as `embeddings` or `0-3`; None: there is no such part."""
        if part == "embeddings":
            return self.embeddings
        match = PART.fullmatch(part)
        stack = match[1] or next(iter(self.layers), None) if match else None
        if stack not in self.layers or (match[1] is None and len(self.layers) > 1):
            return None
        first, last = int(match[2]), int(match[3] or match[2])
        if not first <= last < self.layers[stack]:
            return None
        return {name for name, (other, number) in self.numbers.items() if other == stack and first <= number <= last}


def places_of(model: nn.Module) -> Places:
    """The place of each parameter of the model. A tied head counts as embeddings."""
    embeddings, after, numbers, layers = set(), set(), {}, {}
    head = model.get_output_embeddings()
    of_head = set() if head is None else {id(p) for p in head.parameters()}
    for name, parameter in model.named_parameters():
        match, owner = OUTERMOST.match(name), model.get_submodule(name.rpartition(".")[0])
        listed = None if match is None else model.get_submodule(match[1])
        if isinstance(listed, nn.ModuleList):
            stack = match[1].rpartition(".")[0].removeprefix(f"{model.base_model_prefix}.")
            if stack not in layers:
                after.clear()  # it came between two stacks
            layers[stack], numbers[name] = len(listed), (stack, int(match[2]))
            continue
        embeds = isinstance(owner, nn.Embedding) or any(word in name for word in EMBEDDED)
        (embeddings if not layers or (embeds and id(parameter) not in of_head) else after).add(name)
    return Places(embeddings, after, numbers, layers)


def freeze(model: nn.Module, parts: Sequence[str | int]) -> None:
    """Freeze the weights of these parts of the model (training.freeze).

    Raises UserError for a part that the model does not have, and if no weight would be left to train.
    """
    if not parts:
        return
    places = places_of(model)
    for part in map(str, parts):
        names = places.names_in(part)
        if names is None:
            raise UserError(f"training.freeze={part!r} is no part of {type(model).__name__}, which has {places.words}")
        for name, parameter in model.named_parameters():
            if name in names:
                parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"training.freeze={list(parts)} leaves no weight of {type(model).__name__} to train")

"""Where the weights of a model stand, from the embeddings to the head: which are frozen, and clipped together.

Of our families and of transformers' own models: their layers are lists of modules, and what is defined before, between
and after them stands there.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..errors import UserError

OUTERMOST = re.compile(r"(.+?)\.(\d+)\.")  # the list of layers in a weight's name, and the number of its layer
PART = re.compile(r"embeddings|(?:([a-z_][\w.]*)\.)?(\d+)(?:-(\d+))?")  # embeddings, 3, 0-3, encoder.0-3
EMBEDDED = ("embed", "position")  # in the names of what is added to embeddings, and defined after layers by some


@dataclass(frozen=True)
class Places:
    """Where the parameters of a model stand.

    embeddings: names of those before all layers. after: of those behind them. numbers: name -> (its stack, such as
    encoder, and the number of its layer there). layers: stack -> how many it has.
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
        """The parameters of a part, such as `embeddings` or `0-3`; None: there is no such part."""
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
    """Where each parameter of the model stands. A tied head is the embeddings, and stands where they do."""
    embeddings, after, numbers, layers = set(), set(), {}, {}
    head = model.get_output_embeddings()
    of_head = set() if head is None else {id(p) for p in head.parameters()}
    for name, parameter in model.named_parameters():
        found, owner = OUTERMOST.match(name), model.get_submodule(name.rpartition(".")[0])
        listed = None if found is None else model.get_submodule(found[1])
        if isinstance(listed, nn.ModuleList):
            stack = found[1].rpartition(".")[0].removeprefix(f"{model.base_model_prefix}.")
            if stack not in layers:
                after.clear()  # what stands between two stacks
            layers[stack], numbers[name] = len(listed), (stack, int(found[2]))
            continue
        embeds = isinstance(owner, nn.Embedding) or any(word in name for word in EMBEDDED)
        (embeddings if not layers or (embeds and id(parameter) not in of_head) else after).add(name)
    return Places(embeddings, after, numbers, layers)


def freeze(model: nn.Module, parts: Sequence[str | int]) -> None:
    """Train no weight of these parts of the model: training.freeze.

    Raises UserError for a part that it does not have, and where nothing would be left to train.
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

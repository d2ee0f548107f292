"""Rows of an architecture's weight table: native modules and ours, and the look-up of a parameter in them."""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..errors import UserError


@dataclass(frozen=True)
class Weights:
    """One native module (or single parameter) and the modules (or parameters) of ours that hold the same numbers.

    ours: empty for a fixed table, such as one of sines, that transformers stores and we compute.
    tied: transformers has a second copy of the module, tied to that of another row; only the other is read.
    kernel: the side of a native convolution that is a matrix in ours, or the field of our config that holds the side.
    layout: our config -> (groups, sizes), if several of our modules are one native module: its rows form `groups`
        groups, and each group holds sizes[i] rows of our i-th module, in order. None: one group, and equal sizes.
    ones: native axes of length 1 that ours lack: axis 1 of a depthwise convolution, which is (channels, 1, width) in
        transformers and (channels, width) in ours.
    interleaved: one matrix per expert, (inputs, outputs) in transformers and (outputs, inputs) in ours, or a bias; the
        outputs of gate and up alternate in transformers, and follow one another in ours.
    paired: natively, rotary pairs of a head's channels are neighbours, (0, 1), (2, 3), ..; ours are a half apart.
    """

    ours: tuple[str, ...]
    transposed: bool = False
    layout: Callable[..., tuple[int, list[int]]] | None = None
    tied: bool = False
    kernel: str | int | None = None
    paired: bool = False
    ones: tuple[int, ...] = ()
    interleaved: bool = False

    def split(self, native: torch.Tensor, config) -> list[torch.Tensor]:
        """A native weight or bias -> one of ours per module; views where possible."""
        if self.interleaved:
            halves = torch.cat((native[..., ::2], native[..., 1::2]), dim=-1)
            return [halves.transpose(1, 2) if native.ndim == 3 else halves]
        rows = self.turned(native)
        if self.kernel is not None and native.ndim == 4:
            rows = native.flatten(1)
        if self.ones:
            rows = rows.squeeze(self.ones)
        if self.layout is not None:
            groups, sizes = self.layout(config)
            return [part.flatten(0, 1) for part in rows.unflatten(0, (groups, -1)).split(sizes, dim=1)]
        if self.paired:
            rows = _reordered(rows, config, back=False)
        return list(rows.chunk(len(self.ours)))

    def join(self, ours: list[torch.Tensor], config) -> torch.Tensor:
        """The inverse of `split`."""
        if self.interleaved:
            halves = ours[0].transpose(1, 2) if ours[0].ndim == 3 else ours[0]
            return torch.stack(halves.chunk(2, dim=-1), dim=-1).flatten(-2)
        if self.layout is not None:
            groups, _ = self.layout(config)
            rows = torch.cat([part.unflatten(0, (groups, -1)) for part in ours], dim=1).flatten(0, 1)
        else:
            rows = torch.cat(ours) if len(ours) > 1 else ours[0]
        if self.paired:
            rows = _reordered(rows, config, back=True)
        for axis in self.ones:
            rows = rows.unsqueeze(axis)
        if self.kernel is not None and rows.ndim == 2:
            side = self.kernel if isinstance(self.kernel, int) else getattr(config, self.kernel)
            return rows.unflatten(1, (-1, side, side))
        return self.turned(rows)

    def turned(self, rows: torch.Tensor) -> torch.Tensor:
        """A matrix, or one per expert, transposed if the native one is; a bias unchanged."""
        return rows.transpose(-1, -2) if self.transposed and rows.ndim > 1 else rows


def _reordered(rows: torch.Tensor, config, back: bool) -> torch.Tensor:
    """Queries' or keys' rows, from rotary pairs of neighbours to pairs a half apart; `back`: the reverse."""
    rotated = int(config.head_dim * (config.rope_parameters or {}).get("partial_rotary_factor", 1.0))
    heads = rows.unflatten(0, (-1, config.head_dim))
    part = heads[:, :rotated].unflatten(1, (2, -1) if back else (-1, 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat((part, heads[:, rotated:]), dim=1).flatten(0, 1)


def renamed(ours: str, transposed: bool = False, paired: bool = False, ones: tuple[int, ...] = ()) -> Weights:
    """The same module under another name.

    transposed: the native weight is (inputs, outputs), as in Conv1D and some experts. paired, ones: see Weights.
    """
    return Weights((ours,), transposed, paired=paired, ones=ones)


def fused(*names: str, under: str, transposed: bool = False, layout: Callable | None = None) -> Weights:
    """Several modules of ours in one native module, one after the other, or by their `layout` (see Weights)."""
    return Weights(tuple(f"{under}.{name}" for name in names), transposed, layout)


def query_key_value(**options) -> Weights:
    """The three projections of our self-attention in one native module; options: as for `fused`."""
    return fused("q_proj", "k_proj", "v_proj", under="layers.*.self_attn", **options)


def by_head(config) -> tuple[int, list[int]]:
    """The layout of query, key and value of the first head, then of the second."""
    return config.num_attention_heads, [config.head_dim] * 3


def by_key_head(config) -> tuple[int, list[int]]:
    """The layout of all queries of the first key head, its key and its value, then those of the second."""
    size = config.head_dim
    return config.num_key_value_heads, [config.num_attention_heads // config.num_key_value_heads * size, size, size]


def tied(ours: str) -> Weights:
    """A second copy of a module, which transformers ties to the one that another row maps to the same place."""
    return Weights((ours,), tied=True)


def convolution(ours: str, kernel: str | int) -> Weights:
    """A convolution whose kernels, `kernel` wide, do not overlap: a linear layer of ours."""
    return Weights((ours,), kernel=kernel)


COMPUTED = Weights(())  # a fixed table that transformers keeps with the weights
SAME = renamed("")  # the same name on both sides


def find(table: dict[str, Weights], name: str) -> tuple[Weights, list[str]] | None:
    """Look a native parameter up: return its row and the names of ours, or None.

    A key may name a parameter or its module, exactly or with `*` for the first number in the path; exact keys go first.
    `#` stands for the number of an expert, which is a slice of one parameter in ours: `up_proj[#]`.
    """
    expert = re.search(r"expert_(\d+)", name)
    name = name if expert is None else f"{name[: expert.start(1)]}#{name[expert.end(1) :]}"
    layer = re.search(r"\.(\d+)\.", name)
    stands_for = {"*": layer and layer[1], "#": expert and expert[1]}
    for path in (name, layer and f"{name[: layer.start()]}.*.{name[layer.end() :]}"):
        module, _, kind = (path or "").rpartition(".")
        for key, suffix in ((path, ""), (module, f".{kind}")):
            if key in table:
                parts = [re.sub(r"[*#]", lambda sign: stands_for[sign[0]] or sign[0], part) for part in table[key].ours]
                return table[key], [f"{part}{suffix}" for part in parts]
    return None


def stack_slices(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """{"up_proj[0]": (I, H), "up_proj[1]": ...} -> {"up_proj": (E, I, H)}; other weights as they are."""
    whole, slices = {}, defaultdict(dict)
    for name, tensor in weights.items():
        if name.endswith("]"):
            parameter, number = _slice(name)
            slices[parameter][number] = tensor
        else:
            whole[name] = tensor
    return whole | {name: torch.stack([rows[i] for i in range(len(rows))]) for name, rows in slices.items()}


def take(weights: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The parameter of ours that a row names, or a slice of it; raises UserError if there is none."""
    parameter, number = _slice(name) if name.endswith("]") else (name, ...)
    if parameter not in weights:
        raise UserError(f"this model has no parameter {parameter}, which its native twin needs")
    return weights[parameter][number]


def _slice(name: str) -> tuple[str, int]:
    parameter, _, number = name[:-1].rpartition("[")
    return parameter, int(number)

"""Optimizers of our own: Muon for the matrices inside the blocks, AdamW for everything else."""

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import torch
from transformers.pytorch_utils import Conv1D

from ..precision import prefers_bf16
from ..recipes.schema import TrainingSection
from ..words import short_number

if TYPE_CHECKING:  # these load Trainer, and it PEFT, which `anyformer plan` does not need
    from transformers import TrainingArguments

    from .engines.split_matrices import Split

# Matrices of equal shape are stacked up to this many numbers at a time, which bounds the memory for their copies.
MOST_NUMBERS = 1 << 24
ROUTERS = ("gate", "router")  # endings of the names of modules beside `experts` that score or weigh the experts


class BatchedMuon(torch.optim.Muon):
    """torch.optim.Muon with matrices of equal shape multiplied in one batch, in a dtype that is fast on the device.

    torch's version launches about twenty kernels per matrix, always in bf16, and refuses parameters with three axes
    (experts, rows, columns). States and parameter groups are the same, so either loads the other's checkpoints. If
    matrices are split over processes, each process orthogonalises some whole ones (split_matrices.py).

    dtype: of the matrix products of Newton and Schulz's iteration; momentum and parameters keep their dtypes.
    transposed: the parameters that are stored as (inputs, outputs); others are (outputs, inputs).
    """

    def __init__(self, params, dtype: torch.dtype, transposed=(), **settings):
        params, self.transposed = list(params), {id(parameter) for parameter in transposed}
        super().__init__([{"params": [p for p in params if p.ndim == 2]}], **settings)
        if stacked := [p for p in params if p.ndim == 3]:
            self.add_param_group({"params": stacked})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure=None):
        from .engines.split_matrices import matrices_of, split_of

        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = torch.zeros_like(parameter)
                    parts = map(matrices_of, (parameter, parameter.grad, state["momentum_buffer"]))
                    is_transposed = id(parameter) in self.transposed
                    alike[parameter.shape[-2:], split_of(parameter), is_transposed] += zip(*parts)
            for (shape, split, is_transposed), matrices in alike.items():
                size = max(1, MOST_NUMBERS // shape.numel())
                size = size if split is None else split.together(size, len(matrices))
                for start in range(0, len(matrices), size):
                    some = zip(*matrices[start : start + size])
                    self._step_matrices(*some, shape, split, group, is_transposed)
        return loss

    def _step_matrices(
        self,
        parameters: tuple,
        gradients: tuple,
        buffers: tuple,
        shape: torch.Size,
        split: "Split | None",
        group: dict,
        is_transposed: bool,
    ):
        momentum = group["momentum"]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        updates = torch._foreach_lerp(gradients, buffers, momentum) if group["nesterov"] else buffers
        parts = torch.cat(updates).to(self.dtype)
        matrices = parts if split is None else split.some_whole(parts, shape)
        directions = orthogonalized(matrices, group["ns_coefficients"], group["ns_steps"], group["eps"])
        directions = directions if split is None else split.shares(directions, shape, len(parts))
        outputs, inputs = reversed(shape) if is_transposed else shape
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(
            parameters,
            directions.to(parameters[0].dtype).split([len(p) for p in parameters]),
            alpha=-group["lr"] * math.sqrt(max(1, outputs / inputs)),
        )


def orthogonalized(matrices: torch.Tensor, coefficients: tuple, steps: int, eps: float) -> torch.Tensor:
    """(N, R, C) -> (N, R, C) with singular values near 1, by Newton and Schulz's iteration (Jordan 2024)."""
    a, b, c = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class MuonWithAdamW(torch.optim.Optimizer):
    """BatchedMuon (Jordan et al. 2024) and fused torch.optim.AdamW as one optimizer with their groups and states.

    A schedule scales the learning rate of each group from its own peak. Either optimizer is None if it would have no
    parameters: a LoRA adapter may consist only of matrices in the blocks. lr: the rate of which schedules with a least
    rate (`min_lr`, `lr_end`) take that as a share.
    """

    def __init__(self, muon: BatchedMuon | None, adamw: torch.optim.AdamW | None, lr: float):
        self.parts = {name: part for name, part in (("muon", muon), ("adamw", adamw)) if part is not None}
        parameters = [p for part in self.parts.values() for g in part.param_groups for p in g["params"]]
        super().__init__(parameters, {"lr": lr})
        self._share_groups()

    def _share_groups(self):
        # The same dict objects, so that each optimizer reads the learning rates that a scheduler writes here.
        self.param_groups = [group for part in self.parts.values() for group in part.param_groups]
        for part in self.parts.values():
            part.state = self.state

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for part in self.parts.values():
            part.step()
        return loss

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        groups = iter(self.param_groups)
        for part in self.parts.values():
            part.param_groups = list(islice(groups, len(part.param_groups)))
        self._share_groups()


def muon_parameter_names(model: torch.nn.Module) -> set[str]:
    """Names of the hidden layers' weight matrices, experts included: no embedding, no output head (Jordan et al. 2024).

    Routers go to AdamW, because they score experts and do not map between hidden layers; so do the experts' biases.
    """
    stacks = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    inside = {id(p) for stack in stacks for p in stack.parameters() if p.ndim == 2}
    others = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for module in model.modules():
        if isinstance(getattr(module, "experts", None), torch.nn.Module):
            parameters = list(module.experts.parameters(recurse=False))  # (E, rows, columns), and biases (E, rows)
            inside |= {id(p) for p in parameters if p.ndim == 3}
            others |= {id(p) for p in parameters if p.ndim != 3}
            routers = [child for name, child in module.named_children() if name.endswith(ROUTERS)]
            others |= {id(p) for router in routers for p in router.parameters()}
    return {n for n, p in model.named_parameters() if id(p) in inside - others}


def stored_transposed(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Weights stored as (inputs, outputs): those of GPT-2's Conv1D, and of some experts of transformers."""
    modules = [m for m in model.modules() if isinstance(m, Conv1D) or getattr(m, "is_transposed", False)]
    return [parameter for module in modules for parameter in module.parameters(recurse=False)]


def build_muon(model, decay_names: set[str], *, muon_lr, adamw_lr, weight_decay, betas, eps) -> MuonWithAdamW:
    """Muon for the hidden matrices, AdamW for the rest (with weight decay only for the names in `decay_names`)."""
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    matrices = muon_parameter_names(model) & trainable.keys()
    others = []
    for names, decay in ((decay_names, weight_decay), (trainable.keys() - decay_names, 0.0)):
        of_mesh = defaultdict(list)  # a fused kernel takes only parameters of one mesh
        for name, parameter in trainable.items():
            if name in names - matrices:
                of_mesh[getattr(parameter, "device_mesh", None)].append(parameter)
        others += [{"params": parameters, "weight_decay": decay} for parameters in of_mesh.values()]
    dtype = torch.bfloat16 if prefers_bf16(next(model.parameters()).device.type) else torch.float32
    hidden = [trainable[n] for n in trainable if n in matrices]
    return MuonWithAdamW(
        BatchedMuon(hidden, dtype, stored_transposed(model), lr=muon_lr, weight_decay=weight_decay) if hidden else None,
        torch.optim.AdamW(others, lr=adamw_lr, betas=betas, eps=eps, fused=True) if others else None,
        adamw_lr,
    )


def split_groups(optimizer: torch.optim.Optimizer, settings_of: Callable[[torch.Tensor, dict], dict]) -> None:
    """Split the optimizer's groups by the settings of their parameters; the group with the highest rate comes first.

    settings_of: (parameter, its group) -> settings that replace those of the group.
    """
    several = isinstance(optimizer, MuonWithAdamW)
    for part in optimizer.parts.values() if several else [optimizer]:
        split = []
        for group in part.param_groups:
            alike = defaultdict(list)
            for parameter in group["params"]:
                alike[tuple(settings_of(parameter, group).items())].append(parameter)
            split += [{**group, **dict(settings), "params": parameters} for settings, parameters in alike.items()]
        part.param_groups = sorted(split, key=lambda group: -group["lr"])
    if several:
        optimizer._share_groups()


class Muon:
    """`optim: muon`: Muon trains the hidden matrices at muon_learning_rate, AdamW the rest at learning_rate."""

    def __init__(self, section: TrainingSection):
        self.section = section

    def build(self, model, decayed: set[str], arguments: "TrainingArguments") -> MuonWithAdamW:
        """The optimizer of the model's trainable parameters; those named in `decayed` have weight decay."""
        return build_muon(
            model,
            decayed,
            muon_lr=self.section.muon_learning_rate,
            adamw_lr=arguments.learning_rate,
            weight_decay=arguments.weight_decay,
            betas=(arguments.adam_beta1, arguments.adam_beta2),
            eps=arguments.adam_epsilon,
        )

    def state_bytes(self, model) -> int:
        """Muon keeps one fp32 buffer per parameter, AdamW two."""
        matrices = muon_parameter_names(model)
        return sum(p.numel() * (4 if n in matrices else 8) for n, p in model.named_parameters() if p.requires_grad)

    def words(self) -> str:
        """Its name and settings, as printed when a run begins."""
        muon, adamw = self.section.muon_learning_rate, self.section.learning_rate
        return f"muon at {muon:g} (muon_learning_rate), adamw at {adamw:g} (learning_rate)"

    def describe(self, model) -> str:
        """The kinds of layers and the number of parameters that each of the two optimizers trains."""
        matrices, said = muon_parameter_names(model), []
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        for optimizer in ("muon", "adamw"):
            own = [(name, p) for name, p in trained if (name in matrices) == (optimizer == "muon")]
            kinds = dict.fromkeys(name.removesuffix(".weight").rpartition(".")[2] for name, _ in own) or ["nothing"]
            said.append(f"{optimizer}: {', '.join(kinds)} ({short_number(sum(p.numel() for _, p in own))} parameters)")
        return "; ".join(said)

    def rates_of(self, optimizer) -> dict[str, float]:
        """{"learning_rate": AdamW's, "muon_learning_rate": Muon's}, without an optimizer that has no parameters."""
        return {
            "muon_learning_rate" if "ns_steps" in group else "learning_rate": group["lr"]
            for group in reversed(optimizer.param_groups)  # the first group of each wins, whose rate is the highest
        }


def matrices_only(model, names: list[str]) -> list[str]:
    """`names` without vectors, such as biases, norms' weights and learned positions."""
    vectors = {n for n, p in model.named_parameters() if len(getattr(p, "ds_shape", p.shape)) < 2}
    return [name for name in names if name not in vectors]

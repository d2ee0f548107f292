"""Router statistics of a mixture of experts during training, for the log and router.jsonl."""

import math
from pathlib import Path

import torch

from ...reporting.run_log import ROUTER_FILE
from ...words import say
from ..log.progress import MetricsFile

MEANS = ("router_load", "router_entropy", "router_dropped")  # (L, E), (L,) and (L,) for L sparse layers, E experts
LOSSES = ("aux_loss", "z_loss")  # a step's loss is the sum over its micro-batches
WARNED_AFTER = 3  # logs, because a single one may be of few tokens


def at_work(load: list[float]) -> float:
    """The effective number of experts in use, exp of the entropy of the load: from 1 to the number of experts."""
    return math.exp(-sum(share * math.log(share) for share in load if share > 0))


class RouterStatistics(MetricsFile):
    """Sums up the router outputs of a model's forward passes between two logs, on the device.

    The log gets means over layers and experts. router.jsonl gets a line per log with the load of each expert (layers x
    experts, shares that sum to 1 per layer) and the entropy and dropped share of each layer.

    warns_below: a layer is reported, and listed in `collapsed`, after WARNED_AFTER logs in a row in which less than
    this share of its experts was at work (`at_work`); None: never. together: number of processes that report the
    losses of the same batch.
    """

    name = ROUTER_FILE

    def __init__(self, output_dir: str | Path, warns_below: float | None = None, together: int = 1):
        super().__init__(output_dir)
        self.warns_below, self.together, self._low, self.collapsed = warns_below, together, {}, []
        self.sums = self._shape = None
        self._step = 0  # of the last log, or the step at which training began
        self._layers: dict = {}  # the next line of router.jsonl, from `collect` until `on_log`

    def add(self, outputs, tokens) -> None:
        """Add the router outputs of a training forward pass; does nothing for models without experts.

        tokens: their number in the batch, without padding; means are weighted by it.
        """
        if not hasattr(outputs, "get") or outputs.get("router_load") is None:
            return
        load = outputs["router_load"]
        if torch.is_tensor(tokens):
            weight = tokens.to(load.device).float().reshape(1)
        else:  # torch.full fills on the device; copying a number there would make the host wait in every step
            weight = torch.full((1,), float(tokens), device=load.device)
        means = [outputs[name].detach().float().flatten() * weight for name in MEANS]
        losses = [outputs.get(name) for name in LOSSES]
        losses = [load.new_zeros(1) if x is None else x.detach().float().reshape(1) for x in losses]
        sums = torch.cat([weight, *losses, *means])
        self._shape, self.sums = load.shape, sums if self.sums is None else self.sums + sums

    def collect(self, step: int, reduce) -> dict:
        """Statistics for the log at this step, over all processes since the last log; {} for models without experts.

        Loads are relative to an equal share, so 1 for all experts is perfect balance. `router_load_cv` is their
        standard deviation, averaged over layers. reduce: sums a tensor over processes.
        """
        steps, self._step = step - self._step, step
        if self.sums is None:
            return {}
        layers, experts = self._shape
        sums, self.sums = reduce(self.sums).cpu().double(), None
        tokens, losses, means = sums.split([1, len(LOSSES), layers * (experts + 2)])
        load, entropy, dropped = (means / tokens).split([layers * experts, layers, layers])
        load = load.view(layers, experts)
        relative = load * experts
        self._layers = {"load": load.tolist(), "entropy": entropy.tolist(), "dropped": dropped.tolist()}
        return {
            "router_load_max": relative.max().item(),
            "router_load_min": relative.min().item(),
            "router_load_cv": relative.std(dim=-1, correction=0).mean().item(),
            "router_entropy": entropy.mean().item(),
            "router_dropped": dropped.mean().item(),
            **{f"router_{name}": loss / max(1, steps) / self.together for name, loss in zip(LOSSES, losses.tolist())},
        }

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        self._step = state.global_step

    def on_log(self, args, state, control, logs=None, **kwargs):
        layers, self._layers = self._layers, {}
        super().on_log(args, state, control, logs=layers)
        if layers and self.warns_below is not None:
            self._watch(layers["load"], state.global_step, state.is_world_process_zero)

    def _watch(self, loads: list[list[float]], step: int, speaks: bool) -> None:
        """Warn about layers that use few of their experts: once, and again only after they have used more."""
        for layer, load in enumerate(loads):
            few = at_work(load) < self.warns_below * len(load)
            self._low[layer] = self._low.get(layer, 0) + 1 if few else 0
            if self._low[layer] == WARNED_AFTER and speaks:
                most = sorted(range(len(load)), key=lambda expert: -load[expert])[:2]
                shares = " and ".join(f"expert {expert} gets {load[expert]:.0%}" for expert in most)
                say(
                    f"step {step}: the router of sparse layer {layer} uses {at_work(load):.1f} of {len(load)} experts "
                    f"({shares} of the load); a larger model.router_aux_loss_coef spreads it"
                )
        self.collapsed = [layer for layer, times in self._low.items() if times >= WARNED_AFTER]

"""Muon for the matrices inside the blocks, AdamW for everything else."""

import torch


class MuonWithAdamW(torch.optim.Optimizer):
    """torch.optim.Muon (Jordan et al. 2024) and fused torch.optim.AdamW behind the interface of one optimizer.

    `param_groups` lists both optimizers' groups, so a learning-rate schedule scales each from its own peak.
    """

    def __init__(self, muon: torch.optim.Muon, adamw: torch.optim.AdamW):
        self.parts = {"muon": muon, "adamw": adamw}
        super().__init__([p for part in self.parts.values() for g in part.param_groups for p in g["params"]], {})
        self._share_groups()

    def _share_groups(self):
        # The same dict objects: what a scheduler writes into a group is what the part reads.
        self.param_groups = [group for part in self.parts.values() for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for part in self.parts.values():
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True):
        for part in self.parts.values():
            part.zero_grad(set_to_none)

    def state_dict(self):
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state_dict):
        for name, part in self.parts.items():
            part.load_state_dict(state_dict[name])
        self._share_groups()


def muon_parameter_names(model: torch.nn.Module) -> set[str]:
    """Weight matrices of the hidden layers: two axes, no embedding, no output head (Jordan et al. 2024)."""
    outside = {
        id(module.weight)
        for module in (model.get_input_embeddings(), model.get_output_embeddings())
        if module is not None
    }
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    return {n for n, p in model.named_parameters() if p.ndim == 2 and id(p) not in outside | embeddings}


def build_muon(model, decay_names: set[str], *, muon_lr, adamw_lr, weight_decay, betas, eps) -> MuonWithAdamW:
    """Muon over the hidden matrices, AdamW over the rest (weight decay on the names in `decay_names` only)."""
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    matrices = muon_parameter_names(model) & trainable.keys()
    rest = trainable.keys() - matrices
    groups = [
        {"params": [trainable[n] for n in trainable if n in rest & decay_names], "weight_decay": weight_decay},
        {"params": [trainable[n] for n in trainable if n in rest - decay_names], "weight_decay": 0.0},
    ]
    return MuonWithAdamW(
        torch.optim.Muon([trainable[n] for n in trainable if n in matrices], lr=muon_lr, weight_decay=weight_decay),
        torch.optim.AdamW([g for g in groups if g["params"]], lr=adamw_lr, betas=betas, eps=eps, fused=True),
    )

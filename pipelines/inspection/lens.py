"""Readings of the hidden states between layers: their norms, what the head would say of them, the load of experts."""

from collections.abc import Callable

import torch

NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")  # as transformers' models call the last one
MOST = 3  # tokens that the lens shows for a layer


def head_of(model) -> Callable | None:
    """Hidden states (T, D) -> logits (T, V), as after the last layer; None where the model predicts no tokens."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        return None
    stack = getattr(model.base_model, "decoder", model.base_model)
    norm = next((getattr(stack, name) for name in NORMS if hasattr(stack, name)), torch.nn.Identity())
    transform = getattr(model, "head_transform", None)
    if transform is None and hasattr(model, "cls"):
        transform = getattr(getattr(model.cls, "predictions", None), "transform", None)

    def logits(hidden, is_last: bool):
        hidden = hidden if is_last else norm(hidden)
        return head(hidden if transform is None else transform(hidden))

    return logits


@torch.no_grad()
def readings(model, inputs: dict) -> dict:
    """{"norms": the mean norm of a token after each layer, "lens": the likeliest tokens at the last place after each}.

    The lens is of models that predict tokens (nostalgebraist 2020, "interpreting GPT: the logit lens"): hidden states
    of every layer through the last norm and the head, [[(token id, probability), ...] of each layer]. The first entry
    of both is the embeddings'.
    """
    was_training = model.training
    out = model.eval()(**inputs, output_hidden_states=True)
    model.train(was_training)
    states = out.get("decoder_hidden_states") or out.get("hidden_states")
    if states is None:
        return {}
    found = {"norms": [round(x[0].float().norm(dim=-1).mean().item(), 3) for x in states]}
    logits_of = head_of(model)
    if logits_of is not None:
        found["lens"] = []
        for number, state in enumerate(states):
            shares = logits_of(state[0, -1:], number == len(states) - 1)[0].float().softmax(-1)
            best = shares.topk(MOST)
            found["lens"].append([(int(n), round(float(share), 4)) for share, n in zip(best.values, best.indices)])
    return found


@torch.no_grad()
def expert_loads(model, inputs: dict) -> dict:
    """{"experts": the share of the tokens' choices that each expert of each sparse layer gets}; {} without experts."""
    chosen = getattr(model.config, "num_experts_per_tok", None)
    if not chosen or not (
        getattr(model.config, "num_experts", None) or getattr(model.config, "num_local_experts", None)
    ):
        return {}
    routed = model(**inputs, output_router_logits=True).get("router_logits")
    if not routed:
        return {}
    loads = []
    for logits in routed:
        index = logits.topk(chosen, dim=-1).indices.flatten()
        counts = torch.bincount(index, minlength=logits.shape[-1]).double()
        loads.append([round(share, 4) for share in (counts / counts.sum()).tolist()])
    return {"experts": loads}

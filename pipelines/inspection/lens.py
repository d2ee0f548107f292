"""Readings between the layers of a forward pass: norms of hidden states, the logit lens, loads of experts."""

from collections.abc import Callable

import torch

NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")  # names of the last norm in transformers' models
MOST = 3  # tokens that the lens shows for a layer


def head_of(model) -> Callable | None:
    """Hidden states (T, D) -> logits (T, V), as after the last layer; None if the model predicts no tokens."""
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
    """{"norms": the mean norm of a token after each layer, "lens": the likeliest tokens at the last place}.

    The lens is for models that predict tokens (nostalgebraist 2020, "interpreting GPT: the logit lens"): hidden states
    of every layer pass the last norm and the head, [[(token id, probability), ...] of each layer]. The first entry of
    both is that of the embeddings. With experts also "experts": see expert_loads.
    """
    config = model.config
    is_sparse = bool(getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None))
    routed = {"output_router_logits": True} if is_sparse else {}
    was_training = model.training
    out = model.eval()(**inputs, output_hidden_states=True, **routed)
    model.train(was_training)
    states, loads = out.get("decoder_hidden_states") or out.get("hidden_states"), {}
    if is_sparse and out.get("router_logits"):
        loads["experts"] = expert_loads(out["router_logits"], config.num_experts_per_tok)
    if states is None:
        return loads
    results = {"norms": [round(x[0].float().norm(dim=-1).mean().item(), 3) for x in states]}
    logits_of = head_of(model)
    if logits_of is not None:
        results["lens"] = []
        for number, state in enumerate(states):
            shares = logits_of(state[0, -1:], number == len(states) - 1)[0].float().softmax(-1)
            best = shares.topk(MOST)
            results["lens"].append([(int(n), round(float(share), 4)) for share, n in zip(best.values, best.indices)])
    return results | loads


def expert_loads(router_logits, chosen: int) -> list[list[float]]:
    """Each expert's share of the tokens' choices, for each sparse layer.

    router_logits: of each layer, (..., E); chosen: the number of experts for a token.
    """
    loads = []
    for logits in router_logits:
        counts = torch.bincount(logits.topk(chosen, dim=-1).indices.flatten(), minlength=logits.shape[-1]).double()
        loads.append([round(share, 4) for share in (counts / counts.sum()).tolist()])
    return loads

"""Do two models compute the same? Asked with random tokens, one row padded on the left."""

import torch


def probe(config, rows: int, tokens: int, seed: int) -> dict[str, torch.Tensor]:
    """Return input_ids and attention_mask (rows, tokens), fewer tokens where a model of ours has fewer positions.

    The last row begins with padding. Without a pad token there is one row and no padding: a head that reads the last
    token of a row could not tell which it is.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = min(tokens, config.max_position_embeddings)
    pad = config.pad_token_id if (config.pad_token_id or 0) >= 0 else None  # old LLaMAs have -1, which is no token
    input_ids = torch.randint(config.vocab_size, (rows if pad is not None else 1, tokens), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    if pad is not None:
        input_ids[input_ids == pad] = (pad + 1) % config.vocab_size
        input_ids[-1, : tokens // 3], attention_mask[-1, : tokens // 3] = pad, 0
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def logit_scale_and_difference(model, twin, inputs: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Return the largest logit of `model` and the largest difference of `twin`'s, computed in fp32.

    Of a base model the last hidden states are compared, of every model those at real tokens only: what a model makes
    of padding is nobody's business. Models keep their dtypes.
    """
    ours, theirs = _outputs(model, inputs), _outputs(twin, inputs)
    return ours.abs().max().item(), (ours - theirs).abs().max().item()


@torch.no_grad()
def _outputs(model, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
    training = model.training
    try:
        out = model.float().eval()(**{name: tensor.to(model.device) for name, tensor in inputs.items()})
    finally:
        model.train(training)
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(dtypes[name])  # exact: fp32 holds what they hold
    tensors = [out[name] for name in ("logits", "start_logits", "end_logits", "last_hidden_state") if name in out]
    real = inputs["attention_mask"].bool()
    # A sequence classifier has one row of logits for each text.
    per_token = [tensor.cpu() for tensor in tensors]
    return torch.cat([(t[real] if t.shape[:2] == real.shape else t).flatten() for t in per_token])

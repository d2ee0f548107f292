"""Generating and scoring, native and ours."""

import torch
from anyformer.pipelines.evaluation.likelihood import log_likelihoods
from models import model_of
from torch.nn.utils.rnn import pad_sequence
from transformers import CompileConfig


def generate(setting, dtype: str, batch: int, prompt: int, tokens: int, cache: str = "growing", **sizes) -> dict:
    """Greedy tokens of the same call. cache: "static": of a fixed size, with the step of one token compiled."""
    sizes |= {"length": prompt + tokens}
    ids = torch.randint(sizes["vocab"], (batch, prompt), generator=torch.Generator().manual_seed(0)).to(setting.device)
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": tokens, "min_new_tokens": tokens}
    asked |= {"do_sample": False, "pad_token_id": 0, "use_cache": True}
    if cache == "static":
        compiled = CompileConfig(fullgraph=False)
        compiled._compile_all_devices = True  # transformers compiles on GPUs alone unless told otherwise
        asked |= {"cache_implementation": "static", "compile_config": compiled}
    found = {}
    for name in ("native", "ours"):
        model = model_of("decoder", name, sizes, setting.device).eval()
        if dtype == "bf16":
            model.to(torch.bfloat16)
        found[name] = lambda model=model: model.generate(ids, **asked)
    return found


def scoring(setting, texts: int, batch: int, solved: int, longest: int, **sizes) -> dict:
    """Questions behind the same solved examples (few-shot), two answers to each, by their log-likelihood.

    "padded" asks them in their order, a row for each answer, as a plain loop would; "by length" sorts them first;
    "ours" is what `anyformer evaluate --shots` runs.
    """
    draw, most = torch.Generator().manual_seed(0), solved + 2 * longest
    model = model_of("decoder", "ours", sizes | {"vocab": 8192, "length": most + 8}).eval()

    def row_of(length: int) -> list[int]:
        return torch.randint(3, 8000, (length,), generator=draw).tolist()

    # From 2 tokens to the longest, short ones more often.
    lengths = (2 + (longest - 2) * torch.rand(texts, generator=draw) ** 2).long().tolist()
    before = row_of(solved)
    questions = [before + row_of(length) for length in lengths]
    pairs = [(question, row_of(words)) for question in questions for words in (1, 2)]

    @torch.inference_mode()
    def in_batches(order: list[int]) -> list[float]:
        found = {}
        for start in range(0, len(order), batch):
            numbers = order[start : start + batch]
            rows = [torch.tensor(pairs[number][0] + pairs[number][1]) for number in numbers]
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            logits = model(input_ids=pad_sequence(rows, batch_first=True), attention_mask=mask).logits.log_softmax(-1)
            for logits_TV, row, number in zip(logits, rows, numbers):
                words = torch.tensor(pairs[number][1])
                places = slice(len(row) - len(words) - 1, len(row) - 1)
                found[number] = logits_TV[places].gather(1, words[:, None]).sum().item()
        return [found[number] for number in range(len(pairs))]

    by_length = sorted(range(len(pairs)), key=lambda number: -len(pairs[number][0]))
    return {
        "padded": lambda: in_batches(list(range(len(pairs)))),
        "by length": lambda: in_batches(by_length),
        "ours": lambda: log_likelihoods(model, pairs, batch_size=batch, most=most),
    }

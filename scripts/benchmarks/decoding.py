"""Text generation by native models and by ours."""

import torch
from anyformer.pipelines.patches import write
from models import model_of
from transformers import CompileConfig


def generate(device: str, dtype: str, batch: int, prompt: int, tokens: int, cache: str = "growing", **sizes) -> dict:
    """Greedy tokens of the same call. cache: "static": of a fixed size, with the step of one token compiled."""
    sizes |= {"length": prompt + tokens}
    ids = torch.randint(sizes["vocab"], (batch, prompt), generator=torch.Generator().manual_seed(0)).to(device)
    arguments = {"attention_mask": torch.ones_like(ids), "max_new_tokens": tokens, "min_new_tokens": tokens}
    arguments |= {"do_sample": False, "pad_token_id": 0, "use_cache": True}
    if cache == "static":
        compiled = CompileConfig(fullgraph=False)
        write(compiled, "_compile_all_devices", True)
        arguments |= {"cache_implementation": "static", "compile_config": compiled}
    variants = {}
    for name in ("native", "ours"):
        model = model_of("decoder", name, sizes, device).eval()
        if dtype == "bf16":
            model.to(torch.bfloat16)
        variants[name] = lambda model=model: model.generate(ids, **arguments)
    return variants

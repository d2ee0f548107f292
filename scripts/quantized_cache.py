"""What fewer bits in a decoder's cache cost: perplexity of a text that is read through transformers' QuantizedCache.

    python scripts/quantized_cache.py runs/quickstart some_text.py another_text.py

Each row is read in pieces: what has been read before a piece comes from the cache. Bytes are those of the tensors in it
at the end of a row. hqq needs the package of that name, fp8 a transformers that has it.
"""

import argparse
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, QuantizedCache

import anyformer  # noqa: F401  (its models are registered)

GROUPS = {"backend": "hqq", "axis_key": 1, "axis_value": 1}
CACHES = {
    "as computed": None,
    "fp8": {"backend": "fp8"},
    **{f"{bits} bits": GROUPS | {"nbits": bits} for bits in (8, 4, 2)},
}


def bytes_of(value) -> int:
    """Bytes of the tensors in a layer of a cache."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        value = value.values()
    return sum(map(bytes_of, value)) if isinstance(value, (list, tuple, type({}.values()))) else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=1024, help="of a row (default 1,024)")
    parser.add_argument("--piece", type=int, default=32, help="tokens that are read at once (default 32)")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--residual", type=int, default=32, help="newest tokens that are not quantised (default 32)")
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    text = "".join(path.read_text() for path in options.texts)
    ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"])
    rows = ids[: len(ids) // options.tokens * options.tokens].view(-1, options.tokens)[: options.rows]
    print(f"{len(rows)} rows of {options.tokens} tokens, {options.piece} at once")
    for name, backend in CACHES.items():
        if backend is not None and "nbits" in backend:
            backend = backend | {"residual_length": options.residual}
        cache = DynamicCache(config=model.config) if backend is None else QuantizedCache(config=model.config, **backend)
        losses = []
        with torch.inference_mode():
            for start in range(0, options.tokens, options.piece):
                piece, after = (rows[:, at : at + options.piece] for at in (start, start + 1))
                logits = model(input_ids=piece, past_key_values=cache, use_cache=True).logits[:, : after.shape[1]]
                losses.append(cross_entropy(logits.flatten(0, 1), after.flatten(), reduction="none"))
        size = sum(bytes_of(list(vars(layer).values())) for layer in cache.layers) / rows.numel()
        print(f"{name:>12}: perplexity {torch.cat(losses).mean().exp():.3f}, {size:,.1f} bytes for each token")


if __name__ == "__main__":
    main()

"""Training steps of native LLaMA and Mistral under sdpa and under our backend, and of our decoder, by the row's length.

Rows are packed with documents of 50 to 400 tokens, or see a window of 128, or both. All arms compute one loss; a step
is forward and backward pass with loss. Memory is the peak beyond weights and inputs, as torch's profiler records it.
"""

import copy

import method
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

import anyformer

ARMS = ("native sdpa", "native anyformer", "ours")
SIZES = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192}
CASES = {"plain": (None, False), "packed": (None, True), "window 128": (128, False), "window 128, packed": (128, True)}


def positions_of(tokens: int) -> torch.Tensor:
    """(1, T): positions that restart at each document."""
    drawn, row = torch.Generator().manual_seed(0), []
    while len(row) < tokens:
        row += range(int(torch.randint(50, 400, (1,), generator=drawn)))
    return torch.tensor([row[:tokens]])


def steps_of(tokens: int, window: int | None, is_packed: bool) -> dict:
    """{arm: a training step that returns its loss}, of equal weights."""
    native = LlamaConfig(**SIZES) if window is None else MistralConfig(**SIZES, sliding_window=window)
    torch.manual_seed(0)
    # The backend's name is kept in the config, which models share.
    models = {
        f"native {name}": AutoModelForCausalLM.from_config(copy.deepcopy(native), attn_implementation=name)
        for name in ("sdpa", "anyformer")
    }
    models["native anyformer"].load_state_dict(models["native sdpa"].state_dict())
    models["ours"] = anyformer.from_native(models["native sdpa"])
    ids = torch.randint(512, (2, tokens), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "labels": ids, "use_cache": False}
    if is_packed:
        inputs["position_ids"] = positions_of(tokens).expand(2, -1)

    def step(model):
        for parameter in model.parameters():
            parameter.grad = None
        loss = model.train()(**inputs).loss
        loss.backward()
        return loss.detach()

    return {name: (lambda model=model: step(model)) for name, model in models.items()}


def main(argv=None):
    p = method.parser(__doc__, rounds=5)
    p.add_argument("--length", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192], help="tokens of a row")
    args = method.start(p, argv)
    if args.quick:
        args.length, args.rounds = [tokens for tokens in args.length if tokens <= 1024], min(args.rounds, 2)
    print(
        "| what | arm | ms | times as fast as native sdpa (90 %) | peak memory / native sdpa |\n|---|---|---|---|---|"
    )
    for tokens in args.length:
        for what, (window, is_packed) in CASES.items():
            steps = steps_of(tokens, window, is_packed)
            method.require_equal({name: step().item() for name, step in steps.items()})
            timings = method.compare(
                {name: (lambda s=s: s() and None) for name, s in steps.items()}, ARMS[0], args.rounds
            )
            peaks = {name: method.peak_bytes(step) for name, step in steps.items()}
            for name in ARMS:
                low, high = timings[name].interval
                cells = [f"{what}, T={tokens}", name, f"{timings[name].milliseconds:.0f}"]
                cells += [f"{timings[name].ratio:.2f} ({low:.2f}-{high:.2f})", f"{peaks[name] / peaks[ARMS[0]]:.2f}"]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

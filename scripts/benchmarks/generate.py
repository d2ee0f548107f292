"""Greedy `generate`: the same call on transformers' LLaMA and on ours with equal weights, prompt and tokens.

--static: also with a static cache and the step of one token compiled, which takes half a minute for each model first.
"""

import method
import products
import torch
from transformers import CompileConfig
from twins import twins

GOAL = method.Goal(1.15)
# name -> layers, hidden size, heads
MODELS = {"small": (2, 64, 2), "medium": (8, 384, 6)}


def main(argv=None):
    p = method.parser(__doc__)
    p.add_argument("--model", choices=MODELS, nargs="+", default=list(MODELS))
    p.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    p.add_argument("--prompt", type=int, nargs="+", default=[32, 512], help="tokens of the prompt")
    p.add_argument("--tokens", type=int, default=24, help="tokens to generate")
    p.add_argument("--static", action="store_true", help="also with a static cache and a compiled step")
    args = method.start(p, argv)
    if args.quick:
        args.rounds, args.model, args.batch = min(args.rounds, method.QUICK_ROUNDS), args.model[:1], args.batch[:1]
    print(method.HEADER)
    for name in args.model:
        for batch in args.batch:
            for length in args.prompt[:1] if args.quick else args.prompt:
                compare(args, name, batch, length)


def compare(args, name, batch, length):
    layers, hidden, heads = MODELS[name]
    native, ours = (model.eval() for model in twins(8192, hidden, layers, heads, length + args.tokens))
    prompt = torch.randint(8192, (batch, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(prompt)

    def generating(model, **extra):
        kwargs = {"attention_mask": mask, "max_new_tokens": args.tokens, "min_new_tokens": args.tokens, **extra}
        return lambda: model.generate(prompt, do_sample=False, pad_token_id=0, **kwargs)

    arms = {"native": generating(native), "ours": generating(ours)}
    if args.static:
        compiled = CompileConfig(fullgraph=False)
        compiled._compile_all_devices = True  # transformers compiles on GPUs alone unless told otherwise
        static = {"cache_implementation": "static", "compile_config": compiled}
        arms |= {"native static": generating(native, **static), "ours static": generating(ours, **static)}
    if not all(torch.equal(arms["native"](), arm()) for arm in arms.values()):
        raise SystemExit("not comparable: the arms generate different tokens")
    timings = method.compare(products.with_products(arms), "native", args.rounds)
    what = f"L={layers} D={hidden} B={batch}, {length}+{args.tokens} tokens"
    print(method.guard_row(what, "native", timings))
    for arm in list(arms)[1:]:
        goal = GOAL if arm.startswith("ours") else None
        print(method.row(what, arm, "native", timings[arm], goal, method.is_void(timings)), flush=True)
    products.print_bound(what, timings, ["native"])


if __name__ == "__main__":
    main()

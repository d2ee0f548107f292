"""Greedy `generate`, the same call on transformers' LLaMA and on ours with equal weights, prompt and tokens."""

import method
import products
import torch
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

    def generating(model):
        kwargs = {"attention_mask": mask, "max_new_tokens": args.tokens, "min_new_tokens": args.tokens}
        return lambda: model.generate(prompt, do_sample=False, pad_token_id=0, **kwargs)

    arms = {"native": generating(native), "ours": generating(ours)}
    if not torch.equal(arms["native"](), arms["ours"]()):
        raise SystemExit("not comparable: the two models generate different tokens")
    timings = method.compare(products.with_products(arms), "native", args.rounds)
    what = f"L={layers} D={hidden} B={batch}, {length}+{args.tokens} tokens"
    print(method.guard_row(what, "native", timings))
    print(method.row(what, "ours", "native", timings["ours"], GOAL, method.is_void(timings)), flush=True)
    products.print_bound(what, timings, ["native"])


if __name__ == "__main__":
    main()

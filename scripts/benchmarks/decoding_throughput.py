"""Texts of mixed lengths answered by a language model: the time for all of them, by kinds of batches.

Scoring: questions behind the same solved examples (few-shot), two answers to each, by their log-likelihood. `padded`
asks them in their order, a row for each answer, as a plain loop would; `by length` sorts them first; `ours` is what
`anyformer evaluate --shots` runs. Generating: greedy answers of mixed lengths to prompts of mixed lengths. `padded`
runs each batch until its longest answer is done, `by answer` sorts by the answers' lengths, which nobody knows before,
`one by one` has a row each, `generate_batch` is transformers' continuous batching. Ratios are to `padded`.
"""

import method
import torch
from anyformer.pipelines.evaluation.likelihood import log_likelihoods
from transformers import ContinuousBatchingConfig, GenerationConfig
from twins import twins

GOAL = method.Goal(3.0)
MODELS = {"small": (2, 64, 2), "medium": (8, 384, 6)}
CLOSE = 1e-3  # in nats, fp32


def main(argv=None):
    p = method.parser(__doc__.splitlines()[0], rounds=7)
    p.add_argument("--model", choices=MODELS, nargs="+", default=list(MODELS))
    p.add_argument("--what", choices=["scoring", "generating"], nargs="+", default=["scoring", "generating"])
    p.add_argument("--texts", type=int, default=64, help="questions, or prompts")
    p.add_argument("--batch", type=int, default=8, help="rows of a padded batch")
    p.add_argument("--solved", type=int, default=192, help="tokens that all questions have before them")
    p.add_argument("--longest", type=int, default=96, help="tokens of the longest question, prompt or answer")
    args = method.start(p, argv)
    if args.quick:
        args.rounds, args.model, args.texts = min(args.rounds, method.QUICK_ROUNDS), args.model[:1], args.texts // 4
    print(method.HEADER)
    for name in args.model:
        layers, hidden, heads = MODELS[name]
        _, model = twins(8192, hidden, layers, heads, args.solved + 2 * args.longest + 8)
        for what in args.what:
            arms, same = {"scoring": scoring, "generating": generating}[what](args, model.eval())
            check(arms, same)
            title = f"{what}, L={layers} D={hidden}, {args.texts} texts up to {args.longest} tokens"
            timings = method.compare(arms, "padded", args.rounds, warm=1)
            print(method.guard_row(title, "padded", timings))
            for arm in arms:
                if arm != "padded":
                    goal = GOAL if arm in ("ours", "generate_batch") else None
                    print(method.row(title, arm, "padded", timings[arm], goal, method.is_void(timings)), flush=True)


def lengths(number: int, longest: int, draw) -> list[int]:
    """From 2 to `longest`, short ones more often."""
    return (2 + (longest - 2) * torch.rand(number, generator=draw) ** 2).long().tolist()


def row_of(length: int, draw) -> list[int]:
    return torch.randint(3, 8000, (length,), generator=draw).tolist()


def check(arms: dict, same) -> None:
    expected, *others = ((name, arm()) for name, arm in arms.items())
    for name, found in others:
        if not same(found, expected[1]):
            raise SystemExit(f"not comparable: {name} answers otherwise than {expected[0]}")


def scoring(args, model) -> tuple:
    """({arm: function}, whether two results are the same)."""
    draw = torch.Generator().manual_seed(0)
    solved = row_of(args.solved, draw)
    questions = [solved + row_of(length, draw) for length in lengths(args.texts, args.longest, draw)]
    pairs = [(question, row_of(words, draw)) for question in questions for words in (1, 2)]
    most = args.solved + 2 * args.longest

    def plain(order) -> list[float]:
        found = [0.0] * len(pairs)
        for start in range(0, len(order), args.batch):
            numbers = order[start : start + args.batch]
            rows = [torch.tensor(pairs[n][0] + pairs[n][1]) for n in numbers]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            with torch.inference_mode():
                logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.log_softmax(-1)
            for i, number in enumerate(numbers):
                words, end = pairs[number][1], len(rows[i])
                places = torch.arange(end - len(words) - 1, end - 1)
                found[number] = logits[i, places, torch.tensor(words)].sum().item()
        return found

    longest_first = sorted(range(len(pairs)), key=lambda n: -len(pairs[n][0]))
    arms = {
        "padded": lambda: plain(list(range(len(pairs)))),
        "by length": lambda: plain(longest_first),
        "ours": lambda: log_likelihoods(model, pairs, batch_size=args.batch, most=most),
    }
    return arms, lambda got, expected: max(abs(a - b) for a, b in zip(got, expected)) < CLOSE


def generating(args, model) -> tuple:
    """As `scoring`. An answer ends after its own number of tokens, as if the model had ended it."""
    draw = torch.Generator().manual_seed(1)
    prompts = [row_of(length, draw) for length in lengths(args.texts, args.longest, draw)]
    wanted = lengths(args.texts, args.longest, draw)
    greedy = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}

    def batches(order, size) -> list[list[int]]:
        found = {}
        for start in range(0, len(order), size):
            numbers = order[start : start + size]
            rows = [torch.tensor(prompts[n]) for n in numbers]
            pad = {"batch_first": True, "padding_side": "left"}
            ids = torch.nn.utils.rnn.pad_sequence(rows, **pad)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], **pad)
            most = max(wanted[n] for n in numbers)
            out = model.generate(ids, attention_mask=mask, max_new_tokens=most, min_new_tokens=most, **greedy)
            found |= {n: out[i, ids.shape[1] :][: wanted[n]].tolist() for i, n in enumerate(numbers)}
        return [found[n] for n in range(len(prompts))]

    def continuous() -> list[list[int]]:
        pages = ContinuousBatchingConfig(num_blocks=256, page_size=32, max_batch_tokens=256)
        config = GenerationConfig(max_new_tokens=args.longest, **(greedy | {"eos_token_id": -1}))
        with model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=pages
        ) as manager:
            numbers = {manager.add_request(row, max_new_tokens=n): i for i, (row, n) in enumerate(zip(prompts, wanted))}
            found = {}
            while len(found) < len(prompts):
                answer = manager.get_result(timeout=1)
                if answer is not None and answer.is_finished():
                    found[numbers[answer.request_id]] = list(answer.generated_tokens)
        return [found[n] for n in range(len(prompts))]

    order = list(range(len(prompts)))
    arms = {
        "padded": lambda: batches(order, args.batch),
        "by answer": lambda: batches(sorted(order, key=lambda n: -wanted[n]), args.batch),
        "one by one": lambda: batches(order, 1),
        "generate_batch": continuous,
    }
    # Rounding may decide between two tokens of almost equal likelihood: most answers have to be the same.
    return arms, lambda got, expected: sum(a == b for a, b in zip(got, expected)) >= 0.9 * len(expected)


if __name__ == "__main__":
    main()

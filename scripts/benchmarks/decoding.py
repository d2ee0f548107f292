"""Generating and scoring, native and ours."""

import torch
from anyformer.pipelines.evaluation.likelihood import log_likelihoods
from models import model_of
from torch.nn.utils.rnn import pad_sequence
from transformers import CompileConfig, ContinuousBatchingConfig, GenerationConfig


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


# -------------------------------------------------------------------------------------------- texts of mixed lengths


def lengths(number: int, longest: int, draw) -> list[int]:
    """From 2 to `longest`, short ones more often."""
    return (2 + (longest - 2) * torch.rand(number, generator=draw) ** 2).long().tolist()


def row_of(length: int, draw) -> list[int]:
    return torch.randint(3, 8000, (length,), generator=draw).tolist()


def padded(rows: list[list[int]], side: str = "right") -> dict:
    """input_ids and attention_mask of rows of tokens."""
    rows = [torch.tensor(row) for row in rows]
    options = {"batch_first": True, "padding_side": side}
    mask = pad_sequence([torch.ones_like(row) for row in rows], **options)
    return {"input_ids": pad_sequence(rows, **options), "attention_mask": mask}


def in_batches(answer, order: list[int], size: int) -> list:
    """answer(numbers) -> their answers; all answers in the order of the numbers."""
    found = {}
    for start in range(0, len(order), size):
        numbers = order[start : start + size]
        found |= dict(zip(numbers, answer(numbers), strict=True))
    return [found[number] for number in sorted(found)]


def scoring(setting, texts: int, batch: int, solved: int, longest: int, **sizes) -> dict:
    """Questions behind the same solved examples (few-shot), two answers to each, by their log-likelihood.

    "padded" asks them in their order, a row for each answer, as a plain loop would; "by length" sorts them first;
    "ours" is what `anyformer evaluate --shots` runs.
    """
    draw, most = torch.Generator().manual_seed(0), solved + 2 * longest
    model = model_of("decoder", "ours", sizes | {"vocab": 8192, "length": most + 8}).eval()
    before = row_of(solved, draw)
    questions = [before + row_of(length, draw) for length in lengths(texts, longest, draw)]
    pairs = [(question, row_of(words, draw)) for question in questions for words in (1, 2)]

    @torch.inference_mode()
    def answer(numbers: list[int]) -> list[float]:
        rows = [pairs[number][0] + pairs[number][1] for number in numbers]
        logits = model(**padded(rows)).logits.log_softmax(-1)
        found = []
        for logits_TV, row, number in zip(logits, rows, numbers):
            words = torch.tensor(pairs[number][1])
            found.append(logits_TV[len(row) - len(words) - 1 : len(row) - 1].gather(1, words[:, None]).sum().item())
        return found

    order = list(range(len(pairs)))
    by_length = sorted(order, key=lambda number: -len(pairs[number][0]))
    return {
        "padded": lambda: in_batches(answer, order, batch),
        "by length": lambda: in_batches(answer, by_length, batch),
        "ours": lambda: log_likelihoods(model, pairs, batch_size=batch, most=most),
    }


def mostly_equal(answers, expected, tolerance) -> bool:
    """Rounding may decide between two tokens of almost equal likelihood: most answers have to be the same."""
    return sum(a == b for a, b in zip(answers, expected)) >= 0.9 * len(expected)


def generating(setting, texts: int, batch: int, longest: int, **sizes) -> dict:
    """Greedy answers of mixed lengths to prompts of mixed lengths; each ends as if the model had ended it.

    "padded" runs each batch until its longest answer is done, "by answer" sorts by the answers' lengths, which nobody
    knows before, "one by one" has a row each, "generate_batch" is transformers' continuous batching.
    """
    draw = torch.Generator().manual_seed(1)
    model = model_of("decoder", "ours", sizes | {"vocab": 8192, "length": 2 * longest + 8}).eval()
    prompts = [row_of(length, draw) for length in lengths(texts, longest, draw)]
    wanted = lengths(texts, longest, draw)
    greedy = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "use_cache": True}

    def answer(numbers: list[int]) -> list[list[int]]:
        inputs = padded([prompts[number] for number in numbers], side="left")
        most = max(wanted[number] for number in numbers)
        out = model.generate(**inputs, max_new_tokens=most, min_new_tokens=most, **greedy)
        out = out[:, inputs["input_ids"].shape[1] :].tolist()
        return [row[: wanted[number]] for row, number in zip(out, numbers)]

    def continuous() -> list[list[int]]:
        pages = ContinuousBatchingConfig(num_blocks=256, page_size=32, max_batch_tokens=256)
        config = GenerationConfig(max_new_tokens=longest, **(greedy | {"eos_token_id": -1}))
        with model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=pages
        ) as manager:
            numbers = {manager.add_request(row, max_new_tokens=n): i for i, (row, n) in enumerate(zip(prompts, wanted))}
            found = {}
            while len(found) < len(prompts):
                got = manager.get_result(timeout=1)
                if got is not None and got.is_finished():
                    found[numbers[got.request_id]] = list(got.generated_tokens)
        return [found[number] for number in range(len(prompts))]

    order = list(range(texts))
    return {
        "padded": lambda: in_batches(answer, order, batch),
        "by answer": lambda: in_batches(answer, sorted(order, key=lambda number: -wanted[number]), batch),
        "one by one": lambda: in_batches(answer, order, 1),
        "generate_batch": continuous,
    }

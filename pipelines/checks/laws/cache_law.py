"""Generation with every cache gives the logits of full forward passes, step by step, in chunks and with beams."""

from collections.abc import Iterator
from functools import partial

import torch
from transformers import StaticCache

from ..findings import Finding, Verdict, not_claimed, of_fact
from ..subject import Subject
from .padding_law import COUNTS

TOKENS, NEW = 9, 6  # the prompt is longer than a twin's window
NAMES = ("cache", "past_key_values")  # of the argument and the output: since transformers 5.24, and before
PIECES = ((1,) * 12, (5, 7), (3, 1, 8))
GREEDY = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True}
STEPS = (
    "ids, more = torch.arange(5, 23).view(2, 9), dict(output_logits=True, return_dict_in_generate=True)",
    "out = model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, **more{})",
    "print((torch.stack(out.logits, 1) - model(input_ids=out.sequences).logits[:, 8:-1]).abs().max().item())  # 0",
)


def unclaimed(subject: Subject) -> str:
    if subject.kind not in ("causal", "seq2seq"):
        return "it does not generate"
    return "" if subject.fresh().can_generate() else "it has no generate"


@torch.no_grad()
def ask(subject: Subject) -> Iterator[Finding]:
    ways = {f"one by one, {backend}": {"use_cache": True} for backend in subject.backends}
    if subject.kind == "causal":
        ways["a prompt in chunks of 4"] = {"use_cache": True, "prefill_chunk_size": 4}
    model = subject.fresh(keeps_cache=True)
    static = getattr(model, "_can_compile_fullgraph", False)
    if static:
        ways["a static cache"] = {"cache_implementation": "static", "disable_compile": True}
    else:
        yield not_claimed("a static cache", "its class says _can_compile_fullgraph = False")
    for what, how in ways.items():
        caching = subject.fresh(what.removeprefix("one by one, ") if "one by one" in what else None, keeps_cache=True)
        yield subject.tried(what, partial(generated, subject, caching, what, **how))
    if subject.kind == "causal":
        what = "a prompt padded on the left"
        yield subject.tried(what, partial(padded_prompt, subject, model, what))
    for sizes in PIECES:
        what = f"{sum(sizes)} tokens in {len(sizes)} pieces"
        yield subject.tried(what, partial(in_pieces, subject, model, what, sizes, False))
        if static and subject.kind == "causal":
            what += " onto a static cache"
            yield subject.tried(what, partial(in_pieces, subject, model, what, sizes, True))
    what = "three beams with a cache and without"
    yield subject.tried(what, partial(beams, subject, model, what))


def generate(subject: Subject, model, **how):
    """(inputs, output) of generating exactly NEW tokens: no token ends a row."""
    batch = {name: x for name, x in subject.rows(2, TOKENS).items() if not name.startswith("decoder_")}
    model.generation_config.eos_token_id = None
    if subject.reads_text:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    return batch, model.generate(**batch, **GREEDY, **how)


def new_logits(model, batch: dict) -> torch.Tensor:
    """(B, NEW, V): the logits of each new token."""
    model.generation_config.eos_token_id = None
    return torch.stack(model.generate(**batch, **GREEDY, output_logits=True).logits, dim=1)


def generated(subject: Subject, model, what: str, **how) -> Finding:
    """Compare the logits of each new token with those of one forward pass over the generated row."""
    batch, out = generate(subject, model, output_logits=True, **how)
    logits = torch.stack(out.logits, dim=1)
    if subject.kind == "seq2seq":
        full = model(**batch, decoder_input_ids=out.sequences[:, :-1], use_cache=False).logits
    else:
        full = model(input_ids=out.sequences[:, :-1], use_cache=False).logits
    chosen = "".join(f", {name}={value!r}" for name, value in how.items() if name != "disable_compile")
    steps = tuple(line.format(chosen) if "{}" in line else line for line in STEPS) if subject.kind == "causal" else ()
    return subject.compared(what, logits, full[:, -NEW:], steps=steps, tolerance=subject.fp32_tolerance)


def padded_prompt(subject: Subject, model, what: str) -> Finding:
    """Compare a short prompt padded on the left beside a long one, as generate expects, with the short one alone."""
    prompts = subject.documents((4, TOKENS))
    together = new_logits(model, subject.padded(prompts, "left"))
    alone = new_logits(model, prompts[0] | {"attention_mask": torch.ones_like(prompts[0]["input_ids"])})
    finding = subject.compared(what, together[:1], alone, tolerance=subject.fp32_tolerance)
    if finding.verdict is Verdict.FAILS and not subject.takes("position_ids"):
        return not_claimed(what, COUNTS, difference=finding.difference)
    return finding


def in_pieces(subject: Subject, model, what: str, sizes: tuple[int, ...], static: bool) -> Finding:
    """Append several tokens at once to a cache, as chunked prefill and assisted generation do."""
    cache_name = next((name for name in NAMES if subject.takes(name)), None)
    if cache_name is None:
        return not_claimed(what, f"its forward takes no {NAMES[-1]}")
    batch = subject.rows(2, sum(sizes) if subject.kind == "causal" else 2 * sum(sizes))
    name = f"{subject.prefixes[-1]}input_ids"
    ids = batch.pop(name)[:, : sum(sizes)]
    if subject.kind == "seq2seq":
        batch = {"encoder_outputs": model.get_encoder()(**batch)}
    cache, steps = StaticCache(config=model.config, max_cache_len=sum(sizes) + 4) if static else None, []
    for piece in ids.split(list(sizes), dim=1):
        out = model(**batch, **{name: piece}, use_cache=True, **{cache_name: cache})
        if (cache := out.get(cache_name)) is None:
            return not_claimed(what, "its outputs hold no cache")
        steps.append(out.logits)
    finding = subject.compared(what, torch.cat(steps, dim=1), model(**batch, **{name: ids}, use_cache=False).logits)
    if finding.verdict is Verdict.FAILS and getattr(model, "_is_stateful", False):
        return not_claimed(what, "its class says _is_stateful = True", difference=finding.difference)
    return finding


def beams(subject: Subject, model, what: str) -> Finding:
    """Compare beam search, which reorders the cache, with and without one."""
    sequences = [generate(subject, model, num_beams=3, use_cache=cached)[1].sequences for cached in (True, False)]
    return of_fact(what, torch.equal(*sequences))

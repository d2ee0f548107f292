"""Generation with every cache gives the logits of full forward passes, step by step, in chunks and with beams."""

from collections.abc import Iterator
from functools import partial

import torch

from ..findings import Finding, not_claimed, of_fact
from ..subject import Subject

TOKENS, NEW = 9, 6  # the prompt is longer than a twin's window
NAMES = ("cache", "past_key_values")  # the argument and the output; before transformers 5.24 the latter
STEPS = (
    "ids, more = torch.arange(5, 14)[None], dict(output_logits=True, return_dict_in_generate=True, do_sample=False)",
    "out = model.generate(ids, max_new_tokens=6, min_new_tokens=6, **more{})",
    "print((torch.stack(out.logits, 1) - model(out.sequences).logits[:, 8:-1]).abs().max().item())  # 0 if they agree",
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
    model = subject.fresh()
    if getattr(model, "_can_compile_fullgraph", False):
        ways["a static cache"] = {"cache_implementation": "static", "disable_compile": True}
    else:
        yield not_claimed("a static cache", "its class says _can_compile_fullgraph = False")
    for what, how in ways.items():
        on = subject.fresh(what.removeprefix("one by one, ") if "one by one" in what else None)
        yield subject.tried(what, partial(generated, subject, on, what, **how))
    if subject.kind == "causal":
        what = "seven tokens onto a cache of five"
        yield subject.tried(what, partial(onto_a_cache, subject, model, what))
    what = "three beams with a cache and without"
    yield subject.tried(what, partial(beams, subject, model, what))


def generate(subject: Subject, model, **how):
    """Six new tokens in any case: no token ends a row."""
    batch = {name: x for name, x in subject.rows(2, TOKENS).items() if not name.startswith("decoder_")}
    model.generation_config.eos_token_id = None
    if subject.reads_text:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    fixed = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True}
    return batch, model.generate(**batch, **fixed, **how)


def generated(subject: Subject, model, what: str, **how) -> Finding:
    """The logits of each new token, and those of one forward pass over the row that came out."""
    batch, out = generate(subject, model, output_logits=True, **how)
    logits = torch.stack(out.logits, dim=1)
    if subject.kind == "seq2seq":
        full = model(**batch, decoder_input_ids=out.sequences[:, :-1], use_cache=False).logits
    else:
        full = model(input_ids=out.sequences[:, :-1], use_cache=False).logits
    given = "".join(f", {name}={value!r}" for name, value in how.items() if name != "disable_compile")
    steps = tuple(line.format(given) if "{}" in line else line for line in STEPS) if subject.kind == "causal" else ()
    return subject.compared(what, logits, full[:, -NEW:], steps=steps)


def onto_a_cache(subject: Subject, model, what: str) -> Finding:
    """Several tokens at once onto a cache, as assisted generation does."""
    if getattr(model, "_is_stateful", False):
        return not_claimed(what, "its class says _is_stateful = True")
    name = next((name for name in NAMES if subject.takes(name)), None)
    if name is None:
        return not_claimed(what, f"its forward takes no {NAMES[-1]}")
    ids = subject.rows(2, 12)["input_ids"]
    first = model(input_ids=ids[:, :5], use_cache=True)
    second = model(input_ids=ids[:, 5:], use_cache=True, **{name: getattr(first, name)})
    full = model(input_ids=ids, use_cache=False).logits
    return subject.compared(what, torch.cat((first.logits, second.logits), dim=1), full)


def beams(subject: Subject, model, what: str) -> Finding:
    """Beam search reorders a cache."""
    found = [generate(subject, model, num_beams=3, use_cache=cached)[1].sequences for cached in (True, False)]
    return of_fact(what, torch.equal(*found))

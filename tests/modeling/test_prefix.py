"""A prefix that a decoder sees in both directions (`prefix_mask`): trained, generated from, and as a row with masks."""

from itertools import product

import pytest
import torch
from family_variants import a_share
from tiny_tokenizers import of_words
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, LlamaConfig, LlamaForCausalLM, pipeline

import anyformer
from anyformer import AnyformerDecoderConfig, AnyformerMoeConfig

KINDS = {
    "full": {},
    "sliding": {"attention_pattern": ["sliding_attention"], "sliding_window": 4},
    "strided": {"attention_pattern": ["strided_attention"], "attention_stride": 3},
}
ROUNDING = 1e-5  # fp32, of logits near 1


def sees(kind: str, query: int, key: int, prefix: int) -> bool:
    far = abs(query - key)
    shown = {"full": True, "sliding": far < 4, "strided": far < 3 or far % 3 == 0}[kind]
    return shown and (key <= query or key < prefix)


def build(tiny_config, backend="sdpa", **fields):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(**fields), attn_implementation=backend).eval()


def mask_of(length: int, prefix: int) -> torch.Tensor:
    return (torch.arange(length) < prefix).long()[None]


@pytest.mark.parametrize("backend", ["eager", "sdpa", "anyformer"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_tokens_see_the_prefix_and_the_rest_is_causal(tiny_config, kind, backend):
    model = build(tiny_config, backend, num_hidden_layers=1, **KINDS[kind])
    ids, prefix, length = torch.randint(3, 97, (1, 12)), 7, 12
    changed = ids.repeat(length, 1)
    changed[range(length), range(length)] = (changed[range(length), range(length)] + 1) % 97
    with torch.no_grad():
        logits = model(torch.cat((ids, changed)), prefix_mask=mask_of(length, prefix).repeat(length + 1, 1)).logits
    moved = (logits[1:] - logits[:1]).abs().amax(-1) > 1e-6
    expected = [[sees(kind, query, key, prefix) for query in range(length)] for key in range(length)]
    assert moved.tolist() == expected


def test_a_prefix_of_a_llama_is_that_of_a_native_one_under_a_ready_mask(in_float64):
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    native = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, attn_implementation="eager")).double().eval()
    ours = anyformer.from_native(native)
    ids = torch.randint(0, 64, (2, 10))
    shown = torch.ones(10, 10, dtype=torch.bool).tril() | (torch.arange(10) < 6)
    ready = torch.zeros(10, 10, dtype=torch.double).masked_fill(~shown, -1e30).expand(2, 1, -1, -1)
    got, expected = ours(ids, prefix_mask=mask_of(10, 6).repeat(2, 1)), native(ids, attention_mask=ready)
    torch.testing.assert_close(got.logits, expected.logits, rtol=0, atol=1e-9)


def test_documents_of_a_row_have_prefixes_of_their_own_and_do_not_see_each_other(tiny_config):
    model = build(tiny_config)
    ids, lengths, prefixes = torch.randint(3, 97, (1, 14)), (8, 6), (5, 2)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    masks = [mask_of(n, prefix) for n, prefix in zip(lengths, prefixes)]
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    together = model(inputs_embeds=embeds, position_ids=positions, prefix_mask=torch.cat(masks, 1), use_cache=False)
    apart = [model(part, prefix_mask=mask).logits for part, mask in zip(ids.split(lengths, 1), masks)]
    torch.testing.assert_close(together.logits, torch.cat(apart, 1), rtol=0, atol=ROUNDING)
    together.logits[:, :8].sum().backward()
    assert embeds.grad[:, 8:].abs().max() == 0 and embeds.grad[:, :8].abs().min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_of_long_packed_rows_show_prefixes_as_eager_does(tiny_config, kind):
    fields, lengths = KINDS[kind] | {"max_position_embeddings": 400}, (250, 130)
    ids, positions = torch.randint(3, 97, (1, 380)), torch.cat([torch.arange(n) for n in lengths])[None]
    prefix = torch.cat([mask_of(250, 180), mask_of(130, 3)], 1)
    eager, tiles = (build(tiny_config, backend, **fields) for backend in ("eager", "anyformer"))
    given = {"position_ids": positions, "prefix_mask": prefix, "use_cache": False}
    torch.testing.assert_close(tiles(ids, **given).logits, eager(ids, **given).logits, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("kind, family", a_share(product(KINDS, ["decoder", "moe"]), 3))
def test_generate_reads_the_prompt_in_both_directions_with_every_cache(tiny_config, tiny_moe_config, family, kind):
    model = build({"decoder": tiny_config, "moe": tiny_moe_config}[family], prefix_lm=True, **KINDS[kind])
    prompt, how = torch.randint(3, 97, (2, 6)), {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    whole, shown = prompt, mask_of(6, 6).repeat(2, 1)
    with torch.no_grad():
        for _ in range(5):
            whole = torch.cat((whole, model(whole, prefix_mask=shown, use_cache=False).logits[:, -1:].argmax(-1)), 1)
        causal = model(prompt).logits
    assert (model(prompt, prefix_mask=shown).logits - causal).abs().max() > 1e-3
    static = {"cache_implementation": "static", "disable_compile": True}
    for more in ({}, {"use_cache": False}, static):
        assert torch.equal(model.generate(prompt, **how, **more), whole), more
    assert torch.equal(model.generate(prompt[:1], prompt_lookup_num_tokens=2, **how), whole[:1])
    padded, real = torch.cat((torch.zeros(2, 3, dtype=torch.long), prompt), 1), (torch.arange(9) > 2).long()
    assert torch.equal(model.generate(padded, attention_mask=real.expand(2, -1), **how)[:, 3:], whole)
    with pytest.raises(ValueError, match="leave prefill_chunk_size out"):
        model.generate(prompt, prefill_chunk_size=4, **how)


def test_what_cannot_show_a_prefix_says_so(tiny_config):
    states = build(tiny_config, attention_pattern=["full_attention", "linear_attention"])
    ids, shown = torch.randint(3, 97, (1, 6)), mask_of(6, 3)
    with pytest.raises(ValueError, match="linear_attention layers read tokens in their order"):
        states(ids, prefix_mask=shown)
    with pytest.raises(ValueError, match="no effect on a ready attention_mask"):
        build(tiny_config)(ids, attention_mask=torch.ones(1, 1, 6, 6, dtype=torch.bool), prefix_mask=shown)
    with pytest.raises(ValueError, match=r"continuous batching cannot run .* prefix_lm=True shows"):
        build(tiny_config, prefix_lm=True).init_continuous_batching()


@pytest.mark.parametrize("config_class", [AnyformerDecoderConfig, AnyformerMoeConfig])
def test_a_decoder_fills_masks_from_both_sides_at_the_token_before_them(config_class, tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "mask_token_id": 2}
    AutoModelForCausalLM.from_config(config_class(**sizes)).save_pretrained(tmp_path)
    writer, filler = (Auto.from_pretrained(tmp_path).eval() for Auto in (AutoModelForCausalLM, AutoModelForMaskedLM))
    assert not filler.can_generate() and filler.state_dict().keys() == writer.state_dict().keys()
    ids, labels = torch.randint(3, 97, (2, 10)), torch.full((2, 10), -100)
    ids[:, 4], labels[:, 4] = 2, 50
    filled, written = filler(ids, labels=labels), writer(ids, labels=labels, prefix_mask=torch.ones_like(ids))
    torch.testing.assert_close(filled.logits[:, 1:], written.logits[:, :-1], rtol=0, atol=0)
    expected = torch.nn.functional.cross_entropy(filled.logits[:, 4], labels[:, 4])
    torch.testing.assert_close(filled.loss, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(written.loss, expected, rtol=1e-5, atol=0)
    real = torch.ones_like(ids)
    real[0, 7:] = 0
    padded, alone = filler(ids, attention_mask=real).logits, filler(ids[:1, :7]).logits
    torch.testing.assert_close(padded[:1, :7], alone, rtol=0, atol=ROUNDING)


def test_transformers_fill_mask_pipeline_runs_a_decoder(tiny_config):
    tokenizer = of_words(["?", "[PAD]", "[MASK]", *"abcde"], pad="[PAD]", mask="[MASK]", unk="?")
    model = AutoModelForMaskedLM.from_config(tiny_config(vocab_size=len(tokenizer)))
    found = pipeline("fill-mask", model=model, tokenizer=tokenizer)(f"a {tokenizer.mask_token} c", top_k=2)
    ids = tokenizer(f"a {tokenizer.mask_token} c", return_tensors="pt")["input_ids"]
    place = (ids[0] == tokenizer.mask_token_id).nonzero()[0, 0]
    best = model.eval()(ids).logits[0, place].softmax(-1).topk(2)
    assert [each["token"] for each in found] == best.indices.tolist()

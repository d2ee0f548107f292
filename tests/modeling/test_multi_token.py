"""Modules that predict tokens further ahead: their loss, packed rows, drafts in generation, saving."""

from itertools import product

import pytest
import torch
from anyformer.modeling.multi_token import MultiTokenDraft
from anyformer.pipelines.interop.conversion import to_native
from anyformer.pipelines.training.losses.loss_parts import LossParts
from family_variants import a_share, positions_of
from local_hub import run_without_anyformer
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, GenerationConfig

EXACT = 1e-9  # float64, same maths in another order of operations
LOSS = 1e-5  # losses are fp32
GREEDY = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0}
PARTS = {
    "rotary": {},
    "learned-post": {"position_encoding": "learned", "norm_position": "post"},
    "windows-alibi": {
        "position_encoding": "alibi",
        "attention_pattern": ["full_attention", "sliding_attention"],
        "sliding_window": 3,
    },
    "delta-parallel": {"block": "parallel", "attention_pattern": ["full_attention", "gated_delta_attention"]},
}
KEYS = [name for name in PARTS if not name.startswith("delta")]  # states cannot forget a wrong draft


def build(tiny_config, modules: int = 2, **own):
    """A model whose modules' tokens differ, and which says the same few tokens again and again, so that drafts hit."""
    config = tiny_config(vocab_size=11, num_nextn_predict_layers=modules, initializer_range=0.3, **own)
    model = AutoModelForCausalLM.from_config(config).double()
    with torch.no_grad():
        for parameter in model.mtp.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def row(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(4, 11, (1, length), generator=torch.Generator().manual_seed(seed))


def logits_ahead(model, ids) -> list[torch.Tensor]:
    """The logits (1, T, V) of each module over a whole row, step by step as the paper writes them."""
    hidden, found = model.model(input_ids=ids).last_hidden_state, []
    ahead, context, _ = model.mtp.entered(model.model, ids, None, None, None)
    for k, module in enumerate(model.mtp.layers, start=1):
        following = torch.cat((ahead[:, k:], ahead.new_zeros(1, k, ahead.shape[-1])), dim=1)
        joined = torch.cat((module.enorm(following), module.hnorm(hidden)), dim=-1)
        hidden = module.post_norm(module.block(module.eh_proj(joined), **context))
        found.append(model.lm_head(hidden))
    return found


@pytest.mark.parametrize("name", PARTS)
def test_the_loss_is_the_mean_over_modules_and_is_added_in_training_only(tiny_config, name):
    model, ids = build(tiny_config, **PARTS[name]), row(9)
    plain = model(input_ids=ids, labels=ids)
    assert plain.mtp_loss is None
    trained = model.train()(input_ids=ids, labels=ids)
    expected = [
        cross_entropy(logits[0, : -k - 1].float(), ids[0, k + 1 :], reduction="sum") / 8
        for k, logits in enumerate(logits_ahead(model, ids), start=1)
    ]
    torch.testing.assert_close(trained.mtp_loss, sum(expected) / 2, rtol=0, atol=LOSS)
    torch.testing.assert_close(trained.loss, plain.loss + 0.3 * trained.mtp_loss, rtol=0, atol=LOSS)


@pytest.mark.parametrize("name", PARTS)
def test_no_prediction_crosses_from_one_packed_document_to_another(tiny_config, name):
    model, lengths = build(tiny_config, modules=3, **PARTS[name]).train(), [6, 2, 5]
    documents = [row(n, seed=n) for n in lengths]
    labels = [torch.cat((torch.full_like(x[:, :1], -100), x[:, 1:]), dim=1) for x in documents]
    apart = sum(model(input_ids=x, labels=y, num_items_in_batch=1).mtp_loss for x, y in zip(documents, labels))
    embeds = model.get_input_embeddings()(torch.cat(documents, dim=1)).detach().requires_grad_()
    given = {"inputs_embeds": embeds, "position_ids": positions_of(lengths), "num_items_in_batch": 1}
    together = model(**given, labels=torch.cat(labels, dim=1)).mtp_loss
    torch.testing.assert_close(together, apart, rtol=1e-6, atol=LOSS)
    only_last = torch.cat([torch.full_like(x, -100) for x in labels[:2]] + labels[2:], dim=1)
    (gradient,) = torch.autograd.grad(model(**given, labels=only_last).mtp_loss, embeds)
    assert gradient[:, :8].abs().max() == 0 and gradient[:, 8:-1].abs().sum(-1).min() > 0


@pytest.mark.parametrize("name, modules", a_share(product(KEYS, [1, 3]), 3))
def test_with_drafts_the_greedy_text_is_the_same(tiny_config, name, modules, monkeypatch):
    model, prompt = build(tiny_config, modules, **PARTS[name]), row(5)
    expected = model.generate(prompt, **GREEDY)
    passes = []
    model.model.register_forward_hook(lambda *given: passes.append(1))
    assert torch.equal(model.generate(prompt, **GREEDY, use_mtp=True), expected)
    assert len(passes) <= expected.shape[1] - 5
    padded = torch.cat((torch.zeros(1, 2, dtype=torch.long), prompt), dim=1)
    mask = (padded != 0).long()
    assert torch.equal(
        model.generate(padded, attention_mask=mask, **GREEDY, use_mtp=True),
        model.generate(padded, attention_mask=mask, **GREEDY),
    )


def test_drafts_are_what_the_modules_predict_of_the_whole_row(tiny_config):
    """A cache that kept a wrong draft, or lost a token, would draft something else."""
    model, text = build(tiny_config, modules=3), row(24, seed=5)
    draft = MultiTokenDraft(model, GenerationConfig(max_length=99))
    hidden, read, drafts = model.model(input_ids=text).last_hidden_state, 0, []
    for known in (3, 4, 7, 8, 9, 13, 20):
        outputs = type("Outputs", (), {"hidden_states": [hidden[:, read : known - 1]]})
        found, _ = draft.get_candidates(text[:, :known], model_outputs=outputs)
        read = known - 1
        expected = text[:, :known]
        for k in range(3):
            logits = logits_ahead(model, expected)[k]
            expected = torch.cat((expected, logits[:, known - 2].argmax(-1, keepdim=True)), dim=1)
        assert torch.equal(found, expected), known
        drafts += found[0, known:].tolist()
    assert len(set(drafts)) > 3  # and not one token always


def test_a_draft_ends_where_the_text_does(tiny_config):
    model, prompt = build(tiny_config, modules=3), row(5)
    text = model.generate(prompt, **GREEDY)
    for end in set(text[0, 5:].tolist()) - {prompt[0, -1].item()}:  # after an end transformers 5.17 drafts nothing
        how = GREEDY | {"eos_token_id": end}
        assert torch.equal(model.generate(prompt, **how, use_mtp=True), model.generate(prompt, **how))


def test_states_refuse_drafts_which_they_could_not_forget(tiny_config):
    model = build(tiny_config, **PARTS["delta-parallel"])
    with pytest.raises(ValueError, match="gated_delta_attention layers cannot forget a wrong one"):
        model.generate(row(5), **GREEDY, use_mtp=True)


def test_the_native_twin_is_that_of_the_model_without_modules(tiny_config):
    model, ids = build(tiny_config).float(), row(6)
    with pytest.warns(UserWarning, match="num_nextn_predict_layers=2: .* has no such modules"):
        native = to_native(model)
    torch.testing.assert_close(native(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


def test_the_log_has_the_mean_loss_over_all_labels_between_two_logs():
    parts, labels = LossParts(None), torch.tensor([[-100, 5, 6, 7, 8]])
    parts.add({"mtp_loss": torch.tensor(12.0 / 6)}, {"labels": labels}, 6)  # of the 6 labels of a step 4 are here
    parts.add({"mtp_loss": torch.tensor(3.0 / 6)}, {"labels": labels[:, :3]}, 6)
    assert parts.collect(lambda x: x) == {"mtp_loss": pytest.approx((12.0 + 3.0) / 6)}
    parts.add({"loss": torch.tensor(1.0)}, {"labels": labels}, 6)
    assert parts.collect(lambda x: x) == {}


@pytest.mark.slow
def test_a_saved_model_drafts_without_the_package(tiny_config, tmp_path):
    model, prompt = build(tiny_config), row(5)
    model.save_pretrained(tmp_path / "saved")
    script = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("saved", dtype=torch.float64, trust_remote_code=True).eval()
prompt, how = args
report(model.generate(torch.tensor([prompt]), **how, use_mtp=True).tolist())
"""
    found = run_without_anyformer(script, prompt[0].tolist(), GREEDY, cwd=tmp_path)
    assert found == model.generate(prompt, **GREEDY).tolist()

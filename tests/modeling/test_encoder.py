"""Laws of the encoder, whatever it is composed of: backends, padding, packing, checkpointing, saving, compiling."""

import logging
import math

import pytest
import torch
from family_variants import (
    DISTANCES_ONLY,
    ENCODERS,
    close,
    encoder_row,
    gradients_of,
    packed,
    padded,
    poison_empty_memory,
    positions_of,
    tokens,
)
from native_models import randomise
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from anyformer import AnyformerEncoderConfig, AnyformerEncoderForMaskedLM, AnyformerEncoderModel

EXACT = {"atol": 1e-5, "rtol": 1e-5}  # fp32, same maths in another order of operations
PACKED = {"atol": 1e-6, "rtol": 1e-5}
LENGTHS, LONG = [7, 1, 11, 5], [60, 33, 41, 35]  # long documents may be attended one by one


def build(config, **kwargs):
    return randomise(AnyformerEncoderForMaskedLM._from_config(config, **kwargs))


@pytest.fixture(params=ENCODERS)
def variant(request, tiny_encoder_config):
    return build(tiny_encoder_config(**ENCODERS[request.param]))


def documents(model, lengths=LENGTHS):
    return [encoder_row(model.config, n, seed=n) for n in lengths]


def labels_for(input_ids, share=0.3):
    drawn = torch.rand(input_ids.shape, generator=torch.Generator().manual_seed(9))
    return input_ids.masked_fill(drawn > share, -100)


@torch.no_grad()
def test_eager_equals_sdpa(variant):
    batches = [encoder_row(variant.config, 24, batch=2), padded(documents(variant), "right")]
    expected = [variant(**batch).logits for batch in batches]
    variant.set_attn_implementation("eager")
    for batch, logits in zip(batches, expected):
        real = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
        torch.testing.assert_close(variant(**batch).logits[real], logits[real], **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_a_padded_batch_has_the_outputs_of_its_rows_alone(variant, attn):
    variant.set_attn_implementation(attn)
    rows = documents(variant)
    expected = torch.cat([variant(**row).logits[0] for row in rows])
    right, left = padded(rows, "right"), padded(rows, "left")
    # Absolute positions count from the start of the row, unless they are given.
    given = {"position_ids": (left["attention_mask"].cumsum(-1) - 1).clamp(min=0)}
    knows_distances_only = (
        variant.config.position_encoding in DISTANCES_ONLY and variant.model.absolute_positions is None
    )
    for batch in (right, left | given, *([left] if knows_distances_only else [])):
        real = batch["attention_mask"].bool()
        close(variant(**batch).logits[real], expected, 1e-5)
        out = variant(**batch, output_hidden_states=True)  # asked for, they keep their padding
        assert {tuple(x.shape) for x in out.hidden_states} == {(4, 11, 32)}
        close(out.logits[real], expected, 1e-5)


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("lengths", [LENGTHS, LONG], ids=["short", "long"])
def test_packed_rows_equal_separate_documents_and_leak_no_gradient(variant, lengths, attn):
    variant.set_attn_implementation(attn)
    variant.double()  # in fp32 rounding alone comes close to 1e-6
    rows, total = documents(variant, lengths), sum(lengths)
    first, after = lengths[0] + lengths[1], total - lengths[-1]
    with torch.no_grad():
        separate = [variant(**row, output_hidden_states=True) for row in rows]
    row = packed(rows) | {"position_ids": positions_of(lengths)}
    end = packed([packed(rows), encoder_row(variant.config, 3)]) | {"position_ids": positions_of([*lengths, 3])}
    ones = torch.ones(1, total, dtype=torch.long)
    ones_then_padding = torch.nn.functional.pad(ones, (0, 3))
    for inputs in (row, row | {"attention_mask": ones}, end | {"attention_mask": ones_then_padding}):
        embeds = variant.get_input_embeddings()(inputs.pop("input_ids")).detach().requires_grad_()
        out = variant(inputs_embeds=embeds, **inputs, output_hidden_states=True)
        close(out.hidden_states[-1][:, :total], torch.cat([x.hidden_states[-1] for x in separate], 1), 1e-6)
        close(out.logits[:, :total], torch.cat([x.logits for x in separate], 1), 1e-6)
        (gradient,) = torch.autograd.grad(out.logits[:, first:after].square().sum(), embeds)
        assert gradient[:, first:after].abs().sum() > 0
        assert torch.all(gradient[:, :first] == 0) and torch.all(gradient[:, after:] == 0)


def test_the_loss_of_a_packed_row_is_the_weighted_mean_of_its_documents(variant):
    variant.train()
    rows = [row | {"labels": labels_for(row["input_ids"])} for row in documents(variant)]
    counts = [(row["labels"] != -100).sum() for row in rows]
    loss = variant(**packed(rows), position_ids=positions_of(LENGTHS)).loss
    separate = sum(variant(**row).loss * count for row, count in zip(rows, counts)) / sum(counts)
    torch.testing.assert_close(loss, separate, **PACKED)


def test_gradient_checkpointing_changes_no_gradient(variant):
    row = encoder_row(variant.config, 24, batch=2)
    labels = labels_for(row["input_ids"])
    variant.train()
    expected = gradients_of(variant, lambda: variant(**row, labels=labels).loss)
    variant.gradient_checkpointing_enable()
    got = gradients_of(variant, lambda: variant(**row, labels=labels).loss)
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-5, msg=name)


@torch.no_grad()
def test_outputs_hold_every_layer_and_embeddings_may_be_given(variant):
    variant.set_attn_implementation("eager")
    config, row = variant.config, encoder_row(variant.config, 24, batch=2)
    out = variant(**row, output_hidden_states=True, output_attentions=True)
    # The enhanced mask decoder runs the last layer anew, so often.
    calls = config.num_hidden_layers + max(0, config.mask_decoder_layers - 1)
    assert len(out.hidden_states) == calls + 1 and len(out.attentions) == calls
    assert {tuple(x.shape) for x in out.hidden_states} == {(2, 24, 32)}
    for weights in out.attentions:
        assert weights.shape == (2, 4, 24, 24)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 24))
    embeds = variant.get_input_embeddings()(row.pop("input_ids"))
    again = variant(**row, inputs_embeds=embeds)
    assert torch.equal(again.logits, out.logits) and again.hidden_states is None and again.attentions is None
    as_tuple = variant(**row, inputs_embeds=embeds, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], out.logits)


def test_training_runs_the_head_on_labelled_positions_with_the_loss_and_gradients_of_all_logits(variant):
    variant.train()
    row = encoder_row(variant.config, 24, batch=2)
    labels = labels_for(row["input_ids"])
    seen = []
    variant.lm_head.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[:-1].numel()))
    for count in (None, torch.tensor(57), 57):

        def of_all_logits(count=count):
            logits = variant(**row).logits.flatten(0, 1)
            total = cross_entropy(logits, labels.flatten(), reduction="sum")
            return total / ((labels != -100).sum() if count is None else count)

        def of_labelled(count=count):
            out = variant(**row, labels=labels, num_items_in_batch=count)
            assert out.logits is None
            return out.loss

        torch.testing.assert_close(of_labelled(), of_all_logits(), **PACKED)
        expected, got = gradients_of(variant, of_all_logits), gradients_of(variant, of_labelled)
        assert got.keys() == expected.keys()
        for name, gradient in got.items():
            torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4, msg=name)
    assert set(seen) == {48, (labels != -100).sum().item()}


def test_logits_come_in_evaluation_and_on_request(tiny_encoder_config):
    model, ids = build(tiny_encoder_config()), tokens()
    labels = labels_for(ids)
    shapes = {
        (training, wanted): getattr(
            model.train(training)(ids, labels=labels, return_logits=wanted).logits, "shape", None
        )
        for training in (False, True)
        for wanted in (None, False, True)
    }
    full = (2, 24, 97)
    assert [shapes[False, w] for w in (None, False, True)] == [full, None, full]
    assert [shapes[True, w] for w in (None, False, True)] == [None, None, full]
    torch.testing.assert_close(
        model(ids, labels=labels).loss, model.eval()(ids, labels=labels).loss, atol=1e-6, rtol=1e-6
    )


def test_a_batch_without_a_label_has_no_loss_and_no_gradient(tiny_encoder_config):
    model = build(tiny_encoder_config()).train()
    out = model(tokens(), labels=torch.full((2, 24), -100))
    out.loss.backward()
    assert out.loss == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_accumulated_micro_batches_have_the_gradient_of_the_whole_batch(tiny_encoder_config):
    model, ids = build(tiny_encoder_config()).train(), tokens(4)
    labels = labels_for(ids)
    labels[0, 5:] = -100
    count = (labels != -100).sum()
    expected = gradients_of(model, lambda: model(ids, labels=labels).loss)
    halves = slice(0, 2), slice(2, 4)
    got = gradients_of(
        model, lambda: sum(model(ids[h], labels=labels[h], num_items_in_batch=count).loss for h in halves)
    )
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4, msg=name)


@torch.no_grad()
def test_no_segment_is_the_first_segment(tiny_encoder_config):
    model, ids = build(tiny_encoder_config()), tokens()
    assert torch.equal(model(ids).logits, model(ids, token_type_ids=torch.zeros_like(ids)).logits)
    assert not torch.allclose(model(ids).logits, model(ids, token_type_ids=torch.ones_like(ids)).logits)


def seen(model, query: int, **kwargs) -> set[int]:
    """The positions whose embeddings the output at `query` depends on."""
    embeds = torch.randn(1, 24, model.config.hidden_size, requires_grad=True)
    out = model(inputs_embeds=embeds, **kwargs).last_hidden_state[0, query].square().sum()
    (gradient,) = torch.autograd.grad(out, embeds)
    return set(gradient[0].abs().sum(-1).nonzero()[:, 0].tolist())


@pytest.mark.parametrize("position_encoding", ["learned", "rotary", "alibi", "relative", "none"])
def test_tokens_see_both_sides_and_in_a_sliding_layer_the_window_on_each(tiny_encoder_config, position_encoding):
    common = {"num_hidden_layers": 1, "position_encoding": position_encoding}
    full = randomise(AnyformerEncoderModel(tiny_encoder_config(**common)))
    sliding = tiny_encoder_config(attention_pattern=["sliding_attention"], sliding_window=4, **common)
    sliding = randomise(AnyformerEncoderModel(sliding))
    for query in (0, 3, 11, 23):
        assert seen(full, query) == set(range(24))
        assert seen(sliding, query) == set(range(max(0, query - 4), min(24, query + 5)))


class Watch(TorchDispatchMode):
    """Records the squares of tokens that operations make, and those that read a value on the host."""

    def __init__(self):
        super().__init__()
        self.squares, self.syncs = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal):
            self.syncs.append(func.overloadpacket.__name__)
        for x in out if isinstance(out, tuple) else (out,):
            if isinstance(x, torch.Tensor) and x.shape[-2:] == (24, 24):
                self.squares.append(str(func))
        return out


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "rotary", "sinusoidal", "none"])
def test_without_padding_no_mask_is_built_and_the_number_of_labels_alone_is_read_on_the_host(tiny_encoder_config, name):
    model = build(tiny_encoder_config(**ENCODERS[name])).train()
    row = encoder_row(model.config, 24, batch=2)
    with Watch() as watch:
        model.model(**row)
    assert watch.squares == [] and watch.syncs == []
    labels = labels_for(row["input_ids"])
    with Watch() as watch:
        model(**row, labels=labels)
    assert watch.squares == [] and watch.syncs == ["nonzero"]


@torch.no_grad()
def test_loading_through_the_meta_device_restores_every_parameter_and_buffer(variant, tmp_path, monkeypatch):
    row = encoder_row(variant.config, 24, batch=2)
    expected, buffers = variant(**row).logits, dict(variant.named_buffers())
    variant.save_pretrained(tmp_path)
    poison_empty_memory(monkeypatch)
    loaded, facts = AnyformerEncoderForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(facts.values()), facts
    tied = variant.config.tie_word_embeddings
    assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) == tied
    assert dict(loaded.named_buffers()).keys() == buffers.keys()
    for name, buffer in loaded.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    assert torch.equal(loaded(**row).logits, expected)
    base = AnyformerEncoderModel.from_pretrained(tmp_path)
    out, own = base(**row), variant.model(**row)
    assert torch.equal(out.last_hidden_state, own.last_hidden_state)
    assert all(torch.isfinite(p).all() for p in base.parameters())
    assert (out.pooler_output is None) == (variant.config.pooler_act is None)


def test_fresh_weights_are_all_initialised_when_a_checkpoint_lacks_them(variant, tmp_path, monkeypatch):
    variant.model.save_pretrained(tmp_path)
    poison_empty_memory(monkeypatch)
    model = AnyformerEncoderForMaskedLM.from_pretrained(tmp_path)
    for name, p in model.named_parameters():
        assert torch.isfinite(p).all(), name
    assert 0.005 < model.head_transform.dense.weight.std().item() < 0.05
    assert torch.equal(model.model.embed_tokens.weight, variant.model.embed_tokens.weight)


def test_loss_at_the_start_is_that_of_a_uniform_guess(tiny_encoder_config):
    model = AnyformerEncoderForMaskedLM(tiny_encoder_config())
    assert model(tokens(8), labels=tokens(8, seed=1)).loss.item() == pytest.approx(math.log(97), rel=0.05)


def test_auto_classes_know_the_family(tiny_encoder_config, tmp_path):
    build(tiny_encoder_config()).save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), AnyformerEncoderConfig)
    assert isinstance(AutoModel.from_pretrained(tmp_path), AnyformerEncoderModel)
    assert isinstance(AutoModelForMaskedLM.from_pretrained(tmp_path), AnyformerEncoderForMaskedLM)


@pytest.mark.parametrize("fields", [{}, {"embedding_size": 16}, {"tie_word_embeddings": False}])
def test_resized_embeddings_stay_tied_if_they_were(tiny_encoder_config, tmp_path, fields):
    model, ids = build(tiny_encoder_config(**fields)), tokens()
    with torch.no_grad():
        before = model(ids).logits
    model.resize_token_embeddings(120, mean_resizing=False)
    tied = model.config.tie_word_embeddings
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    assert model.lm_head.bias.shape == (120,) and model.lm_head.weight.shape[0] == 120
    torch.testing.assert_close(model(ids).logits[..., :97], before, **PACKED)
    model.train()(ids, labels=labels_for(ids)).loss.backward()
    model.eval().save_pretrained(tmp_path)
    again = AnyformerEncoderForMaskedLM.from_pretrained(tmp_path)
    assert again.config.vocab_size == 120
    assert (again.lm_head.weight is again.get_input_embeddings().weight) == tied
    assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize("name", ["bert", "roberta", "deberta", "deberta_mask_decoder"])
def test_too_many_tokens_for_learned_positions_is_one_sentence(tiny_encoder_config, name):
    model = build(tiny_encoder_config(**(ENCODERS[name] | {"max_position_embeddings": 8})))
    assert model(tokens(1, 8)).logits.shape == (1, 8, 97)
    with pytest.raises(ValueError, match="max_position_embeddings=8"):
        model(tokens(1, 9))
    model(tokens(1, 12), position_ids=positions_of([8, 4]))  # packed rows may be longer


def test_bf16_autocast_trains_close_to_fp32(tiny_encoder_config):
    model, ids = AnyformerEncoderForMaskedLM(tiny_encoder_config()).train(), tokens()
    labels = labels_for(ids)
    expected = model(ids, labels=labels).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=labels).loss
    assert loss.dtype == torch.float32 and abs(loss - expected) < 2e-2
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["roberta", "deberta_v3", "deberta_mask_decoder", "deberta_sliding", "longformer", "modernbert", "alibi"]
)
def test_flex_attention_equals_sdpa_forward(tiny_encoder_config, name):
    """Forward only and 128 tokens: what flex can do on a CPU (see test_decoder.py)."""
    torch.compiler.reset()
    model = build(tiny_encoder_config(**ENCODERS[name] | {"max_position_embeddings": 128}))
    row = encoder_row(model.config, 128, batch=2)
    mask = torch.ones(2, 128, dtype=torch.long)
    mask[1, 120:] = 0
    calls = [{}, {"position_ids": positions_of([50, 78]).expand(2, -1)}, {"attention_mask": mask}]
    expected = [model(**row, **options).logits for options in calls]
    model.set_attn_implementation("flex_attention")
    for options, logits in zip(calls, expected):
        rows = mask.bool() if "attention_mask" in options else slice(None)
        torch.testing.assert_close(model(**row, **options).logits[rows], logits[rows], atol=1e-4, rtol=1e-5)


# ---- torch.compile and torch.export


@pytest.fixture
def fresh_compiler():
    logging.getLogger("torch.__trace").handlers.clear()  # pytest would collect a record of every traced tensor
    torch.compiler.reset()
    yield
    torch.compiler.reset()


COMPILED = [
    pytest.param(name, backend, marks=() if (name, backend) == ("bert", "aot_eager") else pytest.mark.slow)
    for name in ("bert", "albert", "deberta_v3", "deberta_conv", "deberta_mask_decoder", "longformer", "modernbert")
    for backend in ("aot_eager", "inductor")
]


@pytest.mark.parametrize("name, backend", COMPILED)
def test_a_compiled_training_step_has_the_loss_and_gradients_of_the_eager_one(
    tiny_encoder_config, fresh_compiler, name, backend
):
    model = build(tiny_encoder_config(**ENCODERS[name])).train()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    row = encoder_row(model.config, 24, batch=2)
    row |= {"labels": labels_for(row["input_ids"]), "num_items_in_batch": torch.tensor(20)}
    for extra in ({}, {"position_ids": positions_of([7, 1, 16]).expand(2, -1)}):
        expected = gradients_of(model, lambda: model(**row, **extra).loss)  # noqa: B023
        got = gradients_of(model, lambda: compiled(**row, **extra).loss)  # noqa: B023
        torch.testing.assert_close(compiled(**row, **extra).loss, model(**row, **extra).loss, **EXACT)
        for parameter, gradient in expected.items():
            torch.testing.assert_close(got[parameter], gradient, atol=1e-5, rtol=1e-4, msg=parameter)


@torch.no_grad()
@pytest.mark.parametrize("with_padding", [False, True], ids=["whole rows", "padded"])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("bert", "modernbert") else pytest.mark.slow) for n in ENCODERS]
)
def test_an_exported_encoder_serves_every_batch_and_length(tiny_encoder_config, name, with_padding):
    model = randomise(AnyformerEncoderModel(tiny_encoder_config(**ENCODERS[name])))
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=64)}

    def inputs(batch, length):
        row = encoder_row(model.config, length, batch=batch)
        if with_padding:
            row["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
            row["attention_mask"][-1, length - 3 :] = 0
        return row

    example = inputs(2, 24)
    shapes = {name: sizes for name in example}
    program = torch.export.export(model, (), example, dynamic_shapes=shapes, strict=False)
    for batch, length in ((2, 24), (3, 17), (1, 64)):
        row = inputs(batch, length)
        real = row.get("attention_mask", torch.ones(batch, length)).bool()
        expected, got = model(**row), program.module()(**row)
        torch.testing.assert_close(got.last_hidden_state[real], expected.last_hidden_state[real], **EXACT)

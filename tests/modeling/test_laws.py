"""The laws that hold for every model of the zoo (family_variants.py), whatever it is composed of.

In fp64 with a tolerance of 1e-9, where equal mathematics is equal on every machine and a mistake is not; in fp32 only
where the very same numbers are asked for, or where the type is the subject.
"""

import copy
import itertools
import logging
import math
import pickle

import pytest
import torch
import transformers
from anyformer.modeling.families import FAMILIES
from family_variants import (
    DISTANCES_ONLY,
    EXACT,
    FP32,
    HEADS,
    SEQ2SEQS,
    ZOO,
    close,
    exactness,
    gradients_of,
    poison_empty_memory,
)
from torch.nn.functional import cross_entropy, pad
from transformers import AutoConfig, AutoModel, DynamicCache, EncoderDecoderCache, StaticCache

import anyformer

TEXT = [variant for variant in ZOO if variant.reads_text]
GENERATING = [variant for variant in ZOO if variant.generates]
FIRST = [next(variant for variant in ZOO if variant.family == family) for family in HEADS]
LENGTHS, LONG = [7, 1, 11, 5], [60, 33, 41, 35]  # long documents may be attended one by one


SHARE = 6  # every law meets a sixth of the zoo in the fast suite, another sixth than the law before it
_laws = itertools.count()


def every(variants):
    """Parametrise a law with variants: the first of each family and a share of the others; the rest is slow."""
    turn = next(_laws)

    def is_fast(number: int, variant) -> bool:
        return variant in FIRST or number % SHARE == turn % SHARE

    rows = [
        pytest.param(variant, marks=() if is_fast(number, variant) else pytest.mark.slow, id=str(variant))
        for number, variant in enumerate(variants)
    ]
    return pytest.mark.parametrize("variant", rows)


def assert_same_gradients(got: dict, expected: dict, tolerance: float = FP32) -> None:
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        try:
            close(gradient, expected[name], tolerance)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def knows_distances_only(model) -> bool:
    """What stands before a row does not matter: its tokens are known from others by their distances."""
    absolute = getattr(model.base_model, "absolute_positions", None)
    return model.config.position_encoding in DISTANCES_ONLY and absolute is None


# ------------------------------------------------------------------------------------------------ backends and rows


@torch.no_grad()
@every(ZOO)
def test_eager_equals_sdpa(variant):
    if getattr(variant.config(), "attn_logit_softcapping", None):
        pytest.skip("sdpa cannot cap scores")
    model = variant.model()
    batches = [variant.inputs(model)]
    if variant.reads_text:
        batches.append(variant.padded(variant.documents(model, LENGTHS)))
    outputs = []
    for backend in ("sdpa", "eager"):
        model.set_attn_implementation(backend)
        assert {part.config._attn_implementation for part in model.modules() if hasattr(part, "layers")} == {backend}
        outputs.append([model(**batch).logits for batch in batches])
    for batch, sdpa, eager in zip(batches, *outputs):
        real = variant.real(batch) if "attention_mask" in batch else slice(None)
        close(eager[real], sdpa[real], exactness(model))


@torch.no_grad()
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@every(TEXT)
def test_a_padded_batch_has_the_outputs_of_its_rows_alone(variant, attn):
    model = variant.model()
    model.set_attn_implementation(attn)
    rows = variant.documents(model, LENGTHS)
    expected = torch.cat([model(**row).logits[0] for row in rows])
    right, left = variant.padded(rows, "right"), variant.padded(rows, "left")
    # Absolute positions count from the start of the row, unless they are given.
    given = {"position_ids": (left["attention_mask"].cumsum(-1) - 1).clamp(min=0)}
    batches = [(right, exactness(model))]
    if variant.family == "encoder" or not knows_distances_only(model):
        batches.append((left | given, exactness(model)))
    if knows_distances_only(model):
        batches.append((left, FP32))
    for batch, tolerance in batches:
        # A decoder's positions are known only where the encoder's are: these rows are not packed.
        close(model(**batch).logits[variant.real(batch)], expected, tolerance)
        # Asked for, hidden states keep their padding.
        out = model(**batch, output_hidden_states=True)
        hidden = out["encoder_hidden_states" if variant.family == "seq2seq" else "hidden_states"]
        assert {tuple(x.shape) for x in hidden} == {(4, 11, 32)}
        close(out.logits[variant.real(batch)], expected, tolerance)


@pytest.mark.parametrize(
    "lengths, attn",
    [
        pytest.param(LENGTHS, "eager", id="short-eager"),
        pytest.param(LENGTHS, "sdpa", id="short-sdpa"),
        pytest.param(LONG, "eager", id="long-eager", marks=pytest.mark.slow),
        pytest.param(LONG, "sdpa", id="long-sdpa"),
    ],
)
@every(TEXT)
def test_packed_rows_equal_separate_documents_and_leak_no_gradient(variant, lengths, attn):
    model = variant.model()
    model.set_attn_implementation(attn)
    rows = variant.documents(model, lengths)
    with torch.no_grad():
        separate = [model(**row, output_hidden_states=True) for row in rows]
    whole, prefixes = variant.packed(rows), variant.prefixes()
    ones = {f"{prefix}attention_mask": torch.ones_like(whole[f"{prefix}input_ids"]) for prefix in prefixes}
    batches = [whole, whole | ones]
    if variant.generates:
        batches.append(whole | {"use_cache": True})
    if variant.family == "encoder":  # padding behind the last document
        more = variant.packed([*rows, variant.inputs(model, 3, 1)])
        batches.append(more | {"attention_mask": pad(ones["attention_mask"], (0, 3))})
    batches = batches if lengths == LENGTHS else batches[:1]
    total = sum(each.logits.shape[1] for each in separate)
    for batch in batches:
        inputs, embeds = dict(batch), {}
        for prefix in prefixes:
            ids = inputs.pop(f"{prefix}input_ids")
            embeds[f"{prefix}inputs_embeds"] = model.get_input_embeddings()(ids).detach().requires_grad_()
        out = model(**inputs, **embeds, output_hidden_states=True)
        close(out.logits[:, :total], torch.cat([each.logits for each in separate], 1), exactness(model))
        for name in ("hidden_states", "encoder_hidden_states", "decoder_hidden_states"):
            if out.get(name) is not None:
                alone = torch.cat([each[name][-1] for each in separate], 1)
                close(out[name][-1][:, : alone.shape[1]], alone, exactness(model))
        if batch is whole:
            with torch.no_grad():  # another kernel may do it
                close(model(**batch).logits, out.logits, exactness(model))
        third = slice(*(sum(each.logits.shape[1] for each in separate[:n]) for n in (2, 3)))
        gradients = torch.autograd.grad(out.logits[:, third].square().sum(), list(embeds.values()))
        for prefix, gradient in zip(prefixes, gradients):
            begin, end = (sum(row[f"{prefix}input_ids"].shape[1] for row in rows[:n]) for n in (2, 3))
            assert gradient[:, begin:end].abs().sum() > 0
            assert torch.all(gradient[:, :begin] == 0) and torch.all(gradient[:, end:] == 0)


PACKED = ("decoder-rotary", "decoder-learned", "decoder-linear", "moe-mixtral", "encoder-bert", "encoder-deberta_conv")


@torch.no_grad()
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("variant", [variant for variant in TEXT if str(variant) in PACKED], ids=str)
def test_borders_as_flash_kernels_take_them_pack_rows_with_every_backend(variant, attn):
    model = variant.model(max_position_embeddings=80)
    model.set_attn_implementation(attn)
    for lengths in (LENGTHS, [40, 10, 33, 17]):  # the second is longer than max_position_embeddings
        rows = variant.documents(model, lengths)
        packed = variant.packed(rows)
        positions = packed.pop("position_ids")
        borders = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        borders = {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders, "max_length_q": 40, "max_length_k": 40}
        expected = torch.cat([model(**row).logits for row in rows], dim=1)
        close(model(**packed, **borders).logits, expected, exactness(model))
        close(model(**packed, **borders, position_ids=positions).logits, expected, exactness(model))
    two_rows = {name: x.view(2, -1) for name, x in packed.items()}  # of 50 tokens: borders count on over rows
    close(model(**two_rows, **borders).logits.view(expected.shape), expected, exactness(model))


def test_borders_of_one_half_are_refused_where_there_are_two():
    variant = next(variant for variant in FIRST if variant.family == "seq2seq")
    model = variant.model()
    with pytest.raises(ValueError, match="cu_seq_lens_q has the borders of one side; give position_ids and decoder"):
        model(**variant.inputs(model), cu_seq_lens_q=torch.tensor([0, 24, 48]))


@every(TEXT)
def test_the_loss_of_a_packed_row_is_the_weighted_mean_of_its_documents(variant):
    model = variant.model()  # in evaluation: routers' losses are means over rows
    rows = [variant.labelled(model, length, 1, seed) for seed, length in enumerate(LENGTHS) if length > 1]
    for row in rows:
        row["labels"][0, 0] = -100  # no document predicts the first token of another
    counts = [len(variant.predicted(row["labels"])) for row in rows]
    inputs = [row | {"decoder_input_ids": row["labels"]} if variant.family == "seq2seq" else row for row in rows]
    whole = variant.packed(inputs)
    whole.pop("decoder_input_ids", None)
    loss = model(**whole, return_logits=False).loss
    separate = [model(**row, return_logits=False).loss * count for row, count in zip(rows, counts) if count]
    close(loss, sum(separate) / sum(counts), FP32)


# ------------------------------------------------------------------------------------------------ losses and gradients


@pytest.mark.parametrize("use_reentrant", [False, True])
@every(ZOO)
def test_gradient_checkpointing_changes_no_gradient(variant, use_reentrant):
    model = variant.model().train()
    batch = variant.labelled(model)
    expected = gradients_of(model, lambda: model(**batch).loss)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    if use_reentrant:
        model.enable_input_require_grads()
    assert_same_gradients(gradients_of(model, lambda: model(**batch).loss), expected, EXACT)


@every(ZOO)
def test_accumulated_micro_batches_have_the_gradient_of_the_whole_batch(variant):
    model = variant.model().train()
    batch = variant.labelled(model, batch=4)
    if variant.reads_text:
        batch["labels"][0, 5:] = -100  # micro-batches of different weight
    count = variant.predicted(batch["labels"]).shape[0]
    expected = gradients_of(model, lambda: model(**batch).loss)

    def of_parts():
        parts = [{name: x[cut] for name, x in batch.items()} for cut in (slice(0, 1), slice(1, 4))]
        return sum(model(**part, num_items_in_batch=torch.tensor(count)).loss for part in parts)

    assert_same_gradients(gradients_of(model, of_parts), expected)


@every(TEXT)
def test_training_has_the_loss_and_gradients_of_all_logits_without_making_them(variant):
    model = variant.model(**({"router_aux_loss_coef": 0.0} if "experts" in str(variant.config()) else {})).train()
    batch = variant.labelled(model)
    labels = batch["labels"]
    shifted = pad(labels[:, 1:], (0, 1), value=-100) if variant.family in ("decoder", "moe") else labels
    inputs = {name: x for name, x in batch.items() if name != "labels"}
    if variant.family == "seq2seq":
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    for count, smoothing in ((None, 0.1), (torch.tensor(57), 0.0), (57, 0.0)):
        smooth = {"label_smoothing": smoothing} if variant.family == "seq2seq" else {}

        def of_logits(count=count, smooth=smooth):
            logits = model(**inputs).logits.flatten(0, 1)
            total = cross_entropy(logits, shifted.flatten(), reduction="sum", **smooth)
            return total / ((shifted != -100).sum() if count is None else count)

        def of_labels(count=count, smooth=smooth):
            out = model(**batch, num_items_in_batch=count, **smooth)
            assert "logits" not in out
            return out.loss

        close(of_labels().double(), of_logits(), FP32)
        assert_same_gradients(gradients_of(model, of_labels), gradients_of(model, of_logits))


@every(FIRST[:-1])
def test_logits_come_in_evaluation_and_on_request(variant):
    model = variant.model()
    batch = variant.labelled(model)
    for training, wanted, given in ((False, None, True), (False, False, False), (False, True, True)):
        assert ("logits" in model.train(training)(**batch, return_logits=wanted)) == given
    for wanted, given in ((None, False), (False, False), (True, True)):
        assert ("logits" in model.train()(**batch, return_logits=wanted)) == given


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", FIRST[:-1], ids=str)
def test_who_reads_logits_that_a_step_did_not_make_is_told_how_to_get_them(variant, compiled, request):
    model = variant.model().train()
    run = model
    if compiled:
        logging.getLogger("torch.__trace").handlers.clear()
        request.addfinalizer(torch.compiler.reset)
        run = torch.compile(model, backend="eager", fullgraph=True)
    out = run(**variant.labelled(model))
    pickled = pickle.loads(pickle.dumps(out))
    for each in (out, copy.copy(out), type(out)({"loss": out.loss}), pickled):  # the third: as accelerate casts outputs
        assert torch.equal(each.loss, out.loss) and torch.equal(each[0], out.loss)
        assert "loss=" in repr(each) and each.get("logits") is None
        with pytest.raises(AttributeError, match="made its loss without logits; pass return_logits=True"):
            print(each.logits)
        with pytest.raises(KeyError, match="made its loss without logits; pass return_logits=True"):
            print(each["logits"])
    asked = model(**variant.labelled(model), return_logits=True)
    assert torch.equal(pickle.loads(pickle.dumps(asked)).logits, asked["logits"])


@every(FIRST[:-1])
def test_the_loss_of_a_new_model_is_that_of_a_uniform_guess(variant):
    model = variant.model_class()(variant.config())
    batch = variant.labelled(model, batch=8)
    labels = variant.labelled(model, batch=8, seed=1)["labels"]  # nothing that the input shows
    assert model.eval()(**batch | {"labels": labels}).loss.item() == pytest.approx(math.log(97), rel=0.05)


@every(FIRST)
def test_bf16_autocast_trains_close_to_fp32(variant):
    model = variant.model_class()(variant.config()).train()
    batch = variant.labelled(model)
    batch |= {name: x.float() for name, x in batch.items() if x.is_floating_point()}
    expected = model(**batch).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
    assert loss.dtype == torch.float32 and abs(loss - expected) < 2e-2
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients and all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)


# ------------------------------------------------------------------------------------------------ saving and loading


@pytest.mark.usefixtures("without_code_files")
@torch.no_grad()
@every(ZOO)
def test_loading_through_the_meta_device_restores_every_parameter_and_buffer(variant, tmp_path, monkeypatch):
    model = variant.model(torch.float32)
    inputs = variant.inputs(model)
    inputs |= {name: x.float() for name, x in inputs.items() if x.is_floating_point()}
    buffers = dict(model.named_buffers())
    expected, hidden = model(**inputs).logits, model.base_model(**inputs).last_hidden_state
    model.save_pretrained(tmp_path)
    poison_empty_memory(monkeypatch)
    loaded, facts = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(facts.values()), facts
    if variant.reads_text:
        tied = model.config.tie_word_embeddings
        assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) == tied
    assert dict(loaded.named_buffers()).keys() == buffers.keys()
    for name, buffer in loaded.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    assert torch.equal(loaded(**inputs).logits, expected)
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert type(base) is type(model.base_model) and all(p.isfinite().all() for p in base.parameters())
    out = base(**inputs)
    assert torch.equal(out.last_hidden_state, hidden)
    if variant.family == "encoder":
        assert (out.pooler_output is None) == (model.config.pooler_act is None)


@pytest.mark.usefixtures("without_code_files")
@every(ZOO)
def test_fresh_weights_are_all_initialised_when_a_checkpoint_lacks_them(variant, tmp_path, monkeypatch):
    """A base checkpoint without a head, loaded into the model with one: nothing is left uninitialised."""
    base = variant.model(torch.float32).base_model
    base.save_pretrained(tmp_path)
    poison_empty_memory(monkeypatch)
    model = variant.model_class().from_pretrained(tmp_path)
    for name, p in model.named_parameters():
        assert torch.isfinite(p).all(), name
    known = base.state_dict()
    for name, p in model.base_model.state_dict().items():
        assert torch.equal(p, known[name]), name
    fresh = {name: p for name, p in model.named_parameters() if not name.startswith(f"{model.base_model_prefix}.")}
    for name, p in fresh.items():
        assert p.ndim < 2 or 0.005 < p.std().item() < 0.05, name


@every(FIRST)
def test_auto_classes_know_the_family(variant, tmp_path):
    model = variant.model(torch.float32)
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), type(model.config))
    anyformer.register()  # again: no error
    assert type(AutoModel.from_pretrained(tmp_path)) is type(model.base_model)
    auto = getattr(transformers, FAMILIES[model.config.model_type].pretraining)
    assert type(auto.from_pretrained(tmp_path)) is type(model)


RESIZED = [*FIRST[:-1], *(v for v in ZOO if str(v) in ("decoder-untied-layernorm-nobias", "seq2seq-umt5"))]
RESIZED += [v for v in ZOO if str(v) in ("encoder-albert", "encoder-rotary", "seq2seq-bart")]


@every(RESIZED)
def test_resized_embeddings_stay_tied_if_they_were(variant, tmp_path):
    model = variant.model()
    inputs, tied = variant.inputs(model), model.config.tie_word_embeddings
    with torch.no_grad():
        before = model(**inputs).logits
    model.resize_token_embeddings(120, mean_resizing=False)
    table = model.get_input_embeddings().weight
    assert (model.lm_head.weight is table) == tied and table.shape[0] == model.lm_head.weight.shape[0] == 120
    assert getattr(model.lm_head, "bias", None) is None or model.lm_head.bias.shape == (120,)
    close(model(**inputs).logits[..., :97], before, exactness(model))
    model.train()(**variant.labelled(model)).loss.backward()
    model.eval().save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.config.vocab_size == 120 and torch.equal(again(**inputs).logits, model(**inputs).logits)
    assert (again.lm_head.weight is again.get_input_embeddings().weight) == tied


# ------------------------------------------------------------------------------------------------ decoding


def caches(model):
    """Each kind of cache, empty."""
    kinds = [DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=32)]
    if model.config.is_encoder_decoder:
        return [None]  # its own, which it makes from the encoder's outputs
    return kinds


@torch.no_grad()
@every(GENERATING)
def test_every_way_to_step_through_a_row_gives_the_logits_of_the_full_forward(variant):
    model = variant.model()
    inputs = variant.inputs(model, 16 if variant.family == "seq2seq" else 23)
    ids = inputs.pop("decoder_input_ids", inputs["input_ids"])
    name, given = "input_ids", {}
    if variant.family == "seq2seq":
        name, given = "decoder_input_ids", {"encoder_outputs": model.get_encoder()(inputs["input_ids"])}
    expected = model(**given, **{name: ids}, use_cache=False)
    assert expected.past_key_values is None
    length = ids.shape[1]
    for sizes in ([1] * length, [length - 8, 8], [5, 5, length - 10], [3, 1, length - 4]):
        for cache in caches(model):
            steps = []
            for part in ids.split(sizes, dim=1):
                out = model(**given, **{name: part}, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                steps.append(out.logits)
            close(torch.cat(steps, 1), expected.logits, exactness(model))
            assert isinstance(cache, EncoderDecoderCache) or int(cache.get_seq_length()) == length


GREEDY = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}


@torch.no_grad()
@every(GENERATING)
def test_every_cache_generates_the_tokens_of_full_forwards_and_left_padding_changes_none(variant):
    model = variant.model()
    model.generation_config.eos_token_id = None  # 8 tokens in any case
    ids = variant.inputs(model, 7)["input_ids"]
    mask, left = torch.ones_like(ids), pad(ids, (3, 0))
    expected = by_full_forwards(variant, model, ids)
    for options in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        new = model.generate(ids, attention_mask=mask, **GREEDY, **options)
        assert torch.equal(new[:, -8:], expected), options
        if options.get("use_cache", True) and (variant.family != "seq2seq" or knows_distances_only(model)):
            new = model.generate(left, attention_mask=pad(mask, (3, 0)), **GREEDY, **options)
            assert torch.equal(new[:, -8:], expected), options
    if variant.name.startswith(("linear", "compressive", "recurrent")):  # caches of states follow their beams, too
        beams = [model.generate(ids, **GREEDY, num_beams=3, use_cache=cached) for cached in (True, False)]
        assert torch.equal(*beams)


def by_full_forwards(variant, model, ids) -> torch.Tensor:
    """(B, 8) tokens of greedy decoding without any cache: the reference."""
    given = {}
    if variant.family == "seq2seq":
        given, ids = {"input_ids": ids}, torch.full((len(ids), 1), model.config.decoder_start_token_id)
    name = "decoder_input_ids" if given else "input_ids"
    for _ in range(8):
        logits = model(**given, **{name: ids}, use_cache=False).logits[:, -1]
        ids = torch.cat((ids, logits.argmax(-1, keepdim=True)), dim=1)
    return ids[:, -8:]


# ------------------------------------------------------------------------------------------------ compilers


@pytest.fixture
def fresh_compiler():
    logging.getLogger("torch.__trace").handlers.clear()  # pytest would collect a record of every traced tensor
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# Each compilation takes some seconds: by default a decoder and an image model stand for all, traced and run as is.
# Inductor takes ten times as long: it compiles what differs in the kinds of operations.
QUICK = ("decoder-rotary", "encoder-bert", "seq2seq-t5", "vit-deit")
BY_INDUCTOR = (
    *QUICK,
    "decoder-learned",
    "decoder-alibi",
    "decoder-relative-sliding",
    "decoder-strided",
    "decoder-yarn",
)
BY_INDUCTOR += (
    "decoder-scaled-and-capped",
    "moe-mixtral",
    "moe-deepseek",
    "moe-odd_sizes",
    "encoder-albert",
    "encoder-deberta_v3",
)
BY_INDUCTOR += ("encoder-deberta_conv", "encoder-deberta_mask_decoder", "encoder-longformer", "encoder-modernbert")
BY_INDUCTOR += ("vit-vit", "vit-rotary", "vit-mae", *(f"seq2seq-{name}" for name in SEQ2SEQS if name != "t5"))
COMPILED = [
    pytest.param(variant, backend, id=f"{variant}-{backend}")
    for variant in ZOO
    for backend, names in (("aot_eager", [str(each) for each in ZOO]), ("inductor", BY_INDUCTOR))
    if str(variant) in names
]


@pytest.mark.slow
@pytest.mark.parametrize("variant, backend", COMPILED)
def test_a_compiled_training_step_has_the_loss_and_gradients_of_the_eager_one(variant, backend, fresh_compiler):
    # One layer where one is enough: a group, a pattern, or a decoder of another depth asks for its own.
    layers = {"num_hidden_layers": 1} if str(variant) in QUICK else {}
    model = variant.model(torch.float32, **layers).train()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    batch = variant.labelled(model) | {"num_items_in_batch": torch.tensor(20)}
    batch |= {name: x.float() for name, x in batch.items() if x.is_floating_point()}
    batches = [batch]
    if variant.family in ("decoder", "moe", "encoder"):
        positions = torch.cat([torch.arange(n) for n in (7, 1, 16)]).expand(2, -1)
        batches.append(batch | {"position_ids": positions})
    if variant.family == "seq2seq":
        mask = (torch.arange(24) < torch.tensor([[24], [19]])).long()
        batches = [batch | {"attention_mask": mask, "label_smoothing": 0.1}]
    for inputs in batches:
        expected, got = (gradients_of(model, lambda run=run, x=inputs: run(**x).loss) for run in (model, compiled))
        close(compiled(**inputs).loss, model(**inputs).loss, 1e-5)
        assert_same_gradients(got, expected, 1e-4)  # fp32: inductor reorders sums


@pytest.mark.slow
@torch.no_grad()
@every([v for v in ZOO if not getattr(v.config(), "attn_logit_softcapping", None)])
def test_flex_attention_equals_sdpa_forward(variant, fresh_compiler):
    """Forward only: flex has no backward on CPU.

    128 tokens, a whole block: below one, torch 2.15's CPU kernel gives wrong rows for heads as small as these (plain
    `torch.compile(flex_attention)` does, too).
    """
    if variant.family == "vit":
        fields = {"num_register_tokens": 7, "image_size": [44, 44], "num_key_value_heads": 4}
    else:
        fields = {"max_position_embeddings": 128}
    model = variant.model(torch.float32, **fields)
    inputs = variant.inputs(model, 128)
    inputs |= {name: x.float() for name, x in inputs.items() if x.is_floating_point()}
    calls = [inputs]
    if variant.reads_text:
        padded = {"attention_mask": torch.ones(2, 128, dtype=torch.long)}
        padded["attention_mask"][1, 120:] = 0
        whole = variant.packed(variant.documents(model, [50, 78]))
        calls += [inputs | padded, {name: x.expand(2, -1) for name, x in whole.items()}]
    expected = [model(**call).logits for call in calls]
    model.set_attn_implementation("flex_attention")
    # torch 2.15's CPU kernel for lengths that vary does not compile where source and target differ ("cur_qSplitSize0").
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        for call, logits in zip(calls, expected):
            real = (
                call["attention_mask"].bool()
                if "attention_mask" in call and variant.family != "seq2seq"
                else slice(None)
            )
            close(model(**call).logits[real], logits[real], 1e-4)

"""The laws of pipelines/checks/laws hold for every model of the zoo (family_variants.py), whatever it is composed of.

In fp64 with a tolerance of 1e-9, where equal mathematics is equal on every machine and a mistake is not. Below them
what our families promise beside.
"""

import copy
import importlib.util
import itertools
import logging
import math
import pickle

import pytest
import torch
import transformers
from anyformer.modeling.families import FAMILIES
from anyformer.pipelines.checks.check_report import ask
from anyformer.pipelines.checks.findings import Verdict
from anyformer.pipelines.checks.laws import LAWS, law
from family_variants import (
    DISTANCES_ONLY,
    FP32,
    HEADS,
    SEQ2SEQS,
    TINY_FIELDS,
    ZOO,
    a_share,
    close,
    config_class,
    gradients_of,
)
from native_models import randomise
from torch.nn.functional import cross_entropy, pad
from zoo_subject import ZooSubject

import anyformer

TEXT = [variant for variant in ZOO if variant.reads_text]
FIRST = [next(variant for variant in ZOO if variant.family == family) for family in HEADS]
LENGTHS, LONG = [7, 1, 11, 5], [60, 33, 41, 35]  # long documents may be attended one by one

SHARE = 20  # of as many laws each meets another share of the zoo in the fast suite: every model meets one
_laws = itertools.count()


def is_fast(number: int, turn: int) -> bool:
    return number % SHARE == turn % SHARE


def every(variants):
    """Parametrise a test with variants: the first of each family and a share of the others; the rest is slow."""
    turn = next(_laws)
    fast = [variant in FIRST or is_fast(number, turn) for number, variant in enumerate(variants)]
    rows = [pytest.param(v, marks=() if f else pytest.mark.slow, id=str(v)) for v, f in zip(variants, fast)]
    return pytest.mark.parametrize("variant", rows)


# ------------------------------------------------------------------------------------------------ the shared laws

# The families that promise a law, by the kinds of their models; every other one is promised by all.
CLAIMED = {
    "packing": TEXT,
    "padding": TEXT,
    "causality": TEXT,
    "resizing": TEXT,
    "cache": [variant for variant in ZOO if variant.generates],
    "backends": [variant for variant in ZOO if str(variant) != "vit-none"],  # sdpa caps no scores
    "adapters": ZOO if importlib.util.find_spec("peft") else [],
}
# What a finding may leave open: rates of 0 in the zoo, and backends that cannot compute a composition.
OPEN = ("dropout in training", "experts by grouped_mm and eager")
SLOW = {"compiled": ZOO, "resume": [v for v in ZOO if v.generates]}  # what takes long
MEETS_OTHER_LOGITS = ("labels", "vit-deit")  # the mean of two heads' losses is not the loss of their mean


def laws_and_variants():
    for turn, name in enumerate(name for name in LAWS if name != "device"):
        for number, variant in enumerate(ZOO):
            if (name, str(variant)) != MEETS_OTHER_LOGITS:
                slow = variant in SLOW.get(name, ()) or not is_fast(number, turn)
                marks = [pytest.mark.slow] if slow else []
                yield pytest.param(name, variant, marks=marks, id=f"{name}-{variant}")


@pytest.fixture
def fresh_compiler():
    logging.getLogger("torch.__trace").handlers.clear()  # pytest would collect a record of every traced tensor
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def check_answer(answer, claimed: bool) -> None:
    """Every finding holds, and a law that is claimed is asked."""
    wrong = [finding for finding in answer.findings if finding.verdict in (Verdict.FAILS, Verdict.NOT_ASKED)]
    assert not wrong, "\n".join(map(str, wrong))
    assert (answer.verdict is Verdict.HOLDS) == claimed, answer.findings[0].why
    left_open = {finding.what for finding in answer.findings if finding.verdict is not Verdict.HOLDS}
    assert not claimed or left_open <= set(OPEN), left_open


@pytest.mark.usefixtures("without_code_files", "fresh_compiler")
@pytest.mark.parametrize("name, variant", laws_and_variants())
def test_a_law_holds(name, variant):
    check_answer(ask(ZooSubject.of(variant), name), variant in CLAIMED.get(name, ZOO))


@every(TEXT)
def test_long_documents_are_packed_by_the_same_law(variant, monkeypatch):
    monkeypatch.setattr(law("packing"), "LENGTHS", LONG)
    check_answer(ask(ZooSubject.of(variant), "packing"), True)


# What differs in the kinds of operations; inductor takes ten times as long as aot_eager, by which the law compiles.
BY_INDUCTOR = ("decoder-rotary", "encoder-bert", "seq2seq-t5", "vit-deit", "decoder-learned", "decoder-alibi")
BY_INDUCTOR += ("decoder-relative-sliding", "decoder-strided", "decoder-yarn", "decoder-scaled-and-capped")
BY_INDUCTOR += ("moe-mixtral", "moe-deepseek", "moe-odd_sizes", "encoder-albert", "encoder-deberta_v3")
BY_INDUCTOR += ("encoder-deberta_conv", "encoder-deberta_mask_decoder", "encoder-longformer", "encoder-modernbert")
BY_INDUCTOR += ("vit-vit", "vit-rotary", "vit-mae", *(f"seq2seq-{name}" for name in SEQ2SEQS if name != "t5"))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("variant", [variant for variant in ZOO if str(variant) in BY_INDUCTOR], ids=str)
def test_inductor_compiles_by_the_same_law(variant, monkeypatch):
    monkeypatch.setattr(law("compiled"), "BACKEND", "inductor")
    subject = ZooSubject(variant, variant.model(torch.float32))
    subject.fp32_tolerance = 1e-4  # it reorders sums
    check_answer(ask(subject, "compiled"), True)


# ------------------------------------------------------------------------------------------------ rows


@torch.no_grad()
@every(TEXT)
def test_hidden_states_that_are_asked_for_keep_their_padding_and_change_no_logit(variant):
    subject = ZooSubject.of(variant)
    documents = subject.documents(LENGTHS)
    batch, name = subject.padded(documents), "encoder_hidden_states" if variant.family == "seq2seq" else "hidden_states"
    for backend in subject.backends:
        model = subject.fresh(backend)
        alone = [model(**each, output_hidden_states=True) for each in documents]
        out = model(**batch, output_hidden_states=True)
        assert {tuple(x.shape) for x in out[name]} == {(4, 11, 32)}
        expected = torch.cat([each.logits[0] for each in alone])
        close(out.logits[subject.real(batch)], expected, subject.tolerance)
        out = model(**subject.packed(documents), output_hidden_states=True)
        for states in {name, name.replace("encoder", "decoder")}:
            close(out[states][-1], torch.cat([each[states][-1] for each in alone], 1), subject.tolerance)


@torch.no_grad()
@every(
    [v for v in TEXT if v.config().position_encoding in DISTANCES_ONLY and not v.fields.get("attn_temperature_tuning")]
)
def test_where_distances_alone_are_known_padding_on_the_left_needs_no_positions(variant):
    subject = ZooSubject.of(variant)
    documents = subject.documents(LENGTHS)
    batch = subject.padded(documents, "left")
    for backend in subject.backends:
        model = subject.fresh(backend)
        if getattr(model.base_model, "absolute_positions", None) is None:
            expected = torch.cat([model(**each).logits[0] for each in documents])
            close(model(**batch).logits[subject.real(batch)], expected, FP32)


PACKED = ("decoder-rotary", "decoder-learned", "decoder-linear", "moe-mixtral", "encoder-bert", "encoder-deberta_conv")


@torch.no_grad()
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("variant", [variant for variant in TEXT if str(variant) in PACKED], ids=str)
def test_borders_as_flash_kernels_take_them_pack_rows_with_every_backend(variant, attn):
    subject = ZooSubject(variant, variant.model(max_position_embeddings=80))
    model = subject.fresh(attn)
    for lengths in (LENGTHS, [40, 10, 33, 17]):  # the second is longer than max_position_embeddings
        rows = subject.documents(lengths)
        packed = subject.packed(rows)
        positions = packed.pop("position_ids")
        borders = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        borders = {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders, "max_length_q": 40, "max_length_k": 40}
        expected = torch.cat([model(**row).logits for row in rows], dim=1)
        close(model(**packed, **borders).logits, expected, subject.tolerance)
        close(model(**packed, **borders, position_ids=positions).logits, expected, subject.tolerance)
    two_rows = {name: x.view(2, -1) for name, x in packed.items()}  # of 50 tokens: borders count on over rows
    close(model(**two_rows, **borders).logits.view(expected.shape), expected, subject.tolerance)


def test_borders_of_one_half_are_refused_where_there_are_two():
    variant = next(variant for variant in FIRST if variant.family == "seq2seq")
    model = variant.model()
    with pytest.raises(ValueError, match="cu_seq_lens_q has the borders of one side; give position_ids and decoder"):
        model(**variant.inputs(model), cu_seq_lens_q=torch.tensor([0, 24, 48]))


# ------------------------------------------------------------------------------------------------ losses


def assert_same_gradients(got: dict, expected: dict, tolerance: float = FP32) -> None:
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        try:
            close(gradient, expected[name], tolerance)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@every([variant for variant in TEXT if str(variant) != "decoder-tokens-ahead"])  # its loss has a part of other logits
def test_training_has_the_loss_and_gradients_of_all_logits_without_making_them(variant):
    model = variant.model(**({"router_aux_loss_coef": 0.0} if "experts" in str(variant.config()) else {})).train()
    subject = ZooSubject(variant, model)
    batch = subject.labelled()
    labels = batch["labels"]
    shifted = pad(labels[:, 1:], (0, 1), value=-100) if subject.kind == "causal" else labels
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
    subject = ZooSubject.of(variant)
    model, batch = subject.fresh(), subject.labelled()
    for training, wanted, given in ((False, None, True), (False, False, False), (False, True, True)):
        assert ("logits" in model.train(training)(**batch, return_logits=wanted)) == given
    for wanted, given in ((None, False), (False, False), (True, True)):
        assert ("logits" in model.train()(**batch, return_logits=wanted)) == given


@every(FIRST[:-1])
def test_a_step_says_the_losses_of_its_rows_without_logits_that_stay_alive(variant):
    subject = ZooSubject.of(variant)
    model, batch = subject.fresh(training=True).double(), subject.labelled()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        found = model(**batch).row_losses
    kept = [x for x in kept if x.untyped_storage().data_ptr() not in weights and x.ndim > 1]  # not a bias's gradient
    assert kept and not any(x.shape[-1] == 97 for x in kept)
    shifts = variant.family in ("decoder", "moe")
    labels = pad(batch["labels"][:, 1:], (0, 1), value=-100) if shifts else batch["labels"]
    logits = model(**batch, return_logits=True).logits
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
    close(found, losses.sum(-1), FP32)
    assert not found.requires_grad


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("variant", FIRST[:-1], ids=str)
def test_who_reads_logits_that_a_step_did_not_make_is_told_how_to_get_them(variant, compiled, request):
    subject = ZooSubject.of(variant)
    model, batch = subject.fresh(training=True), subject.labelled()
    run = model
    if compiled:
        request.getfixturevalue("fresh_compiler")
        run = torch.compile(model, backend="eager", fullgraph=True)
    out = run(**batch)
    pickled = pickle.loads(pickle.dumps(out))
    for each in (out, copy.copy(out), type(out)({"loss": out.loss}), pickled):  # the third: as accelerate casts outputs
        assert torch.equal(each.loss, out.loss) and torch.equal(each[0], out.loss)
        assert "loss=" in repr(each) and each.get("logits") is None
        with pytest.raises(AttributeError, match="made its loss without logits; pass return_logits=True"):
            print(each.logits)
        with pytest.raises(KeyError, match="made its loss without logits; pass return_logits=True"):
            print(each["logits"])
    asked = model(**batch, return_logits=True)
    assert torch.equal(pickle.loads(pickle.dumps(asked)).logits, asked["logits"])


@every(FIRST[:-1])
def test_the_loss_of_a_new_model_is_that_of_a_uniform_guess(variant):
    model = variant.model_class()(variant.config())
    subject = ZooSubject(variant, model)
    batch, labels = subject.labelled(8), subject.labelled(8, seed=1)["labels"]  # nothing that the input shows
    assert model.eval()(**batch | {"labels": labels}).loss.item() == pytest.approx(math.log(97), rel=0.05)


# ------------------------------------------------------------------------------------------------ saving and loading

CLASSES = [(model_type, auto) for model_type, row in FAMILIES.items() for auto in row.heads]


@pytest.mark.parametrize("model_type, auto", a_share(CLASSES, 3))
def test_each_class_comes_back_through_its_auto_class_and_with_the_body_of_a_pretrained_model(
    model_type, auto, tmp_path, poison_empty_memory
):
    row = FAMILIES[model_type]
    config = config_class(row.module)(**TINY_FIELDS[row.module] | {"num_labels": 2})
    model, pretrained = (randomise(row.load(row.heads[name])(config)) for name in (auto, row.pretraining))
    model.save_pretrained(tmp_path / "own")
    pretrained.save_pretrained(tmp_path / "pretrained")
    anyformer.register()  # again: no error
    poison_empty_memory()
    again, facts = getattr(transformers, auto).from_pretrained(tmp_path / "own", output_loading_info=True)
    assert type(again) is type(model) and not any(facts.values()), facts
    assert all(torch.equal(p, q) for p, q in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    fresh = getattr(transformers, auto).from_pretrained(tmp_path / "pretrained")
    body, kept = pretrained.base_model.state_dict(), fresh.base_model.state_dict()
    new = {name for name in kept if name not in body}
    assert all("pooler" in name or "mask_token" in name for name in new) and len(kept) > len(new)
    assert all(torch.equal(tensor, body[name]) for name, tensor in kept.items() if name in body)
    assert all(torch.isfinite(p).all() for p in fresh.parameters())


# ------------------------------------------------------------------------------------------------ compilers


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("variant", [variant for variant in ZOO if variant.family == "seq2seq"], ids=str)
def test_a_compiled_step_with_a_mask_and_smoothed_labels_is_the_eager_one(variant):
    model = variant.model(torch.float32).train()
    mask = (torch.arange(12) < torch.tensor([[12], [9]])).long()
    batch = ZooSubject(variant, model).labelled() | {"attention_mask": mask, "label_smoothing": 0.1}
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected, got = (gradients_of(model, lambda run=run: run(**batch).loss) for run in (model, compiled))
    assert_same_gradients(got, expected, 1e-4)


@pytest.mark.slow
@torch.no_grad()
@every([v for v in ZOO if not (getattr(v.config(), "attn_logit_softcapping", None) or v.fields.get("attention_sinks"))])
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
        subject = ZooSubject(variant, model)
        whole = subject.packed(subject.documents([50, 78]))
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

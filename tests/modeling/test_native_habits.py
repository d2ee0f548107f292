"""Habits of transformers' own classes that its common tests ask for (tests/ecosystem/test_transformers_suite.py)."""

import copy
import inspect
import logging
import re

import pytest
import torch
import transformers
from family_variants import DECODERS, SEQ2SEQS, ZOO, Variant, a_share, close, labelled_batch, labelled_row
from native_models import randomise
from test_laws import FIRST, every
from training_steps import small_arguments, weights_after_a_step
from transformers import CompileConfig, Trainer
from zoo_subject import ZooSubject

import anyformer

LANGUAGE = [variant for variant in ZOO if variant.reads_text]
ROUTED = [variant for variant in ZOO if "num_experts" in variant.fields or variant.family == "moe"]


@torch.no_grad()
@every(LANGUAGE)
def test_the_head_of_an_evaluation_runs_once_and_the_loss_is_the_same_without_logits(variant):
    subject = ZooSubject.of(variant)
    model, batch, calls = subject.fresh(), subject.labelled(), []
    model.lm_head.register_forward_hook(lambda *args: calls.append(1))
    loss = model(**batch).loss
    assert len(calls) == 1
    close(loss, model(**batch, return_logits=False).loss, 1e-5)


BIASED = [Variant("decoder", name, DECODERS[name]) for name in ("alibi", "relative", "relative-sliding")]
BIASED.append(Variant("seq2seq", "t5", SEQ2SEQS["t5"]))


@pytest.mark.parametrize(
    "variant", [BIASED[0], *(pytest.param(v, marks=pytest.mark.slow) for v in BIASED[1:])], ids=str
)
def test_a_generating_step_with_score_biases_and_a_static_cache_is_compiled_once(variant, request, monkeypatch):
    """And once more for the first pass, which reads many tokens: two programs however many tokens are made."""
    logging.getLogger("torch.__trace").handlers.clear()
    torch.compiler.reset()
    request.addfinalizer(torch.compiler.reset)
    model, graphs, masks = variant.model(torch.float32), [], []
    make = model.create_masks_for_generate
    # Kept, so that none has the place in memory of the one before it.
    monkeypatch.setattr(
        type(model), "create_masks_for_generate", staticmethod(lambda *a, **k: masks.append(make(*a, **k)) or masks[-1])
    )

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model.generation_config.eos_token_id = None
    settings = CompileConfig(fullgraph=True, dynamic=None, backend=counting, mode="default")
    settings._compile_all_devices = True
    inputs = {"input_ids": variant.inputs(model, length=6)["input_ids"]}
    model.generate(**inputs, max_new_tokens=7, do_sample=False, cache_implementation="static", compile_config=settings)
    assert 1 <= len(graphs) <= 2


@pytest.mark.parametrize("variant", FIRST, ids=str)
def test_flags_are_claimed_where_they_are_true(variant):
    model = variant.model()
    names = dict(model.named_parameters()) | dict(model.named_buffers())
    for part in model._keep_in_fp32_modules_strict:
        assert any(part in name.split(".") for name in names), part
    # Of an encoder's class nothing can be said: some of its models have experts.
    assert model._can_set_experts_implementation() == type(model)._can_set_experts_implementation()
    assert model._can_set_experts_implementation() == (variant.family == "moe")


def test_every_forward_says_that_it_takes_the_arguments_of_native_ones():
    """transformers reads from the annotation which outputs can be asked for."""
    for name in dir(anyformer):
        forward = getattr(getattr(anyformer, name), "forward", None)
        if name.startswith("Anyformer") and forward is not None:
            named = inspect.signature(forward).parameters["kwargs"].annotation
            assert "output_attentions" in named.__args__[0].__annotations__, name


@pytest.mark.parametrize("variant", [v for v in ROUTED if v.name in ("mixtral", "experts", "switch")], ids=str)
def test_models_with_experts_take_another_implementation_of_them(variant):
    model = variant.model(torch.float32)
    model.set_experts_implementation("eager")
    stacks = [part for part in model.modules() if hasattr(part, "layers")]
    assert {part.config._experts_implementation for part in stacks} == {"eager"}


@torch.no_grad()
@every(ROUTED)
def test_routers_logits_are_recorded_where_they_are_asked_for(variant):
    model = variant.model()
    inputs = variant.inputs(model)
    recorded = [part._can_record_outputs for part in model.modules() if hasattr(part, "layers")]
    assert recorded and all("router_logits" in names for names in recorded)
    asked = model(**inputs, output_router_logits=True).router_logits
    assert asked and all(x.shape[-1] == model.config.num_experts for x in asked)
    assert model(**inputs).router_logits is None
    # Set on the config of the finished model, on that of a stack, too; what a call says comes first.
    for config in (model.config, model.config.get_text_config(decoder=True)):
        config.output_router_logits = True
        found = model(**inputs)
        assert found.router_logits and (config is not model.config or len(found.router_logits) == len(asked))
        assert not model(**inputs, output_router_logits=False).router_logits
        model.config.output_router_logits = False
    assert model(**inputs).router_logits is None


@torch.no_grad()
def test_what_is_set_on_a_seq2seq_config_reaches_its_stacks_and_those_of_copies():
    model = Variant("seq2seq", "switch", SEQ2SEQS["switch"]).model()
    decoder = model.config.get_text_config(decoder=True)
    assert decoder is model.config.get_text_config(decoder=True) is model.model.decoder.config
    assert model.config.get_text_config(encoder=True) is model.model.encoder.config
    twin = copy.deepcopy(model)
    assert twin.config == model.config and twin.config.get_text_config(decoder=True) is twin.model.decoder.config
    model.config.output_hidden_states = True
    assert decoder.output_hidden_states and not twin.model.decoder.config.output_hidden_states
    model.config.num_decoder_layers = 5
    assert decoder.num_hidden_layers == 5 == len(decoder.layer_types) and model.config.num_hidden_layers == 2
    assert "stacks" not in str(model.config.to_dict())


@torch.no_grad()
@every([variant for variant in ZOO if variant.family in ("encoder", "seq2seq")])
def test_padding_looks_the_same_whichever_way_a_batch_ran(variant):
    """Rows without padding as one row, with a mask, or exported: a client compares the outputs whole."""
    subject, hidden = ZooSubject.of(variant), []
    batch = subject.padded(subject.documents([7, 3, 11]))
    for backend in subject.backends:
        model = subject.fresh(backend)
        encoder = model.model.encoder if variant.family == "seq2seq" else model.model
        inputs = {name: x for name, x in batch.items() if not name.startswith("decoder_")}
        hidden.append(encoder(**inputs).last_hidden_state)
        hidden.append(encoder(**inputs, output_hidden_states=True).last_hidden_state)
    for each in hidden[1:]:
        close(each, hidden[0], 1e-5)


@pytest.mark.parametrize("variant", FIRST, ids=str)
def test_a_config_without_experts_has_no_routers_logits_to_give(variant):
    config = variant.config()
    if variant.family == "moe":
        assert not config.output_router_logits and variant.config(output_router_logits=True).output_router_logits
        return
    assert not hasattr(config, "output_router_logits") and not hasattr(copy.deepcopy(config), "output_router_logits")
    with pytest.raises(ValueError, match="output_router_logits=True needs experts, and this model has none"):
        variant.config(output_router_logits=True)
    assert variant.config(output_router_logits=False).to_dict()["hidden_size"] == config.hidden_size


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"hidden_sise": 64}, "hidden_sise; did you mean hidden_size?"),
        ({"zzz": 16}, "zzz"),
        ({"pooler_act": "tanh"}, "pooler_act; families that have it: encoder, seq2seq, vit"),
        ({"patch_size": 4}, "patch_size; families that have it: vit"),
    ],
)
def test_an_unknown_field_of_a_config_is_refused_and_only_warned_of_where_one_is_loaded(fields, words):
    sentence = re.escape(f"AnyformerDecoderConfig has no field {words}")
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        anyformer.AnyformerDecoderConfig(**fields)
    saved = anyformer.AnyformerDecoderConfig().to_dict() | fields
    with pytest.warns(UserWarning, match=sentence):
        config = anyformer.AnyformerDecoderConfig.from_dict(saved)
    (name, value), *_ = fields.items()
    assert getattr(config, name) == value


@pytest.mark.parametrize("variant", FIRST, ids=str)
def test_what_transformers_and_libraries_hand_to_a_config_is_no_unknown_field(variant, recwarn):
    cls, of_libraries = type(variant.config()), {"auto_map": {}, "rope_theta": 1e4, "num_beams": 2, "_own": 1}
    cls.from_dict(variant.config().to_dict() | of_libraries)
    cls(**of_libraries, attn_implementation="eager", torch_dtype="float32", num_labels=3, name_or_path="there")
    assert not recwarn.list


HEADED = [
    (family, name)
    for family in ("Decoder", "Moe", "Encoder", "Seq2Seq", "ViT")
    for name in dir(anyformer)
    if name.startswith(f"Anyformer{family}For")
]


VALIDATED = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
VALIDATED |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "prediction_loss_only": False}
VALIDATED |= {"remove_unused_columns": True}  # as a plain Trainer has it


@pytest.mark.parametrize("family, name", a_share(HEADED, 8), ids=[name for _, name in HEADED])
def test_plain_trainer_trains_measures_predicts_and_keeps_the_best_model(family, name, tmp_path, without_code_files):
    model = getattr(anyformer, name)(Variant(family.lower(), "tiny", {}).config(num_labels=2))
    rows = [labelled_row(name, model.config, seed) for seed in range(4)]
    has_labels, measured = "MaskedImageModeling" not in name, []
    trainer = Trainer(
        model,
        small_arguments(tmp_path, **VALIDATED),
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=lambda found: measured.append(found) or {"rows": 4},
    )
    trainer.train()
    assert trainer.state.best_metric > 0 and trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric)
    predicted = trainer.predict(rows)
    assert predicted.metrics["test_loss"] > 0 and predicted.predictions is not None
    assert len(measured) == 4 and (len(predicted.label_ids) > 0) == has_labels


@torch.no_grad()
@pytest.mark.parametrize("family, name", a_share(HEADED, 8))
def test_a_config_may_ask_for_tuples(family, name):
    model = getattr(anyformer, name)(Variant(family.lower(), "tiny", {}).config(num_labels=2)).eval()
    inputs = labelled_batch(name, model.config)
    fields = model(**inputs).to_tuple()
    model.config.return_dict = False
    torch.testing.assert_close(model(**inputs)[:2], fields[:2])


SEVERAL = ("multi_label_classification", "regression")
STEPPED = [(family, name, None) for family, name in HEADED]
STEPPED += [(f, f"Anyformer{f}ForSequenceClassification", kind) for f in ("Decoder", "Encoder") for kind in SEVERAL]


@pytest.mark.parametrize("family, name, problem_type", a_share(STEPPED, 8))
def test_plain_trainer_makes_the_same_step_of_any_accumulation(family, name, problem_type, tmp_path):
    """Though the micro-batches have labels of different number."""
    config = Variant(family.lower(), "tiny", {}).config(num_labels=2, problem_type=problem_type)
    rows = [labelled_row(name, config, seed) for seed in range(4)]
    if problem_type in SEVERAL:
        rows = [row | {"labels": torch.tensor([seed % 2, 1.0])} for seed, row in enumerate(rows)]
    model = randomise(getattr(anyformer, name)(config))
    whole, parts = (weights_after_a_step(copy.deepcopy(model), rows, size, tmp_path) for size in (4, 1))
    assert any(not torch.equal(whole[key], p) for key, p in model.named_parameters())
    for key, p in whole.items():
        torch.testing.assert_close(parts[key], p, atol=1e-5, rtol=1e-5, msg=key)


SAME_INPUTS = [
    ("DecoderForCausalLM", "LlamaForCausalLM"),
    ("DecoderForSequenceClassification", "LlamaForSequenceClassification"),
    ("DecoderForTokenClassification", "LlamaForTokenClassification"),
    ("DecoderForQuestionAnswering", "LlamaForQuestionAnswering"),
    ("MoeForCausalLM", "MixtralForCausalLM"),
    ("EncoderForPreTraining", "BertForPreTraining"),
    ("EncoderForMaskedLM", "RobertaForMaskedLM"),
    ("EncoderForSequenceClassification", "BertForSequenceClassification"),
    ("EncoderForTokenClassification", "BertForTokenClassification"),
    ("EncoderForQuestionAnswering", "BertForQuestionAnswering"),
    ("EncoderForMultipleChoice", "BertForMultipleChoice"),
    ("Seq2SeqForConditionalGeneration", "BartForConditionalGeneration"),
    ("Seq2SeqForSequenceClassification", "BartForSequenceClassification"),
    ("ViTForImageClassification", "ViTForImageClassification"),
    ("ViTForMaskedImageModeling", "ViTForMaskedImageModeling"),
]
# A cache under its newer name, which `given_cache` takes; what only mixtures and decoders of other families read.
LEFT_OUT = {"cache", "past_key_values", "output_router_logits", "encoder_hidden_states", "encoder_attention_mask"}


@pytest.mark.parametrize("own, native", SAME_INPUTS)
def test_what_native_classes_take_by_name_ours_take_too(own, native):
    """Trainer drops columns, and `generate` refuses arguments, that no parameter names."""
    ours, theirs = getattr(anyformer, f"Anyformer{own}"), getattr(transformers, native)
    for name in ("forward", "prepare_inputs_for_generation"):
        if hasattr(theirs, name):
            wanted = inspect.signature(getattr(theirs, name)).parameters.keys() - LEFT_OUT
            wanted -= {"attention_mask"} if native.startswith("ViT") else set()  # no patch is padding
            assert wanted <= inspect.signature(getattr(ours, name)).parameters.keys()

"""transformers' causal models give the losses and gradients of their own classes without the logits of all tokens."""

import pytest
import torch
from anyformer.modeling.lm_head import shift_left
from anyformer.pipelines.accounting.lora import with_lora
from anyformer.pipelines.likelihoods import without_logits as module
from anyformer.pipelines.likelihoods.token_log_probs import token_log_probs
from anyformer.pipelines.likelihoods.without_logits import NativeCausal, NativeWithoutLogits, without_logits
from anyformer.pipelines.objectives.preference import PreferenceLoss
from anyformer.pipelines.recipes.schema import LoraSettings
from anyformer.pipelines.training.losses.model_loss import ModelLoss
from anyformer.pipelines.twin import tiny_config, tiny_model
from family_variants import a_share
from task_data import random_decoder, task_recipe
from test_distributed import assert_close, needs_deepspeed
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.generic import find_labels

EXACT = 1e-6  # both losses are computed in fp32
CLASSES = ["gemma2", "cohere", "mixtral", "granite", "gpt2", "llama", "opt", "bloom", "falcon", "phi3", "olmo2"]
CLASSES += ["gpt_neox", "mpt", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "starcoder2", "stablelm", "smollm3"]
CLASSES += ["deepseek_v3", "qwen3_next", "falcon_h1", "recurrent_gemma", "cohere2", "gpt_oss", "glm4", "nemotron"]
FIELDS = {"granite": {"logits_scaling": 8.0}, "falcon_h1": {"lm_head_multiplier": 0.5}}


def native(kind, dtype=torch.float64, **fields):
    """A tiny model of a class, with logits large enough for a cap and a scale to show."""
    config = tiny_config(AutoConfig.for_model(kind, **FIELDS.get(kind, {}), **fields), "causal")
    model = tiny_model(config, "causal", dtype=dtype).train()
    model.get_output_embeddings().weight.data.mul_(10)
    return model


def labelled(model, rows=2, length=24):
    ids = torch.randint(3, model.config.get_text_config().vocab_size, (rows, length))
    return {"input_ids": ids, "labels": ids.masked_fill(ids % 5 == 0, -100), "use_cache": False}


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def assert_same(model, compute, expected):
    """The value and the gradients, relative to the largest of all."""
    value, of_weights = expected
    got = compute()
    assert got.item() == pytest.approx(value.item(), rel=EXACT)
    found = gradients(model, got)
    assert found.keys() == of_weights.keys()
    largest = max(gradient.abs().max() for gradient in of_weights.values())
    for name, gradient in of_weights.items():
        assert (found[name] - gradient).abs().max() <= EXACT * largest, name


@pytest.mark.parametrize("kind", a_share(CLASSES, 4))
def test_loss_and_gradients_are_those_of_the_class(kind):
    model = native(kind)
    batch = labelled(model)
    torch.manual_seed(0)
    own = model(**batch, num_items_in_batch=torch.tensor(17)).loss
    expected = own.detach(), gradients(model, own)
    assert without_logits(model) is None and isinstance(model, NativeCausal)

    def compute():
        torch.manual_seed(0)  # of dropout
        outputs = model(**batch, num_items_in_batch=torch.tensor(17))
        assert type(outputs) is NativeWithoutLogits
        assert outputs.row_losses.sum().item() / 17 == pytest.approx(outputs.loss.item())
        return outputs.loss

    assert_same(model, compute, expected)
    assert type(model).__name__ == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    assert model(**batch, return_logits=True).logits.shape[:2] == batch["input_ids"].shape


@pytest.mark.parametrize(
    "kind, fields, says",
    [
        ("mixtral", {"output_router_logits": True, "router_aux_loss_coef": 0.01}, "its tiny twin differ by"),
        ("bert", {"is_decoder": True}, "its tiny twin differ by"),
        ("opt", {"activation_function": "none such"}, "its tiny twin does not run"),
    ],
)
def test_a_class_with_another_loss_keeps_it_and_says_why(kind, fields, says):
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    assert says in module.finish_of(AutoConfig.for_model(kind, **fields), name)
    if kind != "opt":
        model = native(kind, torch.float32, **fields)
        assert without_logits(model).startswith(f"{name} makes all logits") and not isinstance(model, NativeCausal)


def test_what_generate_and_saving_ask_of_a_model_stays(tmp_path):
    model = native("llama", torch.float32).eval()
    ids = torch.randint(3, 90, (1, 6))
    before = model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert without_logits(model) is None
    assert model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0).equal(before)
    assert find_labels(type(model)) == ["labels"]
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.architectures == ["LlamaForCausalLM"] and not isinstance(again, NativeCausal)
    assert again(ids).logits.equal(model(ids).logits)


def test_smoothed_losses_are_those_of_whole_logits():
    model = native("gemma2")
    batch = labelled(model)
    options = {"shifts_labels": True, "accepts_loss_kwargs": True, "label_smoothing": 0.1}
    outputs = model(**{name: x for name, x in batch.items() if name != "labels"})
    of_logits = ModelLoss(model, **options).function(outputs, batch["labels"])
    expected = of_logits.detach(), gradients(model, of_logits)
    assert without_logits(model) is None
    loss = ModelLoss(model, **options)
    assert loss.function is None and loss.training_extras == {"label_smoothing": 0.1}
    assert_same(model, lambda: model(**batch, **loss.training_extras).loss, expected)


def test_a_compiled_adapter_has_the_same_loss_and_gradients():
    pytest.importorskip("peft")
    model = native("llama")
    assert without_logits(model) is None
    adapted = with_lora(model, LoraSettings(dropout=0.0), "AutoModelForCausalLM", ())
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    batch = labelled(model)
    loss = adapted(**batch).loss
    expected = loss, gradients(adapted, loss)
    assert_same(adapted, lambda: torch.compile(adapted, backend="aot_eager")(**batch).loss, expected)


@pytest.mark.parametrize("kind", ["gemma2", "cohere"])
def test_preferences_and_log_probabilities_are_those_of_whole_logits(kind):
    model, loss = native(kind), PreferenceLoss(0.1)
    ids = labelled(model, rows=4)["input_ids"]
    batch = {"input_ids": ids, "answers": (torch.arange(24) > 9).expand(4, -1), "labels": torch.tensor([0, -100])}
    batch["reference"] = torch.randn(2, 2)
    whole = loss.total(model(input_ids=ids), batch, 0.1)
    expected = whole.detach(), gradients(model, whole)
    of_places = token_log_probs(model, {"input_ids": ids}, shift_left(ids))
    assert without_logits(model) is None
    asked = loss.of_tokens(batch, 0.1)
    assert_same(model, lambda: loss.total(model(input_ids=ids, of_tokens=asked), batch, 0.1), expected)
    torch.testing.assert_close(token_log_probs(model, {"input_ids": ids}, shift_left(ids)), of_places)


# ---- runs


@pytest.fixture
def base(tmp_path):
    """A native LLaMA and a tokenizer of bytes."""
    folder = random_decoder(tmp_path / "native", hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"vocab_size": 258, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(LlamaConfig(**sizes, **ids)).save_pretrained(folder)
    return folder


@pytest.fixture
def both(alone, monkeypatch):
    """Train a recipe without logits, and as the class does; the losses of both."""

    def run(*recipe):
        found = alone(*recipe)[1]
        with monkeypatch.context() as patched:
            patched.setattr(module, "finish_of", lambda config, name: "asked for")
            return found, alone(*recipe)[1]

    return run


@pytest.mark.parametrize(
    "words",
    a_share(
        [
            ["training.lora={r: 4, target_modules: all-linear}", "training.gradient_accumulation_steps=2"],
            ["training.label_smoothing_factor=0.1"],
            ["training.lora={r: 4, target_modules: [q_proj, lm_head]}"],
            ["training.lora={r: 4, modules_to_save: [lm_head]}"],
        ],
        2,
    ),
)
def test_a_run_has_the_losses_of_the_class(words, tiny_recipe, base, both, capsys):
    if any("lora" in word for word in words):
        pytest.importorskip("peft")
    recipe = tiny_recipe(model=None, tokenizer=None, training={"max_steps": 6, "learning_rate": 1e-2})
    got, expected = both(recipe, f"model.name_or_path={base}", *words)
    assert_close(got, expected)
    assert capsys.readouterr().out.count("LlamaForCausalLM makes all logits") == 1  # the second run


def test_preferences_of_a_native_model_are_learned_without_logits(tmp_path, base, both):
    recipe = task_recipe(tmp_path, "preference", training={"max_steps": 4, "learning_rate": 3e-3})
    got, expected = both(recipe, f"model.name_or_path={base}")
    assert_close(got, expected)


@pytest.mark.parametrize("stored", a_share([False, True], 2))
def test_a_native_teacher_is_asked_without_logits(stored, tiny_recipe, base, both, monkeypatch):
    teacher = {"name_or_path": str(base), "stored": stored, "temperature": 2.0}
    recipe = tiny_recipe(
        model=None, tokenizer=None, teacher=teacher, data={"max_documents": 3}, training={"max_steps": 4}
    )
    got, expected = both(recipe, f"model.name_or_path={base}", *(["teacher.top_k=5"] if stored else []))
    assert_close(got, expected)


SPLIT = {  # setting, engine, batches of one process that two make in a step
    "dp_shard": ("training.parallelism={dp_shard: 2}", "DTensor(fsdp 2)", 2),
    "tp": ("training.parallelism={tp: 2}", "DTensor(tp 2)", 1),
    "zero3": ("training.deepspeed=zero3", "DeepSpeedEngine", 2),
}
ENGINES = ["dp_shard", "tp", pytest.param("zero3", marks=needs_deepspeed)]


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_train_a_native_model_without_logits(engine, tied, tiny_recipe, base, alone, ranks):
    if tied:
        config = AutoConfig.from_pretrained(base, tie_word_embeddings=True)
        AutoModelForCausalLM.from_config(config).save_pretrained(base)
    recipe = tiny_recipe(model=None, tokenizer=None, training={"max_steps": 6, "learning_rate": 1e-3})
    start, (setting, name, batches) = (recipe, f"model.name_or_path={base}"), SPLIT[engine]
    _, own, _ = alone(*start, f"training.gradient_accumulation_steps={batches}")
    facts, losses, run = ranks(2, *start, setting)
    assert facts["engine"] == name and "makes all logits" not in (run.parent / "0.log").read_text()
    assert_close(losses, own)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_compare_answers_of_a_native_model(engine, tmp_path, base, alone, ranks):
    recipe = task_recipe(tmp_path, "preference", training={"max_steps": 4, "learning_rate": 3e-3})
    start, (setting, _, batches) = (recipe, f"model.name_or_path={base}"), SPLIT[engine]
    _, own, _ = alone(*start, f"training.gradient_accumulation_steps={batches}")
    assert_close(ranks(2, *start, setting)[1], own)

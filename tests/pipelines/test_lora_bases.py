"""training.lora.base: adapters on weights of 32, 16 and 4 bits; what is measured, loaded and merged is one model."""

import importlib.util
import json
import logging
import math
import shutil
import warnings
from contextlib import nullcontext

import pytest
import torch
import transformers
from anyformer.pipelines.accounting.flops import FlopCount, weights_in
from anyformer.pipelines.adapters import check_read_by_cpu, load_merged, load_model
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.documents_apart import keeps_documents_apart
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.training.engines.asked import engine_for
from anyformer.pipelines.transformers_logging import unsaid
from run_folders import facts_of, lines_of
from safetensors.torch import load_file
from task_data import random_decoder, task_recipe
from test_distributed import ENGINES
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

peft = pytest.importorskip("peft")

HAS_4_BITS = importlib.util.find_spec("bitsandbytes") is not None
NF4 = pytest.param("nf4", marks=pytest.mark.skipif(not HAS_4_BITS, reason="needs bitsandbytes"))
BASES = ["float32", "bfloat16", NF4]
ADAPTER = "adapter_model.safetensors"
# The merged model computes in fp32 what the adapted one does in bf16, whose steps are 2^-8 of a number: of its logits.
ROUNDED = 5e-2
# Inputs of whole blocks of 4 bits, see adapters.check_read_by_cpu.
SIZES = {"hidden_dropout": 0.0, "hidden_size": 64, "intermediate_size": 128}
BY_HALVES = 1e-2  # of losses: gradients in bf16, added in another order
SAME = 1e-6  # of losses: sums in another order


@pytest.fixture
def start(tmp_path, tiny_recipe, command):
    """The arguments of a training that begins from a small trained decoder, without dropout."""
    base = tmp_path / "base"
    recipe = tiny_recipe(training={"max_steps": 3, "output_dir": str(base)}, model=SIZES)
    assert command("train", recipe) == 0
    return [recipe, f"model.name_or_path={base}", "training.bf16=true", "training.learning_rate=0.02"]


def lora(base: str, **settings) -> str:
    return "training.lora=" + json.dumps({"r": 2, "target_modules": "all-linear", "base": base, **settings})


@pytest.mark.parametrize("base", BASES)
def test_every_command_loads_the_base_as_its_adapter_was_trained(tmp_path, command, start, base, capsys):
    run, auto = tmp_path / "run", transformers.AutoModelForCausalLM
    assert command("train", *start, lora(base), "training.max_steps=4", f"training.output_dir={run}") == 0
    facts, parameters = facts_of(run), facts_of(tmp_path / "base")["parameters"]
    trained = load_file(run / ADAPTER)
    assert facts["base_dtype"] == base and {tensor.dtype for tensor in trained.values()} == {torch.float32}
    assert facts["parameters"] == parameters + facts["trained_parameters"]  # weights, not the bytes of packed ones
    assert f"| base kept in | {base} |" in (run / "README.md").read_text()
    assert command("evaluate", run) == 0
    measured = json.loads(next(run.glob("evaluation-*.json")).read_text())["metrics"]
    assert measured["loss"] == facts["metrics"]["validation_loss"]
    capsys.readouterr()
    assert command("generate", run, "The", "--max-new-tokens", "4", "--greedy") == 0
    assert capsys.readouterr().out.startswith("The")

    ids = torch.randint(4, 200, (3, 12), generator=torch.Generator().manual_seed(0))
    adapted = load_model(auto, run, dtype=torch.float32).eval()
    expected = adapted(input_ids=ids).logits
    merged = load_merged(auto, run)[0].eval()  # from a base that has made no pass
    assert merged.dtype == torch.float32 and not hasattr(merged.config, "quantization_config")
    tolerance = ROUNDED * expected.abs().max().item()
    torch.testing.assert_close(merged(input_ids=ids).logits, expected.float(), atol=tolerance, rtol=0)
    assert command("merge", run, tmp_path / "merged") == 0
    saved = auto.from_pretrained(tmp_path / "merged").eval()
    assert saved.dtype == (torch.float32 if base == "float32" else torch.bfloat16)
    logits = saved(input_ids=ids).logits.float()
    torch.testing.assert_close(logits, merged(input_ids=ids).logits, atol=tolerance, rtol=0)

    # PEFT alone, on a base that is loaded in the same dtype, computes the same.
    quantized = getattr(adapted.config, "quantization_config", None)
    how = {"dtype": adapted.dtype} | ({} if quantized is None else {"quantization_config": quantized})
    base_model = auto.from_pretrained(tmp_path / "base", **how)
    plain = peft.PeftModel.from_pretrained(base_model, run).eval()
    for module in plain.modules():
        module.support_avx512bf16_for_cpu = False  # with it bitsandbytes rounds the scales of its 4 bits
    assert torch.equal(plain(input_ids=ids).logits, expected)
    # The sum is that of the rounded base and the adapter, in float32.
    fresh = auto.from_pretrained(tmp_path / "base", **how)
    fresh = (fresh if quantized is None else fresh.dequantize(torch.float32)).float()
    layer = "model.layers.1.mlp.down_proj"
    a, b = (trained[f"base_model.model.{layer}.lora_{matrix}.weight"] for matrix in "AB")
    added = fresh.get_submodule(layer).weight + 16 * b @ a  # alpha / r
    torch.testing.assert_close(merged.get_submodule(layer).weight, added, atol=1e-6, rtol=0)


@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("base", ["bfloat16", NF4])
def test_a_run_that_is_killed_ends_as_one_that_is_not(base, steps, start, whole_and_killed):
    how = ["training.max_steps=6", "training.save_steps=1", "evaluation.every_steps=null"]
    run, _ = whole_and_killed(steps, *start, lora(base, use_dora=True), *how, weights=ADAPTER)
    assert facts_of(run)["base_dtype"] == base
    assert any("magnitude" in name for name in load_file(run / ADAPTER))  # DoRA's lengths are of the adapter


def test_auto_is_what_the_run_computes_in_and_never_trains_rounded_weights(tmp_path, command, start, capsys):
    run = [*start, lora("auto"), "training.max_steps=1", f"training.output_dir={tmp_path / 'run'}"]
    assert command("train", *run) == 0 and facts_of(tmp_path / "run")["base_dtype"] == "bfloat16"
    assert "training.lora.base=bfloat16 (a causal model under bf16)" in capsys.readouterr().out
    assert command("train", *run, "training.bf16=false", "training.output_dir=other") == 0
    assert facts_of(tmp_path / "other")["base_dtype"] == "float32"
    assert command("train", *run, "training.lora.base=float32") == 2  # the finished run is another one
    error = capsys.readouterr().err
    assert "holds another run: training.lora.base is" in error and "bfloat16" in error and "float32" in error


def test_layers_that_are_trained_whole_are_float32_on_a_rounded_base(tmp_path, command, start):
    run = tmp_path / "run"
    whole = lora("bfloat16", modules_to_save=["embed_tokens"])
    assert command("train", *start, whole, "training.max_steps=2", f"training.output_dir={run}") == 0
    trained = load_file(run / ADAPTER)
    table = next(tensor for name, tensor in trained.items() if "embed_tokens" in name)
    assert table.dtype == torch.float32 and not torch.equal(table, table.bfloat16().float())
    assert command("generate", run, "The", "--max-new-tokens", "2") == 0
    assert command("merge", run, tmp_path / "merged") == 0
    saved = load_file(tmp_path / "merged" / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(saved, table.bfloat16())


@pytest.mark.skipif(not HAS_4_BITS, reason="needs bitsandbytes")
def test_the_reference_of_preferences_is_rounded_as_the_trained_model_is(tmp_path, command):
    sizes = SIZES | {"num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 128}
    base = random_decoder(tmp_path / "of_blocks", **sizes)
    recipe = task_recipe(tmp_path, "preference", model={"name_or_path": str(base)})
    run = tmp_path / "lora"
    how = [lora("nf4"), f"training.output_dir={run}", "training.max_steps=1", "evaluation.every_steps=1"]
    assert command("train", recipe, *how) == 0
    assert lines_of(run)[0]["validation_loss"] == pytest.approx(math.log(2), abs=SAME)  # which begins as the reference


@pytest.mark.skipif(not HAS_4_BITS, reason="needs bitsandbytes")
def test_a_checkpoint_of_4_bits_trains_adapters_alone_and_stays_as_it_is(tmp_path, command, start, capsys):
    native, packed, run = tmp_path / "native", tmp_path / "packed", tmp_path / "run"
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, max_position_embeddings=64)).save_pretrained(native)
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    model = LlamaForCausalLM.from_pretrained(native, quantization_config=how)
    model.save_pretrained(packed)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "base" / name, packed)
    assert keeps_documents_apart(model)
    words = [start[0], f"model.name_or_path={packed}", "training.max_steps=2", f"training.output_dir={run}"]
    words += ["training.bf16=true", "tokenizer={}"]
    for asked, sentence in (
        (["training.lora=null"], "holds weights in nf4, which stay as they are; train training.lora={base: auto}"),
        ([lora("float32")], "or take the model in 16 or 32 bits"),
        ([lora("auto", merge=True)], "training.lora.merge=true adds to no quantised weights"),
    ):
        assert command("train", *words, *asked) == 2
        assert sentence in capsys.readouterr().err
    assert command("train", *words, lora("auto")) == 0
    assert f"the weights of {packed} are kept in nf4, as they are saved" in capsys.readouterr().out
    facts = facts_of(run)
    assert facts["base_dtype"] == "nf4"
    assert (
        facts["parameters"] - facts["trained_parameters"] == LlamaForCausalLM.from_pretrained(native).num_parameters()
    )
    assert command("evaluate", run) == 0 and command("merge", run, tmp_path / "merged") == 0
    merged = LlamaForCausalLM.from_pretrained(tmp_path / "merged")
    assert not hasattr(merged.config, "quantization_config")


def test_flops_of_packed_weights_are_those_of_the_weights(tmp_path):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    config = LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1)
    LlamaForCausalLM(config).requires_grad_(False).save_pretrained(tmp_path)
    how = transformers.BitsAndBytesConfig(load_in_4bit=True)
    plain, packed = (LlamaForCausalLM.from_pretrained(tmp_path, **more) for more in ({}, {"quantization_config": how}))
    kinds = [type(module) for module in packed.modules()]
    assert kinds.count(bitsandbytes.nn.Linear4bit) == 7
    batch = {"input_ids": torch.zeros(2, 8, dtype=torch.long)}
    assert FlopCount(packed.requires_grad_(False)).of_batch(batch) == FlopCount(plain.requires_grad_(False)).of_batch(
        batch
    )
    assert sum(map(weights_in, packed.parameters())) == plain.num_parameters()


@pytest.mark.parametrize("base", ["bfloat16", "nf4"])
@pytest.mark.parametrize("asked", ["parallelism={dp_shard: 2}", "deepspeed=zero3", "deepspeed=zero2"])
def test_weights_of_4_bits_are_not_split(asked, base, tiny_recipe, tmp_path):
    words = [f"model={{name_or_path: {tmp_path}}}", "tokenizer={}", lora(base), f"training.{asked}"]
    section = load_recipe(str(tiny_recipe()), words).training
    splits = base == "nf4" and not asked.endswith("zero2")  # which splits what is trained alone
    with pytest.raises(UserError, match="nf4: weights of few bits cannot be split") if splits else nullcontext():
        engine_for(section).check_base(section.lora)


@pytest.mark.skipif(not HAS_4_BITS, reason="needs bitsandbytes")
def test_layers_whose_4_bits_a_cpu_reads_wrongly_are_named(monkeypatch):
    from bitsandbytes.nn import Linear4bit

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    check_read_by_cpu("up_proj", Linear4bit(128, 96))
    with pytest.raises(UserError, match="reads down_proj with 96 inputs wrongly"):
        check_read_by_cpu("down_proj", Linear4bit(96, 128))


def test_nf4_without_bitsandbytes_is_one_sentence(start, command, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if "bits" in name else find(name, *a))
    assert command("train", *start, lora("nf4"), "training.output_dir=other") == 2
    error = capsys.readouterr().err
    assert "training.lora.base=nf4 needs the package bitsandbytes; install anyformer[quantization]" in error


def test_what_libraries_log_and_warn_of_less_than_an_error_is_not_shown(caplog):
    with unsaid():
        logging.getLogger("some.library").warning("no fast kernel")
        warnings.warn("and a warning", stacklevel=1)
        logging.getLogger("some.library").error("but this")
    logging.getLogger("some.library").warning("and this")
    assert caplog.messages == ["but this", "and this"]


SHARED = [("ddp", "nf4"), ("zero2", "nf4"), ("zero2", "bfloat16"), ("zero3", "bfloat16"), ("fsdp2", "bfloat16")]


@pytest.mark.slow
@pytest.mark.parametrize("engine, base", SHARED)
def test_two_processes_that_share_a_rounded_base_train_the_adapter_that_one_trains(
    engine, base, tmp_path, command, start, alone, ranks
):
    """And the second half of it, from the middle, to the bit."""
    if engine.startswith("zero"):
        pytest.importorskip("deepspeed")
    how = [
        *start,
        lora(base, dropout=0),
        "training.max_steps=6",
        "training.save_steps=3",
        "evaluation.every_steps=null",
    ]
    own_facts, own_losses, one = alone(*how, "training.gradient_accumulation_steps=2")
    facts, losses, two = ranks(2, *how, *ENGINES[engine])
    _, rest, again = ranks(2, *how, *ENGINES[engine], start=two / "checkpoint-3")
    assert facts["base_dtype"] == base == own_facts["base_dtype"]
    assert [facts[name] for name in ("parameters", "trained_parameters")] == [
        own_facts[name] for name in ("parameters", "trained_parameters")
    ]
    assert losses == pytest.approx(own_losses, abs=BY_HALVES) and rest == losses[3:]
    weights, own, resumed = (load_file(folder / ADAPTER) for folder in (two, one, again))
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[name], resumed[name]) for name in own)
    assert command("evaluate", two) == 0 and command("merge", two, tmp_path / "merged") == 0

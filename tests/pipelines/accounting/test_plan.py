"""What `anyformer plan` counts is what models, optimizers, caches and torch's own counters have."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from anyformer.pipelines.accounting.activations import (
    Activations,
    Batch,
    StepActivations,
    depth_to_measure,
    measured_step,
)
from anyformer.pipelines.accounting.caches import cache_size
from anyformer.pipelines.accounting.devices import MEMORY, devices_of
from anyformer.pipelines.accounting.memory import STAGES, stage_of
from anyformer.pipelines.accounting.plan import plan_run
from anyformer.pipelines.accounting.step_memory import StepMemory, optimizer_bytes
from anyformer.pipelines.cli import commands as cli
from anyformer.pipelines.cli.commands import main
from anyformer.pipelines.cli.plan_command import facts
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.compose import load_preset, load_recipe
from anyformer.pipelines.recipes.introspection import family_config, family_row
from anyformer.pipelines.recipes.optimizer_rows import own_optimizer
from anyformer.pipelines.recipes.preset_run import planned_recipe
from anyformer.pipelines.recipes.recipe_files import shipped
from anyformer.pipelines.recipes.schema import TrainingSection
from anyformer.pipelines.training.engines.launch import engines, settings_of
from family_variants import LATENT
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, TrainingArguments

import anyformer

GPUS = devices_of("8xH100-80GB")


TINY = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
NATIVE = {"mamba": TINY, "stablelm": TINY | HEADS}


def preset(name: str) -> SimpleNamespace:
    return family_config(*load_preset(name))


def plan(name: str, *overrides: str, devices=GPUS, **how):
    recipe, is_preset = planned_recipe(name, list(overrides), [])
    return plan_run(recipe, devices, until_trained=is_preset, **how)


# ---------------------------------------------------------------------------------- the lecture notes' figures


def test_grouped_queries_divide_the_cache_and_zero_divides_the_states(monkeypatch):
    held = {False: Activations(2**38, 2**38), True: Activations(2**30, 2**30)}  # by whether it checkpoints
    monkeypatch.setattr(StepActivations, "measured", lambda self, batch, checkpointing: held[checkpointing])
    found = plan("llama2_70b", devices=devices_of("64xH100-80GB"), stage="zero3", context=4096)
    parameters = 68_976_648_192
    assert found.sizes.parameters == found.sizes.active_parameters == parameters
    assert found.cache.bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert found.cache.total_bytes == 4096 * found.cache.bytes_per_token
    states = {row.states.stage: row.states for row in found.memory.stages}
    # Rajbhandari et al. 2020, figure 1: 2 + 2 + 12 bytes for each parameter, shared among 64 devices.
    assert states["zero3"].weights == states["zero3"].gradients == 2 * parameters / 64
    assert states["zero3"].optimizer == 12 * parameters / 64
    assert (states["zero1"].weights, states["zero2"].gradients) == (2 * parameters, 2 * parameters / 64)
    assert states["none"].optimizer == 8 * parameters and states["none"].weights == 4 * parameters
    assert states["fsdp"].weights + states["fsdp"].optimizer == 12 * parameters / 64
    assert found.memory.chosen.largest_rows == 0 < found.memory.chosen.largest_rows_checkpointed
    assert "with training.gradient_checkpointing=true" in found.advice


# ------------------------------------------------------------------------------- caches of all kinds of layers

CACHES = {
    "full": {},
    "grouped": {"num_key_value_heads": 2},
    "sliding": {"attention_pattern": ["sliding_attention", "full_attention"], "sliding_window": 5},
    "strided": {"attention_pattern": ["strided_attention"], "attention_stride": 3},
    "linear": {"attention_pattern": ["linear_attention", "full_attention"], "num_key_value_heads": 2},
    "compressive": {"attention_pattern": ["compressive_attention"], "segment_length": 4},
    "recurrent": {"memory_length": 4, "segment_length": 4},
    "latent": LATENT | {"attention_pattern": ["latent_attention", "full_attention"]},
}


@pytest.mark.parametrize("kind", CACHES)
def test_the_cache_is_as_large_as_the_one_that_a_model_fills(kind, tiny_config):
    config = tiny_config(num_hidden_layers=2, **CACHES[kind])
    model, tokens = anyformer.AnyformerDecoderForCausalLM(config).eval(), 16
    cache = DynamicCache(config=config)
    with torch.no_grad():
        for token in torch.zeros(tokens, 1, 1, dtype=torch.long):
            model(token, past_key_values=cache)
    states = [getattr(layer, "states", None) or {"k": layer.keys, "v": layer.values} for layer in cache.layers]
    kept = sum(x.numel() * x.element_size() for layer in states for x in layer.values())
    if kind == "sliding":  # transformers drops the oldest token before the newest comes, which sees it no more
        kept += 2 * 4 * config.num_key_value_heads * config.head_dim
    assert cache_size(config, tokens, bytes_per_value=4).total_bytes == kept


def test_an_encoder_decoder_keeps_its_source_and_an_encoder_nothing():
    t5 = preset("t5_small")
    one = 2 * 6 * 8 * 64
    size = cache_size(t5, tokens=10, bytes_per_value=4, source_tokens=100)
    assert (size.per_token, size.source_token, size.total_bytes) == (one, one, 4 * one * 110)
    assert cache_size(preset("bert_base"), 10, 4) is None and cache_size(preset("vit_base_patch16_224"), 10, 4) is None


# ---------------------------------------------------------------------------- parameters, optimizers, FLOPs


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_optimizer_bytes_are_those_of_a_real_optimizers_state(name, tiny_config):
    model = anyformer.AnyformerDecoderForCausalLM(tiny_config())
    model(**model.dummy_inputs, labels=model.dummy_inputs["input_ids"]).loss.backward()
    section = TrainingSection(optim=name)
    if name == "muon":
        arguments = TrainingArguments(weight_decay=0, use_cpu=True, report_to="none")
        optimizer = own_optimizer(section).build(model, set(), arguments)
    else:
        optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    states = [x for state in optimizer.state.values() for key, x in state.items() if key != "step"]
    assert optimizer_bytes(section, model, []) == sum(x.numel() * x.element_size() for x in states)
    size = model.num_parameters(), optimizer_bytes(section, model, [])
    found = StepMemory(None, {}, False, *size, block=0, average=False).states("none", 1)
    assert found.weights == sum(p.numel() * p.element_size() for p in model.parameters())
    assert found.gradients == sum(p.grad.numel() * p.grad.element_size() for p in model.parameters())


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=pytest.mark.slow), "quickstart"])
@pytest.mark.parametrize("devices", ["2xcpu", "H200", "4xH200", "16xH200"])
def test_the_command_that_a_plan_recommends_can_be_given(name, devices, without_activations):
    for stage in STAGES if name == "gpt2" and "cpu" not in devices else ("none", "fsdp"):
        with_muon = name == "quickstart"
        words = plan(name, devices=devices_of(devices), stage=stage).advice.split(", with ")[0].split()
        if words[0] == "anyformer":
            args = cli.parse(words[1:])
            assert args.launch in (None, *engines()) and args.recipe == ("quickstart" if with_muon else "RECIPE")
            if args.launch is not None:
                settings_of(args.launch, planned_recipe(name, [] if with_muon else ["training.optim=adamw"])[0])
        else:
            assert words[:3] == ["accelerate", "launch", "--config_file"] and devices == "16xH200"
            assert words[4:] == f"--num_machines 2 --num_processes 16 scripts/train.py {words[-1]}".split()
            assert words[-1] in ("quickstart", "RECIPE") and Path(words[3]).stem in shipped("accelerate")


@pytest.mark.slow
def test_the_memory_of_a_node_is_that_of_what_each_engine_has_its_processes_make():
    gpus = devices_of("64xH100-80GB")
    mesh = ("training.parallelism={tp: 4, dp_shard: 8, dp_replicate: 2}", "training.torch_compile=false")
    mesh += ("data.streaming=false",)
    whole = 4 * plan("gpt2_small", devices=gpus).sizes.parameters
    block = 4 * 50257 * 768  # the largest that is made at once, here the token table
    share = whole / 64 + block
    assert plan("gpt2_small", devices=gpus, stage="none").memory.host_memory == 8 * whole
    assert plan("gpt2_small", devices=gpus, stage="zero3").memory.host_memory == pytest.approx(8 * share)
    assert plan("gpt2_small", devices=gpus, stage="fsdp").memory.host_memory == pytest.approx(8 * share)
    assert plan("gpt2_small", *mesh, devices=gpus).memory.host_memory == pytest.approx(
        8 * (whole / 32 + block), rel=0.01
    )
    assert plan("gpt2_small", devices=gpus, stage="none", per_node=4).memory.host_memory == 4 * whole
    assert plan("gpt2_small", devices=devices_of("2xH100-80GB")).memory.per_node == 2
    assert plan("gpt2_small", devices=devices_of("cpu")).memory.host_memory is None  # whose memory the devices' is


@pytest.mark.slow
def test_backends_of_one_model_are_measured_apart():
    by = {
        name: plan("quickstart", f"model.attn_implementation={name}", devices=devices_of("cpu"))
        for name in ("eager", "sdpa")
    }
    assert by["eager"].memory.chosen.total > by["sdpa"].memory.chosen.total  # whose scores are not kept


def test_states_are_counted_in_the_stage_of_deepspeeds_name_or_file(tmp_path):
    assert stage_of(load_recipe("gpt2_small", ["training.deepspeed=zero3_offload"]).training) == "zero3"
    (tmp_path / "mine.json").write_text('{"zero_optimization": {"stage": 2}}')
    recipe = load_recipe("gpt2_small", [f"training.deepspeed={tmp_path / 'mine.json'}"])
    assert stage_of(recipe.training) == "zero2"


def test_shares_of_devices_add_up():
    states = StepMemory(None, {}, True, 1001, 8008, block=100, average=False).states("zero3", 4)
    assert states.weights == -(-2 * 1001 // 4) and states.total == sum(
        (states.weights, states.gradients, states.optimizer, states.beside)
    )
    average = StepMemory(None, {}, False, 1000, 8000, block=100, average=True).states("none", 1)
    assert average.optimizer == 8000 + 4 * 1000 and average.beside == 0


# ------------------------------------------------------------------------------------------- activations

WIDE = {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
MEASURED = {
    "decoder": WIDE | {"intermediate_size": 352, "num_key_value_heads": 2},
    "encoder": WIDE
    | {"intermediate_size": 512, "norm_type": "layernorm", "norm_position": "post", "mlp_type": "mlp"}
    | {"hidden_act": "gelu", "position_encoding": "learned", "attention_bias": True, "hidden_dropout": 0.1},
    "seq2seq": WIDE | {"intermediate_size": 352, "decoder_start_token_id": 0},
    "moe": WIDE | {"intermediate_size": 352, "num_experts": 4},
    "vit": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": 64, "patch_size": 8},
}
WINDOWS = {"attention_pattern": ["sliding_attention"], "sliding_window": 64}
IN_TILES = {
    "sliding": ("decoder", WINDOWS),
    "sliding_alibi": ("decoder", WINDOWS | {"position_encoding": "alibi"}),
    "strided": ("decoder", {"attention_pattern": ["strided_attention"], "attention_stride": 64}),
    "two_sided": ("encoder", WINDOWS | {"position_encoding": "rotary"}),
}
TOLERANCE = 0.10


def measured_and_planned(family: str, rows: int, tokens: int, checkpointing: bool = False, **fields) -> tuple[int, int]:
    """(most bytes that torch's profiler saw in a forward and backward pass, those planned).

    Gradients are there before, as in every pass but the first of a step: they are no activations.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "benchmarks"))
    from method import peak_bytes

    config = AutoConfig.for_model(f"anyformer_{family}", **(MEASURED[family] | fields))
    row = family_row(family)
    model_class = row.load(row.heads[row.pretraining])

    def build(config):
        with torch.device("meta"):
            return model_class(config)

    model = model_class(config).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    share, targets = (1 / 8 if family == "encoder" else 1.0), (tokens // 2 if family == "seq2seq" else 0)
    batch = Batch(rows, tokens, targets, share, 0 if family == "vit" else 512)
    inputs = batch.inputs(model)
    if family == "vit":
        inputs = {"pixel_values": torch.rand(inputs["pixel_values"].shape)}

    def step():
        outputs = model(**inputs)
        (outputs.logits.sum() if outputs.get("loss") is None else outputs.loss).backward()

    step()
    planned = StepActivations(build(config), build, batch, half=False, on_cpu=True).of_rows(rows, checkpointing)
    return peak_bytes(step), planned.peak


# (family, rows, tokens, checkpointing, fields); the first is the quick one.
PASSES = [("decoder", 4, 64, False, {})]
PASSES += [(family, rows, 96, kept, {}) for family in MEASURED for rows in (4, 16) for kept in (False, True)]
BIAS = {"position_encoding": "relative"}
PASSES += [(family, 4, 512, kept, BIAS) for family in ("decoder", "seq2seq") for kept in (False, True)]
PASSES += [(family, 1, 2048, False, fields) for family, fields in IN_TILES.values()]


@pytest.mark.parametrize(
    "family, rows, tokens, checkpointing, fields",
    [PASSES[0], *(pytest.param(*p, marks=pytest.mark.slow) for p in PASSES[1:])],
)
def test_activations_are_within_a_tenth_of_the_measured_peak(family, rows, tokens, checkpointing, fields):
    measured, planned = measured_and_planned(family, rows, tokens, checkpointing, **fields)
    assert planned == pytest.approx(measured, rel=TOLERANCE)


@pytest.mark.parametrize("checkpointing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_deep_model_is_counted_by_two_of_few_layers(checkpointing):
    config = AutoConfig.for_model("anyformer_decoder", **MEASURED["decoder"] | {"num_hidden_layers": 9})
    config.attention_pattern, config.sliding_window = ["sliding_attention", "full_attention"], 8

    def build(config):
        with torch.device("meta"):
            return anyformer.AnyformerDecoderForCausalLM(config)

    batch = Batch(2, 32, vocabulary=512)
    assert depth_to_measure(build(config), 9) == (7, 2)
    planned = StepActivations(build(config), build, batch, True, False).measured(batch, checkpointing)
    whole, *_ = measured_step(build(config), batch, checkpointing, half=True, on_cpu=False)
    assert planned.peak == pytest.approx(whole.peak, rel=0.01) and planned.kept <= planned.peak


@pytest.mark.slow
def test_the_largest_batch_fits_and_one_row_more_does_not():
    found = plan("gpt2_small", devices=devices_of("A100-40GB"))
    row = found.memory.chosen
    again = plan(
        "gpt2_small", f"training.per_device_train_batch_size={row.largest_rows}", devices=devices_of("A100-40GB")
    )
    assert again.memory.chosen.fits and again.memory.chosen.total <= MEMORY["A100-40GB"]
    more = row.largest_rows + 1
    again = plan("gpt2_small", f"training.per_device_train_batch_size={more}", devices=devices_of("A100-40GB"))
    assert not again.memory.stages[0].fits
    assert row.largest_rows_checkpointed > row.largest_rows


# ----------------------------------------------------------------------------------- the command, and its errors


@pytest.mark.slow
def test_every_shipped_preset_has_a_plan():
    for name in shipped("models"):
        found = plan(name)
        assert found.sizes.parameters > 0 and found.time.seconds > 0, name
    assert plan("gpt3_175b").sizes.parameters == 174_604_259_328


def test_devices_that_share_rows_are_one_reader_and_the_command_is_the_mesh_s(without_activations):
    whole = plan("quickstart", "training.optim=adamw")
    shared = plan("quickstart", "training.optim=adamw", "training.parallelism={tp: 4, dp_shard: 2}")
    assert whole.sizes.tokens_per_step == 4 * shared.sizes.tokens_per_step and shared.memory.stage == "fsdp"
    assert shared.advice == "anyformer train quickstart --launch mesh --nproc 8"
    copies = plan("quickstart", "training.optim=adamw", "training.parallelism={dp_replicate: 2, dp_shard: 4}")
    four = plan("quickstart", "training.optim=adamw", stage="fsdp", devices=devices_of("4xH100-80GB"))
    assert copies.memory.chosen.states == four.memory.chosen.states
    along = plan("tinyshakespeare_char", "training.optim=adamw", "training.parallelism={sp: 2, dp_shard: 4}")
    assert along.memory.stage == "zero3" and "--launch zero3" in along.advice
    with pytest.raises(UserError, match=r"--devices=8xH100-80GB: training.parallelism={tp: 4} takes 4 devices"):
        plan("quickstart", "training.optim=adamw", "training.parallelism={tp: 4}")


@pytest.mark.parametrize("name, sequences", [("stsb_bi_encoder", 2), ("imdb_next_sentence", 4)])
def test_a_row_is_as_many_sequences_as_the_model_reads_for_it(name, sequences, without_activations):
    recipe = load_recipe(name)
    found = plan_run(recipe, devices_of("H100-80GB"))
    rows = recipe.training.per_device_train_batch_size
    assert found.sizes.tokens_per_step == rows * found.sizes.accumulation * found.sizes.tokens * sequences


@pytest.mark.slow
def test_every_shipped_recipe_has_a_plan():
    for name in shipped("recipes"):
        recipe = load_recipe(name)
        if recipe.model.name_or_path is None:
            found = plan_run(recipe, GPUS)
            assert found.sizes.parameters > 0 and found.time.step_seconds > 0 and found.memory.chosen.fits, name
        else:  # of another run, which is not there
            with pytest.raises(UserError, match="name_or_path"):
                plan_run(recipe, GPUS)


def test_checkpoints_of_ours_and_native_ones_have_plans(tmp_path, tiny_config, without_activations):
    tiny_config().save_pretrained(tmp_path / "ours")
    found = anyformer.plan("gpt2_small", "2xH200", model={"name_or_path": str(tmp_path / "ours")}, tokenizer={})
    assert found.sizes.parameters == anyformer.AnyformerDecoderForCausalLM(tiny_config()).num_parameters()
    assert found.devices == "2 x H200-141GB"
    native = AutoConfig.for_model("gpt2", vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=1024)
    native.save_pretrained(tmp_path / "native")
    found = anyformer.plan("gpt2_small", model={"name_or_path": str(tmp_path / "native")}, tokenizer={})
    assert found.sizes.parameters == AutoModelForCausalLM.from_config(native).num_parameters()
    assert found.sizes.model == "GPT2LMHeadModel" and found.cache.per_token == 2 * 2 * 32


@pytest.mark.parametrize("name", ["stablelm", pytest.param("mamba", marks=pytest.mark.slow)])
def test_native_models_without_a_twin_of_ours_have_plans(name, tmp_path):
    config = AutoConfig.for_model(name, **NATIVE[name])
    config.save_pretrained(tmp_path)
    how = {"model": {"name_or_path": str(tmp_path)}, "objective": {"sequence_length": 8}, "tokenizer": {}}
    found = anyformer.plan("gpt2_small", **how)
    model = AutoModelForCausalLM.from_config(config)
    assert found.sizes.parameters == model.num_parameters() and found.memory.plain.peak > found.memory.plain.kept > 0
    (note,) = found.notes
    assert note.startswith("the cache of generation is not counted: ") and found.cache is None


def test_a_model_that_does_not_run_on_shapes_is_planned_without_activations(monkeypatch):
    def forward(self, input_ids, **_):
        return self.lm_head(input_ids[input_ids.tolist()[0]])  # as an architecture may that looks at values

    monkeypatch.setattr(anyformer.AnyformerDecoderForCausalLM, "forward", forward)
    found = plan("gpt2_small", "objective.sequence_length=8")
    assert found.memory.plain.peak == 0 and found.sizes.parameters == 124_439_808
    (note,) = found.notes
    assert note.startswith("activations are not counted, as AnyformerDecoderForCausalLM does not run on shapes alone (")
    assert dict(facts(found))["activations"] == "not counted"


def test_the_command_prints_the_plan_and_its_json(capsys, without_activations):
    words = ["plan", "gpt2_small", "--devices", "2xA100-40GB", "--zero", "2", "training.max_steps=1000"]
    words += ["--price", "2.5"]
    assert main([*words, "--json"]) == 0
    out, printed = capsys.readouterr()
    assert "124,439,808 parameters" in printed and "anyformer train gpt2_small --launch zero2 --nproc 2" in printed
    written = json.loads(out)
    assert (written["parameters"], written["stage"], written["steps"]) == (124_439_808, "zero2", 1000)
    (chosen,) = (row for row in written["stages"] if row["states"]["stage"] == "zero2")
    assert chosen["states"]["optimizer"] == 12 * 124_439_808 / 2
    assert written["cost"] == pytest.approx(2 * 2.5 * written["seconds"] / 3600)
    assert f"{written['cost']:,.2f}: " in printed and "hours at 5 for 2 x A100-40GB" in printed


def test_what_a_run_sends_and_writes_is_named(capsys, without_activations):
    words = ["plan", "gpt2_small", "--devices", "8xH100-80GB", "--fsdp", "--json", "training.max_steps=1000"]
    assert main([*words, "training.gradient_checkpointing=true"]) == 0
    out, printed = capsys.readouterr()
    written, parameters = json.loads(out), 124_439_808
    assert written["checkpoint"] == 12 * parameters and written["checkpoints"] == 2 * written["checkpoint"]
    assert written["token_store"] == 2 * 1000 * written["tokens_per_step"]
    sent = {one["kind"]: one for one in written["messages"]}
    often, reduced = written["accumulation"], sent["reduce_scatter"]
    assert (reduced["bytes"], reduced["count"]) == (often * 4 * parameters, often * (12 + 1))
    layers = 12 * 7_087_872  # gathered in bf16 for each pass; the rest once
    assert sent["all_gather"]["bytes"] == often * 2 * (parameters + layers)
    assert "training.gradient_checkpointing=true is not needed for" in printed and "gathered over dp_shard" in printed


@pytest.mark.parametrize(
    "argv, words",
    [
        (["quikstart"], "'quikstart' is neither a recipe, nor a file, nor a preset; did you mean quickstart?"),
        (["quickstart", "--devices", "A100"], "did you mean A100-40GB or A100-80GB?"),
        (["quickstart", "--devices", "0xH100"], "0 is no number of devices"),
        (["quickstart", "--devices", "8"], "is not of the form 8xH100-80GB"),
        (["quickstart", "--zero", "1", "--fsdp"], "not allowed with"),
        (["quickstart", "--zero", "2"], "training.optim=muon needs whole"),
        (["quickstart", "--price", "-1"], "--price: -1 is not what a device costs in an hour, such as 2.5"),
        (["quickstart", "--mfu", "40"], "--mfu=40 is a share of the peak"),
        (["gpt2", "--devices", "H100", "--context", "4096"], "--context=4096 is longer than the model's"),
        (["bert_base", "--devices", "H100", "--context", "64"], "generates nothing"),
        (["gpt2", "objective.sequence_length=4096"], "objective.sequence_length=4096 is longer than"),
    ],
)
def test_mistakes_are_one_sentence(argv, words, capsys):
    assert main(["plan", *argv]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert words in sentence

"""`training.parallelism`: processes that share a model train what one process trains, and save it whole."""

import json
import os
import pickle
import subprocess
import sys
from functools import partial

import pytest
import torch
import yaml
from anyformer.pipelines.cli.train_command import LAUNCH_HELP
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.evaluation.request import evaluation_recipe
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.training.arguments import training_arguments
from anyformer.pipelines.training.checkpoints.safe_load import plain_shards_alone
from anyformer.pipelines.training.engines import launch
from anyformer.pipelines.training.engines.mesh import Mesh
from processes import logged_losses
from rehearsed import needs_mesh
from run_folders import assert_same_weights, saved_weights
from test_distributed import assert_close, needs_deepspeed
from torch.distributed.fsdp import CPUOffloadPolicy
from transformers import AutoModelForCausalLM, LlamaConfig

pytestmark = needs_mesh
DECODER = {"hidden_dropout": 0.0}
UNTIED = DECODER | {"tie_word_embeddings": False}
DEEP = DECODER | {"num_hidden_layers": 4}
MIXTURE = {"family": "moe", "hidden_dropout": 0.0, "num_experts": 4, "intermediate_size": 48}
MIXTURE |= {"router_aux_loss_coef": 0.01}
LLAMA = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 4, "max_position_embeddings": 64}
QUICKSTART = ["training.optim=adamw"]


def assert_same_run(got, expected):
    """Losses, metrics and saved weights; the model that was saved loads in one process."""
    (facts, losses, run), (single, own_losses, own_run) = got, expected
    assert_close(losses, own_losses)
    for name, value in single["metrics"].items():
        assert facts["metrics"][name] == pytest.approx(value, rel=1e-4), name
    assert facts["parameters"] == single["parameters"]
    weights, own_weights = saved_weights(run), saved_weights(own_run)
    assert weights.keys() == own_weights.keys()
    for name, tensor in own_weights.items():  # Adam divides by the root of tiny squares: 1e-5 per weight is not kept
        torch.testing.assert_close(weights[name], tensor, atol=2e-3, rtol=0, msg=name)
    model = AutoModelForCausalLM.from_pretrained(run)
    assert not any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


# Learning rate: at 5e-3 rounding grows tenfold within twenty steps, in one process as well.
STEPS = {"max_steps": 50, "learning_rate": 1e-3, "save_steps": 25}
# name: (processes, shares, model, batches of one process that these make in a step, engine)
MESHES = {
    "pp": (2, "{pp: 2}", DECODER, 1, "Schedule1F1B(pp 2)"),
    "pp-untied": (2, "{pp: 2}", UNTIED, 1, "Schedule1F1B(pp 2)"),
    "pp-of-four": (4, "{pp: 4}", DEEP, 1, "Schedule1F1B(pp 4)"),
    "tp": (2, "{tp: 2}", DECODER, 1, "DTensor(tp 2)"),
    "fsdp2": (2, "{dp_shard: 2}", DECODER, 2, "DTensor(fsdp 2)"),
    "hsdp": (4, "{dp_replicate: 2, dp_shard: 2}", DECODER, 4, "DTensor(dp_replicate 2 x fsdp 2)"),
    "ep": (2, "{dp_shard: 2, ep: 2}", MIXTURE, 2, "DTensor(fsdp 2 x ep 2)"),
    "ep-tp": (2, "{tp: 2, ep: 2}", MIXTURE, 1, "DTensor(tp 2 x ep 2)"),
    "moe-fsdp2": (2, "{dp_shard: 2}", MIXTURE, 2, "DTensor(fsdp 2)"),
    "moe-tp": (2, "{tp: 2}", MIXTURE, 1, "DTensor(tp 2)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("count, shares, model, batches, engine", MESHES.values(), ids=MESHES)
def test_processes_that_share_a_model_train_what_one_trains_and_go_on_from_a_checkpoint(
    count, shares, model, batches, engine, tiny_recipe, ranks, alone
):
    """Also past the end of an epoch, whose last batch is not full; then from the middle again, bit for bit."""
    recipe = tiny_recipe(model=model, training=STEPS)
    few, shared = "data.max_documents=3", f"training.parallelism={shares}"
    rows = f"training.per_device_train_batch_size={8 if batches == 1 else 4}"
    expected = alone(recipe, few, rows, f"training.gradient_accumulation_steps={batches}")
    assert expected[0]["data"]["train"]["rows"] < 50 * 8 and expected[0]["data"]["train"]["rows"] % 8
    got = ranks(count, recipe, few, rows, shared)
    assert got[0]["engine"] == engine
    assert_same_run(got, expected)
    checkpoint = got[2] / "checkpoint-25"
    assert (checkpoint / "optimizer_shards").is_dir() and not (checkpoint / "optimizer.pt").exists()
    contents = checkpoint / "optimizer_shards" / ".metadata"
    with plain_shards_alone(contents.parent):
        pass
    again = ranks(count, recipe, few, rows, shared, start=checkpoint)
    assert again[1] == got[1][25:]
    assert_same_weights(got[2], again[2])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "pp", "tp", "fsdp2", "ep-tp"])
def test_muon_of_several_processes_is_muon_of_one_and_goes_on_from_a_checkpoint(
    name, tiny_recipe, ranks, alone, monkeypatch
):
    # In bf16, which Muon takes where the processor has instructions for it, another order of sums is 1e-4 of the loss.
    monkeypatch.setattr("anyformer.pipelines.training.optimizers.prefers_bf16", lambda device: False)
    count, shares, model, batches, _ = MESHES.get(name, (2, "null", DECODER, 2, ""))
    training = {"optim": "muon", "max_steps": 12, "learning_rate": 1e-3, "save_steps": 6}
    recipe, shared = tiny_recipe(model=model, training=training), f"training.parallelism={shares}"
    rows = f"training.per_device_train_batch_size={8 if batches == 1 else 4}"
    expected = alone(recipe, rows, f"training.gradient_accumulation_steps={batches}")
    got = ranks(count, recipe, rows, shared)
    assert_same_run(got, expected)
    again = ranks(count, recipe, rows, shared, start=got[2] / "checkpoint-6")
    assert again[1] == got[1][6:]
    assert_same_weights(got[2], again[2])


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True])
def test_a_shared_checkpoint_is_trained_accumulated_and_its_best_kept(native, tiny_recipe, ranks, alone, tmp_path):
    """From weights on disk, over accumulated batches, with validations in between."""
    first = start = alone(tiny_recipe(model=DECODER, training=STEPS))[2]
    if native:  # whether it keeps documents apart is tried by a forward pass of all processes
        start = tmp_path / "native"
        AutoModelForCausalLM.from_config(LlamaConfig(**LLAMA)).save_pretrained(start)
    own = tiny_recipe("own", training=STEPS, evaluation={"every_steps": 4, "best_metric": "loss"})
    own.write_text(yaml.safe_dump(yaml.safe_load(own.read_text()) | {"model": {"name_or_path": str(start)}}))
    words = ["training.max_steps=12", f"tokenizer={{name_or_path: {first}}}"]
    expected = alone(own, *words, "training.gradient_accumulation_steps=4")
    halves = "training.gradient_accumulation_steps=2"
    assert_same_run(ranks(2, own, *words, halves, "training.parallelism={dp_shard: 2}"), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shares, words, most",
    [
        ("{dp_shard: 2}", ["training.bf16=true"], 0.05),
        ("{tp: 2}", ["training.bf16=true"], 0.05),
        ("{dp_shard: 2, fsdp_cpu_offload: true}", [], 0.0),
    ],
)
def test_bf16_and_shards_on_the_cpu_train_as_a_mesh_in_fp32_does(shares, words, most, tiny_recipe, ranks, monkeypatch):
    """Offloading moves nothing on a CPU, and pins memory for a GPU, which is left out here."""
    offloads = partial(CPUOffloadPolicy, pin_memory=False)
    monkeypatch.setattr("transformers.distributed.fsdp.CPUOffloadPolicy", offloads)
    monkeypatch.setattr(Mesh, "check_device", lambda self, device: None)
    recipe = tiny_recipe(model=DECODER, training=STEPS | {"max_steps": 10})
    plain = ranks(2, recipe, "training.parallelism={dp_shard: 2}", "training.bf16=false")
    got = ranks(2, recipe, f"training.parallelism={shares}", *words)
    assert max(abs(a - b) for a, b in zip(got[1], plain[1], strict=True)) <= most
    assert most == 0 or got[1] != plain[1]


@pytest.mark.slow
@pytest.mark.parametrize("shares", ["{dp_shard: 2}", "{tp: 2}"])
def test_layers_of_a_shared_model_that_are_compiled_train_as_those_that_are_not(shares, tiny_recipe, ranks):
    recipe = tiny_recipe(model=DECODER, training=STEPS | {"max_steps": 6})
    words = f"training.parallelism={shares}", "training.torch_compile_backend=aot_eager"
    assert_close(ranks(2, recipe, *words)[1], ranks(2, recipe, words[0])[1])


@pytest.mark.slow
def test_a_run_goes_on_with_its_model_shared_otherwise(tiny_recipe, ranks):
    """Optimizer states are addressed by the names of weights, and a step keeps its rows."""
    recipe, few = tiny_recipe(model=DECODER, training=STEPS), "data.max_documents=3"
    _, losses, run = ranks(2, recipe, few, "training.parallelism={dp_shard: 2}")
    for count, shares in ((2, "{tp: 2}"), (4, "{dp_shard: 2, tp: 2}")):
        facts, rest, _ = ranks(count, recipe, few, f"training.parallelism={shares}", start=run / "checkpoint-25")
        assert facts["rows_per_step"] == 8
        assert_close(rest, losses[25:])


def test_a_table_of_contents_that_could_run_code_is_not_read(tmp_path):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(print))
    sentence = r"\.metadata is no table of contents of shards .*print.*, so it was not read"
    with pytest.raises(UserError, match=sentence), plain_shards_alone(tmp_path):
        pytest.fail("it was read")


@pytest.fixture
def one_document(tmp_path, text_file):
    """Overrides: the text of all documents as one, without validation."""
    file = tmp_path / "one.txt"
    texts = [json.loads(line)["text"] for line in text_file.read_text(encoding="utf-8").splitlines()]
    file.write_text("\n".join(texts), encoding="utf-8")
    return f"data.files={file}", "data.validation_fraction=0", "evaluation.metrics=[]", "evaluation.max_rows=null"


@pytest.mark.slow
@needs_deepspeed
def test_processes_that_share_each_row_train_what_one_trains(tiny_recipe, one_document, ranks, alone):
    """Ulysses: two processes hold half of each row, and in attention half of the heads."""
    recipe = tiny_recipe(model=DECODER, training=STEPS | {"save_steps": 100})
    expected = alone(recipe, *one_document)
    got = ranks(2, recipe, *one_document, "training.deepspeed=zero3", "training.parallelism={sp: 2}")
    assert got[0]["engine"] == "DeepSpeedEngine"
    assert_same_run(got, expected)


def test_rows_of_several_documents_are_not_shared(tiny_recipe, command, capsys, monkeypatch):
    monkeypatch.setattr("anyformer.pipelines.training.session.check_processes", lambda *_: None)
    monkeypatch.setattr("anyformer.pipelines.training.engines.engine.Engine.check_launcher", lambda *_: None)
    assert command("train", tiny_recipe(), "training.parallelism={sp: 2}") == 2
    error = capsys.readouterr().err
    assert "these rows hold several documents each, which would see each other" in error and "data.document=" in error


# ------------------------------------------------------------------------------------------------------- GPUs


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
@pytest.mark.parametrize(
    "words, engine",
    [
        (["--launch", "fsdp2"], "DTensor(fsdp 2)"),
        (["--launch", "zero3", "training.parallelism={sp: 2}"], "DeepSpeedEngine"),
        (["--launch", "mesh", "training.parallelism={dp_shard: 2}"], "DTensor(fsdp 2)"),
        (["--launch", "mesh", "training.parallelism={tp: 2}"], "DTensor(tp 2)"),
        (["--launch", "mesh", "training.parallelism={pp: 2}"], "Schedule1F1B(pp 2)"),
    ],
    ids=["fsdp2", "sp", "mesh", "tp", "pp"],
)
def test_two_gpus_train_what_one_trains(words, engine, tiny_recipe, one_document, tmp_path):
    recipe = tiny_recipe(model=DECODER, training=STEPS | {"save_steps": 100})
    common = [sys.executable, "-m", "anyformer_main", "train", str(recipe), *one_document]
    rows_of_own = "dp_shard" in words[-1] or len(words) == 2
    doubled = f"training.gradient_accumulation_steps={2 if rows_of_own else 1}"
    one, two = tmp_path / "one", tmp_path / "two"
    alone = os.environ | {"CUDA_VISIBLE_DEVICES": "0"}
    subprocess.run([*common, f"training.output_dir={one}", doubled], env=alone, check=True)
    subprocess.run([*common, *words, "--nproc", "2", f"training.output_dir={two}"], check=True)
    facts = json.loads((two / "run.json").read_text())
    assert (facts["engine"], facts["world_size"]) == (engine, 2)
    assert (
        max(abs(a - b) for a, b in zip(logged_losses(two), logged_losses(one), strict=True)) <= 1e-4
    )  # kernels of GPUs


# ---------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "shares, others, sentence",
    [
        ("{tp: 3}", [], "tp does not divide model.num_attention_heads="),
        ("{tp: 1}", [], "shares nothing: all its numbers are 1"),
        ("{dp_shard: 2, ep: 2}", [], "the model has no experts to share; set ep to 1, or model.family to moe"),
        ("{dp_shard: 2, ep: 4}", [], "ep must be a multiple of tp, and divide dp_shard x tp"),
        ("{pp: 5}", [], "pp does not divide model.num_hidden_layers="),
        ("{pp: 2, tp: 2}", [], "pp is not wired beside tp; set one of them to 1"),
        ("{tp: 2, fsdp_cpu_offload: true}", [], "fsdp_cpu_offload=true goes with dp_shard or dp_replicate"),
        ("{pp: 2}", ["training.per_device_train_batch_size=1"], "is less than the stages of training.parallelism="),
        ("{pp: 2}", ["model.position_encoding=learned"], "position_encoding='learned', which is added to them"),
        ("{pp: 2}", ["data.mixture=[{source: stdlib}]", "data.source=null"], "data.mixture is not wired beside"),
        ("{pp: 2}", ["training.gradient_checkpointing=true"], "training.gradient_checkpointing=true is not wired"),
        ("{sp: 2}", ["objective.sequence_length=255"], "2 parts of equal length do not make objective.sequence_length"),
        ("{sp: 2}", ["model.attn_implementation=eager"], "replaces sdpa alone, and model.attn_implementation=eager"),
        ("{sp: 2}", ["training.label_smoothing_factor=0.1"], "label_smoothing_factor=0.1 is not wired beside"),
        ("{sp: 2, tp: 2}", [], "sp is not wired beside tp"),
        ("{sp: 2}", ["model.position_encoding=alibi"], "position_encoding='alibi' adds to scores of whole rows"),
        ("{sp: 2}", ["model.sliding_window=8", "model.attention_pattern=[sliding_attention]"], "sp needs attention"),
        ("{tp: 2}", ["training.optim=lion_32bit"], "training.optim=lion_32bit looks at whole matrices"),
        ("{tp: 2}", ["training.ema_decay=0.9"], "training.ema_decay=0.9 needs whole weights"),
        ("{tp: 2}", ["training.deepspeed=zero2"], "training.deepspeed='zero2' and training.parallelism="),
        ("{pp: 2}", ["training.torch_compile=true"], "training.torch_compile=true is not wired beside"),
    ],
)
def test_what_cannot_be_shared_is_one_sentence_when_the_recipe_is_read(shares, others, sentence):
    with pytest.raises(UserError) as caught:
        load_recipe("quickstart", [*QUICKSTART, f"training.parallelism={shares}", *others])
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--launch", "mesh", "--nproc", "2"], "--launch mesh takes training.parallelism, which is null"),
        (["--launch", "mesh", "--nproc", "4", "training.parallelism={tp: 2}"], "takes 2 processes"),
        (["--launch", "ddp", "--nproc", "2", "training.parallelism={tp: 2}"], "{tp: 2} runs by --launch mesh"),
        (["--launch", "mesh", "training.parallelism={sp: 2}"], "training.parallelism={sp: 2} runs by --launch zero3"),
        (["--launch", "fsdp2", "--nproc", "1"], "shares nothing: all its numbers are 1"),
        (["training.parallelism={tp: 2}"], "takes 2 processes"),
    ],
)
def test_another_number_of_processes_or_engine_is_one_sentence(
    words, sentence, command, without_launcher, capsys, monkeypatch
):
    monkeypatch.setattr(launch, "supervise", lambda *_: pytest.fail("processes were started"))
    assert command("train", "quickstart", *QUICKSTART, *words) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_a_mesh_starts_as_many_processes_as_its_product(command, without_launcher, monkeypatch):
    started = []
    monkeypatch.setattr(launch, "supervise", lambda *job: started.append(job) or 0)
    assert (
        command("train", "quickstart", *QUICKSTART, "--launch=mesh", "training.parallelism={dp_shard: 3, tp: 2}") == 0
    )
    assert started[0][2] == 6 and "mesh" in LAUNCH_HELP


@pytest.mark.parametrize("engine, name", [("FSDP", "FSDP"), ("DEEPSPEED", "DeepSpeed")])
def test_a_launcher_with_an_engine_of_its_own_is_refused(engine, name, without_launcher, monkeypatch):
    monkeypatch.setenv(f"ACCELERATE_USE_{engine}", "true")
    with pytest.raises(UserError, match=f"splits the model itself, but the launcher's file asks for {name}"):
        training_arguments(load_recipe("quickstart", [*QUICKSTART, "training.parallelism={tp: 2}"]))


def test_rows_are_shared_under_zero3_alone(without_launcher, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    overrides = [*QUICKSTART, "training.parallelism={sp: 2}", "training.deepspeed=zero2"]
    with pytest.raises(UserError, match="under ZeRO-2 DeepSpeed scales the gradients of sp otherwise"):
        training_arguments(load_recipe("quickstart", overrides))


def test_an_evaluation_takes_the_run_of_several_processes_in_one(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "anyformer_decoder"}')
    recipe = evaluation_recipe(str(tmp_path), "quickstart", [*QUICKSTART, "training.parallelism={tp: 2}"])
    assert recipe.training.parallelism is None

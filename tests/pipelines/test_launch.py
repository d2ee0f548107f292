"""`anyformer train R --launch ENGINE`, and launchers that would run something else than was asked for."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.schema import ParallelismSettings, TrainingSection
from anyformer.pipelines.training.arguments import training_arguments
from anyformer.pipelines.training.engines import launch
from anyformer.pipelines.training.engines.asked import ENGINES, engine_for
from anyformer.pipelines.training.engines.deepspeed_engine import DeepSpeed
from anyformer.pipelines.training.engines.fsdp import as_accelerate_asks
from anyformer.pipelines.training.engines.whole import OneProcess
from anyformer.pipelines.training.trainer import AnyformerTrainer
from family_variants import a_share
from processes import Process, logged_losses, rank_environments
from test_distributed import DOUBLED, assert_close, forget_the_parents_state, needs_deepspeed
from transformers import TrainingArguments

ADAMW = "training.optim=adamw"  # quickstart's own muon needs whole matrices


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--launch", "zero4", "--nproc", "2"], "--launch zero4: no such engine; did you mean zero"),
        (["--launch", "ddp", "--nproc", "0"], "--nproc: 0 must be at least 1"),
        (["--nproc", "2"], "--nproc 2 goes with --launch, such as --launch ddp --nproc 2"),
        (["--launch", "ddp"], "say how many, such as --nproc 2"),
        (["--launch", "zero2", "--nproc", "2"], "training.optim=muon needs whole matrices"),
        (["--launch", "ddp", "--nproc", "2", "training.deepspeed=zero3"], "deepspeed='zero3'; write --launch zero2"),
        (["--launch", "zero2", "--nproc", "2", ADAMW, "training.deepspeed=zero3"], "is of stage 3; write"),
        (["--launch", "ddp", "--nproc", "2", "training.fsdp=full_shard"], "use training.parallelism, such as"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_before_any_process_starts(
    words, sentence, command, without_launcher, capsys, monkeypatch
):
    monkeypatch.setattr(launch, "supervise", lambda *_: pytest.fail("processes were started"))
    assert command("train", "quickstart", *words) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_a_launcher_inside_a_launcher_missing_deepspeed_and_missing_gpus_are_refused(
    command, without_launcher, capsys, monkeypatch
):
    def refused(*words):
        assert command("train", "quickstart", ADAMW, *words) == 2
        return capsys.readouterr().err

    monkeypatch.setattr(launch, "count_gpus", lambda: 2)
    assert "each process needs a GPU of its own, and there are 2" in refused("--launch", "ddp", "--nproc", "3")
    find = launch.importlib.util.find_spec
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None if name == "deepspeed" else find(name))
    assert "needs DeepSpeed, which is not installed; install anyformer[deepspeed]" in refused("--launch=zero1")
    monkeypatch.setenv("RANK", "1")
    assert "this one is the rank 1 of a launcher (RANK is set); leave --launch out" in refused("--launch=ddp")


@needs_deepspeed
def test_each_rank_gets_the_command_without_the_launch_and_with_what_its_engine_needs(
    command, without_launcher, monkeypatch
):
    started = []
    monkeypatch.setattr(launch, "supervise", lambda *job: started.append(job) or 7)
    monkeypatch.setattr(launch, "count_gpus", lambda: 4)
    assert command("train", "quickstart", "--launch", "zero3", ADAMW, "--dry-run") == 7
    assert command("train", "quickstart", "--nproc=2", "--launch=fsdp2", "training.seed=3") == 7
    (zero, variables, four), (fsdp, others, two) = started
    program = [sys.executable, "-P", "-m", "anyformer_main", "train", "quickstart"]
    assert zero == [*program, ADAMW, "--dry-run", "training.deepspeed=zero3"] and four == 4
    assert fsdp == [*program, "training.seed=3", "training.parallelism={dp_shard: 2}"] and two == 2
    assert variables.keys() == others.keys() == {"OMP_NUM_THREADS"}


def variables_of_accelerate(*words) -> dict[str, str]:
    """What `accelerate launch` sets in each process for FSDP."""
    from accelerate.commands import launch as accelerate

    parsed = accelerate.launch_command_parser().parse_args([*words, "--main_process_port", "0", "x.py"])
    variables = accelerate.prepare_multi_gpu_env(accelerate._validate_launch_command(parsed)[0])
    names = ("ACCELERATE_USE_", "FSDP_", "PARALLELISM_CONFIG_")
    return {name: value for name, value in variables.items() if name.startswith(names)}


USE_FSDP = ("--use_fsdp", "--fsdp_version", "2", "--num_processes", "4", "--mixed_precision", "no")


@pytest.mark.parametrize(
    "words, expected",
    [
        (("--config_file", "configs/accelerate/fsdp2.yaml"), {"dp_shard": 8}),
        (("--config_file", "configs/accelerate/hsdp.yaml"), {"dp_replicate": 2, "dp_shard": 8}),
        (USE_FSDP, {"dp_shard": 8}),
        ((*USE_FSDP, "--fsdp_offload_params", "true"), {"dp_shard": 8, "fsdp_cpu_offload": True}),
    ],
    ids=["fsdp2.yaml", "hsdp.yaml", "--use_fsdp", "offload"],
)
def test_fsdp2_by_accelerate_is_training_parallelism(words, expected, repo_root, without_launcher, monkeypatch):
    monkeypatch.chdir(repo_root)
    for name, value in {"WORLD_SIZE": "8", **variables_of_accelerate(*words)}.items():
        monkeypatch.setenv(name, value)
    recipe = as_accelerate_asks(load_recipe("quickstart"))
    assert recipe.training.parallelism == ParallelismSettings(**expected)
    assert engine_for(recipe.training).name == "mesh" and as_accelerate_asks(recipe) is recipe
    assert not {"ACCELERATE_USE_FSDP", "ACCELERATE_USE_PARALLELISM_CONFIG"} & os.environ.keys()


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("--fsdp_version", "1"), "fsdp_version=1, for accelerate launch: FSDP1 is not wired"),
        (("--fsdp_reshard_after_forward", "false"), "fsdp_reshard_after_forward=false, for accelerate launch"),
        (("--fsdp_auto_wrap_policy", "NO_WRAP"), "fsdp_auto_wrap_policy=NO_WRAP, for accelerate launch"),
        (("--fsdp_activation_checkpointing", "true"), "write training.gradient_checkpointing=true"),
        (("--fsdp_state_dict_type", "SHARDED_STATE_DICT"), "weights are saved whole, and states in shards"),
        (("--use_parallelism_config", "--parallelism_config_cp_size", "2"), "parallelism_config_cp_size=2"),
    ],
)
def test_a_key_of_accelerate_that_fsdp2_does_not_have_is_refused_by_name(
    words, sentence, without_launcher, monkeypatch
):
    for name, value in variables_of_accelerate(*USE_FSDP, *words).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        as_accelerate_asks(load_recipe("quickstart"))
    assert sentence in str(caught.value)


@needs_deepspeed
def test_an_own_configuration_goes_with_its_stage(tmp_path, without_launcher):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    assert launch.settings_of("zero2", load_recipe("quickstart", [ADAMW, f"training.deepspeed={file}"])) == []
    assert {"ddp", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "fsdp2", "mesh"} == set(
        launch.engines()
    )


def test_gpus_are_counted_without_torch(monkeypatch):
    nodes = ["/dev/nvidia0", "/dev/nvidia1"]
    monkeypatch.setattr(launch.glob, "glob", lambda pattern: nodes if "nvidia" in pattern else [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert launch.count_gpus() == 2
    for visible, count in (("", 0), ("-1", 0), ("1", 1), ("0, 1", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert launch.count_gpus() == count
    nodes.clear()
    assert launch.count_gpus() == 0


# ------------------------------------------------------------------------------------- the job of some ranks


FAILING = """
import os, time
from anyformer.pipelines.training.engines.launch import tell_launcher
if os.environ["RANK"] == "1":
    assert tell_launcher("data.files: no such\\n file") and os.environ["WORLD_SIZE"] == "2"
    raise SystemExit(2)
time.sleep(60)
"""
STOPPING = """
import os, signal, sys, time
def stop(number, frame):
    print("rank", os.environ["RANK"], "got", number, file=open(sys.argv[1], "a"), flush=True)
    time.sleep(0.2)
    raise SystemExit(128 + number)
signal.signal(signal.SIGINT, stop), signal.signal(signal.SIGTERM, stop)
print("ready", file=open(sys.argv[1], "a"), flush=True)
time.sleep(60)
"""


def python(text: str, *words) -> list[str]:
    return [sys.executable, "-c", text, *map(str, words)]


def test_the_first_rank_that_fails_is_said_on_one_line_and_ends_the_others(capfd):
    begun = time.monotonic()
    assert launch.supervise(python(FAILING), {}, 2) == 2
    assert time.monotonic() - begun < 50
    assert capfd.readouterr().err == "anyformer: rank 1 of 2: data.files: no such file\n"
    assert launch.supervise(python("import os; os.kill(os.getpid(), 9)"), {}, 1) == 137
    assert capfd.readouterr().err == "anyformer: rank 0 of 1: killed by SIGKILL; without memory the system kills so\n"
    assert launch.supervise(python("raise SystemExit(3)"), {}, 1) == 3
    assert "ended with exit code 3" in capfd.readouterr().err
    assert launch.supervise(python("import os; assert os.environ['MASTER_PORT']"), {}, 2) == 0


@pytest.mark.parametrize("number", a_share([signal.SIGTERM, signal.SIGINT, signal.SIGKILL], 2))
def test_each_rank_gets_a_signal_once_and_the_job_ends_with_its_code(number, tmp_path):
    """Also the death of the launcher itself, of which the ranks hear as SIGTERM."""
    log = tmp_path / "log"
    job = Process(launch.supervise, python(STOPPING, log), {}, 2)

    def written(text):
        return log.read_text().count(text) if log.exists() else 0

    job.wait_until(lambda: written("ready") == 2, timeout=60)
    job.kill(number)
    got = signal.SIGTERM if number == signal.SIGKILL else number
    assert job.wait(30) == (-number if number == signal.SIGKILL else 128 + number)
    deadline = time.monotonic() + 30
    while written("got") < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sorted(log.read_text().splitlines()[2:]) == [f"rank {rank} got {int(got)}" for rank in (0, 1)]


# ------------------------------------------------------------------------------- no other engine without a word


@pytest.mark.parametrize(
    "environment, overrides, sentence",
    [
        ({"ACCELERATE_DYNAMO_USE_FULLGRAPH": "False", "MASTER_ADDR": "127.0.0.1"}, [], "accelerate launch was asked"),
        ({"RANK": "0", "ACCELERATE_USE_CPU": "true"}, [ADAMW, "training.deepspeed=zero2"], "ACCELERATE_USE_CPU=true"),
    ],
)
def test_a_launcher_that_falls_back_silently_is_refused(
    environment, overrides, sentence, without_launcher, monkeypatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        training_arguments(load_recipe("quickstart", overrides))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_several_gpus_in_one_process_are_refused_as_data_parallel_would_train(
    tiny_recipe, command, without_launcher, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda arguments: 4))
    assert command("train", tiny_recipe()) == 2
    error = capsys.readouterr().err
    assert "one process sees 4 GPUs, and nn.DataParallel would train" in error and "--launch ddp, or choose" in error
    assert error.count("\n") == 1 and not (tmp_path / "run").exists()


def test_what_begins_to_train_is_the_engine_asked_for(without_launcher, monkeypatch):
    def wrapped(name):
        return type(name, (), {})()

    for asked, name in (("DDP", "DistributedDataParallel"), ("DeepSpeed", "DeepSpeedEngine")):
        engine = next(each for each in ENGINES if each.name == asked)(TrainingSection())
        engine.check_wrapped(wrapped(name))
        engine.check_wrapped(SimpleNamespace(_orig_mod=wrapped(name)))  # compiled
        with pytest.raises(UserError, match=f"started for {asked}, but a plain model would train; write anyformer"):
            engine.check_wrapped(wrapped("AnyformerDecoderForCausalLM"))
    with pytest.raises(UserError, match=r"started for DeepSpeed, but DDP would train; .* --launch zero2"):
        DeepSpeed(TrainingSection()).check_wrapped(wrapped("DistributedDataParallel"))
    OneProcess(TrainingSection()).check_wrapped(wrapped("AnyformerDecoderForCausalLM"))
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="process 3 of this machine has no GPU: there are 2"):
        engine_for(load_recipe("quickstart").training).check_launcher("cuda", 2)


# ------------------------------------------------------------------------------------------------ real runs


def start(recipe, *words) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "anyformer_main", "train", str(recipe), *map(str, words), "--nproc", "2"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fails_in_a_step(rank: int, command, *arguments) -> int:
    """Run the command; the process of this rank cannot make its third step."""
    forget_the_parents_state()
    step = AnyformerTrainer.training_step

    def training_step(self, *args, **kwargs):
        if self.state.global_step == 2 and os.environ["RANK"] == str(rank):
            raise UserError("data.files: row 7 cannot be read")
        return step(self, *args, **kwargs)

    AnyformerTrainer.training_step = training_step
    return command(*arguments)


@pytest.mark.slow
def test_the_process_that_fails_says_why_and_the_others_that_it_is_gone(tiny_recipe, command, tmp_path):
    """Under any launcher; ours prints the first sentence alone."""
    path = tiny_recipe(training={"max_steps": 4})
    ranks = [
        Process(fails_in_a_step, 1, command, "train", path, output=tmp_path / f"{rank}.txt", env=environment)
        for rank, environment in enumerate(rank_environments(2))
    ]
    assert [rank.wait(60) for rank in ranks] == [1, 2]
    last = [rank.text().strip().splitlines()[-1] for rank in ranks]
    assert last == [
        f"anyformer (rank 0): {launch.LOST_ANOTHER}",
        "anyformer (rank 1): data.files: row 7 cannot be read",
    ]


@pytest.mark.slow
def test_a_launched_run_stops_on_sigterm_goes_on_and_is_what_one_process_trains(tiny_recipe, alone, tmp_path):
    recipe, run = tiny_recipe(model={"hidden_dropout": 0.0}), tmp_path / "run"
    training = ["training.max_steps=400", "training.learning_rate=1e-4", "training.save_steps=1000"]
    _, expected, _ = alone(recipe, *training, DOUBLED)
    words = ["--launch", "ddp", *training, f"training.output_dir={run}"]
    job = start(recipe, *words)
    try:
        deadline = time.monotonic() + 200
        while not (run / "metrics.jsonl").exists() and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        job.terminate()
        output, error = job.communicate(timeout=100)
    finally:
        job.kill()
    assert job.returncode == 143 and "stopped by signal 15 after step" in output, output + error
    assert len(list(run.glob("checkpoint-*"))) == 1
    job = start(recipe, *words)
    output, error = job.communicate(timeout=300)
    assert job.returncode == 0, output + error
    facts = json.loads((run / "run.json").read_text())
    assert (facts["engine"], facts["world_size"]) == ("DistributedDataParallel", 2)
    assert_close(logged_losses(run), expected)

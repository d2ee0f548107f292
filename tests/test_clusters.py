"""Settings for many processes: files of accelerate and DeepSpeed, docs/clusters.md, SLURM, a container."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from anyformer.pipelines.recipes.deepspeed_settings import deepspeed_config
from anyformer.pipelines.recipes.recipe_files import shipped
from processes import free_port, logged_losses
from test_readme import README, arguments_parse, launch_parses, words_of

ROOT = Path(__file__).resolve().parents[1]
DOCS = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
SBATCH = ROOT / "scripts" / "slurm" / "train.sbatch"
DOCKERFILE = ROOT / "docker" / "Dockerfile"
ACCELERATE = sorted((ROOT / "configs" / "accelerate").glob("*.yaml"))
TOLERANCE = 1e-5  # fp32: the same sums in another order


def commands() -> list[str]:
    lines = "\n".join(re.findall(r"^```bash\n(.*?)^```", DOCS, re.DOTALL | re.MULTILINE)).splitlines()
    return [shlex.join(shlex.split(line, comments=True)) for line in lines if line]


# ------------------------------------------------------------------------------------------------ the files


@pytest.mark.parametrize("file", ACCELERATE, ids=lambda file: file.stem)
def test_accelerate_takes_each_shipped_file_and_starts_what_its_name_says(file, monkeypatch):
    from accelerate import ParallelismConfig
    from accelerate.commands import launch

    monkeypatch.chdir(ROOT)  # the offload files name a JSON of the repository
    words = ["--config_file", str(file), "--main_process_port", "0", "scripts/train.py"]
    args, _, _ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
    # The recipe decides the precision: accelerate's word would win over it, or contradict the JSON.
    assert args.mixed_precision == "no" and not args.use_cpu
    if file.stem.startswith("zero"):
        assert args.use_deepspeed and args.deepspeed_multinode_launcher == "standard"
        args.deepspeed_fields_from_accelerate_config = ""
        _, environment = launch.prepare_deepspeed_cmd_env(args)
        named = args.deepspeed_config_file
        stage = json.loads(Path(named).read_text())["zero_optimization"]["stage"] if named else args.zero_stage
        assert stage == int(file.stem[4]) and environment["ACCELERATE_USE_DEEPSPEED"] == "true"
        assert named == (f"configs/deepspeed/{file.stem}.json" if file.stem.endswith("offload") else None)
    elif file.stem in ("fsdp2", "hsdp"):
        environment = launch.prepare_multi_gpu_env(args)
        assert environment["ACCELERATE_USE_FSDP"] == "true" and environment["FSDP_VERSION"] == "2"
        assert ("ACCELERATE_USE_PARALLELISM_CONFIG" in environment) == (file.stem == "hsdp")
        if file.stem == "hsdp":
            for name in [name for name in environment if name.startswith("PARALLELISM_CONFIG_")]:
                monkeypatch.setenv(name, environment[name])
            plan = ParallelismConfig()
            assert plan.dp_replicate_enabled and plan.dp_shard_enabled and plan.total_size == args.num_processes
            assert plan.fsdp_dim_names == ["dp_replicate", "dp_shard_cp"]
    else:
        assert args.multi_gpu == (file.stem == "ddp") and args.num_processes == (8 if file.stem == "ddp" else 1)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", shipped("deepspeed", ".json"))
def test_deepspeed_takes_each_shipped_file_with_fp32_masters_and_a_scaled_loss(name, precision):
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    settings = json.loads(Path(deepspeed_config(name)).read_text())
    filled = {key: value for key, value in settings.items() if value != "auto"} | {"train_batch_size": 1}
    for each in ("bf16", "fp16"):
        filled[each] = settings[each] | {"enabled": each == precision}
    zero = filled["zero_optimization"]
    filled["zero_optimization"] = {key: value for key, value in zero.items() if value != "auto"}
    config = DeepSpeedConfig(filled)
    assert config.zero_optimization_stage == int(name[4])
    assert config.zero_allow_untested_optimizer  # transformers' AdamW
    offload = name.endswith("offload")
    assert (config.zero_config.offload_optimizer is not None) == offload
    assert (config.zero_config.offload_param is not None) == (offload and name.startswith("zero3"))
    assert config.zero_force_ds_cpu_optimizer != offload  # torch's AdamW, fused on CPUs, needs no compiler
    assert (config.bfloat16_config.enabled, config.float16_config.enabled) == (precision == "bf16", precision == "fp16")
    assert not config.bfloat16_config.bf16_master_weights_and_grads
    assert config.float16_config.loss_scale == 0 and config.float16_config.initial_scale_power == 16  # 0: dynamic
    assert config.float16_config.loss_scale_window == 1000


# --------------------------------------------------------------------------------------- what the page says


def test_every_command_of_the_page_parses():
    found = commands()
    assert {shlex.split(command)[0] for command in found} == {
        "anyformer",
        "accelerate",
        "sbatch",
        "docker",
        "ENGINE=zero3",
    }
    for command in found:
        environment, words = words_of(command)
        if words[0] == "anyformer":
            arguments_parse(words)
        elif words[0] == "accelerate":
            launch_parses(words)
        elif words[0] == "sbatch":
            assert (ROOT / words[3]).samefile(SBATCH) and environment.keys() <= {"ENGINE"}
            assert (ROOT / "configs" / "accelerate" / f"{environment.get('ENGINE', 'ddp')}.yaml").is_file()
            arguments_parse(["anyformer", "train", *words[4:]])
    named = re.findall(r"`(configs/[\w/.]+\.\w+)`", DOCS)
    assert named and all((ROOT / name).is_file() for name in named)
    assert set(re.findall(r"configs/accelerate/(\w+)\.yaml", DOCS)) >= {f.stem for f in ACCELERATE} - {"one_gpu"}


def test_each_cell_that_says_tested_has_a_test_that_exists():
    section = DOCS.split("## What has run\n")[1].split("\n## ")[0]
    named = dict(re.findall(r"^(\d+)\. (.+(?:\n   .+)*)", section, re.MULTILINE))
    cells = [cell for row in section.splitlines() if row.startswith("|") for cell in row.split("|")]
    assert all("[" in cell for cell in cells if re.search(r"\btested\b", cell))
    assert {number for cell in cells for number in re.findall(r"\[(\d+)\]", cell)} <= set(named)
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section):
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_the_engines_of_the_page_are_those_of_the_command():
    from anyformer.pipelines.cli.train_command import LAUNCH_HELP
    from anyformer.pipelines.training.engines.launch import engines

    rows = DOCS.split("| `--launch` |")[1].split("\n\n")[0].splitlines()[2:]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])} == set(engines())
    assert set(engines()) <= set(re.findall(r"\w+", LAUNCH_HELP))


# ----------------------------------------------------------------------------------------------------- SLURM


def test_the_slurm_script_is_bash_and_starts_what_accelerate_and_the_recipe_take(tmp_path):
    """Run as a node would, with the programs of a cluster that print what they are given."""
    assert subprocess.run(["bash", "-n", SBATCH], check=False).returncode == 0
    log = tmp_path / "launched"
    for name, text in {
        "scontrol": "echo node-a; echo node-b",
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done\nSLURM_NODEID=1 exec "$@"',
        "accelerate": f'printf "%s\\n" accelerate "$@" > {log}',
    }.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    cluster = {
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "123",
        "SLURM_GPUS_ON_NODE": "4",
    }
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ENGINE": "zero3", **cluster}

    def submit(*words):
        return subprocess.run(
            ["bash", SBATCH, *words], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )

    done = submit("llama_1b", "training.seed=2")
    assert done.returncode == 0, done.stderr
    words = log.read_text().splitlines()
    launch_parses(words)
    flags = dict(zip(words[2:-3:2], words[3:-3:2]))
    assert flags == {
        "--config_file": "configs/accelerate/zero3.yaml",
        "--num_machines": "2",
        "--num_processes": "8",
        "--machine_rank": "1",
        "--main_process_ip": "node-a",
        "--main_process_port": "20123",
    }
    assert words[-3:] == ["scripts/train.py", "llama_1b", "training.seed=2"]
    done = submit()
    assert done.returncode == 2 and done.stderr.startswith("train.sbatch: name a recipe")
    options = re.findall(r"^#SBATCH (--[\w-]+)=(\S+)$", SBATCH.read_text(), re.MULTILINE)
    assert dict(options)["--ntasks-per-node"] == "1" and dict(options)["--signal"] == "TERM@600"
    assert len(options) == SBATCH.read_text().count("#SBATCH")


# ------------------------------------------------------------------------------------------------- container


def test_the_dockerfile_copies_files_that_exist_and_installs_as_the_readme_does():
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    copied = [word for words in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for word in words.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    # Everything that the package is made of, as tests/test_packaging.py copies it.
    assert set(copied) >= {"anyformer", "modeling", "pipelines", "configs", "scripts", "pyproject.toml", "README.md"}
    assert "://" not in text  # an official image of the default registry: no host
    assert "pip install uv && uv " in text and "pip install uv && uv " in README
    arguments_parse(
        [word for line in re.findall(r"^(?:ENTRYPOINT|CMD) (.+)$", text, re.MULTILINE) for word in json.loads(line)]
    )


# --------------------------------------------------------------------------------------------- two machines


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("file, engine", [("ddp", "DistributedDataParallel"), ("fsdp2", "DTensor(fsdp 2)")])
def test_two_machines_train_what_one_process_trains(file, engine, tmp_path):
    """The page's two commands, each a process group of one CPU process; they meet at 127.0.0.1."""
    rows = "\n".join(json.dumps({"text": f"{i} bottles of beer on the wall, " * 9}) for i in range(60))
    (tmp_path / "texts.jsonl").write_text(rows + "\n")
    recipe = {
        "model": {"family": "decoder", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        "tokenizer": {"type": "byte_bpe", "vocab_size": 300},
        "data": {"files": str(tmp_path / "texts.jsonl"), "validation_fraction": 0.1},
        "objective": {"name": "causal", "sequence_length": 48},
        "training": {"max_steps": 20, "per_device_train_batch_size": 2, "learning_rate": 1e-3, "bf16": False},
    }
    recipe["training"] |= {"logging_steps": 1, "gradient_accumulation_steps": 2}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
    environment |= {"OMP_NUM_THREADS": "1", "ANYFORMER_CACHE": str(tmp_path / "cache"), "GLOO_SOCKET_IFNAME": "lo"}
    tiny, port = str(tmp_path / "tiny.yaml"), str(free_port())

    def start(words, run, *overrides):
        words = [*words, tiny, f"training.output_dir={tmp_path / run}", *overrides]
        with open(tmp_path / f"{run}-{len(list(tmp_path.glob('*.log')))}.log", "w") as log:
            return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def logs():
        return "\n".join(file.read_text()[-3000:] for file in tmp_path.glob("*.log"))

    jobs = [start([sys.executable, "scripts/train.py"], "one")]
    assert jobs[0].wait(300) == 0, logs()
    pages = [words_of(command)[1] for command in commands() if "--main_process_ip" in command]
    assert [words[words.index("--machine_rank") + 1] for words in pages] == ["0", "1"]
    here = {"--num_processes": "2", "--main_process_ip": "127.0.0.1", "--main_process_port": port}
    for words in pages:
        for flag, value in here.items():
            words[words.index(flag) + 1] = value
        words[words.index("--config_file") + 1] = f"configs/accelerate/{file}.yaml"
        program = shutil.which("accelerate", path=str(Path(sys.executable).parent))
        jobs.append(start([program, *words[1:-1]], "two", "training.gradient_accumulation_steps=1"))
    try:
        assert [job.wait(400) for job in jobs] == [0, 0, 0], logs()
    finally:
        for job in jobs:
            job.kill()
    facts = json.loads((tmp_path / "two" / "run.json").read_text())
    assert (facts["world_size"], facts["engine"]) == (2, engine)
    one, two = logged_losses(tmp_path / "one"), logged_losses(tmp_path / "two")
    assert len(one) == len(two) == 20
    assert max(abs(a - b) for a, b in zip(one, two)) <= TOLERANCE

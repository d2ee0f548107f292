"""Whole commands in processes of their own: `anyformer train` against plain transformers.

Wall time, so on a machine that does nothing else.
"""

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from method import Timed
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent
ANYFORMER = [sys.executable, "-m", "anyformer_main"]


@dataclass(frozen=True)
class Kind:
    """What is trained. hidden, channels, heads: of both models, which have four layers; ours: further overrides."""

    recipe: str
    hidden: int
    channels: int
    heads: int
    length: int
    batch: int
    ours: str

    def overrides(self) -> list[str]:
        sizes = {"hidden_size": self.hidden, "intermediate_size": self.channels, "num_attention_heads": self.heads}
        sizes |= {"num_hidden_layers": 4, "hidden_dropout": 0}
        return [*self.ours.split(), *(f"model.{name}={value}" for name, value in sizes.items())]


KINDS = {
    "decoder": Kind("wikitext2_decoder", 384, 1024, 6, 256, 8, "model.preset=llama objective.add_bos=false"),
    "masked": Kind(
        "imdb_mlm",
        *(512, 2048, 8, 256, 16),
        "model.preset=bert_base model.max_position_embeddings=512 model.attention_dropout=0 "
        # The vocabulary of BERT-small (Turc et al. 2019); the recipe's own has 8,192.
        "tokenizer.vocab_size=30522 data.validation_fraction=null",
    ),
    "translation": Kind(
        "multi30k_en_de",
        *(256, 1024, 4, 96, 64),
        # What the recipe's own model has, and T5 has not; and 1 / the root of hidden_size, not of the preset's.
        "model.preset=t5_small model.head_dim=64 model.initializer_range=0.02 model.embedding_multiplier=1 "
        "model.norm_type=rmsnorm model.attention_bias=false model.mlp_bias=false model.attention_dropout=0 "
        "model.position_encoding=relative model.logit_multiplier=0.0625 evaluation.average_checkpoints=null "
        "training.label_smoothing_factor=0 evaluation.metrics=[] training.save_total_limit=2 task.num_beams=1",
    ),
}


def same_training(kind: Kind, steps: int) -> dict:
    """Fields of TrainingArguments of both sides."""
    from anyformer.pipelines.accounting.precision import prefers_bf16

    return {
        "max_steps": steps,
        "per_device_train_batch_size": kind.batch,
        "per_device_eval_batch_size": kind.batch,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": max(1, steps // 20),
        "weight_decay": 0.1,
        "adam_beta2": 0.999,
        "max_grad_norm": 1.0,
        "logging_steps": 10,
        "save_steps": 10 * steps,
        "bf16": prefers_bf16("cpu"),
        "seed": 42,
    }


def write_texts(name: str, data: Path, folder: Path, most: int | None) -> dict[str, Path]:
    """The files that both sides read: the recipe's training and validation texts, at most `most` lines of each."""
    import pyarrow.parquet

    if name == "masked":  # of which the recipe has one file
        reviews = pyarrow.parquet.read_table(data / "imdb" / "unsupervised_15k.parquet")["text"].to_pylist()[:2000]
        lines = [json.dumps({"text": review}) + "\n" for review in reviews]
        texts = {"train": lines[:-20], "validation": lines[-20:]}
    else:
        source = {"decoder": "wikitext2/{}.txt.gz", "translation": "multi30k_en_de/{}.jsonl.gz"}[name]
        texts = {
            split: gzip.decompress((data / source.format(split)).read_bytes()).decode().splitlines(keepends=True)
            for split in ("train", "validation")
        }
    files = {split: folder / f"{split}.{'txt' if name == 'decoder' else 'jsonl'}" for split in texts}
    for split, file in files.items():
        file.write_text("".join(texts[split][:most]), encoding="utf-8")
    return files


def run(command: list[str], folder: Path, environment: dict) -> tuple[float, float, dict]:
    """Run a command to its end: when it started and ended, its CPU seconds (all threads) and peak memory."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    with (folder / "log.txt").open("w") as log:
        # wait4 tells the memory of this process; RUSAGE_CHILDREN the most of all so far
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=os.environ | environment)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{(folder / 'log.txt').read_text()[-2000:]}")
    ended, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return started, ended, {"CPU s": cpu, "peak GB": used.ru_maxrss * 1024 / 1e9}


def whole_commands(setting, name: str, steps: int, most: int | None = None, vocab: int | None = None) -> dict:
    """From text files to a saved model: plain_transformers.py and `anyformer train`, each with an empty cache.

    Architecture and size, tokenizer, texts, batches, steps, optimizer and precision are the same. Seconds are told
    apart: `start` (imports, reading, tokenising, building the model), `steps`, and `end` (validation on the whole
    split, saving, and ours: the model card, the report and a look whether the saved model loads). The validation loss
    is a mean over tokens (masked: over those that were hidden, which each side draws itself).
    """
    kind, numbers = KINDS[name], count()
    files = write_texts(name, setting.data, setting.folder, most)
    ours = [*ANYFORMER, "train", kind.recipe, *kind.overrides(), f"data.files={files['train']}", "data.test_files=null"]
    ours += [f"data.validation_files={files['validation']}", "evaluation.every_steps=null"]
    ours += ["evaluation.sample_prompts=[]", *([f"tokenizer.vocab_size={vocab}"] if vocab else [])]
    tokenizer = setting.folder / "tokenizer"
    # The recipe's own tokenizer, which both sides get ready-made: transformers' examples train none.
    tiny = ["model.num_hidden_layers=1", "training.max_steps=1", "training.warmup_steps=0", "evaluation.max_rows=1"]
    cache = {"ANYFORMER_CACHE": str(setting.folder / "cache")}
    run([*ours, *tiny, f"training.output_dir={tokenizer}"], setting.folder, cache)

    def plain(folder: Path) -> tuple:
        settings = {
            "kind": name,
            "texts": {split: str(file) for split, file in files.items()},
            "tokenizer": str(tokenizer),
            "length": kind.length,
            "sizes": {"hidden": kind.hidden, "channels": kind.channels, "heads": kind.heads},
            "output_dir": str(folder / "run"),
            "training": same_training(kind, steps) | {"use_cpu": True},
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        command = [sys.executable, str(HERE / "plain_transformers.py"), str(folder / "settings.json")]
        done = run(command, folder, {"HF_DATASETS_CACHE": str(folder / "cache")})
        return *done, json.loads((folder / "run" / "facts.json").read_text())

    def anyformer(folder: Path) -> tuple:
        fixed = {f"training.{field}": value for field, value in same_training(kind, steps).items()}
        fixed |= {"training.optim": "adamw", "training.num_train_epochs": 1, "training.lr_scheduler_kwargs": {}}
        # Beside a ready-made tokenizer a preset keeps the vocabulary of its own.
        fixed |= {"model.vocab_size": len(AutoTokenizer.from_pretrained(tokenizer))}
        fixed |= {"tokenizer.name_or_path": str(tokenizer), "training.output_dir": str(folder / "run")}
        overrides = [f"{field}={json.dumps(value)}" for field, value in fixed.items()]
        done = run([*ours, *overrides], folder, {"ANYFORMER_CACHE": str(folder / "cache")})
        facts = json.loads((folder / "run" / "run.json").read_text())
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        first, *_, last = [line for line in lines if "loss" in line]
        # The first line is written after the first step, whose length is that of the others.
        began = first["time"] - (last["time"] - first["time"]) / (last["step"] - first["step"])
        loss = facts["metrics"]["validation_loss"]
        return *done, {"began": began, "ended": last["time"], "loss": loss, "parameters": facts["parameters"]}

    def timed(side) -> Timed:
        folder = setting.folder / f"run-{next(numbers)}"
        folder.mkdir()
        started, ended, used, facts = side(folder)
        shutil.rmtree(folder)
        parts = {"start s": facts["began"] - started, "steps s": facts["ended"] - facts["began"]}
        parts |= {"end s": ended - facts["ended"]} | used | {"validation loss": facts["loss"]}
        return Timed(ended - started, facts["parameters"], parts)

    return {"plain transformers": lambda: timed(plain), "anyformer train": lambda: timed(anyformer)}

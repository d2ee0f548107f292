"""Whole commands, from text files to a saved model: `anyformer train` against plain transformers.

The peer is plain_transformers.py, which does what run_clm.py, run_mlm.py and run_translation.py of transformers'
examples do, with the same architecture and size, tokenizer, batches, steps, optimizer and precision. Each run is a
process of its own with an empty cache; its wall time goes from the start of the command to its end, so measure on a
machine that does nothing else:

    python end_to_end.py --data ../../data --kinds decoder masked translation --rounds 3

--data: the folder with wikitext2/, imdb/ and multi30k_en_de/, as the recipes name them. Seconds are told apart: `start`
(imports, reading, tokenising, building the model), `steps`, and `end` (validation on the whole split, saving, and
ours: the model card, the report and a look whether the saved model loads). Both measure the same validation text; the
losses are means over its tokens (masked: over those that were hidden, which each arm draws itself).
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import method
import numpy as np
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent
ROUNDS = 3
WORSE = 1.01  # a validation loss above so many times the peer's is called worse; masked words are drawn anew by each


@dataclass(frozen=True)
class Kind:
    """What is trained. sizes: of both models, ours first; texts: {split: ...} of the peer; goal: of the wall time."""

    recipe: str
    ours: tuple[str, ...]
    model: dict
    length: int
    batch: int
    steps: int
    goal: float
    learning_rate: float


KINDS = {
    "decoder": Kind(
        "wikitext2_decoder",
        (
            *("model.preset=llama", "model.hidden_size=384", "model.intermediate_size=1024", "model.hidden_dropout=0"),
            *("model.num_attention_heads=6", "model.num_hidden_layers=4", "objective.add_bos=false"),
        ),
        {
            "hidden_size": 384,
            "intermediate_size": 1024,
            "num_attention_heads": 6,
            "num_hidden_layers": 4,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
        },
        length=256,
        batch=8,
        steps=150,
        goal=1.5,
        learning_rate=1e-3,
    ),
    "masked": Kind(
        "imdb_mlm",
        (
            *("model.preset=bert_base", "model.hidden_size=512", "model.intermediate_size=2048"),
            *("model.num_attention_heads=8", "model.num_hidden_layers=4", "model.max_position_embeddings=512"),
            *("model.hidden_dropout=0", "model.attention_dropout=0"),
            # The vocabulary of BERT-small (Turc et al. 2019); the recipe's own has 8,192.
            "tokenizer.vocab_size=30522",
        ),
        {
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_attention_heads": 8,
            "num_hidden_layers": 4,
            "max_position_embeddings": 512,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        length=256,
        batch=16,
        steps=80,
        goal=2.5,
        learning_rate=1e-3,
    ),
    "translation": Kind(
        "multi30k_en_de",
        (
            *("model.preset=t5_small", "model.hidden_size=256", "model.intermediate_size=1024"),
            *("model.num_attention_heads=4", "model.head_dim=64", "model.num_hidden_layers=4"),
            # What the recipe's own model has, and T5 has not; and 1 / the root of hidden_size, not of the preset's.
            *("model.initializer_range=0.02", "model.embedding_multiplier=1", "model.norm_type=rmsnorm"),
            *("model.attention_bias=false", "model.mlp_bias=false", "model.attention_dropout=0"),
            *("model.position_encoding=relative", "model.logit_multiplier=0.0625"),
            *("model.hidden_dropout=0", "evaluation.average_checkpoints=null", "training.label_smoothing_factor=0"),
            *("evaluation.metrics=[]", "training.save_total_limit=2", "task.num_beams=1"),
        ),
        {"d_model": 256, "d_ff": 1024, "num_heads": 4, "d_kv": 64, "num_layers": 4, "dropout_rate": 0.0},
        length=96,
        batch=64,
        steps=150,
        goal=1.4,
        learning_rate=1e-3,
    ),
}


def same_training(kind: Kind, steps: int) -> dict:
    """Fields of TrainingArguments that both arms get."""
    from anyformer.pipelines.accounting.precision import prefers_bf16

    return {
        "max_steps": steps,
        "per_device_train_batch_size": kind.batch,
        "per_device_eval_batch_size": kind.batch,
        "learning_rate": kind.learning_rate,
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


def run(command: list[str], folder: Path, environment: dict) -> dict:
    """Run a command to its end: wall seconds, CPU seconds of all its threads, and its peak memory."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    with (folder / "log.txt").open("w") as log:
        # wait4 tells the memory of this process; RUSAGE_CHILDREN the most of all so far
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=os.environ | environment)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{(folder / 'log.txt').read_text()[-2000:]}")
    ended, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"started": started, "wall": ended - started, "cpu": cpu, "memory": used.ru_maxrss * 1024}


def ours(kind_name: str, steps: int, data: Path, texts: Path, tokenizer: Path, folder: Path) -> dict:
    """`anyformer train` on the recipe."""
    kind = KINDS[kind_name]
    training = {f"training.{name}": value for name, value in same_training(kind, steps).items()}
    fixed = {"training.optim": "adamw", "training.adam_beta2": 0.999, "training.output_dir": str(folder / "run")}
    fixed |= {"tokenizer.name_or_path": str(tokenizer), "training.num_train_epochs": 1}
    fixed |= {"evaluation.every_steps": None, "evaluation.sample_prompts": [], "training.lr_scheduler_kwargs": {}}
    # Beside a ready-made tokenizer a preset keeps the vocabulary of its own.
    fixed |= {"data.test_files": None, "model.vocab_size": len(AutoTokenizer.from_pretrained(tokenizer))}
    if kind_name == "masked":  # the recipe's file has no validation text beside it
        for split, rows in json.loads(texts.read_text()).items():
            file = folder / f"{split}.jsonl"
            file.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
            fixed["data.files" if split == "train" else "data.validation_files"] = str(file)
        fixed["data.validation_fraction"] = None
    overrides = [f"{name}={json.dumps(value)}" for name, value in (training | fixed).items()]
    command = [sys.executable, "-m", "anyformer_main", "train", kind.recipe, *kind.ours, *overrides]
    (folder / "data").symlink_to(data)
    found = run(command, folder, {"ANYFORMER_CACHE": str(folder / "cache")})
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    steps_logged = [line for line in lines if "loss" in line]
    facts = json.loads((folder / "run" / "run.json").read_text())
    # The first line is written after the first step, whose length is that of the others.
    each = (steps_logged[-1]["time"] - steps_logged[0]["time"]) / (steps_logged[-1]["step"] - steps_logged[0]["step"])
    began = steps_logged[0]["time"] - each
    return found | {
        "began": began,
        "ended": steps_logged[-1]["time"],
        "loss": facts["metrics"]["validation_loss"],
        "parameters": facts["parameters"],
    }


def plain(kind_name: str, steps: int, texts: Path, tokenizer: Path, folder: Path) -> dict:
    """plain_transformers.py with the same settings."""
    kind = KINDS[kind_name]
    settings = {
        "kind": kind_name,
        "texts": str(texts),
        "tokenizer": str(tokenizer),
        "length": kind.length,
        "model": kind.model,
        "output_dir": str(folder / "run"),
        "training": same_training(kind, steps) | {"use_cpu": True},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    command = [sys.executable, str(HERE / "plain_transformers.py"), str(folder / "settings.json")]
    found = run(command, folder, {"HF_DATASETS_CACHE": str(folder / "cache")})
    return found | json.loads((folder / "run" / "facts.json").read_text())


def texts_of(kind_name: str, data: Path) -> dict:
    """What the peer reads: {split: lines, or [sources, targets]}; the splits are those of the recipe."""
    import gzip

    import pyarrow.parquet

    def lines(path: Path) -> list[str]:
        packed = path.read_bytes()
        return (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode().splitlines(keepends=True)

    if kind_name == "decoder":
        return {split: lines(data / "wikitext2" / f"{split}.txt.gz") for split in ("train", "validation")}
    if kind_name == "masked":
        reviews = pyarrow.parquet.read_table(data / "imdb" / "unsupervised_15k.parquet")["text"].to_pylist()[:2000]
        held_out = len(reviews) // 100
        return {"train": reviews[:-held_out], "validation": reviews[-held_out:]}
    found = {}
    for split in ("train", "validation"):
        path = next((data / "multi30k_en_de").glob(f"{split}.jsonl*"))
        pairs = [json.loads(line) for line in lines(path)]
        found[split] = [[pair["en"] for pair in pairs], [pair["de"] for pair in pairs]]
    return found


def told_apart(found: dict) -> dict:
    """Seconds of the start, the steps and the end."""
    parts = {"start": found["began"] - found["started"], "steps": found["ended"] - found["began"]}
    return parts | {"end": found["wall"] - sum(parts.values())}


def measure(kind_name: str, rounds: int, steps: int | None, data: Path) -> None:
    """Print the table of one kind."""
    kind = KINDS[kind_name]
    steps = steps or kind.steps
    place = Path(tempfile.mkdtemp(prefix="end-to-end-"))
    try:
        texts = place / "texts.json"
        texts.write_text(json.dumps(texts_of(kind_name, data)))
        (place / "first").mkdir()
        tokenizer = prepared_tokenizer(kind, data, place / "first")
        found = {"plain": [], "anyformer": []}
        for number in range(rounds):
            for arm in ("plain", "anyformer") if number % 2 == 0 else ("anyformer", "plain"):
                folder = place / f"{arm}-{number}"
                folder.mkdir()
                if arm == "plain":
                    result = plain(kind_name, steps, texts, tokenizer, folder)
                else:
                    result = ours(kind_name, steps, data, texts, tokenizer, folder)
                found[arm].append(result | told_apart(result))
                shutil.rmtree(folder)
        report(kind_name, kind, steps, found)
    finally:
        shutil.rmtree(place)


def prepared_tokenizer(kind: Kind, data: Path, folder: Path) -> Path:
    """The recipe's own tokenizer, which both arms get ready-made: transformers' examples train none."""
    (folder / "data").symlink_to(data)
    tiny = ["model.num_hidden_layers=1", "training.max_steps=1", "evaluation.max_rows=1", "data.validation_files=null"]
    tiny += ["data.validation_fraction=0.01", "data.test_files=null", "evaluation.every_steps=null"]
    tiny += ["training.warmup_steps=0"]
    output = f"training.output_dir={folder / 'run'}"
    command = [sys.executable, "-m", "anyformer_main", "train", kind.recipe, *kind.ours, *tiny, output]
    run([*command, "evaluation.sample_prompts=[]"], folder, {"ANYFORMER_CACHE": str(folder / "cache")})
    return folder / "run"


def report(kind_name: str, kind: Kind, steps: int, found: dict) -> None:
    method.require_equal({arm: runs[0]["parameters"] for arm, runs in found.items()}, tolerance=0)
    print(f"\n{kind_name}: {steps} steps of {kind.batch} rows; medians of {len(found['plain'])} rounds\n")
    print("| arm | parameters | wall s | start | steps | end | CPU s | peak GB | validation loss |")
    print("|---|---|---|---|---|---|---|---|---|")
    for arm, runs in found.items():
        middle = {name: float(np.median([run[name] for run in runs])) for name in runs[0]}
        seconds = " | ".join(f"{middle[name]:.1f}" for name in ("wall", "start", "steps", "end", "cpu"))
        memory, loss = f"{middle['memory'] / 1e9:.2f}", f"{middle['loss']:.4f}"
        print(f"| {arm} | {middle['parameters'] / 1e6:.2f}M | {seconds} | {memory} | {loss} |")
    losses = {arm: float(np.median([run["loss"] for run in runs])) for arm, runs in found.items()}
    for name in ("wall", "steps"):
        ratios = [theirs[name] / own[name] for theirs, own in zip(found["plain"], found["anyformer"])]
        goal = method.Goal(kind.goal) if name == "wall" else None
        verdict = "" if goal is None else f", goal {goal}: {goal.verdict(min(ratios), max(ratios))}"
        if goal is not None and losses["anyformer"] > WORSE * losses["plain"]:
            verdict += ", but its loss is worse"
        print(f"\n{name}: plain / anyformer {np.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f}){verdict}")


def main(argv=None):
    p = method.parser(__doc__, rounds=ROUNDS)
    p.add_argument("--data", type=Path, required=True, help="folder with wikitext2/, imdb/ and multi30k_en_de/")
    p.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="what is trained")
    p.add_argument("--steps", type=int, help="optimizer steps; default: of each kind")
    args = method.start(p, argv)
    rounds, steps = (1, args.steps or 5) if args.quick else (args.rounds, args.steps)
    for name in args.kinds:
        measure(name, rounds, steps, args.data.resolve())


if __name__ == "__main__":
    main()

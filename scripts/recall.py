#!/usr/bin/env python
"""Associative recall of a sweep's variants, by length: pairs of keys and values are read, then each key's value asked.

Multi-query associative recall (Arora et al. 2024, "Zoology", section 3): a row is N pairs of a key and a value, all
keys different, and the same pairs in another order; the value after each key is learned, and measured on other rows.
Each variant is the recipe's model with its own parts, a hidden size of 128, a vocabulary of 64 tokens and two layers,
of the first and the last kind in its pattern: four layers need several times as many steps to find the task.

    OMP_NUM_THREADS=1 python scripts/recall.py parts --seeds 3 --out runs/recall.csv

Rows of the table that the file has already are not trained again.
"""

import argparse
import csv
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import torch
import transformers
from anyformer.pipelines.experiments.samplers import grid
from anyformer.pipelines.experiments.sweep_file import read_sweep
from anyformer.pipelines.training.models import model_config
from anyformer.pipelines.training.optimizers import build_muon

from anyformer import load_recipe

KEYS = 32  # in the vocabulary, and as many values
TRAINED, MEASURED = (2, 4, 8, 16), (4, 8, 16, 32)  # pairs in a row; a pair takes four tokens
TOKENS = 2048  # in a batch
SIZES = {"vocab_size": 2 * KEYS, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False}


def rows(count: int, pairs: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw (input_ids, labels), each (count, 4 * pairs); labels: values in a row's second half, elsewhere -100."""
    keys = torch.rand(count, KEYS, generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(KEYS, 2 * KEYS, (count, pairs), generator=generator)
    order = torch.rand(count, pairs, generator=generator).argsort(1)
    again = torch.stack((keys.gather(1, order), values.gather(1, order)), -1).flatten(1)
    input_ids = torch.cat((torch.stack((keys, values), -1).flatten(1), again), 1)
    labels = input_ids.clone()
    labels[:, : 2 * pairs] = labels[:, 2 * pairs :: 2] = -100
    return input_ids, labels


def trained(model, steps: int, seed: int) -> None:
    """Train with Muon at 0.02 and AdamW at 1e-3, 50 steps of warm-up and linear decay over the last 30 %."""
    decayed = {name for name, weight in model.named_parameters() if weight.ndim > 1}
    rates = {"muon_lr": 0.02, "adamw_lr": 1e-3, "weight_decay": 0.0, "betas": (0.9, 0.95), "eps": 1e-8}
    optimizer = build_muon(model, decayed, **rates)
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(part, lambda step: min(1, (step + 1) / 50, (steps - step) / (0.3 * steps)))
        for part in optimizer.parts.values()
    ]
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        pairs = TRAINED[step % len(TRAINED)]
        input_ids, labels = rows(TOKENS // (4 * pairs), pairs, generator)
        model(input_ids=input_ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        for scheduler in schedulers:
            scheduler.step()


@torch.inference_mode()
def recalled(model, pairs: int) -> float:
    """The share of values that the model predicts as the likeliest token, in 128 rows."""
    input_ids, labels = rows(128, pairs, torch.Generator().manual_seed(2**32 - 1))
    is_value = labels[:, 1:] != -100
    return (model(input_ids=input_ids).logits[:, :-1].argmax(-1) == labels[:, 1:])[is_value].float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", help="a sweep of model settings: a YAML file or a shipped name")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("runs/recall.csv"))
    options = parser.parse_args()
    sweep, shares_of = read_sweep(options.sweep, []), defaultdict(list)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = list(csv.DictReader(options.out.open())) if options.out.exists() else []
    for variant in grid(sweep):
        recipe = load_recipe(sweep.settings.recipe, [*sweep.fixed, *variant.settings])
        fields = recipe.model.fields
        fields |= SIZES
        if pattern := fields.get("attention_pattern"):
            fields["attention_pattern"] = list(dict.fromkeys((pattern[0], pattern[-1])))
        for seed in range(options.seeds):
            row = next((r for r in known if (r["variant"], r["seed"]) == (variant.name, str(seed))), None)
            if row is None:
                started = time.time()
                transformers.set_seed(seed)
                model = transformers.AutoModelForCausalLM.from_config(model_config(recipe, None, {}))
                trained(model, options.steps, seed)
                model.eval()
                row = {"variant": variant.name, "seed": seed, "seconds": round(time.time() - started)}
                row |= {str(pairs): recalled(model, pairs) for pairs in MEASURED}
                with options.out.open("a", newline="") as file:
                    writer = csv.DictWriter(file, row)
                    if file.tell() == 0:
                        writer.writeheader()
                    writer.writerow(row)
            shares_of[variant.name].append([float(row[str(pairs)]) for pairs in MEASURED])
        shares = zip(*shares_of[variant.name])
        words = [f"{mean(by_seed):6.1%} ± {stdev(by_seed) if len(by_seed) > 1 else 0:5.1%}" for by_seed in shares]
        print(f"{variant.name:16}", *words, flush=True)


if __name__ == "__main__":
    main()

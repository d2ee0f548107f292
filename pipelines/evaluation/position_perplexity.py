"""Perplexity by position: how well a model predicts a token, by the number of tokens before it.

Only rows that lie within one document are measured, so every position is averaged over the same rows.
"""

from pathlib import Path

import torch
import transformers
import yaml

from ..errors import UserError
from ..objectives.perplexity import perplexity
from ..objectives.prepare import prepare_data
from ..plugins import objective_of
from ..recipes.schema import Recipe
from ..reporting.charts import by_position
from ..reporting.figures import draw
from ..storage.checkpoints import write_atomically
from ..storage.json_text import json_text
from ..training.arguments import training_arguments
from ..training.models import check_length
from ..words import counted, human_time, watched
from .evaluate import load, open_config
from .result import Began

BUCKETS = 32


def evaluate_by_position(
    recipe: Recipe,
    split: str,
    output: Path,
    max_examples: int | None = None,
) -> None:
    """Measure the recipe's checkpoint; write JSON to `output` and the plot beside it.

    Raises UserError where no row lies within one document, and as `evaluate_model` does.
    """
    began = Began.now(recipe)
    config = open_config(recipe)
    check_length(objective_of(recipe), config)
    data = prepare_data(recipe, splits=[split], model_config=config)
    rows = data.rows[split]
    whole = [i for i in range(len(rows)) if rows.documents(i)[0][2] == rows.sequence_length]
    if not whole:
        raise UserError(f"objective.sequence_length={rows.sequence_length}: all documents of {rows.name} are shorter")
    if max_examples is not None and max_examples < len(whole):
        whole = [whole[i * len(whole) // max_examples] for i in range(max_examples)]
    model = load(getattr(transformers, data.objective.auto_class), recipe)
    arguments = training_arguments(recipe)
    model.to(arguments.device)
    sums = nll_by_position(model, rows, whole, arguments.per_device_eval_batch_size)
    name = recipe.model.name_or_path
    result = {
        "model": name,
        "task": recipe.name,
        "split": split,
        "data": rows.name,
        "rows": len(whole),
        "max_examples": max_examples,
        "trained_length": trained_length(name, config),
        **in_buckets(sums / len(whole)),
        "recipe": recipe.to_dict(),
        **began.facts(recipe),
    }
    write_atomically(output, json_text(result) + "\n")
    picture = output.with_suffix(".png")
    draw(by_position({name: [result]}), [name], picture, width=6.4, height=3.8)
    print(f"{name}: {counted(len(whole), 'row')} of {rows.sequence_length} tokens, {human_time(result['seconds'])}")
    for before, value in list(zip(result["tokens_before"], result["perplexity"]))[:: BUCKETS // 8]:
        print(f"  around {before:6.0f} tokens before: perplexity {value:,.2f}")
    print(f"written to {output} and {picture}")


@torch.no_grad()
def nll_by_position(model, rows, chosen: list[int], batch_size: int) -> torch.Tensor:
    """Summed negative log-likelihood of the tokens 1 to T - 1 of the chosen rows, (T - 1,) in fp64."""
    total = torch.zeros(rows.sequence_length - 1, dtype=torch.float64)
    for start in watched(range(0, len(chosen), batch_size), "measuring, batch"):
        ids = torch.stack([rows[i]["input_ids"] for i in chosen[start : start + batch_size]]).to(model.device)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2).float(), ids[:, 1:], reduction="none")
        total += nll.cpu().double().sum(0)
    return total


def in_buckets(nll: torch.Tensor) -> dict[str, list[float]]:
    """The perplexity in at most 32 stretches of positions, and their middles, in tokens before the predicted one."""
    size = -(-len(nll) // BUCKETS)
    pieces = nll.split(size)
    middles = [1 + i * size + (len(piece) - 1) / 2 for i, piece in enumerate(pieces)]
    return {"tokens_before": middles, "perplexity": [perplexity(piece.mean().item()) for piece in pieces]}


def trained_length(model: str, config) -> int | None:
    """The length of the rows that a model was trained on, where the recipe in its folder says it.

    Else its config's original_max_position_embeddings or max_position_embeddings; None where there is neither.
    """
    recipe = Path(model).expanduser() / "recipe.yaml"
    try:
        return int(yaml.safe_load(recipe.read_text(encoding="utf-8"))["objective"]["sequence_length"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):  # no run of ours on plain text
        scaling = getattr(config, "rope_parameters", None) or {}
        return scaling.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", None)

"""Perplexity by position: how well a model predicts a token, by the number of tokens before it.

Only rows that lie within one document are measured, so every position is averaged over the same rows.
"""

from pathlib import Path

import torch
import yaml
from anyformer.modeling.lm_head import shift_left

from ..data.rows import evenly_spread
from ..errors import UserError
from ..likelihoods.token_log_probs import token_log_probs
from ..likelihoods.without_logits import without_logits
from ..objectives.prepare import prepare_data
from ..objectives.text import perplexity
from ..plugins import objective_of
from ..recipes.schema import Recipe
from ..reporting.charts import by_position
from ..reporting.figures import draw
from ..training.models import check_length
from ..words import counted, human_time, watched
from .result import Began, Result
from .saved_model import load_placed, open_config

BUCKETS = 32


class PositionResult(Result):
    """Perplexities of stretches of positions, and the tokens before their middles."""

    def show(self) -> None:
        size = f"{counted(self.rows, 'row')} of {self.recipe['objective']['sequence_length']} tokens"
        print(f"{self.model}: {size}, {human_time(self.seconds)}")
        for before, value in list(zip(self.tokens_before, self.perplexity))[:: BUCKETS // 8]:
            print(f"  around {before:6.0f} tokens before: perplexity {value:,.2f}")

    def draw(self, picture: Path) -> bool:
        draw(by_position({self.model: [self.facts()]}), [self.model], picture, width=6.4, height=3.8)
        return True


def evaluate_by_position(recipe: Recipe, split: str, max_examples: int | None = None) -> PositionResult:
    """Measure the recipe's checkpoint on at most `max_examples` rows.

    Raises UserError where no row lies within one document, and as `evaluate_model` does.
    """
    began = Began.now(recipe)
    name = recipe.model.name_or_path
    config = open_config(recipe)
    check_length(objective_of(recipe), config)
    data = prepare_data(recipe, splits=[split], model_config=config)
    rows = data.rows[split]
    whole = [i for i in range(len(rows)) if rows.documents(i)[0][2] == rows.sequence_length]
    if not whole:
        raise UserError(f"objective.sequence_length={rows.sequence_length}: all documents of {rows.name} are shorter")
    whole = [whole[i] for i in evenly_spread(len(whole), max_examples or len(whole))]
    model = load_placed(data.objective.auto_class, recipe)
    without_logits(model)
    sums = nll_by_position(model, rows, whole, recipe.training.evaluation_rows)
    facts = {"split": split, "rows": len(whole), "max_examples": max_examples, "recipe": recipe.to_dict()}
    facts |= {"trained_length": trained_length(name, config), **in_buckets(sums / len(whole))}
    return PositionResult(recipe, rows.name, began, [], **facts)


def nll_by_position(model, rows, chosen: list[int], batch_size: int) -> torch.Tensor:
    """Summed negative log-likelihood of the tokens 1 to T - 1 of the chosen rows, (T - 1,) in fp64."""
    total = torch.zeros(rows.sequence_length, dtype=torch.float64)
    for start in watched(range(0, len(chosen), batch_size), "measuring, batch"):
        ids = torch.stack([rows[i]["input_ids"] for i in chosen[start : start + batch_size]])
        read = {"input_ids": ids, "use_cache": False}
        total -= token_log_probs(model, read, shift_left(ids), dtype=torch.float32).cpu().double().sum(0)
    return total[:-1]


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

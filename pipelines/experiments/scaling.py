"""The scaling law of a ladder's runs, and how well it predicts a larger model."""

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel

from ..accounting.flops import active_parameters
from ..accounting.plan import Plan
from ..accounting.step_memory import planned_config
from ..errors import UserError
from ..plugins import objective_of
from ..recipes.schema import Recipe
from ..reporting.plots import can_plot, plot_scaling
from ..storage.atomic import write_atomically
from ..storage.json_text import json_text
from .scaling_law import PUBLISHED, Law, bootstrap, fit, interval
from .study import Member, kept

FILE, PICTURE = "scaling.json", "scaling.png"
REPEATED = 4  # passes over the same text that are worth nearly as much as new text (Muennighoff et al. 2023, figure 5)


def measured(rung: Member) -> dict:
    """The numbers of a finished run: parameters without embeddings and head, training tokens, validation loss.

    Raises UserError where its data have no number of tokens, or there is no validation data.
    """
    run = json.loads((rung.folder / "run.json").read_text(encoding="utf-8"))
    data, loss = run["data"]["train"], run["metrics"].get("validation_loss")
    if loss is None:
        raise UserError(f"{rung.folder} has no validation loss; set data.validation_fraction or data.validation_files")
    if "tokens" not in data or "rows" not in data:
        raise UserError(f"{rung.folder}: its training data have no number of tokens, which a law of scaling counts by")
    config = AutoConfig.from_pretrained(rung.folder, trust_remote_code=False)
    trained = run["steps"] * run["rows_per_step"] * data["tokens"] / data["rows"]
    return {
        "width": rung.values["width"],
        "steps": run["steps"],
        "parameters": counted_parameters(config),
        "tokens": round(trained),
        "passes": trained / data["tokens"],
        "loss": loss,
        "folder": str(rung.folder),
    }


def counted_parameters(config) -> int:
    """The parameters that a law counts: those at work on a token, without embeddings and head."""
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    return active_parameters(model) - model.get_input_embeddings().weight.numel()


def predicted(larger: Member, plan: Plan, runs: list[dict], law: Law, resampled_laws: list[Law]) -> dict:
    """The loss of a larger run by the law, what it takes by its plan, and its measured loss, once it has run.

    runs: the ladder's. A step has as many tokens in each, and the larger run must have read and measured the same data.
    """
    parameters = counted_parameters(planned_config(larger.recipe, objective_of(larger.recipe), []))
    longest = max(runs, key=lambda run: run["steps"])
    tokens = round(larger.values["steps"] * longest["tokens"] / longest["steps"])
    read = json.loads((Path(longest["folder"]) / "run.json").read_text(encoding="utf-8"))["data"]
    return by_law(parameters, tokens, law, resampled_laws) | {
        **larger.values,
        "parameters": parameters,
        "tokens": tokens,
        "passes": tokens * longest["passes"] / longest["tokens"],
        "loss": None if kept(larger, read) is None else measured(larger)["loss"],
        "folder": str(larger.folder),
        "settings": larger.settings,
        "devices": plan.devices,
        "hours": plan.time.seconds / 3600,
        "bytes_of_a_device": plan.memory.chosen.total,
        "fits": plan.memory.chosen.fits,
        "cost": plan.cost,
    }


def by_law(parameters: int, tokens: int, law: Law, resampled_laws: list[Law]) -> dict:
    """{"predicted": the loss by the law, "interval": of 90 %, where runs were resampled}."""
    losses = [other.loss(parameters, tokens) for other in resampled_laws]
    return {"predicted": float(law.loss(parameters, tokens))} | ({"interval": interval(losses)} if losses else {})


def report(
    recipe: Recipe, rungs: list[Member], resamples: int, larger: Member | None = None, plan: Plan | None = None
) -> dict:
    """The law of a finished ladder, written to output_dir/scaling.json, and to scaling.png if matplotlib is installed.

    The widest model's runs are not fitted: they show how well the law predicts. plan: of the larger run.
    """
    runs = [measured(rung) for rung in rungs]
    widest = max(run["width"] for run in runs)
    fitted = [run for run in runs if run["width"] < widest]
    columns = [[run[name] for run in fitted] for name in ("parameters", "tokens", "loss")]
    law = fit(*columns)
    resampled_laws = bootstrap(*columns, law, resamples, recipe.training.seed)
    for run in runs:
        run |= by_law(run["parameters"], run["tokens"], law, resampled_laws) | {"fitted": run["width"] < widest}
    result = {
        "recipe": recipe.name,
        "runs": runs,
        "law": vars(law) | {"share_of_parameters": law.share_of_parameters},
        "published": {source: {"alpha": alpha, "beta": beta} for source, (alpha, beta) in PUBLISHED.items()},
        "notes": notes_on(runs, law),
    }
    if resampled_laws:
        names = (*vars(law), "share_of_parameters")
        result["intervals"] = {name: interval([getattr(other, name) for other in resampled_laws]) for name in names}
    if larger is not None:
        result["larger"] = predicted(larger, plan, runs, law, resampled_laws)
    folder = Path(recipe.training.output_dir)
    write_atomically(folder / FILE, json_text(result) + "\n")
    if can_plot():
        plot_scaling(result, lambda n, d: law.loss(n, d), folder / PICTURE)
    return result


def notes_on(runs: list[dict], law) -> list[str]:
    """Sentences on what the law does not cover."""
    notes = []
    passes = max(run["passes"] for run in runs)
    if passes > REPEATED:
        notes.append(
            f"the longest runs read their text {passes:.1f} times, and the law knows no text that is read again; give "
            f"more text, or fewer steps"
        )
    for name, value in (("alpha", law.alpha), ("beta", law.beta)):
        if not 0.01 < value < 4.9:
            notes.append(f"{name} is {value:.2g}, at the edge of what is tried: these runs do not tell it")
    return notes

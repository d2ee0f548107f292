"""A ladder of runs, the scaling law that is fitted to them, and how well it predicts a larger model."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel

from ..accounting.devices import Devices
from ..accounting.flops import active_parameters
from ..accounting.plan import plan_run
from ..accounting.step_memory import planned_config
from ..data.rows import steps_of_epoch
from ..errors import UserError
from ..plugins import objective_of
from ..recipes.schema import Recipe
from ..recipes.usual_rates import settled
from ..reporting.plots import can_plot, plot_scaling
from ..reporting.run_log import read_run
from ..storage.atomic import write_atomically
from ..storage.json_text import json_text
from ..training.checkpoints.resume import resume_difference
from ..training.run import train
from ..words import counted
from .ladder import Rung
from .scaling_law import PUBLISHED, Law, bootstrap, fit, interval

FILE, PICTURE = "scaling.json", "scaling.png"
REPEATED = 4  # passes over the same text that are worth nearly as much as new text (Muennighoff et al. 2023, figure 5)


def train_ladder(load: Callable[[list[str]], Recipe], rungs: list[Rung]) -> int:
    """Train or resume the runs of a ladder: they are ordinary runs, and finished ones are not trained again.

    load: settings -> the recipe with them. Returns the exit code of the first run that was stopped, else 0.
    """
    for number, rung in enumerate(rungs, 1):
        print(f"run {number} of {len(rungs)}: width {rung.width}, {counted(rung.steps, 'step')}, in {rung.folder}")
        code = train(load(rung.settings), quiet=True)  # the table shows its result
        if code:
            return code
    return 0


def measured(rung: Rung) -> dict:
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
        "width": rung.width,
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


@dataclass(frozen=True)
class LargerRun:
    """A run that the ladder predicts: its rung and recipe, the devices that it is planned for, and the price of one of
    them for an hour (None: its cost is not computed)."""

    rung: Rung
    recipe: Recipe
    devices: Devices
    price: float | None

    def predicted(self, runs: list[dict], law: Law, resampled_laws: list[Law]) -> dict:
        """The loss by the law, the time, memory and cost by a plan, and the loss that was measured, once it has run.

        runs: the ladder's; a step has as many tokens in each of them.
        """
        parameters = counted_parameters(planned_config(self.recipe, objective_of(self.recipe), []))
        longest = max(runs, key=lambda run: run["steps"])
        tokens = round(self.rung.steps * longest["tokens"] / longest["steps"])
        plan = plan_run(self.recipe, self.devices, price=self.price)
        result = {
            "width": self.rung.width,
            "steps": self.rung.steps,
            "parameters": parameters,
            "tokens": tokens,
            "passes": tokens * longest["passes"] / longest["tokens"],
            "predicted": float(law.loss(parameters, tokens)),
            "loss": measured(self.rung)["loss"] if self.is_finished(longest["folder"]) else None,
            "folder": str(self.rung.folder),
            "settings": self.rung.settings,
            "devices": plan.devices,
            "hours": plan.time.seconds / 3600,
            "bytes_of_a_device": plan.memory.chosen.total,
            "fits": plan.memory.chosen.fits,
            "cost": plan.cost,
        }
        if resampled_laws:
            result["interval"] = interval([other.loss(parameters, tokens) for other in resampled_laws])
        return result

    def is_finished(self, beside: str) -> bool:
        """Whether the larger run has ended, was of this recipe and its model is still there.

        beside: the folder of a run of the ladder, whose data it must have read, too.
        """
        if not (self.rung.folder / "run.json").exists():
            return False
        log, ladder = read_run(self.rung.folder, shown=False), read_run(beside).run
        if not log.is_finished or not log.run.get("metrics"):
            return False
        recipe = settled(self.recipe, steps_of_epoch(log.run["data"]["train"]["rows"], log.run["rows_per_step"]))
        is_same_data = log.run["data"]["fingerprint"] == ladder["data"]["fingerprint"]
        return is_same_data and resume_difference(log.run["recipe"], recipe.to_dict()) is None


def report(recipe: Recipe, rungs: list[Rung], resamples: int, larger: LargerRun | None = None) -> dict:
    """The law of a finished ladder, written to output_dir/scaling.json, and to scaling.png if matplotlib is installed.

    The widest model's runs are not fitted: they show how well the law predicts.
    """
    runs = [measured(rung) for rung in rungs]
    widest = max(run["width"] for run in runs)
    fitted = [run for run in runs if run["width"] < widest]
    columns = [[run[name] for run in fitted] for name in ("parameters", "tokens", "loss")]
    law = fit(*columns)
    resampled_laws = bootstrap(*columns, law, resamples, recipe.training.seed)
    for run in runs:
        run["predicted"], run["fitted"] = float(law.loss(run["parameters"], run["tokens"])), run["width"] < widest
        if resampled_laws:
            run["interval"] = interval([other.loss(run["parameters"], run["tokens"]) for other in resampled_laws])
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
        result["larger"] = larger.predicted(runs, law, resampled_laws)
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

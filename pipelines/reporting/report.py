"""The page of a run, report.html, made from the files in its folder."""

from pathlib import Path
from typing import Any

from ..data.account import Account
from ..data.account_words import lines
from ..publishing.run_facts import RunFacts, objective_facts, validated_on
from ..recipes.strict_yaml import format_yaml
from ..storage.checkpoints import list_checkpoints
from ..words import counted, human_time, short_metric, short_number
from . import training_rows
from .charts import axes_of, charts_of_run
from .charts_page import write_page
from .class_section import classes_of
from .interpret import Measured, interpret, measured
from .run_log import RunLog, is_number, read_run
from .settings import settings_table

REPORT = "report.html"
FIRST_COLUMNS = ("documents", "examples", "rows", "tokens", "bytes", "fill_rate")


def write_report(folder: Path | str, out: Path | None = None) -> int:
    """Write the page of a run, finished or not, from the run's folder, and return its size in bytes.

    out: the page; None: report.html in the folder.

    Raises UserError: no run in the folder, or one whose run.json is damaged.
    """
    log = read_run(folder)
    loss_unit, classes = objective_facts(log.recipe).words.loss, classes_of(log)
    values = {
        "title": f"{log.name}: report",
        "log": log,
        "kind": kind_of(log),
        "share": log.steps / log.total_steps if log.total_steps else None,
        "goes_on": goes_on(log),
        "tiles": tiles(log),
        "notes": [*log.damaged, *(interpret(log.run) if log.is_finished else [])],
        "metrics": measured(log),
        "metrics_note": metrics_note(log, loss_unit),
        "signatures": log.run.get("signatures") or {},
        "classes": classes,
        "samples": samples_of(log),
        "loads": loads_of(log),
        **recipe_values(log),
        **data_values(log),
        "environment": environment_of(log),
    }
    values["parts"] = parts_of(values)
    charts = charts_of_run(log, loss_unit)
    page, axes = out or log.folder / REPORT, [axes_of(log)]
    return write_page(page, "report.html.jinja", charts=charts, axes=axes, runs=[log.name], **values)


def parts_of(values: dict[str, Any]) -> list[tuple[str, str]]:
    """(id, title) of those parts that the page has."""
    parts = {
        "curves-of": ("Curves", True),
        "metrics": ("Metrics", values["metrics"]),
        "classes": ("Classes", values["classes"]),
        "samples": ("Samples", values["samples"]),
        "experts": ("Experts", values["loads"]),
        "recipe": ("Recipe", True),
        "data": ("Data", True),
        "environment": ("Environment", True),
    }
    return [(name, words) for name, (words, is_there) in parts.items() if is_there]


def kind_of(log: RunLog) -> str:
    """What is trained, in words: the objective or task, and the model it is trained on."""
    learned = (log.section("task") or log.section("objective")).get("name") or "training"
    model = log.section("model")
    base = model.get("name_or_path")
    origin = f"from {'/'.join(Path(base).parts[-2:])}" if base else model.get("preset") or model.get("family")
    teacher = log.section("teacher").get("name_or_path")
    taught = f", taught by {Path(teacher).name}" if teacher else ""
    return f"{learned.replace('_', ' ')}{f', {origin}' if origin else ''}{taught}"


def goes_on(log: RunLog) -> str:
    """A sentence on where an unfinished run would be resumed; empty for a finished run."""
    if log.is_finished:
        return ""
    saved = list_checkpoints(log.folder)
    start = f"{saved[0].name}, its newest checkpoint" if saved else "its beginning, for it has no checkpoint yet"
    return f"If it is not running any more, the same training command goes on from {start}."


def tiles(log: RunLog) -> list[tuple[str, str, str]]:
    """(label, value, more) of the most important numbers."""
    rows = [
        (f"{one.split} {one.metric.replace('_', ' ')}", one.words, f"95 %: {one.interval}" if one.interval else "")
        for one in main_metrics(log)
    ]
    if not rows and log.train:
        loss = log.train[-1]["loss"]
        shown = "not finite" if loss is None else short_metric(loss)
        rows.append(("training loss", shown, f"at step {log.train[-1]['step']:,}"))
    total = log.total_steps
    rows.append(("steps", f"{log.steps:,}", f"of {total:,}" if total and not log.is_finished else ""))
    if log.tokens:
        rows.append(("tokens trained on", short_number(log.tokens), throughput(log)))
    if log.seconds:
        processes = counted(log.run.get("world_size") or 1, "process", "processes")
        rows.append(("time", human_time(log.seconds), f"on {processes}"))
    parameters, trained = log.run.get("parameters"), log.run.get("trained_parameters")
    if parameters:
        part = f"{short_number(trained)} of them trained" if trained and trained < parameters else ""
        rows.append(("parameters", short_number(parameters), part))
    return rows


def main_metrics(log: RunLog) -> list[Measured]:
    """Two metrics of the test split, else of the validations: first those that the recipe names, in its order."""
    metrics = measured(log)
    for split in ("test", "validation"):
        of_split = [one for one in metrics if one.split == split and "unigram" not in one.metric]
        named = log.section("evaluation").get("metrics") or []
        of_split.sort(key=lambda one: (one.metric not in named, named.index(one.metric) if one.metric in named else 0))
        if of_split:
            return of_split[:2]
    return []


def throughput(log: RunLog) -> str:
    """The median of the tokens per second, in words."""
    rates = sorted(line["tokens_per_second"] for line in log.train if is_number(line.get("tokens_per_second")))
    return f"{rates[len(rates) // 2]:,.0f} a second" if rates else ""


def metrics_note(log: RunLog, loss_unit: str) -> str:
    """How to read the metrics."""
    when, on_rows = "", validated_on(log.run)
    if not log.is_finished and log.validations:
        when = f"Of the last validation, at step {log.validations[-1]['step']:,}{f', {on_rows}' if on_rows else ''}. "
    with_bounds = any(one.low is not None for one in measured(log))
    which = "Intervals of shares of examples are" if with_bounds else "Shares of examples would have"
    bounds = f"{which} Wilson's{'' if with_bounds else ' intervals'}; anyformer evaluate gives the bootstrap's"
    return f"{when}The loss is in {loss_unit}. {bounds} for the other metrics."


def samples_of(log: RunLog) -> list[dict[str, str]]:
    """The prompts of the finished model and its answers."""
    answers = objective_facts(log.recipe).words.answers
    return [
        {"title": f"{'asked' if answers else 'begun with'}: {str(one.get('prompt', ''))[:1000]}", **one}
        for one in log.run.get("samples") or []
        if isinstance(one, dict) and one.get("text")
    ]


def loads_of(log: RunLog) -> dict[str, Any] | None:
    """The loads of the experts in the last line of router.jsonl, as multiples of an equal share."""
    if not log.routers or "load" not in log.routers[-1]:
        return None
    last = log.routers[-1]
    return {
        "step": last["step"],
        "rows": [[share * len(row) for share in row] for row in last["load"]],
        "dropped": last.get("dropped"),
    }


def recipe_values(log: RunLog) -> dict[str, Any]:
    """The recipe, and how it differs from the shipped one."""
    table = settings_table(log.recipe)
    name, preset = table["shipped"], table["preset"]
    beside = f"the preset {preset} and the defaults" if preset else "the defaults"
    words = f"What {beside} do not say."
    if name and table["changed"]:
        changed = f"{counted(table['changed'], 'setting')} {'was' if table['changed'] == 1 else 'were'} changed"
        words += f" Of the shipped recipe {name} {changed}: shaded, with what it says."
    elif name:
        words += f" All as the shipped recipe {name} says, but for the place it was written to."
    file = log.folder / "recipe.yaml"
    text = file.read_text(encoding="utf-8") if file.is_file() else format_yaml(log.recipe)
    return {"settings": table, "recipe_words": words, "recipe_text": text}


def data_values(log: RunLog) -> dict[str, Any]:
    """Sizes of the splits, and rows of the training data."""
    shown_rows, source_names = training_rows.read_rows(log.folder), RunFacts(recipe=log.recipe).source_names
    facts = {split: of for split, of in (log.run.get("data") or {}).items() if isinstance(of, dict)}
    facts |= {f"{split}, {name}": part for split, of in facts.items() for name, part in of.get("sources", {}).items()}
    names = dict.fromkeys(name for of in facts.values() for name, value in of.items() if is_number(value))
    columns = sorted(names, key=lambda name: FIRST_COLUMNS.index(name) if name in FIRST_COLUMNS else len(FIRST_COLUMNS))
    sizes = {split: {name: of[name] for name in columns if is_number(of.get(name))} for split, of in facts.items()}
    splits = {split: {name: number(size) for name, size in of.items()} for split, of in sizes.items()}
    shares = [
        f"{split}, {name.replace('_', ' ')}: {', '.join(f'{key} {value:,}' for key, value in of[name].items())}"
        for split, of in facts.items()
        for name in of
        if isinstance(of[name], dict)
        and 0 < len(of[name]) <= 12
        and all(map(is_number, of[name].values()))
        and any(of[name].values())
    ]
    shown = [training_rows.as_html(row) for row in shown_rows.get("rows", []) if isinstance(row, str)]
    return {
        "source_names": f"Trained on: {source_names}." if source_names else "",
        "splits": splits,
        "columns": columns,
        "shares": shares,
        "came_in": {split: told for split, of in facts.items() if (told := came_in(of))},
        "rows": shown,
        "legend": training_rows.as_html(shown_rows.get("legend") or ""),
        "is_picture": shown_rows.get("is_picture", False),
        "fingerprint": (log.run.get("data") or {}).get("fingerprint"),
    }


def came_in(of_split: dict[str, Any]) -> list[str]:
    """What came in for a split's rows, in sentences, and what else its rows' makers noted."""
    told = lines(Account.from_json(of_split.get("account", [])))
    return [*told, *(note for note in of_split.get("notes", []) if note not in told)]


def number(value: float) -> str:
    """A size as it is printed; a rate in per cent."""
    if isinstance(value, float) and value <= 1:
        return f"{value:.2%}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def environment_of(log: RunLog) -> dict[str, Any]:
    """What a run was trained on and with: hardware, processes, seed, versions."""
    run = log.run
    environment = {f"{what} by": name for what, name in (run.get("backends") or {}).items()}
    environment |= {"hardware": run.get("hardware"), "processes": run.get("world_size"), "engine": run.get("engine")}
    environment |= {"rows of a step": run.get("rows_per_step"), "seed": run.get("seed")} | (run.get("versions") or {})
    return {name: value for name, value in environment.items() if value is not None}

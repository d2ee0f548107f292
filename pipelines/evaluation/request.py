"""The request of `anyformer evaluate MODEL TASK`, checked before anything heavy is imported."""

import glob
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..adapters import base_instead, named_base
from ..errors import UserError, refuse_unknown
from ..generation import locate_model
from ..plugins import METRICS, objective_of
from ..recipes.compose import load_recipe, parse_override
from ..recipes.data_section import sections_of
from ..recipes.recipe_files import is_file_of, read_yaml_file, recipe_beside, shipped
from ..recipes.schema import MINIMAL_PAIRS, DataSection, MinimalPairsSettings, ModelSection, Recipe, TrainingSection
from ..recipes.suite_file import Suite
from ..recipes.types import as_mapping, build

SPLITS = ("test", "validation")
# The only settings of a training's `extra` that affect how a model is run.
RUNNING = ("per_device_eval_batch_size", "fp16", "use_cpu")


def evaluation_recipe(
    model: str, task: str | None, overrides: list[str], notes: list[str] | None = None, **options
) -> Recipe:
    """The recipe `task` with a saved model in place of its own, and without settings that only training needs.

    Args:
        model: folder of a run or a model, or a Hub repository.
        task: name or path of a recipe; None: the recipe of the run in whose folder the model is.
        overrides, notes, options: as load_recipe's.

    Raises UserError: no such model, no recipe beside it where none is named, or as load_recipe.
    """
    locate_model(model)  # checks it; the name stays as people know it
    task = own_recipe(model, overrides) if task is None else task
    named = f"model.name_or_path={json.dumps(os.path.expanduser(model))}"
    recipe = load_recipe(task, [named, *overrides], notes=notes, **options)
    recipe = keep_start(recipe, task, model, overrides, options)
    extra = {name: value for name, value in recipe.training.extra.items() if name in RUNNING}
    fresh = TrainingSection()
    names = ("report_to", "torch_compile", "gradient_checkpointing", "lora", "parallelism")
    names += ("lr_scheduler_type", "lr_scheduler_kwargs")  # a schedule that follows validations would need some
    idle = {name: getattr(fresh, name) for name in names}
    validations = dict.fromkeys(("best_metric", "every_steps", "at_start", "patience"))
    return recipe.with_(training={"extra": extra, **idle}, evaluation=validations)


def keep_start(recipe: Recipe, task: str, model: str, overrides: list[str], sections: dict) -> Recipe:
    """The recipe, where a setting that is null in `task`, and then means model.name_or_path, is the model of before.

    That is the model from which the recipe's training starts, or, if it names none, the one from which `model` was
    trained; where --base-model is given, that. Raises UserError where neither is known.
    """
    part, name = recipe.learned_section, recipe.learned.is_start_where_null
    if name is None:
        return recipe
    data, _ = read_yaml_file(task, "recipes", "recipe")
    given = {tuple(path): value for path, value in map(parse_override, overrides)}
    settings = {**(data.get(part) or {}), **(sections.get(part) or {})}
    if given.get((part, name)) is not None:
        return recipe
    if settings.get(name) is not None:
        is_base = settings[name] == named_base(model)
        return recipe.with_(**{part: {name: base_instead(settings[name])}}) if is_base else recipe
    beside = recipe_beside(model)
    saved = {} if beside is None else read_yaml_file(str(beside), "recipes", "recipe")[0]
    starts = ((each.get("model") or {}).get("name_or_path") for each in (data, saved))
    if (start := base_instead(next(filter(None, starts), None))) is None:
        raise UserError(
            f"{part}.{name}=null is the model from which a training starts, and neither TASK={task} nor the recipe of "
            f"MODEL={model} names it; set {part}.{name}"
        )
    return recipe.with_(**{part: {name: start}})


def recipes_of_suite(
    suite: Suite,
    model: str,
    overrides: list[str] = (),
    *,
    split: str | None = None,
    max_examples: int | None = None,
    notes: list[str] | None = None,
    trust_remote_code: bool = False,
) -> dict[str, tuple[Recipe, str, int | None]]:
    """task -> (recipe with the model in it, split, the most examples to measure), all checked.

    model: as evaluation_recipe's; `{task}` in it stands for each task's name. overrides, split, max_examples: win over
    what the suite says. Raises UserError.
    """
    requests = {}
    for task in suite.tasks:
        place = model.replace("{task}", task.title)
        settings = [*task.settings, *overrides]
        recipe = evaluation_recipe(place, task.recipe, settings, notes, trust_remote_code=trust_remote_code)
        requests[task.title] = (recipe, choose_split(recipe, split or task.split), max_examples or task.max_examples)
    return requests


# Settings that name data, or the parts of them.
OF_SOURCES = ("source", "dataset", "mixture", "clean", "derive", "streaming", "validation_files", "validation_split")
OF_SOURCES += ("test_split", "test_fraction", "stratify", "group_field")


def is_data(task: str | None) -> bool:
    """Whether TASK is a file of data, a pattern or a folder of them, in place of a recipe."""
    path = Path(task or "").expanduser()
    if task is None or path.suffix in (".yaml", ".yml") or any(task in shipped(kind) for kind in ("recipes", "suites")):
        return False
    return path.is_dir() or (path.is_file() and bool(path.suffix)) or (glob.has_magic(task) and not path.exists())


def on_data(recipe: Recipe, given: str) -> Recipe:
    """The recipe with a file, a pattern or a folder as its test data, in place of all its data.

    Metrics that are computed from training data are left out, and all classes weigh alike in the loss.
    Raises UserError where no file is found, and for a recipe of several parts.
    """
    from ..data.files import find_files

    if objective_of(recipe).parts:
        raise UserError(f"{recipe.name} has parts, each with data of its own; name a recipe in place of TASK={given}")
    pattern = f"{glob.escape(given)}/**/*" if Path(given).expanduser().is_dir() else given
    data = {name: getattr(DataSection(), name) for name in OF_SOURCES} | {"validation_fraction": 0.0}
    data |= {"files": str(next(iter(find_files("TASK", pattern)))), "test_files": pattern}
    metrics = [name for name in recipe.evaluation.metrics if not METRICS[name].needs_train]
    task = {recipe.learned_section: {"class_weights": None}} if recipe.learned.weighs_by_train else {}
    name = f"{recipe.name}-on-{re.sub(r'[^a-zA-Z0-9]+', '-', Path(given).name).strip('-')}"
    return recipe.with_(name=name, data=data, evaluation={"metrics": metrics}, **task)


def is_pairs(task: str | None, model: str = "", overrides: Sequence[str] = ()) -> bool:
    """Whether TASK names minimal pairs: a YAML with a section minimal_pairs, shipped or not, or a file of them.

    A file is one of pairs where settings of theirs are given, its columns have their names, or `model` has no recipe.
    """
    if task is None:
        return False
    if is_data(task):
        from ..data.file_formats import format_of
        from ..likelihoods.minimal_pairs import are_pairs

        is_asked = recipe_beside(model) is None or any(word.startswith(f"{MINIMAL_PAIRS}.") for word in overrides)
        return Path(task).is_file() and format_of(Path(task)) is not None and (is_asked or are_pairs(task))
    return is_file_of(task, "suites", MINIMAL_PAIRS) and MINIMAL_PAIRS in read_yaml_file(task, "suites", "suite")[0]


def pairs_request(
    model: str, task: str, overrides: list[str], max_pairs: int | None, *, trust_remote_code: bool = False
) -> tuple[Recipe, str, MinimalPairsSettings]:
    """(recipe with only the model in it, name of the pairs, their settings). task: as is_pairs takes it.

    overrides: `minimal_pairs.KEY=VALUE`, which win over the file's. Raises UserError.
    """
    path = Path(task)
    if path.is_file() and path.suffix not in (".yaml", ".yml"):
        fields, name = {"files": task}, path.name.partition(".")[0]
    else:
        data, name = read_yaml_file(task, "suites", "suite")
        refuse_unknown(data, ("description", MINIMAL_PAIRS), f"suite {name}")
        fields = as_mapping(data[MINIMAL_PAIRS], f"suite {name}: {MINIMAL_PAIRS}")
    for (section, *key), value in map(parse_override, overrides):
        if section != MINIMAL_PAIRS or len(key) != 1:
            raise UserError(f"{'.'.join([section, *key])} is not of {task}; its settings are {MINIMAL_PAIRS}.KEY=VALUE")
        fields = fields | {key[0]: value}
        fields |= {"dataset": None} if key[0] == "files" else {"files": None} if key[0] == "dataset" else {}
    settings = build(MinimalPairsSettings, fields, MINIMAL_PAIRS)
    settings = replace(settings, max_pairs=max_pairs or settings.max_pairs)
    settings.check(MINIMAL_PAIRS)
    locate_model(model)
    of_model = ModelSection(name_or_path=os.path.expanduser(model))
    return Recipe(name=name, model=of_model, trust_remote_code=trust_remote_code), name, settings


def own_recipe(model: str, overrides: list[str] = ()) -> str:
    """The recipe that a model was trained with: beside the model or, for a checkpoint, in the folder of its run.

    Raises UserError where there is none.
    """
    recipe = recipe_beside(model)
    if recipe is None:
        command = " ".join(["anyformer evaluate MODEL TASK", *overrides])
        raise UserError(f"MODEL={model} has no recipe.yaml beside it; say on what it is measured: {command}")
    return str(recipe)


def choose_split(recipe: Recipe, wanted: str | None = None) -> str:
    """The split to evaluate on: `wanted`, else the first of test and validation that the recipe has.

    Raises UserError: the recipe has no such split.
    """
    sections = sections_of(objective_of(recipe))
    available = [
        split
        for split in SPLITS
        if any(getattr(data, f"{split}_files") or getattr(data, f"{split}_split") for data in sections)
        or (split == "test" and any(data.test_fraction for data in sections))
    ]
    if "validation" not in available and any(data.share_held_back > 0 for data in sections):
        available.append("validation")
    if wanted is None and available:
        return available[0]
    if wanted not in available:
        has = f"it has {available[0]}" if available else "it has training data alone"
        name = wanted or "test"
        share = f", or data.{name}_fraction" if name == "validation" or recipe.task is not None else ""
        fields = f"data.{name}_files or data.{name}_split{share}"
        raise UserError(f"TASK={recipe.name} has no {name} split, {has}; set {fields}")
    return wanted


def result_file(
    model: str, task: str, split: str | None = None, max_examples: int | None = None, kind: str | None = None
) -> Path | None:
    """The default file for a result: in the model's folder, named after the task; None for a model on the Hub.

    For a suite over `runs/{task}`: in `runs`.

    A split, number of examples or other kind of result that was asked for is part of the name: such a result must not
    replace the usual one.
    """
    folder = Path(model.partition("{task}")[0] or "." if "{task}" in model else model).expanduser()
    if not folder.is_dir():
        return None
    parts = ["evaluation", task, split, max_examples and f"{max_examples}-examples", kind]
    return folder / f"{'-'.join(part for part in parts if part)}.json"


def check_writable(path: Path, option: str = "--output") -> None:
    """Raise UserError where a result could not be written after the work is done."""
    where = path.parent if path.parent != Path("") else Path(".")
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder; give the name of a file")
    if not where.is_dir():
        raise UserError(f"{option} {path}: the folder {where} does not exist")
    if not os.access(path if path.exists() else where, os.W_OK):
        raise UserError(f"{option} {path} cannot be written; choose another with {option}")


def check_predictions(recipe: Recipe, file: str | None) -> None:
    """Raise UserError where predictions are asked for and the task has none, or the file could not be written."""
    if file is None:
        return
    if not any(METRICS[name].load is not None for name in objective_of(recipe).metrics):
        raise UserError(f"--predictions {file}: TASK={recipe.name} compares no predictions with references; remove it")
    check_writable(Path(file), "--predictions")

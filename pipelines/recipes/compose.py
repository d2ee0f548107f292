"""Recipes: YAML and command-line overrides become one checked `Recipe`.

Layers, later ones winning: the schema's defaults, the model preset, the recipe file, the overrides. Every mistake is
a UserError of one sentence. Nothing heavy is imported: names and types of config fields and TrainingArguments are read
from their sources (introspection.py).
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean, nearest
from ..plugins import OBJECTIVES
from . import introspection
from .checks import ARGUMENT_BOUNDS, OWNED_ARGUMENTS, check_model, check_recipe
from .data_section import SOURCE_KINDS
from .recipe_files import is_file_of, read_yaml_file
from .schema import DEFAULT_NAMES, LEARNED, ModelSection, ObjectiveSettings, Recipe, TrainingSection, parts_of_recipe
from .secrets import check_no_secret
from .strict_yaml import parse_yaml
from .types import as_mapping, build, convert, show, unknown_key, within_bounds

# Settings of the training section that usual_rates.py chooses where a recipe leaves them open.
LEFT_OPEN = ("learning_rate", "num_train_epochs")


# --------------------------------------------------------------------------------------------------- presets


PRESET_FACTS = ("description", "parameters", "active_parameters")


def load_preset(name_or_path: str) -> tuple[str, dict[str, Any]]:
    """Return (family, config fields) of a preset: a file in configs/models, or a path to one.

    What a file says of the architecture beside its fields (PRESET_FACTS) is for listings, and left out.

    Raises:
        UserError: no such preset, or a key the family's config does not have.
    """
    data, _ = read_yaml_file(name_or_path, "models", "model.preset")
    data = {key: value for key, value in data.items() if key not in PRESET_FACTS}
    where = f"preset {name_or_path}"
    if "family" not in data:
        raise UserError(f"{where}: no family given, such as family: decoder")
    of_family = next(row for row in fields(ModelSection) if row.name == "family")
    family = convert(data.pop("family"), of_family.type, f"{where}: family")
    return family, _config_fields(data, family, where)


# ------------------------------------------------------------------------------------------------ overrides


def parse_override(text: str) -> tuple[list[str], Any]:
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path or any(not part for part in path.split(".")):
        raise UserError(f"override {text!r} is not of the form section.key=value")
    try:
        return path.split("."), parse_yaml(value, path)
    except UserError:
        if value.lstrip()[:1] in ("[", "{", '"', "'"):
            raise
        return path.split("."), value  # a glob such as *.txt is no YAML, but plainly text


def _apply_override(data: dict, path: list[str], value: Any) -> None:
    target: Any = data
    for depth, part in enumerate(path[:-1], 1):
        if isinstance(target, dict):
            if target.get(part) is None:
                target[part] = {}
            target = target[part]
        else:
            target = target[_index(target, part, path, depth)]
        if not isinstance(target, (dict, list)):
            raise UserError(f"{'.'.join(path)}: {'.'.join(path[:depth])}={show(target)} has no settings in it")
    if isinstance(target, dict):
        target[path[-1]] = value
    else:
        target[_index(target, path[-1], path, len(path))] = value


def _index(entries: list, part: str, path: list[str], depth: int) -> int:
    if not part.isdecimal() or int(part) >= len(entries):
        name = ".".join(path[: depth - 1])
        raise UserError(f"{'.'.join(path)}: {name} has {len(entries)} entries, counted from 0")
    return int(part)


# ------------------------------------------------------------------------------------- settings that are gone


# What saved recipes say that were made when there were more settings, as they spell out every default: the name of a
# setting, and the one value of it that is done now.
REGULAR, SEQUENTIAL, EXTREME = "<|R|>", "<|S|>", "<|X|>"
UL2 = (
    *((0.15, 3.0, REGULAR), (0.15, 8.0, REGULAR), (0.25, None, SEQUENTIAL)),
    *((0.5, 3.0, EXTREME), (0.5, 8.0, EXTREME), (0.15, 64.0, EXTREME), (0.5, 64.0, EXTREME)),
)
WHATEVER = object()  # any value, because it changed no result
FORMER: dict[str, Any] = {
    "shortest_prefix": 0.0,
    "longest_prefix": 1.0,
    "positive_from": 0.8,
    "memory_update": "delta",
    "layer_decay": None,
    "pp_parts": None,
    "columns": None,
    "num_proc": WHATEVER,
    "denoisers": [
        {"noise_density": rate, "mean_span_length": length, "weight": 1.0, "mode_token": token}
        for rate, length, token in UL2
    ],
}


def without_former(recipe: Any) -> Any:
    """A recipe as plain data without settings that are gone, where their value says what is done now."""
    if isinstance(recipe, list):
        return [without_former(item) for item in recipe]
    if not isinstance(recipe, dict):
        return recipe
    kept = {key: value for key, value in recipe.items() if key not in FORMER or FORMER[key] not in (value, WHATEVER)}
    return {key: without_former(value) for key, value in kept.items()}


# ------------------------------------------------------------------------------------------------ composing


def load_recipe(
    name_or_path: str | Path,
    overrides: Sequence[str] = (),
    notes: list[str] | None = None,
    **sections: dict[str, Any] | None,
) -> Recipe:
    """Return the composed, checked recipe of a file or of a shipped name.

    Args:
        overrides: texts of the form `section.key=value`, as on the command line.
        notes: gets a sentence for whatever an override replaces beside its own setting.
        sections: settings that win over the recipe's, such as training={"max_steps": 50}; None leaves a section out.

    Raises:
        UserError: no such recipe, an unknown key, a wrong type, or settings that exclude each other.
    """
    if is_file_of(str(name_or_path), "stories", "steps"):
        raise UserError(f"recipe {str(name_or_path)!r} is a story of several recipes, which train and plan take")
    data, stem = read_yaml_file(str(name_or_path), "recipes", "recipe")
    given = [parse_override(text) for text in overrides] + list(_overrides_of(sections))
    data = _without_replaced_data(data if data.get("name") else {**data, "name": stem}, given, notes)
    return _compose(data, given)


# What says of which data a recipe is, beside the source itself.
OF_ONE_SOURCE = (
    *("config_name", "revision", "split", "streaming", "text_field", "document"),
    *("validation_files", "validation_split", "test_files", "test_split"),
)


def _without_replaced_data(data: dict, overrides: list, notes: list[str] | None) -> dict:
    """The recipe file without its source of data, where the overrides name one of another kind."""
    section = data.get("data")
    given = {path[1]: value for path, value in overrides if path[0] == "data" and len(path) == 2}
    new = next((kind for kind in SOURCE_KINDS if given.get(kind)), None)
    if new is None or not isinstance(section, dict):
        return data
    old = [kind for kind in SOURCE_KINDS if kind != new and section.get(kind) and kind not in given]
    if not old or section.get(new):
        return data
    if notes is not None:
        whose = f"data.{old[0]}" + (f"={show(section[old[0]])}" if old[0] != "mixture" else "")
        notes.append(f"data.{new}={show(given[new])} replaces the recipe's {whose}")
    kept = {key: value for key, value in section.items() if key not in (*old, *OF_ONE_SOURCE)}
    return {**data, "data": kept}


def _overrides_of(sections: dict[str, Any]) -> Iterator[tuple[list[str], Any]]:
    """Settings given as mappings -> (path, value), as `parse_override` gives them."""
    for section, settings in sections.items():
        if isinstance(settings, dict):
            yield from (([section, name], value) for name, value in settings.items())
        else:
            yield [section], settings


def recipe_from_dict(data: dict[str, Any], overrides: Sequence[str] = (), **sections: dict[str, Any] | None) -> Recipe:
    """Return the recipe of a mapping in the shape of a recipe file, such as `Recipe.to_dict()` gives.

    overrides, sections: as load_recipe's; they win over the mapping's.
    """
    return _compose(data, [parse_override(text) for text in overrides] + list(_overrides_of(sections)))


def _compose(data: dict, overrides: list[tuple[list[str], Any]]) -> Recipe:
    check_no_secret(data, "")
    data = without_former(data)
    for path, value in overrides:
        check_no_secret(value, ".".join(path))
    if any(path == ["model", "name_or_path"] and value is not None for path, value in overrides):
        # A checkpoint given on the command line takes the place of the file's architecture and its tokenizer.
        data = {name: section for name, section in data.items() if name not in ("model", "tokenizer")}
    # The preset lies under the recipe file but overrides may choose it, and overrides may reach into its mappings
    # (model.rope_parameters.factor): so find its name first, then lay it under, then override.
    final = copy.deepcopy(data)
    for path, value in overrides:
        _apply_override(final, path, copy.deepcopy(value))
    chosen = convert(as_mapping(final.get("model"), "model").get("preset"), str | None, "model.preset")
    if chosen is not None:
        family, under = load_preset(chosen)
        if as_mapping(final.get("tokenizer"), "tokenizer").get("name_or_path") is None:
            # A preset's vocabulary belongs to its own tokenizer; a tokenizer trained here brings its own size.
            under = {name: value for name, value in under.items() if name not in ("vocab_size", "output_vocab_size")}
        under = {"family": family, **under}
        final = copy.deepcopy(data)
        final["model"] = copy.deepcopy(under) | as_mapping(final.get("model"), "model")
        for path, value in overrides:
            _apply_override(final, path, copy.deepcopy(value))
        # Once more, for `model={...}`, which replaces the section.
        final["model"] = copy.deepcopy(under) | as_mapping(final["model"], "model")
        if Path(chosen).name != chosen or Path(chosen).suffix:
            final["model"]["preset"] = None  # the saved recipe must not need somebody's file
    for key in final:
        if key not in (known := [part.name for part in parts_of_recipe()]):
            raise unknown_key("", key, known)
    model, training = final.pop("model", None), final.pop("training", None)
    learned = {section: final.pop(section, None) for section in LEARNED}
    recipe: Recipe = build(Recipe, final, "")
    recipe.objective, recipe.task = _learned_sections(learned)
    left_open = {name for name in LEFT_OPEN if as_mapping(training, "training").get(name, "auto") == "auto"}
    recipe.model, recipe.training = _model_section(model), _training_section(training)
    if recipe.evaluation.metrics is None:
        recipe.evaluation.metrics = list(OBJECTIVES[recipe.learned.name].default_metrics)
    other = recipe.model.name_or_path
    if other is None and recipe.teacher is not None and OBJECTIVES[recipe.learned.name].taught == "tokens":
        other = recipe.teacher.name_or_path
    if other and not final.get("tokenizer"):
        recipe.tokenizer.name_or_path = other
    if "learning_rate" in left_open or (left_open and recipe.training.max_steps < 1):
        from .usual_rates import choose

        choose(recipe, left_open)
    check_model(recipe)
    check_recipe(recipe)
    return recipe


def _learned_sections(given: dict[str, Any]) -> tuple[ObjectiveSettings | None, ObjectiveSettings | None]:
    """(objective, task), exactly one of which is not None: the settings that the chosen name has."""
    for section, value in given.items():
        if isinstance(value, str):
            raise UserError(f"{section}={show(value)} is not a section of settings; write {section}.name={value}")
    if given["objective"] is not None and given["task"] is not None:
        raise UserError("objective and task are both set; keep one and set the other to null")
    section = "objective" if given["task"] is None else "task"
    data = as_mapping(given[section], section)
    name = data.get("name", DEFAULT_NAMES[section])
    cls = OBJECTIVES.get(name) if isinstance(name, str) else None
    if cls is None or cls.section != section:
        raise _unknown_name(section, name, cls)
    own = {row.name for row in fields(cls.Settings)}
    data = {key: value for key, value in data.items() if key in own or not _is_idle(section, name, key, value)}
    settings = build(cls.Settings, {**data, "name": name}, section)
    return (settings, None) if section == "objective" else (None, settings)


def _unknown_name(section: str, name: Any, found: type | None) -> UserError:
    """The error for a name that is none of the section's."""
    if found is not None:
        other = f"{found.section}.name={name}"
        return UserError(f"{section}.name={name} belongs into the section {found.section}; write {other}")
    from .find_setting import find_setting

    known = names_of(section)
    meant = find_setting(str(name)) if nearest(str(name), known) is None else None  # distillation is a section
    near = f"; did you mean {meant}?" if meant else did_you_mean(str(name), known)
    return UserError(f"{section}.name={show(name)} is not one of its choices{near}")


def names_of(section: str) -> list[str]:
    """The names that `objective.name` or `task.name` takes, plug-ins' included."""
    return [name for name, cls in OBJECTIVES.items() if cls.section == section]


def _is_idle(section: str, name: str, key: str, value: Any) -> bool:
    """Whether a setting of another objective says nothing: of a recipe whose objective was replaced by an override.

    Raises UserError where it says something, which would have no effect.
    """
    owners = owners_of(key, names_of(section))
    if not owners:
        return False  # `build` names the nearest setting
    defaults = [getattr(OBJECTIVES[owner].Settings(), key) for owner in owners]
    if value is None or any(value == default for default in defaults):
        return True
    raise of_others(section, name, key, owners)


def owners_of(key: str, names: Sequence[str]) -> list[str]:
    """Those of the objectives or tasks `names` that have a setting."""
    return [name for name in names if any(row.name == key for row in fields(OBJECTIVES[name].Settings))]


def of_others(path: str, name: str, key: str, owners: Sequence[str]) -> UserError:
    """The error for a setting of other objectives in the section `path`, which is of the objective `name`."""
    whose = f"it belongs to {' and '.join(owners)}"
    return UserError(f"{path}.{key} has no effect with {path}.name={name}; {whose}, remove it")


def _model_section(data: Any) -> ModelSection:
    data = as_mapping(data, "model")
    own = {f.name for f in fields(ModelSection)} - {"fields"}
    section: ModelSection = build(ModelSection, {k: v for k, v in data.items() if k in own}, "model", rest="fields")
    rest = {key: value for key, value in data.items() if key not in own}
    if section.name_or_path is not None:
        for name in ("preset", "family"):
            if getattr(section, name) is not None:
                raise UserError(f"model.{name} and model.name_or_path are both set; a checkpoint has an architecture")
        from .checkpoint_overrides import checkpoint_field

        section.fields = {name: checkpoint_field(name, value) for name, value in rest.items()}
    elif section.family is None:
        if rest:  # more likely a misspelt name of ours than a config field
            near = did_you_mean(str(next(iter(rest))), own, "model.")
            raise UserError(f"model.{next(iter(rest))}: no model.preset or model.family says whose field this is{near}")
        raise UserError("model names no architecture; set model.preset, model.family or model.name_or_path")
    else:
        section.fields = _config_fields(rest, section.family, "model", own)
    return section


def _config_fields(data: dict, family: str, where: str, own: set[str] = frozenset()) -> dict[str, Any]:
    known = introspection.family_fields(family) | introspection.plugin_fields()
    found = {}
    for key, value in data.items():
        if key not in known:
            raise _no_field(str(key), family, where, known, own)
        found[key] = convert(value, known[key].type, f"model.{key}" if where == "model" else f"{where}: {key}")
    return found


def _no_field(key: str, family: str, where: str, known: dict, own: set[str]) -> UserError:
    """The error for a field that the family's config does not have."""
    from ..aliases import ours_for
    from .find_setting import families_with

    name = next((name for name in (key, *ours_for(key)) if name in known or families_with(name)), None)
    if name is not None and name not in known:
        dotted, others = f"model.{name}" if where == "model" else f"{where}: {name}", families_with(name)
        return UserError(f"{dotted} is a setting of {', '.join(others)}; this model's family is {family}")
    if where == "model":
        return unknown_key("model", key, [*own, *known])
    return UserError(f"{where}: {key}: no such setting{did_you_mean(key, known)}")


def _training_section(data: Any) -> TrainingSection:
    data = as_mapping(data, "training")
    for key in data:
        if key in OWNED_ARGUMENTS:
            raise UserError(f"training.{key} cannot be set; {OWNED_ARGUMENTS[key]}")
    if data.get("learning_rate") == "auto":  # which _compose chooses
        data = {name: value for name, value in data.items() if name != "learning_rate"}
    own = {f.name for f in fields(TrainingSection)}
    known = {k: f for k, f in introspection.training_argument_fields().items() if k not in own | set(OWNED_ARGUMENTS)}
    section: TrainingSection = build(TrainingSection, data, "training", rest="extra", allow=known)
    for key, value in section.extra.items():
        where = f"training.{key}"
        section.extra[key] = within_bounds(convert(value, known[key].type, where), ARGUMENT_BOUNDS.get(key, {}), where)
    # As TrainingArguments has it: who names a backend or a mode of torch.compile wants it.
    given = [section.extra.get(f"torch_compile_{name}") for name in ("backend", "mode")]
    section.torch_compile |= given != [None, None]
    return section

"""Recipes: YAML and command-line overrides become one checked `Recipe`.

Layers, later ones winning: the schema's defaults, the model preset, the recipe file, the overrides. Every mistake is
a UserError of one sentence. Neither torch nor transformers is imported: the names and types of config fields and
TrainingArguments are read from their sources (introspection.py).
"""

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..errors import UnknownName, UserError, did_you_mean, nearest
from ..plugins import OBJECTIVES
from . import introspection
from .checks import ARGUMENT_BOUNDS, OWNED_ARGUMENTS, check_model, check_recipe
from .data_section import SOURCE_KINDS
from .recipe_files import is_file_of, read_yaml_file
from .schema import DEFAULT_NAMES, LEARNED, ModelSection, ObjectiveSettings, Recipe, TrainingSection, parts_of_recipe
from .secrets import check_no_secret
from .strict_yaml import parse_yaml
from .types import as_mapping, build, convert, show, unknown_key, within_bounds

# Settings of the training section that usual_rates.py chooses if a recipe leaves them open.
LEFT_OPEN = ("learning_rate", "num_train_epochs")


# --------------------------------------------------------------------------------------------------- presets


PRESET_FACTS = ("description", "parameters", "active_parameters")


def load_preset(name_or_path: str) -> tuple[str, dict[str, Any]]:
    """Return (family, config fields) of a preset: a file in configs/models, or a path to one.

    The keys of PRESET_FACTS, which only listings use, are left out.

    Raises UserError: no such preset, or a key the family's config does not have.
    """
    data, _ = read_yaml_file(name_or_path, "models", "model.preset")
    data = {key: value for key, value in data.items() if key not in PRESET_FACTS}
    where = f"preset {name_or_path}"
    if "family" not in data:
        raise UserError(f"{where}: no family given, such as family: decoder")
    family = convert(data.pop("family"), ModelSection.__annotations__["family"], f"{where}: family")
    return family, _config_fields(data, family, where)


# ------------------------------------------------------------------------------------------------ overrides


def parse_override(text: str) -> tuple[list[str], Any]:
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path or any(not part for part in path.split(".")):
        raise UserError(f"override {text!r} is not of the form section.key=value")
    is_text = value.lstrip()[:1] not in ("[", "{", '"', "'")
    try:
        parsed = parse_yaml(value, path)
    except UserError:
        if not is_text:
            raise
        return path.split("."), value  # a glob such as *.txt is not YAML, but clearly text
    if is_text and "#" in value and (parsed is None or isinstance(parsed, str)):
        return path.split("."), value.strip()  # the shell gives a value without comments
    return path.split("."), parsed


def _overridden(data: dict, overrides: list[tuple[list[str], Any]]) -> dict:
    """A copy of the data with the overrides in it."""
    data = copy.deepcopy(data)
    for path, value in overrides:
        _apply_override(data, path, copy.deepcopy(value))
    return data


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


# ------------------------------------------------------------------------------------------------ composing


def load_recipe(
    name_or_path: str | Path,
    overrides: Sequence[str] = (),
    notes: list[str] | None = None,
    *,
    trust_remote_code: bool = False,
    **sections: dict[str, Any] | None,
) -> Recipe:
    """Return the composed, checked recipe of a file or of a shipped name.

    Args:
        overrides: texts of the form `section.key=value`, as on the command line.
        notes: gets a sentence for each setting that an override replaces beside the one it names.
        trust_remote_code: whether code that comes with a checkpoint may run.
        sections: settings that win over the recipe's, such as training={"max_steps": 50}; None leaves a section out.

    Raises:
        UserError: no such recipe, an unknown key, a wrong type, or settings that exclude each other.
    """
    if is_file_of(str(name_or_path), "stories", "steps"):
        raise UserError(f"recipe {str(name_or_path)!r} is a story of several recipes, which train and plan take")
    data, stem = read_yaml_file(str(name_or_path), "recipes", "recipe")
    parsed = [parse_override(text) for text in overrides] + list(_overrides_of(sections))
    data = _without_replaced_data(data if data.get("name") else {**data, "name": stem}, parsed, notes)
    return _compose(data, parsed, trust_remote_code)


# Settings that describe one source of data, and are dropped with it when an override replaces the source.
OF_ONE_SOURCE = (
    *("config_name", "revision", "split", "streaming", "text_field", "document"),
    *("validation_files", "validation_split", "test_files", "test_split"),
)


def _without_replaced_data(data: dict, overrides: list, notes: list[str] | None) -> dict:
    """The recipe file, without its source of data if the overrides name a source of another kind."""
    section = data.get("data")
    replacements = {path[1]: value for path, value in overrides if path[0] == "data" and len(path) == 2}
    new = next((kind for kind in SOURCE_KINDS if replacements.get(kind)), None)
    if new is None or not isinstance(section, dict):
        return data
    old = [kind for kind in SOURCE_KINDS if kind != new and section.get(kind) and kind not in replacements]
    if not old or section.get(new):
        return data
    if notes is not None:
        replaced = f"data.{old[0]}" + (f"={show(section[old[0]])}" if old[0] != "mixture" else "")
        notes.append(f"data.{new}={show(replacements[new])} replaces the recipe's {replaced}")
    remaining = {key: value for key, value in section.items() if key not in (*old, *OF_ONE_SOURCE)}
    return {**data, "data": remaining}


def _overrides_of(sections: dict[str, Any]) -> Iterator[tuple[list[str], Any]]:
    """Yield (path, value), as `parse_override` returns them, of settings that are given as mappings."""
    for section, settings in sections.items():
        if isinstance(settings, dict):
            yield from (([section, name], value) for name, value in settings.items())
        else:
            yield [section], settings


def recipe_from_dict(
    data: dict[str, Any], overrides: Sequence[str] = (), *, trust_remote_code: bool = False, **sections: Any
) -> Recipe:
    """Return the recipe of a mapping in the shape of a recipe file, such as `Recipe.to_dict()` gives.

    overrides, trust_remote_code, sections: as for load_recipe; they win over the mapping's settings.
    """
    parsed = [parse_override(text) for text in overrides] + list(_overrides_of(sections))
    return _compose(data, parsed, trust_remote_code)


def _compose(data: dict, overrides: list[tuple[list[str], Any]], trust_remote_code: bool) -> Recipe:
    check_no_secret(data, "")
    for path, value in overrides:
        check_no_secret(value, ".".join(path))
    if any(path == ["model", "name_or_path"] and value is not None for path, value in overrides):
        # A checkpoint from the command line replaces the file's architecture and tokenizer.
        data = {name: section for name, section in data.items() if name not in ("model", "tokenizer")}
    # The recipe file wins over the preset. But overrides may choose the preset, and change single keys of its mappings
    # (model.rope_parameters.factor): so find its name first, then merge it in, then apply the overrides again.
    final = _overridden(data, overrides)
    preset = convert(as_mapping(final.get("model"), "model").get("preset"), str | None, "model.preset")
    if preset is not None:
        family, base = load_preset(preset)
        if as_mapping(final.get("tokenizer"), "tokenizer").get("name_or_path") is None:
            # A preset's vocabulary belongs to its own tokenizer; a tokenizer trained here brings its own size.
            base = {name: value for name, value in base.items() if name not in ("vocab_size", "output_vocab_size")}
        base = {"family": family, **base}
        final = _overridden(data | {"model": base | as_mapping(data.get("model"), "model")}, overrides)
        # Merged again, because `model={...}` replaces the whole section.
        final["model"] = copy.deepcopy(base) | as_mapping(final["model"], "model")
        if Path(preset).name != preset or Path(preset).suffix:
            final["model"]["preset"] = None  # the saved recipe must not depend on a local file
    known = [part.name for part in parts_of_recipe()]
    for key in final:
        if key not in known:
            raise unknown_key("", key, known)
    model = final.pop("model", None)
    training = final.pop("training", None)
    learned = {section: final.pop(section, None) for section in LEARNED}
    recipe: Recipe = build(Recipe, final, "")
    recipe = replace(recipe, **_learned_sections(learned), trust_remote_code=trust_remote_code)
    if recipe.teacher is not None:
        recipe = recipe.with_(teacher={"name_or_path": os.path.expanduser(recipe.teacher.name_or_path)})
    left_open = {name for name in LEFT_OPEN if as_mapping(training, "training").get(name, "auto") == "auto"}
    recipe = replace(recipe, model=_model_section(model), training=_training_section(training))
    objective = OBJECTIVES[recipe.learned.name]
    checkpoint = recipe.model.name_or_path
    start = recipe.learned.is_start_where_null
    if start is not None and getattr(recipe.learned, start) is None:  # spelled out for who reads the saved recipe
        recipe = recipe.with_(**{recipe.learned_section: {start: checkpoint}})
    if recipe.evaluation.metrics is None:
        recipe = recipe.with_(evaluation={"metrics": list(objective.default_metrics)})
    if checkpoint is None and recipe.teacher is not None and objective.taught == "tokens":
        checkpoint = recipe.teacher.name_or_path
    if checkpoint and not (final.get("tokenizer") or {}).keys() - {"chat_template"}:
        recipe = recipe.with_(tokenizer={"name_or_path": checkpoint})
    if recipe.training.max_tokens is not None:
        from .usual_rates import with_steps_of_tokens

        recipe = with_steps_of_tokens(recipe)
    if "learning_rate" in left_open or (left_open and recipe.training.max_steps < 1):
        from .usual_rates import choose

        recipe = choose(recipe, left_open)
    check_model(recipe)
    check_recipe(recipe)
    return recipe


def _learned_sections(given: dict[str, Any]) -> dict[str, ObjectiveSettings | None]:
    """Return the sections objective and task, one of which is None: the settings of the chosen objective or task."""
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
    known = {row.name for row in fields(cls.Settings)}
    data = {key: value for key, value in data.items() if key in known or not _is_idle(section, name, key, value)}
    return dict.fromkeys(LEARNED) | {section: build(cls.Settings, {**data, "name": name}, section)}


def _unknown_name(section: str, name: Any, found: type | None) -> UserError:
    """The error for a name that no objective or task of the section has. found: its class in the other section."""
    if found is not None:
        other = f"{found.section}.name={name}"
        return UserError(f"{section}.name={name} belongs into the section {found.section}; write {other}")
    from .find_setting import find_setting

    known = names_of(section)
    meant = find_setting(str(name)) if nearest(str(name), known) is None else None  # distillation -> section teacher
    near = f"; did you mean {meant}?" if meant else did_you_mean(str(name), known)
    return UnknownName(f"{section}.name={show(name)} is not one of its choices{near}")


def names_of(section: str) -> list[str]:
    """The names that `objective.name` or `task.name` takes, plug-ins' included."""
    return [name for name, cls in OBJECTIVES.items() if cls.section == section]


def _is_idle(section: str, name: str, key: str, value: Any) -> bool:
    """Whether a setting of another objective has its default, as in a recipe whose objective an override replaced.

    Raises UserError for any other value, because it would have no effect.
    """
    owners = owners_of(key, names_of(section))
    if not owners:
        return False  # `build` refuses it and names the nearest setting
    defaults = [getattr(OBJECTIVES[owner].Settings(), key) for owner in owners]
    if value is None or any(value == default for default in defaults):
        return True
    raise of_others(section, name, key, owners)


def owners_of(key: str, names: Sequence[str]) -> list[str]:
    """Those of the objectives or tasks `names` that have the setting `key`."""
    return [name for name in names if any(row.name == key for row in fields(OBJECTIVES[name].Settings))]


def of_others(path: str, name: str, key: str, owners: Sequence[str]) -> UserError:
    """The error for a setting of other objectives (`owners`) in the section `path` of the objective `name`."""
    whose = f"it belongs to {' and '.join(owners)}"
    return UserError(f"{path}.{key} has no effect with {path}.name={name}; {whose}, remove it")


def _model_section(data: Any) -> ModelSection:
    data = as_mapping(data, "model")
    known = {f.name for f in fields(ModelSection)} - {"fields"}
    section: ModelSection = build(ModelSection, {k: v for k, v in data.items() if k in known}, "model", rest="fields")
    rest = {key: value for key, value in data.items() if key not in known}
    if section.name_or_path is not None:
        for name in ("preset", "family"):
            if getattr(section, name) is not None:
                raise UserError(f"model.{name} and model.name_or_path are both set; a checkpoint has an architecture")
        from .checkpoint_overrides import checkpoint_field

        changed = {name: checkpoint_field(name, value) for name, value in rest.items()}
        return replace(section, name_or_path=os.path.expanduser(section.name_or_path), fields=changed)
    if section.family is None:
        if rest:  # more likely a misspelt setting of ModelSection than a config field
            key = str(next(iter(rest)))
            near = did_you_mean(key, known, "model.")
            raise UserError(f"model.{key}: no model.preset or model.family says whose field this is{near}")
        raise UserError("model names no architecture; set model.preset, model.family or model.name_or_path")
    return replace(section, fields=_config_fields(rest, section.family, "model", known))


def _config_fields(data: dict, family: str, where: str, own: set[str] = frozenset()) -> dict[str, Any]:
    known = introspection.family_fields(family) | introspection.plugin_fields()
    converted = {}
    for key, value in data.items():
        if key not in known:
            raise _no_field(str(key), family, where, known, own)
        converted[key] = convert(value, known[key].type, f"model.{key}" if where == "model" else f"{where}: {key}")
    return converted


def _no_field(key: str, family: str, where: str, known: dict, own: set[str]) -> UserError:
    """The error for a field that the family's config does not have."""
    from ..aliases import ours_for
    from .find_setting import families_with

    for name in (key, *ours_for(key)):
        if name in known:
            break
        if families_with(name):
            dotted = f"model.{name}" if where == "model" else f"{where}: {name}"
            owners = ", ".join(families_with(name))
            return UserError(f"{dotted} is a setting of {owners}; this model's family is {family}")
    if where == "model":
        return unknown_key("model", key, [*own, *known])
    return UnknownName(f"{where}: {key}: no such setting{did_you_mean(key, known)}")


def _training_section(data: Any) -> TrainingSection:
    data = as_mapping(data, "training")
    for key in data:
        if key in OWNED_ARGUMENTS:
            raise UserError(f"training.{key} cannot be set; {OWNED_ARGUMENTS[key]}")
    if data.get("learning_rate") == "auto":  # then usual_rates.choose sets it
        data = {name: value for name, value in data.items() if name != "learning_rate"}
    ours = {f.name for f in fields(TrainingSection)}
    known = {k: f for k, f in introspection.training_argument_fields().items() if k not in ours | set(OWNED_ARGUMENTS)}
    section: TrainingSection = build(TrainingSection, data, "training", rest="extra", allow=known)
    extra = {}
    for key, value in section.extra.items():
        where = f"training.{key}"
        extra[key] = within_bounds(convert(value, known[key].type, where), ARGUMENT_BOUNDS.get(key, {}), where)
    # As in TrainingArguments: `~` is the home, and naming a backend or mode of torch.compile turns it on.
    folder = os.path.expanduser(section.output_dir or "")
    compiles = any(extra.get(f"torch_compile_{name}") is not None for name in ("backend", "mode"))
    return replace(section, output_dir=folder, extra=extra, torch_compile=section.torch_compile or compiles)

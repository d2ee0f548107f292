"""Makes the model under check from its name: a tiny twin of its config, or the model with its own weights."""

import copy
from pathlib import Path

import torch
import transformers
from transformers import CONFIG_MAPPING

from ..accounting.step_memory import planned_config
from ..adapters import load_config
from ..errors import UserError, did_you_mean, loading
from ..generation import locate_model
from ..plugins import objective_of
from ..recipes.preset_run import planned_recipe
from ..recipes.recipe_files import shipped
from ..transformers_logging import errors_only
from ..twin import KINDS, classes, constructor, kind_of, tiny_config, tiny_model
from .subject import Subject

SEED = 0
FIRST = ("seq2seq", "masked", "causal", "image")  # the first of these that a model type has is checked


def subject_of(name: str, *, real: bool = False, device: str = "cpu", trust_remote_code: bool = False) -> Subject:
    """The model of a folder, a recipe, a preset or a Hub name. real: its own weights, else a tiny twin of its config.

    Raises UserError: the name is unknown, the model is of no kind in KINDS, or `real` is set for a recipe or preset.
    """
    is_recipe = Path(name).suffix in (".yaml", ".yml") or name in shipped("recipes") or name in shipped("models")
    if is_recipe and not Path(name).expanduser().is_dir():
        if real:
            raise UserError(f"--real asks for weights, which {name!r}, a recipe or preset, has none of; name a folder")
        recipe, _ = planned_recipe(name, trust_remote_code=trust_remote_code)
        objective = objective_of(recipe)
        config = planned_config(recipe, objective, [])
        return twin_of(config, kind_of(config, [objective.auto_class]), device)
    where = locate_model(name)
    with loading(f"MODEL={name}"), errors_only():
        config = load_config(where, trust_remote_code=trust_remote_code)
        kind = kind_of(config, config.architectures or [])
        if not real:
            return twin_of(config, kind, device, where if trust_remote_code else None)
        auto_class = getattr(transformers, KINDS[kind][0])
        trust = {"trust_remote_code": trust_remote_code}
        model = auto_class.from_pretrained(where, dtype=torch.float32, **trust).to(device)
    more = ", trust_remote_code=True" if trust_remote_code else ""
    made = f"model = transformers.{KINDS[kind][0]}.from_pretrained({str(where)!r}{more}).eval()"
    return Subject(model.eval(), kind, ("import torch, transformers", made), is_twin=False)


def subject_of_type(model_type: str, kind: str | None = None, device: str = "cpu") -> Subject:
    """A tiny twin of a model type's default config. kind: None for the first that the type has.

    Raises UserError: transformers does not have the type, or the type has no class of that kind.
    """
    if model_type not in CONFIG_MAPPING:
        raise UserError(f"--model-type {model_type}: no such type{did_you_mean(model_type, CONFIG_MAPPING)}")
    kinds = [each for each in FIRST if model_type in classes(each)]
    if not kinds or kind not in (None, *kinds):
        has = f"it has {', '.join(kinds)}" if kinds else f"it is none of {', '.join(KINDS)}"
        raise UserError(f"--model-type {model_type} has no class of the kind {kind}; {has}")
    return twin_of(CONFIG_MAPPING[model_type](), kind or kinds[0], device)


def twin_of(config, kind: str, device: str = "cpu", code: str | None = None) -> Subject:
    """A tiny twin of a config. code: the folder or repository with the model's custom code."""
    tiny = tiny_config(config, kind)
    if kind == "seq2seq" and tiny.is_encoder_decoder and getattr(tiny, "decoder_start_token_id", None) is None:
        tiny.decoder_start_token_id = tiny.pad_token_id or 0  # published T5 configs set it, T5Config does not
    trust = "" if code is None else ", trust_remote_code=True"
    # Always passed: without it, transformers asks on standard input whether code may run.
    model = tiny_model(tiny, kind, SEED, torch.float32, trust_remote_code=code is not None).to(device)
    made = (
        "import torch, transformers",
        f"config = transformers.{constructor(tiny)}",
        f"torch.manual_seed({SEED})",
        f"model = transformers.{KINDS[kind][0]}.from_config(config{trust}).eval()",
        "for p in model.parameters(): p.data += torch.randn_like(p) / 10  # biases, norms and gates count, too",
    )
    return Subject(model, kind, made)


def subject_of_model(model, device: str = "cpu") -> Subject:
    """An fp32 copy of a model in memory. Raises UserError for a model of no kind in KINDS."""
    copied = copy.deepcopy(model).float().to(device).eval()
    names = [cls.__name__ for cls in type(model).__mro__]
    made = ("import torch", f"# model: the {names[0]} of the check")
    return Subject(copied, kind_of(model.config, names), made, is_twin=False)


def check_device(device: str) -> None:
    """Raise UserError for an invalid device, or one that this machine lacks."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise UserError(f"--device {device} is no device; cpu and cuda are") from None
    if kind != "cpu" and not getattr(torch, kind).is_available():
        raise UserError(f"--device {device}: this machine has none; leave it out to check on the CPU")

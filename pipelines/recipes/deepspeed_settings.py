"""DeepSpeed's settings that training.deepspeed names: a shipped file, a file of one's own, or the settings themselves.

Standard library only, so that a launcher and a plan can read them.
"""

import json
import os
from pathlib import Path

from ..errors import UserError, did_you_mean
from .recipe_files import shipped, text_of
from .schema import TrainingSection
from .types import show


def deepspeed_config(value):
    """The path of a shipped configuration for a name such as `zero2`; a path or dict is returned as it is.

    A name stands for the shipped file even if a folder of that name exists.
    """
    if not isinstance(value, str) or os.path.isfile(value):
        return value
    known = shipped("deepspeed", ".json")
    if value in known:
        return str(known[value])
    if not os.path.exists(value):
        raise UserError(f"training.deepspeed={value!r} is neither a file nor shipped{did_you_mean(value, known)}")
    return value


def read_deepspeed(given) -> dict:
    """The configuration that training.deepspeed names; raises UserError for a file that holds none."""
    setting, config = f"training.deepspeed={show(given)}", deepspeed_config(given)
    if isinstance(config, str):
        try:
            config = json.loads(text_of(Path(config), setting))
        except ValueError as error:
            raise UserError(f"{setting} cannot be read as JSON ({error})") from error
    if not isinstance(config, dict):
        raise UserError(f"{setting} holds no settings; give one of the shipped names, such as zero2")
    return config


def zero_settings(section: TrainingSection) -> dict:
    """What training.deepspeed sets of ZeRO; {} without it."""
    value = section.extra.get("deepspeed")
    return {} if value is None else read_deepspeed(value).get("zero_optimization") or {}


def zero_stage(section: TrainingSection) -> int:
    """The ZeRO stage that recipe or launcher ask for."""
    if section.extra.get("deepspeed") is None:
        return int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2))  # accelerate's default
    return zero_settings(section).get("stage", 0)


def offloads(section: TrainingSection) -> bool:
    """Whether training.deepspeed keeps states in the host's memory."""
    places = [zero_settings(section).get(name) or {} for name in ("offload_optimizer", "offload_param")]
    return any(place.get("device", "none") != "none" for place in places)

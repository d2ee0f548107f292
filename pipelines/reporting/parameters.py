"""The parameters of a run's model by what they are for, from the headers of its weight files."""

import re
from pathlib import Path

from ..errors import UserError
from ..storage.checkpoints import list_checkpoints
from ..storage.model_folder import tensor_sizes

# The first that a tensor's name has; names are ours, or those of transformers' models.
PARTS = (
    ("adapters", r"lora_"),
    ("routers", r"(^|\.)(router|gate)(\.|$)"),
    ("experts", r"experts?(\.|_)"),
    ("norms", r"norm|ln_|layer_norm|LayerNorm|(^|\.)ln\d"),
    ("cross-attention", r"cross_?attn|cross_?attention|encoder_attn|EncDecAttention"),
    ("attention", r"attn|attention|SelfAttention"),
    ("feed-forward", r"mlp|ffn|feed_forward|DenseReluDense|(^|\.)fc\d|intermediate|output\.dense"),
    ("heads", r"head|classifier|score|pooler|qa_outputs|(^|\.)cls\.(?!_token)|seq_relationship|predictions"),
    ("embeddings", r"embed|wte|wpe|shared|cls_token|position|patch|token"),
)


def part_of(tensor: str) -> str:
    return next((part for part, pattern in PARTS if re.search(pattern, tensor)), "other")


def weight_files_of(folder: Path) -> list[Path]:
    """The weights of the finished model, or of the newest checkpoint that has them in one place."""
    for place in (folder, *list_checkpoints(folder)[:1]):
        found = sorted(place.glob("*.safetensors"))
        if found:
            return found
    return []


def parameters_by_part(folder: Path) -> list[dict]:
    """[{"part", "tensors", "parameters"}], the largest first; empty where there are no weights yet."""
    found: dict[str, dict] = {}
    try:
        sizes = [tensor_sizes(file) for file in weight_files_of(folder)]
    except (OSError, UserError):
        return []  # being replaced while the run goes on, or damaged, which loading says better
    for name, count in (pair for of_file in sizes for pair in of_file.items()):
        row = found.setdefault(part_of(name), {"part": part_of(name), "tensors": 0, "parameters": 0})
        row["tensors"] += 1
        row["parameters"] += count
    return sorted(found.values(), key=lambda row: -row["parameters"])

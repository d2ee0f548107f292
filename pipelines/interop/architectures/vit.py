"""ViT and DeiT: pre-norm blocks over patches, with a learned vector for each position in the image."""

from dataclasses import replace

from ...errors import UserError
from ..architecture_map import ArchitectureMap, Computed
from ..heads import VIT_HEADS
from ..weights import convolution, renamed
from .bert import BERT_SIZES


def _read_sizes(native) -> dict:
    patch, image = native.patch_size, native.image_size
    sides = {patch} if isinstance(patch, int) else set(patch)
    if len(sides) != 1:
        raise UserError(
            f"{native.model_type} with patch_size={patch!r} has no anyformer twin; a square, {max(sides)}, has one"
        )
    return {"patch_size": sides.pop(), "image_size": image if isinstance(image, int) else list(image)}


FIELDS = {
    **BERT_SIZES,
    "qkv_bias": "attention_bias",
    ("image_size", "patch_size"): Computed(_read_sizes),
}
LAYER = {
    **{f"layers.*.attention.{name}_proj": renamed(f"layers.*.self_attn.{name}_proj") for name in "qkvo"},
    "layers.*.layernorm_before": renamed("layers.*.input_layernorm"),
    "layers.*.layernorm_after": renamed("layers.*.post_attention_layernorm"),
    "layers.*.mlp.fc1": renamed("layers.*.mlp.up_proj"),
    "layers.*.mlp.fc2": renamed("layers.*.mlp.down_proj"),
}
WEIGHTS = {
    "embeddings.patch_embeddings.projection": convolution("patch_embeddings.projection", "patch_size"),
    **{f"embeddings.{name}": renamed(f"patch_embeddings.{name}") for name in ("cls_token", "mask_token")},
    "embeddings.position_embeddings": renamed("position_encoding.weight"),
    **LAYER,
    "layernorm": renamed("norm"),
}

VIT = ArchitectureMap(
    native="vit",
    family="vit",
    fixed={"attention_out_bias": True},
    fields=FIELDS,
    weights=WEIGHTS,
    heads=VIT_HEADS,
)
DEIT = replace(
    VIT,
    native="deit",
    fixed={"attention_out_bias": True, "use_distillation_token": True},
    weights={**WEIGHTS, "embeddings.distillation_token": renamed("patch_embeddings.distillation_token")},
    class_fields={"DeiTForImageClassificationWithTeacher": {"distillation_head": True}},
)

"""Native twins of vision transformers: every head, at the trained size and others, and back bit-equal."""

import re

import pytest
import torch
import transformers
from anyformer.modeling.legality import image_sides
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.interop.architecture_map import TOLERANCE
from anyformer.pipelines.interop.conversion import from_native, to_native
from anyformer.pipelines.interop.convert_checkpoint import convert
from anyformer.pipelines.interop.families import our_class_names
from anyformer.pipelines.interop.matching import native_config, our_config
from anyformer.pipelines.interop.verify import probe, scale_and_difference
from anyformer.pipelines.recipes.compose import load_preset
from native_models import assert_same_weights, randomise
from PIL import Image
from transformers import AutoConfig, DeiTConfig, ViTConfig
from transformers.models.auto.image_processing_auto import AutoImageProcessor

import anyformer

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SIZES |= {"image_size": 24, "patch_size": 8, "encoder_stride": 8}
VARIANTS = {
    "plain": {},
    "grey_without_biases": {"num_channels": 1, "qkv_bias": False, "hidden_act": "relu", "layer_norm_eps": 1e-3},
    "small_pooler": {"pooler_output_size": 12, "pooler_act": "relu", "patch_size": 4, "encoder_stride": 4},
}
HEADS = {
    "ViT": (ViTConfig, ("Model", "ForImageClassification", "ForMaskedImageModeling")),
    "DeiT": (
        DeiTConfig,
        ("Model", "ForImageClassification", "ForMaskedImageModeling", "ForImageClassificationWithTeacher"),
    ),
}
CASES = [(name, head) for name, (_, heads) in HEADS.items() for head in heads]
LABELS = {"id2label": {0: "shoe", 1: "bag", 2: "shirt"}, "label2id": {"shoe": 0, "bag": 1, "shirt": 2}}


def native_model(name, head, variant="plain", **arguments):
    config = HEADS[name][0](**SIZES | VARIANTS[variant] | LABELS)
    return randomise(getattr(transformers, name + head)(config, **arguments))


def assert_same_outputs(native, ours, sides=None):
    inputs = probe(ours, rows=3, tokens=0, seed=1)
    if sides is not None:
        shape = (3, ours.config.num_channels, *sides)
        pixels = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        inputs = {"pixel_values": pixels, "interpolate_pos_encoding": torch.tensor(True)}
    scale, difference = scale_and_difference(native, ours, inputs)
    assert scale > 0.1 and difference <= TOLERANCE * scale, difference / scale


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name, head", CASES)
def test_twins_compute_the_same_and_go_back_bit_equal(name, head, variant):
    native = native_model(name, head, variant)
    ours = from_native(native)
    assert type(ours).__name__ == f"AnyformerViT{head.removesuffix('WithTeacher')}" and not ours.training
    assert_same_outputs(native, ours)
    assert_same_outputs(native, ours, sides=(32, 32))  # transformers' MIM heads know squares only
    if head != "ForMaskedImageModeling":
        assert_same_outputs(native, ours, sides=(16, 40))
    back = to_native(ours)
    assert type(back) is type(native)
    assert_same_weights(native, back)
    assert_same_outputs(back, ours)
    assert back.config.id2label == ours.config.id2label == LABELS["id2label"]


@pytest.mark.parametrize("name", HEADS)
def test_a_base_model_may_have_no_pooler(name):
    native = native_model(name, "Model", add_pooling_layer=False)
    ours = from_native(native)
    assert ours.pooler is None and ours(**probe(ours, 2, 0, 0)).pooler_output is None
    assert_same_outputs(native, ours)
    back = to_native(ours)
    assert back.pooler is None
    assert_same_weights(native, back)


def test_the_loss_of_masked_patches_and_of_classes_is_the_native_one():
    native = native_model("ViT", "ForMaskedImageModeling")
    inputs = probe(from_native(native), rows=3, tokens=0, seed=1)
    torch.testing.assert_close(from_native(native)(**inputs).loss, native(**inputs).loss)
    native, labels = native_model("ViT", "ForImageClassification"), torch.tensor([2, 0, 1])
    pixels = inputs["pixel_values"]
    torch.testing.assert_close(from_native(native)(pixels, labels=labels).loss, native(pixels, labels=labels).loss)


def test_every_head_of_our_family_has_a_twin():
    twins = {head.removesuffix("WithTeacher") for _, head in CASES}
    assert {name.removeprefix("AnyformerViT") for name in our_class_names("vit").values()} == twins


def test_a_teachers_head_says_which_class_it_becomes():
    ours = from_native(native_model("DeiT", "ForImageClassificationWithTeacher"))
    assert ours.config.distillation_head and ours.distillation_score is not None
    body = anyformer.AnyformerViTModel(ours.config)
    assert type(to_native(body)).__name__ == "DeiTModel"
    ours = from_native(native_model("DeiT", "ForImageClassification"))
    assert not ours.config.distillation_head and ours.distillation_score is None


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"patch_size": [8, 4]}, "patch_size=[8, 4] has no anyformer twin; a square, 8, has one"),
        ({"image_size": 25}, "patch_size=8 does not divide image_size=25; 1, 5 and 25 do"),
    ],
)
def test_what_has_no_field_of_ours_is_refused(fields, words):
    with pytest.raises(UserError, match=re.escape(words)):
        our_config(ViTConfig(**SIZES | fields))


@pytest.mark.parametrize(
    "fields, differing",
    [
        ({"position_encoding": "rotary"}, "position_encoding ('rotary' here, 'learned' there)"),
        ({"num_register_tokens": 4}, "num_register_tokens (4 here, 0 there)"),
        ({"pooler_type": "mean"}, "pooler_type ('mean' here, 'cls' there)"),
    ],
)
def test_what_has_no_native_twin_says_what_differs(fields, differing):
    config = anyformer.AnyformerViTConfig(**SIZES | {"norm_eps": 1e-12} | fields)
    with pytest.raises(UserError, match=re.escape(f"the nearest, vit, differs in {differing}")):
        native_config(config)


# ------------------------------------------------------------------------------------------------ folders


@pytest.mark.parametrize("name, head", [("ViT", "ForImageClassification"), *[c for c in CASES if "Teacher" in c[1]]])
def test_a_saved_model_is_converted_with_its_image_processor_and_back(name, head, tmp_path):
    native = native_model(name, head)
    native.save_pretrained(tmp_path / "native")
    size = {"height": 24, "width": 24}
    processor = transformers.ViTImageProcessorPil(size=size, image_mean=[0.1, 0.2, 0.3], do_convert_rgb=True)
    processor.save_pretrained(tmp_path / "native")
    assert "without" not in convert(tmp_path / "native", tmp_path / "ours")
    assert "without" not in convert(tmp_path / "ours", tmp_path / "again")
    again = type(native).from_pretrained(tmp_path / "again")
    assert_same_weights(native, again)
    image = Image.radial_gradient("L").resize((40, 30))
    pixels = [
        AutoImageProcessor.from_pretrained(tmp_path / folder)(image)["pixel_values"][0]
        for folder in ("native", "ours", "again")
    ]
    for other in pixels[1:]:
        assert (other == pixels[0]).all()


def test_our_image_processor_becomes_transformers_own(tmp_path):
    ours = from_native(native_model("ViT", "ForImageClassification"))
    ours.save_pretrained(tmp_path / "ours")
    processor = anyformer.AnyformerImageProcessor(size={"height": 24, "width": 24}, image_mean=[0.2])
    processor.save_pretrained(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "native")
    theirs = AutoImageProcessor.from_pretrained(tmp_path / "native")
    assert type(theirs).__module__.startswith("transformers.") and not list((tmp_path / "native").glob("*.py"))
    image = Image.radial_gradient("L").resize((40, 30))
    assert (theirs(image)["pixel_values"][0] == processor(image)["pixel_values"][0]).all()


def test_without_an_image_processor_it_is_said(tmp_path):
    native_model("ViT", "ForImageClassification").save_pretrained(tmp_path / "native")
    assert "without an image processor, since the source has none" in convert(tmp_path / "native", tmp_path / "ours")


# ------------------------------------------------------------------------------------------------ published sizes


@pytest.mark.parametrize(
    "name, count",
    [  # Hub: stored tensors of google/vit-*, facebook/deit-*; each with 1,000 classes
        ("vit_base_patch16_224", 86_567_656),
        ("vit_large_patch16_224", 304_326_632),
        ("vit_huge_patch14_224", 632_045_800),
        ("deit_tiny_distilled_patch16_224", 5_910_800),
        ("deit_small_distilled_patch16_224", 22_436_432),
        ("deit_base_distilled_patch16_224", 87_338_192),
    ],
)
def test_presets_with_1000_classes_have_the_published_number_of_parameters(name, count):
    family, fields = load_preset(name)
    with torch.device("meta"):
        model = anyformer.AnyformerViTForImageClassification(
            AutoConfig.for_model(f"anyformer_{family}", **fields, num_labels=1000)
        )
    assert image_sides(model.config) == (224, 224)
    assert model.num_parameters() == count

"""Native twins of vision transformers: other sizes than the trained, image processors, published sizes."""

import pytest
import torch
import transformers
from anyformer.pipelines.interop.architecture_map import TOLERANCE
from anyformer.pipelines.interop.conversion import from_native, to_native
from anyformer.pipelines.interop.convert_checkpoint import convert
from anyformer.pipelines.interop.verify import probe, scale_and_difference
from family_variants import a_share
from native_models import LABELS, NATIVE, assert_same_weights, native_model, randomise, twin_cases
from native_models import native_config as tiny_native_config
from PIL import Image
from transformers.models.auto.image_processing_auto import AutoImageProcessor

import anyformer

CASES = [case[::2] for case in twin_cases() if NATIVE[case[0]][0] in ("vit", "deit")]


def assert_same_outputs(native, ours, sides=None):
    inputs = probe(ours, rows=3, tokens=0, seed=1)
    if sides is not None:
        shape = (3, ours.config.num_channels, *sides)
        pixels = torch.randn(shape, generator=torch.Generator().manual_seed(2))
        inputs = {"pixel_values": pixels, "interpolate_pos_encoding": torch.tensor(True)}
    scale, difference = scale_and_difference(native, ours, inputs)
    assert scale > 0.1 and difference <= TOLERANCE * scale, difference / scale


@pytest.mark.parametrize("name, head", a_share(CASES, 3))
def test_twins_compute_the_same_at_other_sizes_than_the_trained(name, head):
    native = native_model(name, head)
    ours = from_native(native)
    assert_same_outputs(native, ours, sides=(32, 32))  # transformers' MIM heads know squares only
    if not head.endswith("ForMaskedImageModeling"):
        assert_same_outputs(native, ours, sides=(16, 40))


@pytest.mark.parametrize("name, cls", [("vit", transformers.ViTModel), ("deit", transformers.DeiTModel)])
def test_a_base_model_may_have_no_pooler(name, cls):
    native = randomise(cls(tiny_native_config(name), add_pooling_layer=False))
    ours = from_native(native)
    assert ours.pooler is None and ours(**probe(ours, 2, 0, 0)).pooler_output is None
    assert_same_outputs(native, ours)
    back = to_native(ours)
    assert back.pooler is None
    assert_same_weights(native, back)


def test_the_loss_of_masked_patches_and_of_classes_is_the_native_one():
    native = native_model("vit", "ViTForMaskedImageModeling")
    inputs = probe(from_native(native), rows=3, tokens=0, seed=1)
    torch.testing.assert_close(from_native(native)(**inputs).loss, native(**inputs).loss)
    native, labels = native_model("vit", "ViTForImageClassification", **LABELS), torch.tensor([2, 0, 1])
    pixels = inputs["pixel_values"]
    torch.testing.assert_close(from_native(native)(pixels, labels=labels).loss, native(pixels, labels=labels).loss)


def test_a_teachers_head_says_which_class_it_becomes():
    ours = from_native(native_model("deit", "DeiTForImageClassificationWithTeacher", **LABELS))
    assert ours.config.distillation_head and ours.distillation_score is not None
    body = anyformer.AnyformerViTModel(ours.config)
    assert type(to_native(body)).__name__ == "DeiTModel"
    ours = from_native(native_model("deit", "DeiTForImageClassification", **LABELS))
    assert not ours.config.distillation_head and ours.distillation_score is None


# ------------------------------------------------------------------------------------------------ folders


@pytest.mark.parametrize(
    "name, head",
    [("vit", "ViTForImageClassification"), ("deit", "DeiTForImageClassificationWithTeacher")],
)
def test_a_saved_model_is_converted_with_its_image_processor_and_back(name, head, tmp_path):
    native = native_model(name, head, **LABELS)
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
    ours = from_native(native_model("vit", "ViTForImageClassification", **LABELS))
    ours.save_pretrained(tmp_path / "ours")
    processor = anyformer.AnyformerImageProcessor(size={"height": 24, "width": 24}, image_mean=[0.2])
    processor.save_pretrained(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "native")
    theirs = AutoImageProcessor.from_pretrained(tmp_path / "native")
    assert type(theirs).__module__.startswith("transformers.") and not list((tmp_path / "native").glob("*.py"))
    image = Image.radial_gradient("L").resize((40, 30))
    assert (theirs(image)["pixel_values"][0] == processor(image)["pixel_values"][0]).all()

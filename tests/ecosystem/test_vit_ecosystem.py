"""Vision transformers in other hands: image processors, pipelines with and without anyformer, PEFT, Trainer."""

import json

import numpy as np
import pytest
import torch
from local_hub import run_without_anyformer
from native_models import randomise
from PIL import Image
from transformers import ViTImageProcessorPil, pipeline
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from anyformer import (
    AnyformerImageProcessor,
    AnyformerViTForImageClassification,
)

LABELS = {"id2label": {0: "shoe", 1: "bag", 2: "shirt"}, "label2id": {"shoe": 0, "bag": 1, "shirt": 2}}


@pytest.fixture
def processor():
    return AnyformerImageProcessor(size={"height": 12, "width": 16}, image_mean=[0.2, 0.3, 0.4], image_std=[0.5] * 3)


def pictures() -> list[Image.Image]:
    """Of several sizes and modes: colour, grey, palette, transparent."""
    grey = Image.radial_gradient("L").resize((40, 30))
    colour = Image.merge("RGB", (grey, grey.rotate(90), Image.linear_gradient("L").resize((40, 30))))
    see_through = colour.resize((9, 25)).convert("RGBA")
    see_through.putalpha(60)
    return [colour, grey, colour.quantize(8), see_through]


# ------------------------------------------------------------------------------------------------ the image processor


def test_the_image_processor_does_what_transformers_own_does(processor):
    theirs = ViTImageProcessorPil(
        size=processor.size, resample=processor.resample, image_mean=[0.2, 0.3, 0.4], do_convert_rgb=True
    )
    for image in pictures():
        ours = processor(image.convert("RGB"), return_tensors="pt")["pixel_values"]
        assert ours.shape == (1, 3, 12, 16) and ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs(image.convert("RGB"), return_tensors="pt")["pixel_values"])
        on_white = torch.equal(processor(image, return_tensors="pt")["pixel_values"], ours)
        assert on_white is not image.has_transparency_data  # which Pillow's convert drops


def test_an_image_of_16_bits_looks_like_that_of_8_and_one_of_fractions_is_refused(processor):
    grey = pictures()[1]
    fine = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    assert fine.mode == "I;16"
    one, other = (processor(image, return_tensors="pt")["pixel_values"] for image in (grey, fine))
    assert torch.equal(one, other)
    with pytest.raises(ValueError, match="an image of mode F; 8 or 16 bits per channel"):
        processor(grey.convert("F"))


def test_images_become_grey_or_coloured_as_the_model_needs_them(processor):
    image = pictures()[0]
    grey = AnyformerImageProcessor(size={"height": 12, "width": 16}, num_channels=1)
    expected = grey(image.convert("L"), return_tensors="pt")["pixel_values"]
    assert expected.shape == (1, 1, 12, 16) and -1 <= expected.min() < expected.max() <= 1
    array = torch.tensor(list(image.getdata()), dtype=torch.uint8).view(30, 40, 3)
    for layout in (array.numpy(), array.permute(2, 0, 1).numpy(), array.permute(2, 0, 1)):
        torch.testing.assert_close(grey(layout, return_tensors="pt")["pixel_values"], expected, atol=0.03, rtol=0)
        colour = processor(layout, return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(colour, processor(image, return_tensors="pt")["pixel_values"])
    of_grey = AnyformerImageProcessor(size={"height": 12, "width": 16})(image.convert("L"), return_tensors="pt")
    for channel in of_grey["pixel_values"][0]:
        torch.testing.assert_close(channel, expected[0, 0])


def test_a_saved_processor_is_found_by_the_auto_class_and_says_where_its_code_is(processor, tmp_path):
    processor.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert saved["auto_map"] == {"AutoImageProcessor": "image_processing.AnyformerImageProcessor"}
    assert [file.name for file in tmp_path.glob("*.py")] == ["image_processing.py"]
    again = AutoImageProcessor.from_pretrained(tmp_path, trust_remote_code=True)
    image = pictures()[0]
    assert (again(image)["pixel_values"][0] == processor(image)["pixel_values"][0]).all()
    assert again.num_channels == 3 and dict(again.size) == {"height": 12, "width": 16}


# ------------------------------------------------------------------------------------------------ pipelines

ELSEWHERE = """
import torch
import transformers
from PIL import Image
from transformers.models.auto.image_processing_auto import AutoImageProcessor

folder, threads = args
torch.set_num_threads(threads)
classify = transformers.pipeline("image-classification", model=folder + "/model", trust_remote_code=True)
processor = AutoImageProcessor.from_pretrained(folder + "/model", trust_remote_code=True)
report([classify(Image.open(folder + "/image.png")), type(processor).__module__.split(".")[0]])
"""


@pytest.mark.slow
def test_a_folder_classifies_images_here_and_where_anyformer_is_not_with_the_very_same_numbers(
    tiny_vit_config, processor, tmp_path
):
    config = tiny_vit_config(position_encoding="rotary", num_register_tokens=2, num_labels=3, **LABELS)
    image = pictures()[0]
    image.save(tmp_path / "image.png")
    randomise(AnyformerViTForImageClassification(config)).save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    code = {file.stem for file in (tmp_path / "model").glob("*.py")}
    assert {"vit", "image_processing"} <= code and not {"encoder", "decoder", "seq2seq", "registration"} & code
    # Without trust transformers 5.23 asks for it all the same: it looks for a video processor in the folder, too.
    here = pipeline("image-classification", model=str(tmp_path / "model"), trust_remote_code=True)
    assert type(here.model) is AnyformerViTForImageClassification
    assert type(here.image_processor) is AnyformerImageProcessor
    here = here(image)
    assert {row["label"] for row in here} == {"shoe", "bag", "shirt"}
    assert sum(row["score"] for row in here) == pytest.approx(1)
    (tmp_path / "elsewhere").mkdir()
    arguments = (tmp_path, torch.get_num_threads())
    found = run_without_anyformer(ELSEWHERE, *arguments, cwd=tmp_path / "elsewhere")
    assert found == [here, "transformers_modules"]

"""Images from files to batches: what is decoded, refused, cached, and changed at random."""

import importlib.util
import io
import random
from itertools import product

import numpy as np
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest
import torch
import transformers
import yaml
from anyformer.modeling.image_processing import AnyformerImageProcessor
from anyformer.pipelines.data.batch_keys import EPOCH, ROW_IDS, row_generators
from anyformer.pipelines.data.opening import open_examples
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.images.augmentation import ImageCollator, shift_and_flip
from anyformer.pipelines.images.image_store import decode
from anyformer.pipelines.objectives.image_classification import ImageClassificationSettings
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.schema import DataSection
from family_variants import a_share
from hypothesis import given
from hypothesis import strategies as st
from image_data import NAMES, SIZE, encoded, image_recipe, picture, picture_folder, pictures
from transformers import ViTImageProcessorPil
from transformers.models.auto.image_processing_auto import AutoImageProcessor

COLUMNS = {"image_field": "image", "label_field": "label"}


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A function: sections of a recipe -> (recipe, its data, rows of each split)."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))

    def prepare(channels=1, **sections):
        recipe = load_recipe(str(image_recipe(tmp_path, channels=channels, **sections)))
        data = prepare_data(recipe)
        return recipe, data, data.rows

    return prepare


# ----------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "P", "CMYK"])
def test_every_mode_of_eight_bits_becomes_colour(mode):
    image = picture(True, random.Random(0), 3).convert(mode)
    stream = encoded(image, "TIFF" if mode == "CMYK" else "PNG")
    found = np.asarray(decode({"bytes": stream, "path": None}, 3, "task.image_field", "row 0"))
    assert np.array_equal(found, np.asarray(PIL.Image.open(io.BytesIO(stream)).convert("RGB")))


def test_an_image_is_bytes_or_a_path_or_an_object(tmp_path):
    image = picture(True, random.Random(0))
    image.save(tmp_path / "x.png")
    for value in (encoded(image), str(tmp_path / "x.png"), {"bytes": None, "path": str(tmp_path / "x.png")}, image):
        assert np.array_equal(np.asarray(decode(value, 1, "f", "p")), np.asarray(image))


@pytest.mark.parametrize(
    "value, words",
    [
        (b"no image", "task.image_field: row 3 holds no image that Pillow can read"),
        (None, "holds null, not an image"),
        (7, "holds int, not an image"),
        ("/nowhere/x.png", "cannot be read (No such file or directory)"),
        (encoded(PIL.Image.fromarray(np.zeros((4, 4), dtype=np.uint16))), "mode I;16; 8 bits per channel"),
        (encoded(picture(True, random.Random(0), 3)), "is a colour image, but model.num_channels=1; set it to 3"),
        (encoded(picture(True, random.Random(0)))[:60], "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(value, words):
    with pytest.raises(UserError) as error:
        decode(value, 1, "task.image_field", "row 3")
    assert words in str(error.value)


# ------------------------------------------------------------------------------------------------ sources


def test_folders_tables_and_data_sets_of_the_same_images_are_equal(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "table").mkdir()
    pictures(tmp_path / "table" / "train.parquet", 24)
    pattern = picture_folder(tmp_path / "folder", 24)
    found = {}
    for name, where in {
        "table": {"files": str(tmp_path / "table" / "train.parquet")},
        "folder": {"files": str(pattern)},
        "folder of class folders": {"files": str(tmp_path / "folder")},
        "data set": {"dataset": str(tmp_path / "table")},
    }.items():
        examples = open_examples(DataSection(**where, validation_fraction=0), COLUMNS)["train"]
        assert examples.source.class_names("label") == NAMES
        rows = [(row["label"], decode(row["image"], 1, "f", place)) for place, row in examples]
        found[name] = sorted((NAMES.index(y) if y in NAMES else y, np.asarray(x).tobytes()) for y, x in rows)
    assert (
        found["table"] == found["folder"] == found["folder of class folders"] == found["data set"]
        and len(found["table"]) == 24
    )


def test_json_lines_name_images_beside_them(tmp_path):
    picture_folder(tmp_path / "pictures", 4)
    lines = [f'{{"image": "pictures/left/{i:03}.png", "label": "left"}}' for i in (0, 2)]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    examples = open_examples(DataSection(files=str(tmp_path / "all.jsonl"), validation_fraction=0), COLUMNS)["train"]
    assert all(decode(row["image"], 1, "f", place).size == (SIZE, SIZE) for place, row in examples)


@pytest.mark.parametrize("base", ["pictures", "~/pictures"])
def test_images_that_change_behind_a_table_are_read_anew(prepared, tmp_path, monkeypatch, base):
    monkeypatch.setenv("HOME", str(tmp_path))
    picture_folder(tmp_path / "pictures", 6)
    lines = "".join(f"{base}/{NAMES[i % 2]}/{i:03}.png,{NAMES[i % 2]}\n" for i in range(6))
    (tmp_path / "all.csv").write_text("image,label\n" + lines)
    data = {"files": str(tmp_path / "all.csv"), "validation_fraction": 0, "test_files": None}
    recipe = load_recipe(str(image_recipe(tmp_path, data=data, evaluation={"every_steps": None})))
    first = prepare_data(recipe)
    picture_folder(tmp_path / "pictures", 6, seed=1)
    second = prepare_data(recipe)
    assert not np.array_equal(*(data.rows["train"].store.pixels for data in (first, second)))
    assert first.facts["fingerprint"] != second.facts["fingerprint"]


@pytest.mark.parametrize("learned", ["task.name=image_classification", "objective.name=masked_image"])
def test_without_pillow_an_image_recipe_names_the_extra(tmp_path, monkeypatch, learned):
    section, name = learned.split(".name=")
    sections = {"task": None, "objective": None} | {section: {"name": name}}
    recipe, find = load_recipe(str(image_recipe(tmp_path, **sections))), importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "PIL" else find(name, *rest))
    with pytest.raises(UserError, match=rf"^{learned} needs the package pillow; install anyformer\[vision\]$"):
        prepare_data(recipe)


def test_images_among_other_files_are_refused(tmp_path):
    picture_folder(tmp_path / "pictures", 2)
    for name in ("Thumbs.db", "left/Thumbs.db", "left/desktop.ini"):  # of Windows
        (tmp_path / "pictures" / name).write_text("x")
    whole = DataSection(files=str(tmp_path / "pictures"), validation_fraction=0)
    assert len(list(open_examples(whole, COLUMNS)["train"])) == 2
    (tmp_path / "pictures" / "left" / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=r"names images and other files .*notes.txt.*a pattern such as \*.png"):
        open_examples(DataSection(files=str(tmp_path / "pictures" / "*" / "*")), COLUMNS)


# -------------------------------------------------------------------------------------------------- store


def test_images_are_decoded_once_and_equal_what_the_saved_processor_sees(prepared, tmp_path, monkeypatch):
    recipe, task, rows = prepared()
    task.processor.save_pretrained(tmp_path / "saved")
    monkeypatch.setattr("anyformer.pipelines.images.processors.decode", None)  # decoding again would fail
    again = prepare_data(recipe).rows
    assert all(torch.equal(again["test"][i]["pixel_values"], rows["test"][i]["pixel_values"]) for i in range(11))

    processor = AutoImageProcessor.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    table = pyarrow.parquet.read_table(tmp_path / "test.parquet").to_pylist()
    images = [PIL.Image.open(io.BytesIO(row["image"]["bytes"])) for row in table]
    wanted = processor(images=images, return_tensors="pt")["pixel_values"]
    found = task.collator_of(False)([rows["test"][i] for i in range(11)])
    torch.testing.assert_close(found["pixel_values"], wanted, atol=1e-6, rtol=0)
    assert found["labels"].tolist() == [row["label"] for row in table]


def test_generators_of_rows_are_numpys_for_seed_epoch_and_number():
    for number in (0, 7, 2**32 - 1, 2**32, 2**40):
        (found,) = row_generators([{ROW_IDS: number, EPOCH: 3}], 42)
        assert found.bit_generator.state == np.random.default_rng((42, 3, number)).bit_generator.state


def test_training_images_have_mean_zero_and_deviation_one(prepared):
    for channels in (1, 3):
        _, task, rows = prepared(channels, task={"name": "image_classification"})
        plain = [{k: v for k, v in rows["train"][i].items() if k != "augment"} for i in range(len(rows["train"]))]
        pixels = task.collator_of(False)(plain)["pixel_values"]
        assert pixels.shape[1] == channels
        torch.testing.assert_close(pixels.mean(dim=(0, 2, 3)), torch.zeros(channels), atol=1e-3, rtol=0)
        torch.testing.assert_close(pixels.std(dim=(0, 2, 3)), torch.ones(channels), atol=1e-3, rtol=0)
        for file in rows["train"].store.folder.parents[2].glob("*.parquet"):
            file.unlink()


def test_images_of_another_aspect_ratio_are_said_and_cut_or_padded_by_the_saved_processor_where_asked(tmp_path):
    from anyformer.pipelines.images.processors import load_image_processor

    import anyformer

    pattern = picture_folder(tmp_path / "pictures")
    wide = np.zeros((8, 24), dtype=np.uint8)
    wide[:, 8:16] = 200  # the middle, which alone is left of it
    PIL.Image.fromarray(wide).save(tmp_path / "pictures" / "left" / "zz.png")
    data = {"files": str(pattern), "test_files": None, "validation_fraction": 0, "cache_dir": str(tmp_path)}
    recipe = str(image_recipe(tmp_path, data=data, evaluation={"every_steps": None}))
    ways_out = "task.image_fit=crop cuts them instead, pad puts black around them"
    said = f"1 image squeezed to 8 x 8, of another aspect ratio; {ways_out}"
    assert prepare_data(load_recipe(recipe)).rows["train"].notes == [said]
    cut = prepare_data(load_recipe(recipe, ["task.image_fit=crop"]))
    assert cut.rows["train"].notes == []
    anyformer.register()
    cut.processor.save_pretrained(tmp_path / "saved")
    again = load_image_processor(str(tmp_path / "saved"), trust_remote_code=True)
    pixels = again(PIL.Image.fromarray(wide), return_tensors="np", do_rescale=False, do_normalize=False)["pixel_values"]
    assert pixels.shape[-2:] == (8, 8) and np.asarray(pixels).min() > 190
    stored = cut.rows["train"].store.images(range(len(cut.rows["train"])))
    assert any((image > 190).all() for image in stored)
    padded = prepare_data(load_recipe(recipe, ["task.image_fit=pad"])).rows["train"].store
    rows_of_light = [int((image > 100).any(-1).sum()) for image in padded.images(range(len(padded)))]
    assert 2 in rows_of_light or 3 in rows_of_light  # a third of 8 rows; above and below them is black


# -------------------------------------------------------------------------------------------- augmentation


class Store:
    """Training images for mixing: image i is of the one value i."""

    def __init__(self, number=6):
        self.labels = np.arange(number) % 3

    def __len__(self):
        return len(self.labels)

    def images(self, indices):
        return torch.tensor(indices, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()


def collator(seed=3, **settings):
    settings = ImageClassificationSettings(**settings)
    return ImageCollator(settings, store=Store(), num_classes=3, mean=[0.0], std=[1.0], seed=seed)


def rows_of(numbers, epoch=0):
    store, draw = Store(), torch.Generator().manual_seed(0)
    images = torch.randint(256, (6, 1, 8, 8), generator=draw, dtype=torch.uint8)
    return [
        {"pixel_values": images[i], "labels": torch.tensor(int(store.labels[i])), "augment": True}
        | {"row_ids": i, "epoch": epoch}
        for i in numbers
    ]


ALL = {"crop_padding": 2, "horizontal_flip": 0.5, "mixup_alpha": 0.4, "cutmix_alpha": 1.0}


def test_an_augmented_row_depends_on_seed_epoch_and_number_alone():
    collate = collator(**ALL)
    together, alone = collate(rows_of([4, 1, 2])), collate(rows_of([1]))
    for name in ("pixel_values", "labels"):
        assert torch.equal(together[name][1], alone[name][0])
    assert not torch.equal(collate(rows_of([1], epoch=1))["pixel_values"], alone["pixel_values"])
    assert not torch.equal(collator(seed=4, **ALL)(rows_of([1]))["pixel_values"], alone["pixel_values"])


def test_rows_of_other_splits_are_never_changed():
    rows = [{k: v for k, v in row.items() if k != "augment"} for row in rows_of([0, 1, 2])]
    batch = collator(**ALL)(rows)
    assert torch.equal(batch["pixel_values"], torch.stack([row["pixel_values"] for row in rows]).float())
    assert batch["labels"].tolist() == [0, 1, 2]


@given(st.integers(0, 3), st.data())
def test_a_shifted_image_is_a_window_of_the_padded_one(padding, data):
    shift = data.draw(st.tuples(st.integers(0, 2 * padding), st.integers(0, 2 * padding)))
    flip = data.draw(st.booleans())
    image = torch.arange(1, 36, dtype=torch.uint8).view(1, 1, 5, 7)
    padded = torch.nn.functional.pad(image, (padding,) * 4)
    wanted = padded[..., shift[0] : shift[0] + 5, shift[1] : shift[1] + 7]
    found = shift_and_flip(image, np.array([shift]), np.array([flip]), padding)
    assert torch.equal(found, wanted.flip(-1) if flip else wanted)


def test_mixed_pixels_and_labels_have_the_same_shares():
    """With images of one value each, a pixel's value says where it comes from."""
    for settings in ({"mixup_alpha": 0.5}, {"cutmix_alpha": 1.0}):
        rows = rows_of([5] * 40)
        for number, row in enumerate(rows):
            row["row_ids"] = number
            row["pixel_values"] = torch.full((1, 8, 8), 100, dtype=torch.uint8)
            row["labels"] = torch.tensor(2)
        batch = collator(**settings)(rows)
        torch.testing.assert_close(batch["labels"].sum(dim=1), torch.ones(40))
        share = batch["labels"][:, 2]
        other = batch["labels"][:, :2].sum(dim=1) > 1e-6  # partners of another class tell the shares
        kept = (batch["pixel_values"] - 5) / 95  # partners' values are 0 to 5
        assert other.sum() > 10 and (kept.mean(dim=(1, 2, 3)) - share)[other].abs().max() < 0.06
        whole = ((kept - kept.round()).abs() < 0.06).all()
        assert whole == ("cutmix_alpha" in settings)


# ------------------------------------------------------------------------------------------------- recipes


@pytest.mark.parametrize(
    "sections, words",
    [
        ({"model": {"family": "encoder"}}, "model.image_size"),
        ({"tokenizer": {"vocab_size": 300}}, "tokenizer.vocab_size has no effect with task.name=image_classification"),
        ({"data": {"source": "stdlib", "files": None}}, "data.source does not go with a task"),
        ({"evaluation": {"metrics": ["bleu"]}}, "'bleu' compares texts"),
        (
            {"task": None, "objective": {"name": "masked_image"}, "evaluation": {"metrics": ["accuracy"]}},
            "only the loss",
        ),
        (
            {"task": None, "objective": {"name": "masked_image"}, "training": {"label_smoothing_factor": 0.1}},
            "training.label_smoothing_factor has no effect on pixels",
        ),
    ],
)
def test_what_an_image_recipe_cannot_say_is_refused_before_any_image_is_opened(tmp_path, sections, words):
    with pytest.raises(UserError) as error:
        load_recipe(str(image_recipe(tmp_path, **sections)))
    assert words in str(error.value)


# ------------------------------------------------------------------------------------------- transparency


def sign(kind: str) -> PIL.Image.Image:
    """A black sign, the upper left quarter, on a transparent ground whose hidden colour is black, too."""
    opacity = np.zeros((SIZE, SIZE), dtype=np.uint8)
    opacity[: SIZE // 2, : SIZE // 2] = 255
    black = PIL.Image.new("RGB", (SIZE, SIZE))
    black.putalpha(PIL.Image.fromarray(opacity))
    if kind == "palette":
        drawn = PIL.Image.fromarray(opacity // 255, "P")
        drawn.putpalette([0, 0, 0] * 2)
        drawn.info["transparency"] = 0
        return drawn
    if kind in ("grey key", "colour key"):  # PNG's tRNS: one colour that is transparent
        drawn = PIL.Image.fromarray(np.where(opacity == 255, 0, 7).astype(np.uint8))
        drawn = drawn if kind == "grey key" else drawn.convert("RGB")
        drawn.info["transparency"] = 7 if kind == "grey key" else (7, 7, 7)
        return drawn
    if kind == "turned":
        black = PIL.Image.composite(
            PIL.Image.new("RGB", (SIZE, SIZE)), PIL.Image.new("RGB", (SIZE,) * 2, "white"), black
        )
        black.getexif()[0x0112] = 6
        return black
    return black.convert(kind)


KINDS = ["RGBA", "LA", "palette", "grey key", "colour key"]


@pytest.mark.parametrize("checkpoint, kind", a_share(product([False, True], [*KINDS, "turned"]), 5))
def test_transparent_images_are_on_white_in_training_in_prediction_and_in_the_saved_processor(
    tmp_path, monkeypatch, kind, checkpoint
):
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    for name in NAMES:
        (tmp_path / "signs" / name).mkdir(parents=True)
        image = sign(kind)
        image.save(tmp_path / "signs" / name / "a.png", exif=image.getexif())
    data = {"files": str(tmp_path / "signs"), "validation_fraction": 0, "test_files": None}
    sections = {"data": data, "evaluation": {"every_steps": None}}
    if checkpoint:
        config = transformers.ViTConfig(image_size=SIZE, patch_size=4, hidden_size=8, num_attention_heads=2)
        config.save_pretrained(tmp_path / "vit")
        ViTImageProcessorPil(size={"height": SIZE, "width": SIZE}).save_pretrained(tmp_path / "vit")
        sections["model"] = {"name_or_path": str(tmp_path / "vit")}
    recipe = image_recipe(tmp_path, channels=3, **sections)
    if checkpoint:
        document = yaml.safe_load(recipe.read_text())
        recipe.write_text(yaml.safe_dump(document | {"model": sections["model"]}))
    data = prepare_data(load_recipe(str(recipe)))
    rows, task = data.rows["train"], data
    seen = rows.store.pixels[0]
    corner = seen[:, : SIZE // 2, -SIZE // 2 :] if kind == "turned" else seen[:, : SIZE // 2, : SIZE // 2]
    assert corner.max() == 0 and (seen == 255).sum() == 3 * SIZE * SIZE * 3 // 4
    assert any(note.startswith("2 images with transparency put on white") for note in rows.notes) == (kind != "turned")

    task.processor.save_pretrained(tmp_path / "saved")
    processor = AutoImageProcessor.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    file = tmp_path / "signs" / "left" / "a.png"
    trained = task.collator_of(False)([{k: v for k, v in rows[0].items() if k != "augment"}])["pixel_values"]
    asked = task.answers().asked({"image": str(file)}, "row 1")
    shown = asked if checkpoint and kind == "turned" else PIL.Image.open(file)  # transformers' own leaves EXIF alone
    for image in (asked, shown):
        found = processor(images=image, return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(found, trained, atol=1e-6, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_with_opacity_are_on_white_as_images_are(channels):
    processor = AnyformerImageProcessor(size={"height": SIZE, "width": SIZE}, num_channels=channels)
    draw = np.random.default_rng(0)
    array = draw.integers(0, 256, (SIZE, SIZE, 4), dtype=np.uint8)
    image = PIL.Image.fromarray(array)
    of_image, of_array = (processor(images=x, return_tensors="np")["pixel_values"] for x in (image, array))
    np.testing.assert_allclose(of_array, of_image, atol=2.5 / 127.5)  # two roundings to whole bytes


def test_opaque_images_with_an_alpha_channel_are_not_counted(prepared, tmp_path):
    opaque = picture(True, random.Random(0), 3).convert("RGBA")
    assert "was_transparent" not in decode(opaque, 3, "f", "p").info

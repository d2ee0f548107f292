"""Images as rows of colours, and hidden patches: clusters, rows, runs, completions, probes."""

import io
import json
from dataclasses import replace

import numpy as np
import PIL.Image
import pyarrow.parquet
import pytest
import torch
import yaml
from anyformer.pipelines.data.file_formats import Parquet
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.images.color_clusters import fit_clusters, quantise, to_bytes, to_unit
from anyformer.pipelines.images.processors import image_gpt_processor
from anyformer.pipelines.objectives.masked_image import MaskedImageCollator
from anyformer.pipelines.objectives.pixels import Palette, complete, completion_grid
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.plugins import objective_of
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.recipes.schema import ModelSection
from image_data import SIZE, image_recipe, pictures
from run_folders import lines_of
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from anyformer import AnyformerDecoderConfig, AnyformerDecoderForCausalLM

MODEL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "position_encoding": "learned"}


def pixels_recipe(folder, channels=1, training=None, evaluation=None, **objective):
    path = image_recipe(
        folder,
        channels=channels,
        task=None,
        objective={"name": "pixels", "image_size": SIZE, "clusters": 8, "label_field": "label"} | objective,
        training={"max_steps": 20, "save_steps": 100} | (training or {}),
        evaluation={"every_steps": 10, "metrics": ["bits_per_pixel", "linear_probe"]} | (evaluation or {}),
    )
    recipe = yaml.safe_load(path.read_text())
    recipe["model"] = {"family": "decoder", **MODEL}
    path.write_text(yaml.safe_dump(recipe))
    return path


@pytest.fixture
def prepared(tmp_path):
    def prepare(**kwargs):
        data = prepare_data(load_recipe(str(pixels_recipe(tmp_path, **kwargs))))
        return data, data.rows

    return prepare


# ------------------------------------------------------------------------------------------------- colours


@pytest.mark.parametrize("channels", [1, 3])
def test_codes_are_those_of_the_saved_processor(prepared, tmp_path, channels):
    data, rows = prepared(channels=channels)
    palette = Palette(data.processor)
    assert palette.channels == channels and palette.clusters.shape == (8, 3)
    assert (np.diff(palette.clusters.sum(axis=1)) >= -1e-3).all()  # from dark to bright
    data.processor.save_pretrained(tmp_path / "saved")

    processor = AutoImageProcessor.from_pretrained(tmp_path / "saved")
    table = pyarrow.parquet.read_table(tmp_path / "test.parquet").to_pylist()
    images = [PIL.Image.open(io.BytesIO(row["image"]["bytes"])) for row in table]
    wanted = np.stack([np.asarray(ids) for ids in processor(images=images)["input_ids"]])
    assert np.array_equal(rows["test"].codes, wanted) and rows["test"].labels.tolist() == [r["label"] for r in table]


def test_a_pixel_gets_the_nearest_colour_and_a_colour_itself():
    clusters = np.random.default_rng(0).uniform(-1, 1, (6, 3)).astype(np.float32)
    pixels = np.random.default_rng(1).integers(256, size=(2, 5, 5, 3)).astype(np.uint8)
    distances = ((to_unit(pixels)[..., None, :] - clusters) ** 2).sum(axis=-1)
    assert np.array_equal(quantise(pixels, clusters), distances.argmin(axis=-1))
    assert quantise(to_bytes(clusters), clusters).tolist() == list(range(6))


def test_more_clusters_than_colours_are_refused(prepared, tmp_path):
    _, rows = prepared()
    assert len(np.unique(rows["train"].store.pixels)) < 257
    with pytest.raises(UserError, match=r"objective.clusters=257, but the training images have \d+ different colours"):
        fit_clusters(rows["train"].store, 257, tmp_path / "cache")


def test_a_row_predicts_every_pixel_from_those_before_it(prepared):
    data, rows = prepared()
    palette = Palette(data.processor)
    row = rows["train"][0]
    assert row["input_ids"][0] == len(palette.clusters) and torch.equal(row["input_ids"][1:], row["labels"][:-1])
    assert len(row["labels"]) == SIZE * SIZE and np.array_equal(row["labels"], rows["train"].codes[0])
    config = AnyformerDecoderConfig(**MODEL, **data.learns().config_fields())
    model = AnyformerDecoderForCausalLM(config).eval()
    batch = data.collator_of(False)([row, rows["train"][1]])
    logits = model(batch["input_ids"]).logits
    assert logits.shape[-1] == len(palette.clusters)
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(model(**batch).loss, wanted)
    result = {"nll": 2 * wanted.item(), "predictions": 2}
    bits = data.scores().of_pass(["bits_per_pixel"], result, rows["test"], None)
    assert bits["bits_per_pixel"] == pytest.approx(wanted.item() / np.log(2))


# -------------------------------------------------------------------------------------------------- pictures


def named_pictures(path, names):
    """A table of images and the names of their classes."""
    table = pyarrow.parquet.read_table(pictures(path, len(names), named=False)).replace_schema_metadata()
    pyarrow.parquet.write_table(table.set_column(1, "label", pyarrow.array(names)), path)
    return str(path)


def test_a_class_has_the_same_number_in_every_split(tmp_path, monkeypatch):
    """Also where a split lacks one; and images are not read for labels."""
    recipe = pixels_recipe(tmp_path)
    files = {
        "files": named_pictures(tmp_path / "a.parquet", ["ant", "bee", "cat"] * 4),
        "validation_files": named_pictures(tmp_path / "b.parquet", ["cat", "bee"]),
        "test_files": named_pictures(tmp_path / "c.parquet", ["cat", "dog"]),
    }
    overrides = [f"data.{name}={path}" for name, path in files.items()]
    asked, rows_of = [], Parquet.rows
    monkeypatch.setattr(Parquet, "rows", lambda *given: asked.append(given[3]) or rows_of(*given))
    for times in (1, 2):
        data = prepare_data(load_recipe(str(recipe), [*overrides, "data.validation_fraction=0"]))
        labels = {split: rows.labels.tolist() for split, rows in data.rows.items()}
        assert labels == {"train": [0, 1, 2] * 4, "validation": [2, 1], "test": [2, 3]}
        assert sum(columns == ["label"] for columns in asked) == 3 * (times + 1)  # names once, then numbers
    # In each file once: to be decoded, to see that there is one, and whether the first is a path.
    assert sum("image" in columns for columns in asked) == 3 + 3 + 3


def test_a_mistake_in_labels_is_told_before_colours_are_sought(tmp_path, monkeypatch):
    monkeypatch.setattr("anyformer.pipelines.images.color_clusters.fit_clusters", lambda *_: pytest.fail("too late"))
    recipe, bad = pixels_recipe(tmp_path), named_pictures(tmp_path / "bad.parquet", ["ant", None])
    files = [f"data.files={named_pictures(tmp_path / 'good.parquet', ['ant', 'bee'] * 4)}", f"data.test_files={bad}"]
    with pytest.raises(UserError, match=r"objective.label_field='label': .*bad.parquet, row 1 holds null, which is no"):
        prepare_data(load_recipe(str(recipe), files))


def test_a_completion_keeps_the_upper_half_and_draws_the_rest(prepared):
    data, rows = prepared()
    palette = Palette(data.processor)
    model = AnyformerDecoderForCausalLM(AnyformerDecoderConfig(**MODEL, **data.learns().config_fields())).eval()
    codes = np.asarray(rows["test"].codes[:3])
    found = complete(model, palette, codes, seed=1)
    half = SIZE * SIZE // 2
    assert np.array_equal(found[:, :half], codes[:, :half]) and not np.array_equal(found, codes) and found.max() < 8
    assert np.array_equal(found, complete(model, palette, codes, seed=1))
    assert not np.array_equal(found, complete(model, palette, codes, seed=2))
    grid = completion_grid(palette, codes, found)
    assert grid.dtype == np.uint8 and grid.shape[0] > 3 * SIZE and grid.shape[1] > 3 * SIZE
    assert np.array_equal(grid[: SIZE // 2 * 6, : SIZE * 6], grid[: SIZE // 2 * 6, -SIZE * 6 :])  # seen == original


# ------------------------------------------------------------------------------------------------------ runs


def test_a_model_of_pixels_trains_is_probed_draws_and_is_evaluated(tmp_path, command, capsys):
    recipe = pixels_recipe(tmp_path, training={"max_steps": 60})
    assert command("train", recipe) == 0
    run, printed = tmp_path / "run", capsys.readouterr().out
    facts = json.loads((run / "run.json").read_text())
    metrics = facts["metrics"]
    assert metrics["test_bits_per_pixel"] == pytest.approx(metrics["test_loss"] / np.log(2))
    assert metrics["test_bits_per_pixel"] < 2.8 and metrics["test_linear_probe"] > 0.5  # 3 bits know nothing
    assert "images x 64 pixels" in printed and "8 grey levels" in printed
    assert PIL.Image.open(run / "completions.png").size[0] > 3 * SIZE
    card = (run / "README.md").read_text()
    assert "completions.png" in card and "rows of pixels" in card and "text-generation" not in card
    assert len(json.loads((run / "preprocessor_config.json").read_text())["clusters"]) == 8
    assert command("evaluate", run, recipe) == 0
    result = json.loads((run / "evaluation-recipe.json").read_text())["metrics"]
    assert PIL.Image.open(run / "evaluation-recipe.png").size == PIL.Image.open(run / "completions.png").size
    for name in ("loss", "bits_per_pixel", "linear_probe"):
        assert result[name] == pytest.approx(metrics[f"test_{name}"], abs=1e-5)
    assert command("preview", recipe, "--rows", "1") == 0
    assert "64 pixels" in capsys.readouterr().out


def test_masked_patches_are_learned(tmp_path, command, capsys):
    mim = {"task": None, "objective": {"name": "masked_image"}, "evaluation": {"every_steps": 20}}
    training = {"max_steps": 60, "output_dir": str(tmp_path / "mim")}
    recipe = image_recipe(tmp_path, "mim", training=training, **mim)
    assert command("train", recipe) == 0
    run = tmp_path / "mim"
    losses = [line["validation_loss"] for line in lines_of(run) if "validation_loss" in line]
    assert losses[-1] < losses[0] < 1.2
    assert json.loads((run / "config.json").read_text())["architectures"] == ["AnyformerViTForMaskedImageModeling"]
    assert command("preview", recipe, "--rows", "1") == 0 and "2 of 4 patches hidden" in capsys.readouterr().out


def test_which_patches_are_hidden_depends_on_seed_epoch_and_number_alone():
    def rows(numbers, epoch=0):
        image = torch.zeros(1, 8, 8, dtype=torch.uint8)
        return [{"pixel_values": image, "labels": torch.tensor(0), "row_ids": i, "epoch": epoch} for i in numbers]

    collate = MaskedImageCollator(0.6, 16, mean=[0.0], std=[1.0], seed=1)
    batch = collate(rows([3, 7, 9]))
    masked = batch["bool_masked_pos"]
    assert masked.sum(dim=1).tolist() == [10] * 3 and (batch["labels"] == 0).equal(masked)
    assert torch.equal(collate(rows([7]))["bool_masked_pos"][0], masked[1])
    assert not torch.equal(collate(rows([3, 7, 9], epoch=1))["bool_masked_pos"], masked)
    filler = rows([0])[0] | {"labels": torch.tensor(-100)}
    assert not collate([filler])["bool_masked_pos"].any() and (collate([filler])["labels"] == -100).all()


def test_what_pixels_cannot_mean_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"linear_probe needs objective\.label_field"):
        load_recipe(str(pixels_recipe(tmp_path, label_field=None)))
    with pytest.raises(UserError, match=r"model\.max_position_embeddings=9 must be at least 64"):
        load_recipe(str(pixels_recipe(tmp_path)), ["model.max_position_embeddings=9"])


def test_sizes_of_a_checkpoint_stand_and_others_are_refused(tmp_path):
    run = tmp_path / "run"
    processor = image_gpt_processor(8)
    processor.clusters = [[0.0, 0.0, 0.0]] * 4
    processor.save_pretrained(run)
    recipe = load_recipe(str(pixels_recipe(tmp_path)))
    for settings, says in (
        ({"clusters": 16, "image_size": 8}, "objective.clusters=16 has no effect with model.*.*, which brings 4"),
        ({"clusters": 4, "image_size": 16}, "image_size=16 has no effect with .*, which brings 8; set it to 8"),
    ):
        learned = replace(recipe.objective, **settings)
        pixels = objective_of(replace(recipe, model=ModelSection(name_or_path=str(run)), objective=learned))
        with pytest.raises(UserError, match=says):
            pixels.Reads(pixels).prepare({})

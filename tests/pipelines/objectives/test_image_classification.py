"""Whole runs of image classifiers: they learn, answer with names anywhere, and go on bit-identically when killed."""

import json
import random
import re

import pytest
import torch
import transformers
from anyformer.pipelines.training.losses.model_loss import loss_of_logits
from image_data import image_recipe, picture
from run_folders import facts_of
from safetensors.torch import load_file

FULL = {"crop_padding": 1, "horizontal_flip": 0.0, "mixup_alpha": 0.2, "cutmix_alpha": 1.0}


def test_a_classifier_learns_and_is_evaluated(tmp_path, command, capsys, monkeypatch):
    recipe = image_recipe(
        tmp_path,
        training={"max_steps": 60, "label_smoothing_factor": 0.1},
        evaluation={"every_steps": 20, "best_metric": "accuracy"},
    )
    assert command("train", recipe) == 0
    run, printed = tmp_path / "run", capsys.readouterr().out
    metrics = facts_of(run)["metrics"]
    assert metrics["test_accuracy"] >= 10 / 11 and metrics["validation_accuracy"] > 0.9
    assert "8 x 8 pixels, grey; left" in printed and "patches of 4" in printed and "anyformer predict" in printed
    card = (run / "README.md").read_text()
    assert "image classifier" in card and "left, right" in card and 'pipeline("image-classification"' in card

    assert command("evaluate", run, recipe) == 0
    result = json.loads((run / "evaluation-recipe.json").read_text())["metrics"]
    assert result["accuracy"] == metrics["test_accuracy"] and result["loss"] == pytest.approx(metrics["test_loss"])
    capsys.readouterr()

    # The printed command and the card's lines answer without asking whether the folder's code may run.
    asked = []
    monkeypatch.setattr("builtins.input", asked.append)
    picture(False, random.Random(5)).save(tmp_path / "your_image.png")
    monkeypatch.chdir(tmp_path)
    assert command("predict", run, tmp_path / "your_image.png") == 0
    assert '"prediction": "right"' in capsys.readouterr().out
    of_card = re.findall(r"```python\n(.*?)```", card, re.S)[-1].replace("path/to/run", str(run))
    exec(of_card)
    assert capsys.readouterr().out.count("'label': 'right'") == 1 and not asked


def test_the_loss_of_shares_is_that_of_classes_where_one_has_all():
    logits, labels = torch.randn(6, 3), torch.tensor([0, 2, 1, 1, 0, 2])
    shares = torch.nn.functional.one_hot(labels, 3).float()
    for count in (None, 10):
        found = loss_of_logits((logits,), shares, count and 3 * count, shift=False, label_smoothing=0.1)
        torch.testing.assert_close(found, loss_of_logits((logits,), labels, count, shift=False, label_smoothing=0.1))


@pytest.mark.parametrize("native", ["vit", "resnet"])
def test_a_native_model_is_fine_tuned_with_its_own_processor(native, tmp_path, command, capsys):
    """Convolutions have no image_size, no layers and no width in their config."""
    heads = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    stages = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"}
    sizes = {"vit": heads | {"image_size": 12, "patch_size": 4}, "resnet": stages}[native]
    config = transformers.AutoConfig.for_model(native, num_channels=1, **sizes)
    transformers.AutoModelForImageClassification.from_config(config).save_pretrained(tmp_path / "native")
    kind = getattr(transformers, "ViTImageProcessorPil", None) or transformers.ViTImageProcessor
    processor = kind(size={"height": 12, "width": 12}, image_mean=[0.4], image_std=[0.2])
    processor.save_pretrained(tmp_path / "native")
    recipe = image_recipe(tmp_path, task=FULL, training={"max_steps": 2})
    start = f"model={{name_or_path: {tmp_path / 'native'}}}"
    assert command("train", recipe, start) == 0
    saved = json.loads((tmp_path / "run" / "preprocessor_config.json").read_text())
    assert saved["image_mean"] == [0.4] and saved["size"] == {"height": 12, "width": 12}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["id2label"] == {"0": "left", "1": "right"} and config["model_type"] == native
    assert ("mfu" in (tmp_path / "run" / "metrics.jsonl").read_text()) == (native == "vit")
    assert command("train", recipe, start, "task.image_fit=crop", "training.output_dir=x") == 2
    assert "cannot be set with model.name_or_path" in capsys.readouterr().err


def test_an_encoder_of_masked_patches_and_one_of_other_classes_get_a_new_head(tmp_path, command, capsys):
    """Everything but the head is taken over, the image processor with its mean and deviation, too."""
    hidden = {"name": "masked_image", "mask_ratio": 0.5}
    few = {"training": {"max_steps": 2}, "evaluation": {"every_steps": None}}
    masked = image_recipe(tmp_path, "masked", task=None, objective=hidden, **few)
    patches, clothes, sides = (tmp_path / name for name in ("patches", "clothes", "sides"))
    assert command("train", masked, f"training.output_dir={patches}") == 0
    recipe = image_recipe(tmp_path, training={"max_steps": 1, "learning_rate": 1e-12})
    start, names = f"model.name_or_path={patches}", "task.label_names=[left, right, middle]"
    assert command("train", recipe, start, "model.pooler_type=mean") == 2
    refused = f"model.pooler_type='mean': {patches} was trained with 'cls', which decides whether its weights hold"
    assert refused in " ".join(capsys.readouterr().err.split())
    assert command("train", recipe, start, names, f"training.output_dir={clothes}") == 0
    assert "new weights, not taken from" in capsys.readouterr().out
    assert command("train", recipe, f"model.name_or_path={clothes}", f"training.output_dir={sides}") == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "new weights, not taken from" in line]
    assert told == [f"new weights, not taken from {clothes}: score.bias, score.weight"]
    weights = [load_file(run / "model.safetensors") for run in (patches, clothes, sides)]
    encoder = [name for name in weights[0] if name in weights[1] and "score" not in name]
    assert len(encoder) > 10
    for name in encoder:
        for later in weights[1:]:
            torch.testing.assert_close(later[name], weights[0][name], rtol=0, atol=1e-9)
    assert [len(w["score.weight"]) for w in weights[1:]] == [3, 2]
    processors = [json.loads((run / "preprocessor_config.json").read_text()) for run in (patches, sides)]
    assert processors[0]["image_mean"] == processors[1]["image_mean"] is not None
    assert json.loads((sides / "config.json").read_text())["id2label"] == {"0": "left", "1": "right"}

"""An adapter that is not whole, or not of this base, is refused in one sentence by all that loads it."""

import json
import shutil

import pytest
import torch
from anyformer.pipelines.adapters import load_merged, load_model, weights_identity
from anyformer.pipelines.errors import UserError
from family_variants import a_share
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

peft = pytest.importorskip("peft")
WEIGHTS = "adapter_model.safetensors"
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 40,
}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
IDS = torch.arange(1, 9)[None]
TOLERANCE = 1e-4  # fp32: merged weights add up in another order


@pytest.fixture
def adapter(tmp_path):
    """A function: make an adapter as PEFT saves it, with random weights -> (its folder, logits of PEFT's own model)."""

    def make(rows=None, **settings):
        LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "base")
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        if rows:
            base.resize_token_embeddings(rows, mean_resizing=False)
        settings = {"target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"} | settings
        model = peft.get_peft_model(base, peft.LoraConfig(**settings)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.03 * torch.randn_like(parameter) * parameter.requires_grad)
        model.save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter", model(IDS).logits.detach()

    return make


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_dora": True},
        {"modules_to_save": ["lm_head"]},
        {"rows": 47},
        {"rows": 47, "modules_to_save": ["embed_tokens", "lm_head"]},
    ],
    ids=["plain", "dora", "head", "rows", "rows and tables"],
)
def test_what_peft_saves_is_loaded_and_merged_as_peft_computes_it(adapter, settings, command, tmp_path):
    folder, expected = adapter(**settings)
    for model in (load_model(AutoModelForCausalLM, folder), load_merged(AutoModelForCausalLM, folder)[0].eval()):
        torch.testing.assert_close(model(IDS).logits, expected, atol=TOLERANCE, rtol=0)
    assert command("merge", folder, tmp_path / "merged") == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(merged(IDS).logits, expected, atol=TOLERANCE, rtol=0)


def changed(weights, fault):
    name = next(name for name in weights if "lora_B" in name)
    if fault == "lacking":
        return {key: value for key, value in weights.items() if key != name}
    if fault == "foreign":
        return weights | {name.replace("layers.0", "layers.7"): weights[name].clone()}
    if fault == "shape":
        return weights | {name: weights[name][:-1].contiguous()}
    return weights | {name: weights[name].index_fill(0, torch.tensor([3]), float(fault))}


@pytest.mark.parametrize("fault", a_share(["lacking", "foreign", "shape", "nan", "inf", "half", "base"], 3))
def test_a_faulty_adapter_is_one_sentence_everywhere(adapter, fault, command, capsys, tmp_path):
    folder, _ = adapter()
    if fault == "half":
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:3000])
    elif fault == "base":
        (folder / "run.json").write_text(json.dumps({"data": {"base_weights": ["0" * 32]}}))
    else:
        save_file(changed(load_file(folder / WEIGHTS), fault), folder / WEIGHTS, {"format": "pt"})
    assert command("merge", folder, tmp_path / "merged") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "merged").exists() and not list(tmp_path.glob(".merged*"))
    for load in (load_model, load_merged):
        with pytest.raises(UserError):
            load(AutoModelForCausalLM, folder)


@pytest.mark.parametrize("change", ["edited", "moved", "of the Hub", "weights", "config"])
def test_a_base_is_the_one_of_the_training_by_its_weights_alone(adapter, change, command, capsys, tmp_path):
    folder, _ = adapter()
    base = tmp_path / "base"
    of_training = weights_identity(base, alone=True) if change != "of the Hub" else ["owner/base@0123"]
    (folder / "run.json").write_text(json.dumps({"data": {"base_weights": of_training}}))
    if change == "edited":  # what people write into a model's folder
        for name in ("generation_config.json", "chat_template.jinja", "README.md", "run.json"):
            (base / name).write_text("{}")
    elif change == "moved":
        shutil.copytree(base, tmp_path / "elsewhere")
        shutil.rmtree(base)
        settings = json.loads((folder / "adapter_config.json").read_text())
        settings["base_model_name_or_path"] = str(tmp_path / "elsewhere")
        (folder / "adapter_config.json").write_text(json.dumps(settings))
    elif change == "weights":
        weights = load_file(base / "model.safetensors")
        save_file({name: x + 0.1 for name, x in weights.items()}, base / "model.safetensors", {"format": "pt"})
    elif change == "config":
        settings = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps(settings | {"rms_norm_eps": 0.1}))
    refused = change in ("weights", "config")
    assert command("merge", folder, tmp_path / "merged") == 2 * refused
    assert ("has other weights than when it was trained" in capsys.readouterr().err) == refused


def test_rows_that_peft_did_not_save_are_not_invented(adapter):
    folder, _ = adapter(rows=47, target_modules=["embed_tokens", "q_proj"])
    with pytest.raises(UserError, match="has 47 tokens and no rows of lm_head"):
        load_merged(AutoModelForCausalLM, folder)


def test_nan_in_the_base_is_not_merged(adapter, tmp_path):
    folder, _ = adapter()
    file = tmp_path / "base" / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"model\.norm\.weight holds NaN"):
        load_merged(AutoModelForCausalLM, folder)

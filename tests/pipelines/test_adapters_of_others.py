"""Adapters that PEFT alone has saved: every command computes what PEFT does, or refuses what is not whole or not of
this base."""

import io
import json
import shutil
import sys

import pytest
import torch
from anyformer.pipelines.adapters import load_merged, load_model, weights_identity
from anyformer.pipelines.errors import UserError
from family_variants import a_share
from local_hub import run_without_anyformer
from safetensors.torch import load_file, save_file
from tiny_tokenizers import of_words
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

peft = pytest.importorskip("peft")

SIZES = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": 40}
SIZES |= {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
WORDS = ["<pad>", "<unk>", "the", "a", "cat", "dog", "sat", "ran", "so", "it", *(f"word{n}" for n in range(30))]
IDS = torch.arange(1, 9)[None]
TOLERANCE = 1e-4  # fp32: merged weights add up in another order
ROUNDED = 5e-2  # of the largest logit: a sum is rounded to bf16, whose steps are 2^-8 of a number
WEIGHTS = "adapter_model.safetensors"
TARGETS = {"target_modules": ["q_proj", "down_proj"]}
KINDS = {
    "lora": lambda: peft.LoraConfig(task_type="CAUSAL_LM", **TARGETS),
    "rslora": lambda: peft.LoraConfig(task_type="CAUSAL_LM", use_rslora=True, **TARGETS),
    "dora": lambda: peft.LoraConfig(task_type="CAUSAL_LM", use_dora=True, **TARGETS),
    "head": lambda: peft.LoraConfig(task_type="CAUSAL_LM", modules_to_save=["lm_head"], **TARGETS),
    "rows": lambda: peft.LoraConfig(task_type="CAUSAL_LM", **TARGETS),
    "rows and tables": lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", modules_to_save=["embed_tokens", "lm_head"], **TARGETS
    ),
    "ia3": lambda: peft.IA3Config(task_type="CAUSAL_LM", feedforward_modules=["down_proj"], **TARGETS),
}


@pytest.fixture
def adapter(tmp_path):
    """A function: make an adapter as PEFT saves it, on a base in the folder `base` -> (its folder, PEFT's model)."""

    def make(config=None, auto=AutoModelForCausalLM, rows=None, **how):
        tokenizer = of_words(WORDS, unk="<unk>", pad="<pad>", eos="<pad>")
        if not (tmp_path / "base").exists():
            LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "base")
            tokenizer.save_pretrained(tmp_path / "base")
        base = auto.from_pretrained(tmp_path / "base", **how)
        folder = tmp_path / "adapter"
        if rows:
            base.resize_token_embeddings(rows, mean_resizing=False)
            tokenizer.save_pretrained(folder)
        model = peft.get_peft_model(base, config or KINDS["lora"]()).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(folder)
        return folder, model

    return make


def written(model, tokenizer, prompt: str) -> str:
    inputs = tokenizer(prompt, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=6, do_sample=False, pad_token_id=0)[0]
    return tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_answers_as_peft_computes_it(kind, adapter, command, tmp_path, capsys, monkeypatch):
    folder, model = adapter(KINDS[kind](), rows=47 if "rows" in kind else None)
    logits = model(IDS).logits.detach()
    for loaded in (load_model(AutoModelForCausalLM, folder), load_merged(AutoModelForCausalLM, folder)[0].eval()):
        torch.testing.assert_close(loaded(IDS).logits, logits, atol=TOLERANCE, rtol=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    expected = written(model, tokenizer, "the cat")
    pairs = [{"sentence_good": "a cat sat", "sentence_bad": "sat a cat"}]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    assert command("merge", folder, tmp_path / "merged") == 0
    assert "argmax equal in 100.0%" in capsys.readouterr().out
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(merged(IDS).logits, logits, atol=TOLERANCE, rtol=0)
    scores = []
    for source in (folder, tmp_path / "merged"):
        how = ("--max-new-tokens", "6", "--greedy")
        assert command("generate", source, "the cat", *how) == 0
        assert expected in capsys.readouterr().out
        monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n"))
        assert command("chat", source, *how) == 0
        assert expected.removeprefix("the cat").strip() in capsys.readouterr().out
        assert command("evaluate", source, tmp_path / "pairs.jsonl", "--predictions", tmp_path / "scores.jsonl") == 0
        scores.append([json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()])
    of_adapter, of_merged = ([row["good_score"] for row in each] for each in scores)
    assert of_adapter == pytest.approx(of_merged, abs=1e-3)


@pytest.mark.parametrize("kind", ["prefix", "own bias"])
def test_what_is_no_part_of_a_weight_is_one_sentence(kind, adapter, command, tmp_path, capsys):
    own = peft.LoraConfig(task_type="CAUSAL_LM", lora_bias=True, **TARGETS)
    prefix = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    folder, _ = adapter(own if kind == "own bias" else prefix)
    assert command("merge", folder, tmp_path / "merged") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert ("cannot be added to its base" if kind == "own bias" else "which adds to no weight of its base") in error
    assert command("generate", folder, "the cat", "--max-new-tokens", "2") == (0 if kind == "own bias" else 2)
    assert not (tmp_path / "merged").exists()


def test_a_head_that_peft_put_on_a_base_answers_rows(adapter, command, tmp_path, capsys):
    settings = peft.LoraConfig(task_type="SEQ_CLS", **TARGETS)
    folder, model = adapter(settings, AutoModelForSequenceClassification, num_labels=3)
    texts = ["a cat sat", "the dog", "so it ran word1", "word7 word9"]
    (tmp_path / "rows.csv").write_text("\n".join(["text", *texts]))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    logits = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    scores = [one.softmax(-1).max().item() for one in logits]
    assert command("merge", folder, tmp_path / "merged") == 0
    for source in (folder, tmp_path / "merged"):
        capsys.readouterr()
        assert command("predict", source, tmp_path / "rows.csv") == 0
        answers = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
        assert [answer["prediction"] for answer in answers] == [f"LABEL_{one.argmax()}" for one in logits]
        assert [answer["score"] for answer in answers] == pytest.approx(scores, abs=1e-3)


def test_a_base_in_another_place_is_named_and_compared_with_that_of_the_training(adapter, command, tmp_path, capsys):
    """What is computed then is in test_lora.py."""
    folder, _ = adapter()
    start, here = ("generate", folder, "the cat", "--greedy", "--max-new-tokens", "6"), tmp_path / "elsewhere"
    (tmp_path / "rows.csv").write_text("text\na cat\n")
    of_training = {"base_weights": weights_identity(tmp_path / "base", alone=True)}
    (folder / "run.json").write_text(json.dumps({"data": of_training}))
    shutil.move(tmp_path / "base", here)
    for words, sentence in (
        (("predict", folder, tmp_path / "rows.csv"), "which is not found here; name it by --base-model NAME"),
        (("generate", here, "the cat", "--base-model", here), "is the base of an adapter, and"),
        ((*start, "--base-model", tmp_path / "nowhere"), "--base-model="),
        ((*start, "--base-model", folder), "is an adapter"),
    ):
        assert command(*words) == 2
        assert sentence in capsys.readouterr().err
    assert command(*start, "--base-model", here) == 0
    weights = load_file(here / "model.safetensors")
    save_file({name: x + 0.1 for name, x in weights.items()}, here / "model.safetensors", {"format": "pt"})
    assert command(*start, "--base-model", here) == 2
    assert "has other weights than when it was trained" in capsys.readouterr().err


@pytest.mark.parametrize("bits", ["load_in_4bit", "load_in_8bit", "bfloat16"])
def test_a_sum_with_a_base_of_few_bits_is_that_of_its_values_and_has_16(bits, adapter, command, tmp_path, capsys):
    how = {"dtype": torch.bfloat16}
    if bits != "bfloat16":
        pytest.importorskip("bitsandbytes")
        how["quantization_config"] = BitsAndBytesConfig(**{bits: True})
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "wide")
    AutoModelForCausalLM.from_pretrained(tmp_path / "wide", **how).save_pretrained(tmp_path / "base")
    folder, model = adapter()
    expected = model(IDS).logits.detach().float()
    assert command("merge", folder, tmp_path / "merged") == 0
    assert "parameters in bfloat16" in capsys.readouterr().out
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert merged.dtype == torch.bfloat16 and not hasattr(merged.config, "quantization_config")
    tolerance = ROUNDED * expected.abs().max().item()
    torch.testing.assert_close(merged(IDS).logits.float(), expected, atol=tolerance, rtol=0)


# It loads each folder and compares logits; `anyformer` cannot be imported.
ALONE = """
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
adapter, merged, base, again = args
ids = torch.arange(1, 9)[None]

def logits(model):
    modules = {type(each).__module__.split(".")[0] for each in (model, model.config)}
    assert not modules & {"anyformer", "transformers_modules"}, modules
    return model.eval()(ids).logits

adapted = AutoPeftModelForCausalLM.from_pretrained(adapter).eval()(ids).logits
on_again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(again), adapter).eval()(ids).logits
bases = [logits(AutoModelForCausalLM.from_pretrained(each)) for each in (base, again)]
torch.testing.assert_close(*bases, atol=1e-4, rtol=0)
for found in (on_again, logits(AutoModelForCausalLM.from_pretrained(merged))):
    torch.testing.assert_close(found, adapted, atol=1e-4, rtol=0)
assert (adapted - bases[0]).abs().max() > 1e-3
texts = {AutoTokenizer.from_pretrained(each).decode([3, 4, 5]) for each in args}
report({"texts": len(texts)})
"""


@pytest.mark.parametrize("trained_by", ["peft", "anyformer"])
def test_without_anyformer_what_goes_out_is_loaded(trained_by, adapter, command, tmp_path):
    """An adapter, the sum with its base, and a native model that was ours in between."""
    folder, _ = adapter()
    base, ours, again = tmp_path / "base", tmp_path / "ours", tmp_path / "again"
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    assert command("convert", base, ours) == 0 and command("convert", ours, again) == 0
    if trained_by == "anyformer":
        folder = tmp_path / "run"
        lines = [json.dumps({"prompt": "the cat", "completion": f"word{n} sat"}) for n in range(30)]
        (tmp_path / "rows.jsonl").write_text("\n".join(lines))
        training = {"output_dir": str(folder), "max_steps": 3, "learning_rate": 0.1, "bf16": False}
        recipe = {
            "model": {"name_or_path": str(base)},
            "data": {"files": str(tmp_path / "rows.jsonl"), "validation_fraction": 0.1},
            "task": {"name": "instruction_tuning", "max_length": 32},
            "training": training | {"lora": {"r": 4, "target_modules": "all-linear"}},
        }
        (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
        assert command("train", tmp_path / "recipe.yaml") == 0
    assert command("merge", folder, tmp_path / "merged") == 0
    (tmp_path / "elsewhere").mkdir()
    assert run_without_anyformer(ALONE, folder, tmp_path / "merged", base, again, cwd=tmp_path / "elsewhere")


# ------------------------------------------------------------------------ what is not whole, or not of this base


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
    folder, _ = adapter(peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["embed_tokens", "q_proj"]), rows=47)
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

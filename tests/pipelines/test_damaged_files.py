"""What lies outside of the program (damaged files, a full disk, a killed writer) is one sentence and is cleaned up."""

import errno
import json
import os
import resource
import signal
import sys
import time

import pytest
import torch
import yaml
from anyformer.pipelines.storage.atomic import new_folder
from anyformer.pipelines.storage.model_folder import write_manifest
from family_variants import a_share
from processes import Process
from safetensors.torch import load_file, save_file
from tiny_tokenizers import of_bytes
from transformers import AutoModelForCausalLM

INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path, tiny_config):
    from anyformer import AnyformerDecoderForCausalLM

    tokenizer = of_bytes()
    AnyformerDecoderForCausalLM(tiny_config(vocab_size=len(tokenizer))).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def in_shards(model, act):
    """Save the weights in two files with an index of them, then do `act` to the second file, or to the index."""
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    half, shards = len(tensors) // 2, ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for shard, names in zip(shards, (list(tensors)[:half], list(tensors)[half:])):
        save_file({name: tensors[name] for name in names}, model / shard, metadata={"format": "pt"})
    where = {name: shards[number >= half] for number, name in enumerate(tensors)}
    (model / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    act(model / shards[1], model / INDEX, where, shards)


def name_another(_, index, where, shards):
    index.write_text(json.dumps({"weight_map": where | {min(where): shards[1]}}))


def as_torch_saves(model):
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    cut(model / "pytorch_model.bin")


DAMAGE = {
    "empty weights": ("model.safetensors", lambda model: (model / "model.safetensors").write_bytes(b"")),
    "half weights": ("model.safetensors", lambda model: cut(model / "model.safetensors")),
    "half pickled weights": ("pytorch_model.bin", as_torch_saves),
    "half shard": ("model-00002", lambda model: in_shards(model, lambda shard, *_: cut(shard))),
    "lost shard": ("model-00002", lambda model: in_shards(model, lambda shard, *_: shard.unlink())),
    "index without a map": (INDEX, lambda model: in_shards(model, lambda _, index, *__: index.write_text("{}"))),
    "index of another shard": (INDEX, lambda model: in_shards(model, name_another)),
} | {
    f"{words} {file}": (file, lambda model, file=file, act=act: act(model / file))
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    for words, act in {"half": cut, "listed": lambda path: path.write_text("[]")}.items()
}
DAMAGE |= {
    f"no settings in {file}": (file, lambda model, file=file: (model / file).write_text("{}"))
    for file in ("config.json", "tokenizer.json")
}


def swap_tokens(file):
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(content))


def set_others(file):
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rms_norm_eps": 0.1, "model_max_length": 7}))


def add_beside_shards(model):
    in_shards(model, lambda *_: None)
    write_manifest(model)
    save_file({"lm_head.weight": torch.zeros(2, 2)}, model / "model.safetensors", metadata={"format": "pt"})


# Whole files, which are not those that were saved with the weights.
OTHERS = {
    "other tokens": ("tokenizer.json", lambda model: swap_tokens(model / "tokenizer.json")),
    "no tokenizer": ("tokenizer.json", lambda model: (model / "tokenizer.json").unlink()),
    "weights beside shards": ("model.safetensors", add_beside_shards),
    "added tokens": ("added_tokens.json", lambda model: (model / "added_tokens.json").write_text('{"x": 9}')),
    "another template": ("chat_template.jinja", lambda model: (model / "chat_template.jinja").write_text("{{ 1 }}")),
} | {
    f"other settings in {file}": (file, lambda model, file=file: set_others(model / file))
    for file in ("config.json", "tokenizer_config.json")
}
CASES = [(damage, has_manifest) for damage in DAMAGE for has_manifest in (False, True)]
CASES += [(damage, True) for damage in OTHERS]


@pytest.mark.parametrize("damage, has_manifest", a_share(CASES, 6))
def test_a_damaged_model_is_one_sentence_that_names_the_file_at_every_door(
    damage, has_manifest, model, command, capsys, tmp_path, tiny_recipe
):
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    recipe = tiny_recipe()
    sections = {section: {"name_or_path": str(model)} for section in ("model", "tokenizer")}
    recipe.write_text(yaml.safe_dump(yaml.safe_load(recipe.read_text()) | sections))
    (model / "chat_template.jinja").write_text("{{ messages }}")
    if has_manifest:
        write_manifest(model)
    named, act = (DAMAGE | OTHERS)[damage]
    act(model)
    doors = [
        ["train", recipe],
        ["preview", recipe],
        ["evaluate", model, recipe],
        ["evaluate", model, recipe, "--by-position"],
        ["predict", model, tmp_path / "rows.jsonl", "--out", tmp_path / "answers.jsonl"],
        ["generate", model, "a"],
        ["chat", model],
        ["inspect", model, "a"],
        ["convert", model, tmp_path / "twin"],
        ["export", model, "--to", "torch_export", "--out", tmp_path / "program"],
        ["publish", model, "me/mine", "--dry-run", "--no-check"],
        ["serve", model],
        ["check", model],
    ]
    for words in doors:
        assert command(*words) == 2, words
        printed = capsys.readouterr().err
        assert printed.count("\n") == 1 and named in printed and str(model) in printed, (words, printed)
    assert not [path for path in tmp_path.iterdir() if any(new in path.name for new in ("answers", "twin", "program"))]


def test_a_damaged_base_of_an_adapter_is_named(model, command, capsys, tmp_path):
    peft = pytest.importorskip("peft")
    base = AutoModelForCausalLM.from_pretrained(model)
    peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    of_bytes().save_pretrained(tmp_path / "adapter")
    cut(model / "config.json")
    for words in (["generate", tmp_path / "adapter", "a"], ["merge", tmp_path / "adapter", tmp_path / "whole"]):
        assert command(*words) == 2, words
        printed = capsys.readouterr().err
        assert printed.count("\n") == 1 and f"{model / 'config.json'}" in printed, printed


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_damaged_image_processor_is_named(content, command, capsys, tmp_path, tiny_vit_config):
    from anyformer import AnyformerViTForImageClassification

    model = tmp_path / "model"
    AnyformerViTForImageClassification(tiny_vit_config()).save_pretrained(model)
    (model / "preprocessor_config.json").write_text(content)
    (tmp_path / "sign.png").touch()
    for words in (["predict", model, tmp_path / "sign.png"], ["publish", model, "me/mine", "--dry-run", "--no-check"]):
        assert command(*words) == 2, words
        printed = capsys.readouterr().err
        assert printed.count("\n") == 1 and f"{model / 'preprocessor_config.json'}" in printed, printed


@pytest.mark.parametrize("words", a_share(["convert MODEL DST", "export MODEL --to torch_export --out DST"], 2))
def test_a_writer_that_meets_its_limit_ends_in_one_sentence_and_leaves_nothing(words, model, command, tmp_path):
    """By `ulimit -f`, which any user has: torch's own writer of an exported program aborts its process."""

    def limited():
        sys.dont_write_bytecode = True  # Python would keep modules that it could write in part only
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        return command(*({"MODEL": model, "DST": tmp_path / "new"}.get(word, word) for word in words.split()))

    process = Process(limited, output=tmp_path / "printed")
    assert process.wait() == 2, process.text()
    assert "the disk is full" in process.text() and [*tmp_path.glob("new"), *tmp_path.glob(".new*")] == []


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), RuntimeError("No space (os error 28)")])
def test_a_full_disk_is_one_sentence_at_every_command(model, command, capsys, monkeypatch, tmp_path, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full)
    assert command("convert", model, tmp_path / "twin") == 2
    assert "the disk is full" in capsys.readouterr().err and sorted(tmp_path.glob(".twin*")) == []


def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path):
    def write():
        with new_folder(tmp_path / "out") as folder:
            (folder / "large").write_text("...")
            time.sleep(100)

    process = Process(write)
    process.wait_until(lambda: list(tmp_path.glob(".out-*/large")))
    with new_folder(tmp_path / "out") as folder:
        assert len(list(tmp_path.glob(".out-*"))) == 2 and folder.is_dir()  # the other one still writes
    os.rename(tmp_path / "out", tmp_path / "first")
    process.kill(signal.SIGKILL)
    with new_folder(tmp_path / "out"):
        assert len(list(tmp_path.glob(".out-*"))) == 1

"""Native models that let the documents of a packed row see each other are refused, by training and by evaluation."""

import json

import pytest
import torch
from anyformer.pipelines.objectives.causal import CausalCollator
from anyformer.pipelines.objectives.documents_apart import keeps_documents_apart
from native_models import native_model
from tiny_tokenizers import of_words
from transformers import OPTConfig, OPTForCausalLM

from anyformer_main import main

APART = {"llama2": True, "mixtral": True, "gpt2": True, "opt": False, "bloom": False, "bert": False, "roberta": False}


def native(name: str):
    if name == "opt":
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "word_embed_proj_dim": 32}
        return OPTForCausalLM(OPTConfig(vocab_size=64, ffn_dim=64, **sizes))
    return native_model(name, "AutoModelForMaskedLM" if "bert" in name else "AutoModelForCausalLM")


@pytest.mark.parametrize("name", APART)
def test_a_native_model_is_tried_on_two_documents(name):
    model = native(name).train()
    if name == "mixtral":
        model.set_experts_implementation("eager")  # whose products are of as many tokens as an expert gets
    state = torch.random.get_rng_state()
    assert keeps_documents_apart(model) is APART[name]
    assert model.training and torch.equal(state, torch.random.get_rng_state())  # the run goes on as if untried


def recipe(folder, objective: str) -> list[str]:
    for split in ("train", "validation"):
        texts = ["the film is fine", "the book is dull and long"] * 40
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return [
        f"objective.name={objective}",
        "objective.sequence_length=32",
        f"model.name_or_path={folder / 'native'}",
        f"data.files={folder / 'train.jsonl'}",
        f"data.validation_files={folder / 'validation.jsonl'}",
        f"training.output_dir={folder / 'run'}",
        "training.max_steps=1",
    ]


def saved(folder, name: str) -> None:
    """A native model with a tokenizer of words."""
    special = {name: f"[{name.upper()}]" for name in ("pad", "unk", "mask", "bos", "eos", "cls", "sep")}
    words = [*special.values(), "the", "film", "book", "is", "fine", "dull", "and", "long"]
    native(name).save_pretrained(folder / "native")
    of_words(words, **special).save_pretrained(folder / "native")


def test_training_and_evaluation_refuse_a_model_whose_documents_see_each_other(tmp_path, capsys):
    saved(tmp_path, "bert")
    written = tmp_path / "recipe.yaml"
    settings = recipe(tmp_path, "masked")
    written.write_text("model: {}\n")
    for command in (["train"], ["evaluate", str(tmp_path / "native")]):
        assert main([*command, str(written), *settings]) == 2
        error = capsys.readouterr().err
        assert "is a BertForMaskedLM, in which the documents of a packed row see each other" in error
        assert "anyformer convert" in error


def test_such_a_teacher_is_refused_before_its_answers_are_stored(tmp_path, capsys):
    saved(tmp_path, "bloom")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}
    (tmp_path / "recipe.yaml").write_text(json.dumps({"model": {"family": "decoder", **sizes}}))
    settings = [line for line in recipe(tmp_path, "causal") if not line.startswith("model.")]
    taught = [f"teacher.name_or_path={tmp_path / 'native'}", "teacher.stored=true", "teacher.top_k=4"]
    taught += [f"tokenizer.name_or_path={tmp_path / 'native'}", f"data.cache_dir={tmp_path / 'cache'}"]
    assert main(["train", str(tmp_path / "recipe.yaml"), *settings, *taught]) == 2
    assert "is a BloomForCausalLM, in which the documents of a packed row" in capsys.readouterr().err
    assert not (tmp_path / "cache" / "teacher").exists()


def test_a_native_decoder_that_keeps_them_apart_trains_unless_the_collator_sends_a_mask(tmp_path, capsys, monkeypatch):
    saved(tmp_path, "llama2")
    written = tmp_path / "recipe.yaml"
    written.write_text("model: {}\n")

    def with_mask(collator, rows, plain=CausalCollator.__call__):
        batch = plain(collator, rows)
        return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}

    with monkeypatch.context() as patched:
        patched.setattr(CausalCollator, "__call__", with_mask)
        assert main(["train", str(written), *recipe(tmp_path, "causal")]) == 2
    assert "is a LlamaForCausalLM, in which the documents of a packed row see each other" in capsys.readouterr().err
    assert main(["train", str(written), *recipe(tmp_path, "causal")]) == 0

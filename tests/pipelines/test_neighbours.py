"""Neighbours of a word: its input embedding's, and those of what a layer makes of it in each sentence."""

import json

import pytest
import torch
from anyformer.pipelines.inspection.neighbours import neighbours_of, static_neighbours
from transformers import AutoTokenizer

import anyformer


@pytest.fixture
def folder(tiny_recipe, tmp_path, text_file):
    """A decoder without training: what stands before a word decides its states, and nothing behind it."""
    from anyformer.pipelines.objectives.prepare import prepare_data
    from anyformer.pipelines.recipes.compose import load_recipe

    data = prepare_data(load_recipe(str(tiny_recipe()), []), progress=False)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": len(data.tokenizer)}
    model = anyformer.AnyformerDecoderForCausalLM(anyformer.AnyformerDecoderConfig(**sizes, initializer_range=0.3))
    model.save_pretrained(tmp_path / "model")
    data.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def sentences(tmp_path):
    file = tmp_path / "sentences.txt"
    lines = ["We sat on the bank of the river.", "They robbed a bank at noon.", "", "We sat on the bank and talked."]
    file.write_text("\n".join([*lines, "Bankers talk.", *(f"Number {n} talks on." for n in range(30))]))
    return file


def test_what_stands_alike_before_a_word_makes_equal_states_and_the_embedding_is_one(folder, sentences):
    found = neighbours_of(str(folder), "BANK", sentences)
    assert (found.layer, found.sentences, found.count) == (2, 34, 3) and -1 < found.any < 1
    first = found.occurrences[0]
    begin, end = first.place
    assert first.sentence[begin:end] == "bank"
    word, near, sentence = first.nearest[0]
    assert word == "bank" and near == pytest.approx(1, abs=1e-5) and sentence.endswith("talked.")
    assert all(other != "bank" for other, _ in first.beside) and len({s for *_, s in first.nearest}) == 8
    assert [one.sentence[:4] for one in found.occurrences][:2] == ["We s", "They"]  # the third is as the first
    # Before the first layer each occurrence is the same vector.
    assert neighbours_of(str(folder), "bank", sentences, layer=0).same == pytest.approx(1, abs=1e-5)


def test_static_neighbours_are_the_nearest_rows(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    table = torch.randn(len(tokenizer), 8)
    table[40] = 3 * table[33] + 0.01
    found = static_neighbours(table, tokenizer, [33])
    assert found[0][1] == pytest.approx(1, abs=1e-3) and found == sorted(found, key=lambda pair: -pair[1])
    assert found[0][0] == (tokenizer.decode([40]).strip() or tokenizer.convert_ids_to_tokens(40))


def test_the_command_prints_them_and_names_what_is_wrong(folder, sentences, command, capsys, tmp_path):
    words = ("inspect", folder, "--neighbours", "bank", "--sentences", sentences)
    assert command(*words) == 0
    shown = capsys.readouterr().out
    assert "nearest input embeddings" in shown and "[bank] of the river." in shown and "after layer 2" in shown
    assert command(*words, "--json", "--layers", "1") == 0
    assert json.loads(capsys.readouterr().out)["layer"] == 1
    mistakes = {
        ("--layers", "3"): "--layers 3: the model has 2 layers",
        ("--layers", "0,1"): "name one",
        ("--neighbours", "river-boat"): "'river-boat' is in no sentence",
        ("--sentences", tmp_path / "none"): "no such file",
        ("--word", "x"): "--word is of the page",
    }
    for more, says in mistakes.items():
        assert command(*words, *more) == 2
        assert says in capsys.readouterr().err
    assert command("inspect", folder) == 2 and "TEXT is missing" in capsys.readouterr().err
    assert command("inspect", folder, "a", "--sentences", sentences) == 2
    assert "--sentences belongs to --neighbours" in capsys.readouterr().err

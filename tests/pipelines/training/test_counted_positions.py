"""Positions counted from the padding token (RoBERTa): models are saved as they were, rows no longer than they read."""

import json
from itertools import product

import pytest
import torch
import transformers
import yaml
from anyformer.pipelines.adapters import load_model
from anyformer.pipelines.objectives import documents_apart
from anyformer.pipelines.positions import most_positions
from family_variants import a_share
from task_data import task_recipe
from tiny_tokenizers import of_words

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40}
BART = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 40, "max_position_embeddings": 20}
OF_PADDING = {
    "roberta": ("RobertaConfig", SMALL),
    "xlm-roberta": ("XLMRobertaConfig", SMALL),
    "camembert": ("CamembertConfig", SMALL),
    "longformer": ("LongformerConfig", SMALL | {"attention_window": 4}),
    "esm": ("EsmConfig", SMALL | {"mask_token_id": 4, "pad_token_id": 1}),
    "data2vec": ("Data2VecTextConfig", SMALL),
}
OTHERS = {
    "bert": ("BertConfig", SMALL | {"pad_token_id": 3}),
    "mpnet": ("MPNetConfig", SMALL),
    "nystromformer": ("NystromformerConfig", SMALL | {"num_landmarks": 1, "segment_means_seq_len": 1}),
    "gpt2": ("GPT2Config", {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40}),
    "opt": ("OPTConfig", SMALL | {"ffn_dim": 16, "word_embed_proj_dim": 16}),
    "bart": ("BartConfig", BART),
    "marian": ("MarianConfig", BART | {"pad_token_id": 1, "decoder_start_token_id": 1}),
    "roberta2roberta": ("EncoderDecoderConfig", {}),
}
MOST = 20


def config_of(name):
    kind, fields = (OF_PADDING | OTHERS)[name]
    if name == "roberta2roberta":
        decoder = config_of("roberta")
        decoder.is_decoder = decoder.add_cross_attention = True
        config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(config_of("roberta"), decoder)
        config.decoder_start_token_id, config.pad_token_id = 0, 1
        return config
    most = {"n_positions" if name == "gpt2" else "max_position_embeddings": MOST}
    return getattr(transformers, kind)(**fields | most)


@pytest.mark.parametrize("name", OF_PADDING | OTHERS)
def test_the_longest_row_is_the_longest_that_the_model_reads(name):
    config = config_of(name)
    most, writes = most_positions(config), config.is_encoder_decoder
    auto = transformers.AutoModelForSeq2SeqLM if writes else transformers.AutoModel
    model = auto.from_config(config).eval()
    for length in (most, most + 1):
        ids = torch.arange(length)[None] % 30 + 5
        given = {"input_ids": ids} | ({"labels": ids} if writes else {})
        try:
            model(**given)
        except (IndexError, RuntimeError):
            assert length == most + 1
        else:
            assert length == most or name == "longformer"  # which pads rows to its window


def test_a_decoder_with_fewer_positions_does_not_shorten_what_is_read():
    own = {"max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 16}
    fields = {name: value for name, value in BART.items() if name != "max_position_embeddings"}
    assert most_positions(transformers.LEDConfig(**fields, **own, attention_window=4)) == 32


WORDS = ["<pad>", "the", "film", "<unk>", "<mask>", "<s>", "</s>", "was", "good", "bad", "great", "awful", "story"]
ROLES = {"pad": "<pad>", "unk": "<unk>", "mask": "<mask>", "bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>"}
KINDS = {"classes": ("ForSequenceClassification", {}), "hidden words": ("ForMaskedLM", {"name": "masked"})}


def checkpoint(name, head, folder):
    torch.manual_seed(0)
    config = config_of(name)
    getattr(transformers, f"AutoModel{head}").from_config(config).save_pretrained(folder)
    of_words(WORDS, **ROLES).save_pretrained(folder)
    return folder


@pytest.fixture
def packed(monkeypatch):
    """Packed rows are taken by native encoders, whose documents see each other: here positions alone are asked for."""
    monkeypatch.setattr(documents_apart, "keeps_documents_apart", lambda *_: True)


def recipe_on(folder, tmp_path, kind, length, **training):
    training = {"max_steps": 1, "learning_rate": 1e-12, "output_dir": str(tmp_path / "run"), **training}
    recipe = task_recipe(tmp_path, "sequence_classification", training=training)
    document = yaml.safe_load(recipe.read_text()) | {"model": {"name_or_path": str(folder)}}
    del document["tokenizer"]
    if kind == "hidden words":
        del document["task"], document["data"]["test_files"]
        document |= {"objective": {"name": "masked", "sequence_length": length}}
    else:
        document["task"]["max_length"] = length
    recipe.write_text(yaml.safe_dump(document))
    return recipe


@pytest.mark.parametrize("lora", [None, {"r": 2}], ids=["whole", "adapter"])
@pytest.mark.parametrize("name, kind", a_share(product(["roberta", "xlm-roberta", "bert"], KINDS), 3))
def test_a_step_at_rate_0_saves_the_same_model(name, kind, lora, tmp_path, command, capsys, packed):
    if lora is not None:
        pytest.importorskip("peft")
    head = KINDS[kind][0]
    folder = checkpoint(name, head, tmp_path / "native")
    assert command("train", recipe_on(folder, tmp_path, kind, 18, **({"lora": lora} if lora else {}))) == 0
    counted = "positions of" in capsys.readouterr().out
    auto, ids = getattr(transformers, f"AutoModel{head}"), torch.tensor([[5, 8, 7, 1, 2, 9, 6], [5, 2, 6, 0, 0, 0, 0]])
    mask = torch.tensor([[1] * 7, [1] * 3 + [0] * 4])
    models = (load_model(auto, path).eval() for path in (folder, tmp_path / "run"))
    before, after = (model(ids, attention_mask=mask).logits for model in models)
    torch.testing.assert_close(after[0], before[0], atol=1e-5, rtol=0)
    file = tmp_path / "run" / ("config.json" if lora is None else "adapted_config.json")
    assert json.loads(file.read_text())["pad_token_id"] == (0 if name == "bert" else 1)  # BERT's config follows
    assert counted == (name != "bert")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", ["train", "evaluate"])
def test_rows_longer_than_the_positions_are_refused_before_any_data_is_read(kind, door, tmp_path, command, capsys):
    folder = checkpoint("roberta", KINDS[kind][0], tmp_path / "native")
    recipe = recipe_on(folder, tmp_path, kind, 20)
    document = yaml.safe_load(recipe.read_text())
    document["data"]["files"] = str(tmp_path / "nowhere.jsonl")
    recipe.write_text(yaml.safe_dump(document))
    assert command(door, *([folder] if door == "evaluate" else []), recipe) == 2
    said = capsys.readouterr().err
    assert "=20 is longer than the model's usable positions=18; at most 18 works" in said


def test_rows_of_texts_stand_at_the_positions_that_the_model_was_trained_at(tmp_path, command, packed, monkeypatch):
    folder = checkpoint("roberta", "ForMaskedLM", tmp_path / "native")
    recipe = recipe_on(folder, tmp_path, "hidden words", 18)
    seen, embed = [], torch.nn.functional.embedding

    def watched(ids, weight, padding_idx=None, *rest):
        if len(weight) == MOST:
            seen.append(ids)
        return embed(ids, weight, padding_idx, *rest)

    monkeypatch.setattr(torch.nn.functional, "embedding", watched)
    for words in (["train", recipe], ["evaluate", folder, recipe]):
        seen.clear()
        assert command(*words) == 0
        assert seen and min(ids.min() for ids in seen) == 2 and max(ids.max() for ids in seen) <= MOST - 1

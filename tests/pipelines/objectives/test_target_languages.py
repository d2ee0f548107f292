"""Targets of translation end and begin as transformers' own tokenizers say, also where these mark languages."""

import json

import pytest
import torch
import transformers
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from task_data import task_recipe
from transformers import AutoTokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FRAMES = ["<s>", "<pad>", "</s>", "<unk>"]
UNIGRAM = [*((token, 0.0) for token in FRAMES), ("▁", -2.0), *((letter, -3.0) for letter in LETTERS)]
PIECES = {piece: number for number, (piece, _) in enumerate([*UNIGRAM, ("<mask>", 0.0)])}
SMALL = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
SMALL |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64}
MBART, MBART_50 = {"src_lang": "en_XX", "tgt_lang": "de_DE"}, {"src_lang": "en_XX", "tgt_lang": "ro_RO"}
NLLB = {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}

# name -> (tokenizer, class of config, fields that the published checkpoint has)
CASES = {
    "mbart": (lambda: transformers.MBartTokenizer(vocab=[*UNIGRAM, ("<mask>", 0.0)], **MBART), "MBartConfig", {}),
    "mbart of another language": (
        lambda: transformers.MBartTokenizer(vocab=[*UNIGRAM, ("<mask>", 0.0)], **MBART),
        *("MBartConfig", {"decoder_start_token_id": 40, "forced_bos_token_id": 40}),
    ),
    "mbart without a target language": (
        lambda: transformers.MBartTokenizer(vocab=[*UNIGRAM, ("<mask>", 0.0)], src_lang="de_DE"),
        *("MBartConfig", {"decoder_start_token_id": None}),
    ),
    "mbart-50": (
        lambda: transformers.MBart50Tokenizer(vocab=UNIGRAM, **MBART_50),
        *("MBartConfig", {"decoder_start_token_id": 2, "forced_bos_token_id": 40}),
    ),
    "nllb": (
        lambda: transformers.NllbTokenizer(vocab=PIECES, merges=[], **NLLB),
        *("M2M100Config", {"decoder_start_token_id": 2}),
    ),
    "bart": (
        lambda: transformers.BartTokenizer(vocab=PIECES | {"Ġ": len(PIECES)}, merges=[]),
        *("BartConfig", {"decoder_start_token_id": 2, "forced_bos_token_id": 0}),
    ),
    "t5": (lambda: transformers.T5Tokenizer(vocab=[UNIGRAM[1], UNIGRAM[2], UNIGRAM[3], *UNIGRAM[4:]]), "T5Config", {}),
}


@pytest.fixture(params=CASES)
def checkpoint(request, tmp_path):
    """(folder of a tiny native checkpoint with its tokenizer, that tokenizer)"""
    make, config, fields = CASES[request.param]
    tokenizer, folder = make(), tmp_path / "native"
    tokenizer.save_pretrained(folder)
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    sizes = t5 if config == "T5Config" else SMALL
    size = max(tokenizer.get_vocab().values()) + 1
    torch.manual_seed(0)
    config = getattr(transformers, config)(vocab_size=size, **sizes, **fields)
    transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    return folder, AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("length", [8, 64])
def test_rows_are_what_transformers_own_tokenizer_gives_in_training_and_in_prediction(
    checkpoint, tmp_path, monkeypatch, capsys, length
):
    folder, tokenizer = checkpoint
    recipe = task_recipe(tmp_path, "translation", task={"max_length": length}, tokenizer=None)
    data = prepare_data(load_recipe(str(recipe), [f"model={{name_or_path: {folder}}}"]))
    rows, answers = data.rows["validation"], data.answers()
    unnamed = getattr(tokenizer, "tgt_lang", "") is None
    assert ("targets are marked as de_DE, as sources are" in capsys.readouterr().err) == unnamed
    sources, targets = rows.texts("source"), rows.texts("target")
    how = {"truncation": True, "max_length": length}
    assert [row["labels"].tolist() for row in rows] == tokenizer(text_target=targets, **how)["input_ids"]
    read = tokenizer(sources, **how)["input_ids"]
    assert [row["input_ids"].tolist() for row in rows] == read
    asked = []
    monkeypatch.setattr(answers, "written", lambda finished, ids: asked.extend(ids) or [""] * len(ids))
    answers.predict(None, [*sources, "a</s>b"])
    assert asked[:-1] == read
    if not hasattr(tokenizer, "set_tgt_lang_special_tokens"):
        assert asked[-1].count(tokenizer.eos_token_id) == 1  # as in training, a control token in a text is text


def test_answers_begin_as_targets_do_in_training(checkpoint, tmp_path, command):
    folder, tokenizer = checkpoint
    training = {"max_steps": 1, "output_dir": str(tmp_path / "run"), "learning_rate": 1e-4}
    few = {"tokenizer": None, "training": training, "evaluation": {"every_steps": None, "metrics": []}}
    assert command("train", task_recipe(tmp_path, "translation", **few), f"model={{name_or_path: {folder}}}") == 0
    saved, generation = (
        json.loads((tmp_path / "run" / f"{name}.json").read_text()) for name in ("config", "generation_config")
    )
    target = torch.tensor([tokenizer(text_target="hund")["input_ids"]])
    model, seen = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run"), []
    decoder = model.get_decoder()
    decoder.register_forward_pre_hook(lambda _, args, given: seen.append(given["input_ids"]), with_kwargs=True)
    model(input_ids=target, labels=target)
    assert seen[0][0, 0] == generation["decoder_start_token_id"] == saved["decoder_start_token_id"]
    if hasattr(tokenizer, "set_tgt_lang_special_tokens"):
        language = tokenizer.convert_tokens_to_ids(tokenizer.tgt_lang)
        assert language in (seen[0][0, 0], generation.get("forced_bos_token_id")) and language in target

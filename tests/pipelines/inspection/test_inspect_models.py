"""What the command `inspect` opens: native encoder-decoders, and adapters with the head that they were trained with."""

import pytest
import torch
import transformers
from anyformer.pipelines.prediction.looked_at import LookedAt
from native_models import native_config
from test_inspect import data_of
from tiny_tokenizers import of_words

LETTERS = ["<pad>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz ."]
COMMON = {"vocab_size": len(LETTERS), "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
T5, BART = COMMON | {"num_layers": 2}, COMMON | {"decoder_layers": 2, "forced_eos_token_id": None}


@pytest.fixture
def saved(tmp_path):
    """Factory: save a model of transformers' own with a tokenizer of letters; returns its folder."""
    tokenizer = of_words(LETTERS, by_characters=True, pad="<pad>", eos="</s>", unk="<unk>")

    def save(name, model):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


@pytest.mark.parametrize(
    "model",
    [
        lambda: transformers.T5ForConditionalGeneration(native_config("t5", **T5)),
        lambda: transformers.BartForConditionalGeneration(native_config("bart", **BART)),
        lambda: transformers.MarianMTModel(native_config("marian", **BART)),
    ],
    ids=["t5", "bart", "marian"],
)
def test_native_encoder_decoders_show_all_three_kinds_of_maps(model, saved, command, tmp_path):
    folder, page = saved("model", model()), tmp_path / "page.html"
    assert command("inspect", folder, "ab cd.", "--word", "cd", "--target", "xyz", "--out", page) == 0
    (shown,) = data_of(page)["views"]
    kinds = (("encoder", ""), ("decoder", ""), ("decoder", ", cross"))
    names = {f"{stack} layer {n}{kind}" for stack, kind in kinds for n in (0, 1)}
    assert {one["name"] for one in shown["maps"]} == names and len(shown["maps"]) == 6
    cross = next(one for one in shown["maps"] if one["name"] == "decoder layer 0, cross")
    assert "".join(cross["keys"]).startswith("ab cd.") and "".join(cross["queries"]).endswith("xyz"[:2])
    assert all("data" in one for one in shown["maps"]) and len(shown["lens"]) == 3
    assert command("inspect", folder, "ab cd.", "--out", page) == 0  # with what it writes itself


def test_a_model_that_writes_nothing_asks_for_what_its_decoder_reads(saved, command, tmp_path, capsys):
    folder = saved("model", transformers.BartModel(native_config("bart", **BART)))
    words = ("inspect", folder, "ab cd.", "--out", tmp_path / "page.html")
    assert command(*words) == 2
    assert "BartModel has no head that writes; say what its decoder reads by --target" in capsys.readouterr().err
    assert command(*words, "--target", "ab") == 0


@pytest.mark.parametrize("task", ["SEQ_2_SEQ_LM", "SEQ_CLS"])
def test_an_adapter_opens_with_the_head_and_the_weights_it_was_trained_with(task, saved, command, tmp_path):
    peft = pytest.importorskip("peft")
    if task == "SEQ_CLS":
        base = saved("base", transformers.BertModel(native_config("bert", vocab_size=len(LETTERS))))
        model = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    else:
        base = saved("base", transformers.T5ForConditionalGeneration(native_config("t5", **T5)))
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(base)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type=task, r=2, init_lora_weights=False))
    folder = saved("adapter", adapted)
    opened, ids = LookedAt(str(folder), ["ab"], None).answered()[0], torch.arange(3, 8)[None]
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if task == "SEQ_2_SEQ_LM" else {})
    with torch.no_grad():
        assert torch.allclose(opened(**inputs).logits, adapted.eval()(**inputs).logits, atol=1e-6)
    page = tmp_path / "page.html"
    assert command("inspect", folder, "ab cd.", "--out", page) == 0
    assert all("data" in one for one in data_of(page)["views"][0]["maps"])

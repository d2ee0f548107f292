"""`anyformer convert --to encoder|decoder|seq2seq`: another family from the same weights."""

import json

import pytest
import torch
from anyformer.pipelines.cli.commands import main
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.interop.change_family import in_family, same_in_both_directions
from family_variants import DECODERS
from tiny_tokenizers import of_words
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from anyformer import AnyformerEncoderConfig, AnyformerEncoderForMaskedLM

IDS = torch.arange(3, 43).view(2, 20)
NAMES = ("rotary", "learned", "post", "sandwich", "sliding-and-full-own-theta", "untied-layernorm-nobias", "mha-bias")


def decoder(tiny_config, **fields):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(bos_token_id=0, **fields)).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_an_encoder_of_a_decoder_computes_what_it_does_where_all_tokens_see_each_other_and_goes_back(tiny_config, name):
    model = decoder(tiny_config, **DECODERS[name])
    encoder = in_family(model, "encoder")
    assert same_in_both_directions(model, encoder, IDS)[1] == 0
    assert (encoder(IDS).logits - model(IDS).logits).abs().max() > 1e-3  # which causal, it does not
    back = in_family(encoder, "decoder")
    assert back.config.sliding_window == model.config.sliding_window
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in back.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_both_halves_of_an_encoder_decoder_are_the_decoder_and_cross_attention_is_its_attention(tiny_config, name):
    model = decoder(tiny_config, **DECODERS[name])
    twin = in_family(model, "seq2seq")
    assert same_in_both_directions(model, twin, IDS)[1] == 0
    for mine, halves in zip(model.model.layers, zip(twin.model.encoder.layers, twin.model.decoder.layers)):
        for half in halves:
            assert torch.equal(mine.mlp.down_proj.weight, half.mlp.down_proj.weight)
        for own, other in zip(mine.self_attn.parameters(), halves[1].cross_attn.parameters(), strict=True):
            assert torch.equal(own, other)
    assert twin.generation_config.decoder_start_token_id == twin.config.decoder_start_token_id is not None
    labels = IDS[:, :6]
    assert twin(IDS, labels=labels).loss.isfinite() and twin.generate(IDS, max_new_tokens=3).shape[0] == 2


def test_an_experts_decoder_becomes_an_encoder_with_experts(tiny_moe_config):
    model = AutoModelForCausalLM.from_config(tiny_moe_config()).eval()
    assert same_in_both_directions(model, in_family(model, "encoder"), IDS)[1] < 1e-12


def test_a_bert_becomes_a_decoder_whose_positions_hold_its_first_segment():
    torch.manual_seed(0)
    fields = {"position_encoding": "learned", "norm_position": "post", "norm_type": "layernorm", "type_vocab_size": 2}
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    encoder = AnyformerEncoderForMaskedLM(AnyformerEncoderConfig(**sizes, **fields, embedding_norm=True)).eval()
    twin = in_family(encoder, "decoder")
    scale, difference = same_in_both_directions(encoder, twin, IDS)
    assert difference < 1e-6 * scale and twin.generate(IDS, max_new_tokens=3).shape == (2, 23)


@pytest.mark.parametrize(
    "family, fields, sentence",
    [
        ("decoder", {}, "takes the weights of encoder, and this model is of family decoder; encoder and seq2seq can"),
        ("encoder", {"position_encoding": "relative"}, "learns other distances where tokens see those after them"),
        ("encoder", {"attention_pattern": ["linear_attention"]}, "attention_pattern holds 'linear_attention', which"),
        ("seq2seq", {"block": "parallel"}, "block='parallel' has no place for attention to the encoder's tokens"),
        ("encoder", {"output_vocab_size": 90, "tie_word_embeddings": False}, "output_vocab_size=90 is of family dec"),
    ],
)
def test_what_no_weights_follow_for_is_refused(tiny_config, family, fields, sentence):
    with pytest.raises(UserError, match=sentence.replace("[", r"\[")):
        in_family(decoder(tiny_config, **fields), family)


def test_the_command_makes_a_native_decoder_an_encoder_with_a_mask_token(tmp_path, capsys):
    source = tmp_path / "native"
    of_words([f"w{i}" for i in range(40)], unk="w0", eos="w1", pad="w1").save_pretrained(source)
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, bos_token_id=1, eos_token_id=1)).save_pretrained(
        source
    )
    encoder, writer = tmp_path / "encoder", tmp_path / "writer"
    assert main(["convert", str(source), str(encoder), "--to", "encoder"]) == 0
    said = capsys.readouterr().out
    assert "decoder -> encoder: " in said and "to be trained on" in said
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModelForMaskedLM.from_pretrained(encoder)
    assert tokenizer.mask_token == "<|mask|>" and model.config.mask_token_id == 40 == model.config.vocab_size - 1
    assert model(**tokenizer("w3 <|mask|> w4", return_tensors="pt")).logits.shape == (1, 3, 41)
    assert "with the same weights in another family (encoder), to be trained on" in (encoder / "README.md").read_text()
    assert json.loads((encoder / "run.json").read_text()).keys() == {"converted_from", "to_family", "local"}
    assert main(["convert", str(encoder), str(writer), "--to", "decoder"]) == 0
    assert AutoModelForCausalLM.from_pretrained(writer).config.model_type == "anyformer_decoder"
    assert main(["convert", str(source), str(tmp_path / "both"), "--to", "seq2seq"]) == 0
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "both").config.decoder_start_token_id == 1

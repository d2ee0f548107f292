"""transformers' models of two parts take ours: LLaVA, and encoder-decoder models."""

import pytest
import torch
from anyformer.pipelines.interop.conversion import from_native
from family_variants import WINDOWS, tiny
from native_models import native_config, native_model
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    EncoderDecoderModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    VisionEncoderDecoderModel,
)

EXACT = 1e-9  # float64, same maths in another order of operations
NORMS_OF_FP32 = 1e-6  # LLaMA's own norms compute in fp32, ours in the model's fp64
IMAGE, PATCHES = 96, 12  # the token that an image's patches replace, and their number
GREEDY = {"do_sample": False, "max_new_tokens": 6, "pad_token_id": 0}


def llava(vision, text) -> LlavaForConditionalGeneration:
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE,
        image_seq_length=PATCHES,
        vision_feature_layer=-1,
    )
    return LlavaForConditionalGeneration(config).double().eval()


def image_and_question(config, rows: int = 2) -> dict:
    """Rows of two padding tokens, one image and four tokens of text."""
    seed = torch.Generator().manual_seed(0)
    text = torch.randint(3, IMAGE, (rows, 4), generator=seed)
    ids = torch.cat((torch.zeros(rows, 2, dtype=torch.long), torch.full((rows, PATCHES), IMAGE), text), dim=1)
    sides = config.vision_config.image_size
    sides = [sides, sides] if isinstance(sides, int) else sides
    pixels = torch.randn(rows, 3, *sides, generator=seed, dtype=torch.float64)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "pixel_values": pixels}


def labels_of(inputs) -> torch.Tensor:
    ids = inputs["input_ids"]
    return ids.masked_fill((ids == IMAGE) | (ids == 0), -100)


def test_llava_of_our_parts_computes_what_it_computes_of_native_ones():
    vision, text = native_model("vit", "ViTModel", image_size=[24, 32]), native_model("llama2", "LlamaModel")
    native = llava(vision.config, text.config)
    ours = llava(from_native(vision).config, from_native(text).config)
    for part in ("vision_tower", "language_model"):
        converted = from_native(getattr(native.model, part).float()).double()
        getattr(ours.model, part).load_state_dict(converted.state_dict())
        getattr(native.model, part).double()
    ours.model.multi_modal_projector.load_state_dict(native.model.multi_modal_projector.state_dict())
    ours.lm_head.load_state_dict(native.lm_head.state_dict())
    inputs = image_and_question(native.config)
    expected, found = (model(**inputs, labels=labels_of(inputs)) for model in (native, ours))
    real = inputs["attention_mask"] == 1
    torch.testing.assert_close(found.logits[real], expected.logits[real], rtol=0, atol=NORMS_OF_FP32)
    torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=NORMS_OF_FP32)
    assert torch.equal(native.generate(**inputs, **GREEDY), ours.generate(**inputs, **GREEDY))


@pytest.fixture(params=["learned", "registers-and-windows"])
def our_llava(request):
    vision, text = {
        "learned": ({}, {}),
        "registers-and-windows": (
            {"num_register_tokens": 2, "position_encoding": "rotary"},
            WINDOWS,
        ),
    }[request.param]
    model = llava(tiny("vit", **vision), tiny("decoder", **text))
    if request.param != "learned":  # patches alone stand for an image: not the class token, nor registers
        model.config.vision_feature_select_strategy = "full"
        model.config.image_seq_length = PATCHES + 3
    return model


def test_llava_of_our_parts_generates_with_a_cache_what_it_generates_without(our_llava):
    inputs = image_and_question(our_llava.config)
    extra = our_llava.config.image_seq_length - PATCHES
    if extra:
        more = torch.full((2, extra), IMAGE)
        inputs["input_ids"] = torch.cat((inputs["input_ids"][:, :2], more, inputs["input_ids"][:, 2:]), dim=1)
        inputs["attention_mask"] = (inputs["input_ids"] != 0).long()
    expected = our_llava.generate(**inputs, **GREEDY, use_cache=False)
    assert torch.equal(our_llava.generate(**inputs, **GREEDY), expected)
    assert torch.equal(our_llava.generate(**inputs, **GREEDY, cache_implementation="static"), expected)
    unpadded = {name: x if name == "pixel_values" else x[:, 2:] for name, x in inputs.items()}
    assert torch.equal(our_llava.generate(**unpadded, **GREEDY), expected[:, 2:])


def test_llava_of_our_parts_learns_saves_and_loads(tmp_path):
    model = llava(tiny("vit"), tiny("decoder")).train()
    model.gradient_checkpointing_enable()
    inputs = image_and_question(model.config)
    loss = model(**inputs, labels=labels_of(inputs)).loss
    loss.backward()
    unread = ("vision_tower.norm.", "vision_tower.pooler.")  # LLaVA reads hidden states before the last norm
    learning = [name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    every = {name for name, _ in model.named_parameters()}
    assert all(any(part in name for part in unread) for name in every - set(learning))
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float64, trust_remote_code=False)
    assert isinstance(loaded, LlavaForConditionalGeneration)
    torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits, rtol=0, atol=EXACT)


# ------------------------------------------------------------------------------------------ encoder-decoder models


def encoder_decoder(encoder, decoder, cls=EncoderDecoderModel):
    config = cls.config_class.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return cls(config).double().eval()


ENCODERS = {
    "ours": lambda: tiny("encoder"),
    "bert": lambda: native_config("bert"),
    "wider-bert": lambda: native_config("bert", hidden_size=48),
}
DECODERS = {
    "plain": {},
    "learned-post": {"position_encoding": "learned", "norm_position": "post", "norm_type": "layernorm"},
    "sandwich-gated": {"norm_position": "both", "attention_gate": "channel", "qk_norm": True},
    "inside": {"norm_position": "inside", "qk_norm": True, "qk_norm_width": True},
    "sliding-alibi": WINDOWS | {"position_encoding": "alibi"},
    "linear-delta": {"attention_pattern": ["linear_attention", "gated_delta_attention"], "position_encoding": "none"},
    "recurrent": {"segment_length": 4, "memory_length": 3},
}
PAIRS = [("ours", name) for name in DECODERS] + [("bert", "plain"), ("wider-bert", "sandwich-gated")]


def source_and_target(rows: int = 2, target: int = 8) -> dict:
    """Sources of 9 and 7 tokens, padded; targets."""
    seed = torch.Generator().manual_seed(1)
    ids, labels = (torch.randint(4, 97, (rows, n), generator=seed) for n in (9, target))
    ids[1, 7:] = 0
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


@pytest.mark.parametrize(
    "encoder, decoder", [pytest.param(*p, marks=pytest.mark.slow if p in PAIRS[1:6] else ()) for p in PAIRS]
)
def test_an_encoder_decoder_of_our_parts_generates_with_a_cache_what_it_generates_without(encoder, decoder):
    model = encoder_decoder(ENCODERS[encoder](), tiny("decoder", **DECODERS[decoder]))
    inputs = source_and_target()
    del inputs["labels"]
    ways = GREEDY | {"max_new_tokens": 9, "eos_token_id": None}
    expected = model.generate(**inputs, **ways, use_cache=False)
    assert torch.equal(model.generate(**inputs, **ways), expected)
    found = model.generate(**inputs, **ways, num_beams=2)
    assert torch.equal(found, model.generate(**inputs, **ways, num_beams=2, use_cache=False))
    alone = {name: x[1:, :7] for name, x in inputs.items()}  # the padding of the other row's source is not seen
    assert torch.equal(model.generate(**alone, **ways), expected[1:])


@pytest.mark.filterwarnings("ignore:Version v4.12.0:FutureWarning")
@pytest.mark.parametrize("encoder, decoder", [("ours", "plain"), ("bert", "sandwich-gated"), ("ours", "linear-delta")])
def test_an_encoder_decoder_of_our_parts_learns_saves_and_loads(encoder, decoder, tmp_path):
    model = encoder_decoder(ENCODERS[encoder](), tiny("decoder", **DECODERS[decoder])).train()
    inputs = source_and_target()
    model(**inputs).loss.backward()
    unlearned = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert all("pooler" in name or ".key.bias" in name or "k_proj.bias" in name for name in unlearned), unlearned
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64, trust_remote_code=False)
    torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits, rtol=0, atol=EXACT)


def test_a_vision_encoder_decoder_of_our_parts_learns_generates_saves_and_loads(tmp_path):
    model = encoder_decoder(tiny("vit"), tiny("decoder"), VisionEncoderDecoderModel)
    pixels = torch.randn(2, 3, 12, 16, dtype=torch.float64)
    inputs = {"pixel_values": pixels, "labels": source_and_target()["labels"]}
    model.train()(**inputs).loss.backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if "pooler" not in name)
    expected = model.eval().generate(pixels, **GREEDY, use_cache=False)
    assert torch.equal(model.generate(pixels, **GREEDY), expected)
    assert not torch.equal(model(**inputs).logits[0], model(**inputs | {"pixel_values": pixels.flip(0)}).logits[0])
    model.save_pretrained(tmp_path)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float64, trust_remote_code=False)
    assert isinstance(loaded, VisionEncoderDecoderModel) and torch.equal(loaded.generate(pixels, **GREEDY), expected)


def test_a_decoder_that_was_built_without_cross_attention_is_refused():
    encoder, decoder = AutoModel.from_config(tiny("encoder")), AutoModelForCausalLM.from_config(tiny("decoder"))
    model = EncoderDecoderModel(encoder=encoder, decoder=decoder)
    with pytest.raises(ValueError, match="built without add_cross_attention=True"):
        model(input_ids=torch.tensor([[5, 6]]), decoder_input_ids=torch.tensor([[1]]))

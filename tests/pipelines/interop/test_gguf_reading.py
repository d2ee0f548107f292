"""GGUF files as models: what is opened, how texts are split, and what is said of it."""

import json

import numpy as np
import pytest
import torch
import transformers
from anyformer.pipelines import gguf_files
from anyformer.pipelines.cli import commands as cli
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.generation import locate_model
from anyformer.pipelines.gguf_files import load_gguf, native_folder
from tokenizers.pre_tokenizers import ByteLevel

gguf = pytest.importorskip("gguf")

WIDTH, LAYERS, HEADS, HIDDEN = 32, 2, 2, 64
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAIRS = ["1 2", "12 3", "i t"]  # of digits: only where the pre-tokenizer leaves numbers whole
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def written(file, pre="smollm", quantized=False):
    """A tiny LLaMA with a byte-level vocabulary as a GGUF file."""
    alphabet = sorted(ByteLevel.alphabet())
    tokens = [*SPECIAL, *alphabet, *(pair.replace(" ", "") for pair in PAIRS)]
    writer, random = gguf.GGUFWriter(file, "llama"), np.random.default_rng(0)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(PAIRS)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        square, wide = (WIDTH, WIDTH), (HIDDEN, WIDTH)
        parts = {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "ffn_gate": wide, "ffn_up": wide, "ffn_down": wide[::-1]}
        parts |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), square)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
    kind = gguf.GGMLQuantizationType.Q8_0 if quantized else gguf.GGMLQuantizationType.F32
    for name, shape in shapes.items():
        values = random.normal(size=shape).astype(np.float32) * (1 if len(shape) == 1 else 0.1)
        raw = kind if len(shape) > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, raw), raw_dtype=raw)
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    return file


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    return written(tmp_path / "tiny.gguf")


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits


def test_convert_makes_a_folder_that_plain_transformers_loads_and_which_computes_the_same(file, tmp_path, capsys):
    assert cli.main(["convert", str(file), str(tmp_path / "native")]) == 0
    assert "tiny.gguf: weights in fp32" in capsys.readouterr().out
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "native")
    plain = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    assert type(model).__module__.startswith("transformers.")
    assert torch.equal(logits_of(model, [5, 6, 7]), logits_of(plain, [5, 6, 7]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "native")
    assert tokenizer.chat_template == CHATML and tokenizer.eos_token == "<|im_end|>"
    assert json.loads((tmp_path / "native" / "run.json").read_text())["converted_weights"]


def test_the_quantisation_is_named(tmp_path):
    assert "rounded to Q8_0" in load_gguf(written(tmp_path / "tiny.gguf", quantized=True))[2]


@pytest.mark.parametrize("pre, number", [("smollm", 3), ("gpt-2", 1), ("llama-bpe", 1)])
def test_texts_are_split_as_the_file_says_also_after_saving(pre, number, tmp_path):
    _, tokenizer, words = load_gguf(written(tmp_path / "tiny.gguf", pre=pre))
    tokenizer.save_pretrained(tmp_path / "saved")
    for one in (tokenizer, transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")):
        assert len(one("123")["input_ids"]) == number and len(one("it")["input_ids"]) == 1
    assert "not known" not in words


def test_a_pre_tokenizer_that_is_not_known_is_said(tmp_path):
    assert "its pre-tokenizer 'bloom' is not known" in load_gguf(written(tmp_path / "tiny.gguf", pre="bloom"))[2]


def test_a_file_is_read_once_and_again_where_it_has_changed(file, capfd):
    folder = native_folder(file)
    assert (
        native_folder(file.parent) == folder == locate_model(str(file))
        and capfd.readouterr().err.count("anyformer: reading") == 1
    )
    written(file, quantized=True)
    assert native_folder(file) != folder


RECIPE = """
model: {name_or_path: tiny.gguf}
data: {files: chats.jsonl, validation_fraction: 0.25}
task: {name: instruction_tuning, max_length: 64, answer_field: answer, prompt_field: prompt}
training: {output_dir: run, lora: {r: 2, target_modules: all-linear}, max_steps: 2, per_device_train_batch_size: 2}
"""


def test_what_is_trained_on_a_file_answers_and_its_adapter_loads_without_this_package(file, monkeypatch, capsys):
    peft = pytest.importorskip("peft")
    monkeypatch.chdir(file.parent)
    rows = [{"prompt": f"Say {number}", "answer": str(number)} for number in range(12)]
    (file.parent / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (file.parent / "recipe.yaml").write_text(RECIPE)
    assert cli.main(["preview", "recipe.yaml"]) == 0
    assert cli.main(["train", "recipe.yaml"]) == 0
    assert cli.main(["evaluate", "tiny.gguf", "recipe.yaml", "--split", "validation"]) == 0
    assert cli.main(["generate", "run", "Say 3", "--chat", "--max-new-tokens", "2"]) == 0
    base = json.loads((file.parent / "run" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert base == native_folder(file)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    assert peft.PeftModel.from_pretrained(model, str(file.parent / "run"))


@pytest.mark.parametrize(
    "command, words",
    [
        (["convert", "tiny.gguf", "other.gguf"], "export tiny.gguf --to gguf"),
        (["generate", "two", "text"], "two holds 2 GGUF files; name one of them"),
        (["generate", "broken.gguf", "text"], "broken.gguf cannot be loaded"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence(command, words, file, monkeypatch, capsys):
    monkeypatch.chdir(file.parent)
    (file.parent / "broken.gguf").write_bytes(b"GGUF\x09\0\0\0" + bytes(64))
    (file.parent / "two").mkdir()
    for name in ("a", "b"):
        (file.parent / "two" / f"{name}.gguf").write_bytes(b"GGUF")
    assert cli.main(command) == 2
    assert words in capsys.readouterr().err and not (file.parent / "other.gguf").exists()


def test_a_packaged_model_names_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setitem(gguf_files.PACKAGED, "smollm2", "no_such_package")
    with pytest.raises(UserError, match=r"smollm2 needs the package no-such-package; install anyformer\[examples\]"):
        native_folder("smollm2")

"""`anyformer convert`: whole folders, both ways; nothing is written unless the logits agree."""

import json

import pytest
import torch
from anyformer.pipelines.cli.commands import main
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.interop.convert_checkpoint import convert, copy_modules
from anyformer.pipelines.interop.weights import Weights
from native_models import TOKENS, assert_same_weights, native_model
from tiny_tokenizers import of_words
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
)

import anyformer


@pytest.fixture
def save(tmp_path):
    """Factory: a native model in a folder, as shards, with a tokenizer smaller than its vocabulary."""

    def write(name="gpt2", auto_class="AutoModelForCausalLM", dtype=torch.float32, tokenizer=True, **fields):
        folder = tmp_path / f"native-{name}"
        model = native_model(name, auto_class, **fields).to(dtype)
        if model.can_generate():
            model.generation_config = GenerationConfig(eos_token_id=[2, 7], do_sample=True, top_k=11, pad_token_id=0)
        model.save_pretrained(folder, max_shard_size="20KB")
        if tokenizer:
            words = [f"w{i}" for i in range(TOKENS["vocab_size"] - 9)]
            of_words([*words, "<unk>"], unk="<unk>").save_pretrained(folder)
        return folder

    return write


SLOW = pytest.mark.slow


def loaded(folder, auto=AutoModelForCausalLM):
    return auto.from_pretrained(folder)


SEQ2SEQ = "AnyformerSeq2SeqForConditionalGeneration"
# name -> (Auto class, type of the weights, our class, the beams that a published checkpoint generates with)
THERE_AND_BACK = {
    "llama3_tied": (AutoModelForCausalLM, torch.bfloat16, "AnyformerDecoderForCausalLM", None),
    "gpt2": (AutoModelForCausalLM, torch.float32, "AnyformerDecoderForCausalLM", None),
    "bloom": (AutoModelForCausalLM, torch.float16, "AnyformerDecoderForCausalLM", None),
    "bert": (AutoModelForMaskedLM, torch.float32, "AnyformerEncoderForMaskedLM", None),
    "bart": (AutoModelForSeq2SeqLM, torch.float32, SEQ2SEQ, 4),
    "t5_v1_1": (AutoModelForSeq2SeqLM, torch.float32, SEQ2SEQ, 1),
    "marian": (AutoModelForSeq2SeqLM, torch.float32, SEQ2SEQ, 6),
}
FAST = ("llama3_tied", "bert", "bart")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else SLOW) for n in THERE_AND_BACK])
def test_a_sharded_checkpoint_goes_there_and_back_through_the_command_line(name, save, tmp_path, capsys):
    auto, dtype, class_name, beams = THERE_AND_BACK[name]
    native = save(name, auto.__name__, dtype=dtype)
    assert (native / "model.safetensors.index.json").is_file()
    if beams:
        ids = {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
        GenerationConfig(**ids, num_beams=beams).save_pretrained(native)
    ours, back = tmp_path / "deep" / "ours", tmp_path / "back"
    assert main(["convert", str(native), str(ours)]) == 0
    assert main(["convert", str(ours), str(back), "--to", "native"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if " -> " in line]
    assert len(said) == 2 and "-> anyformer_" in said[0] and said[1].endswith(f"written to {back}")
    before, model, again = (loaded(folder, auto) for folder in (native, ours, back))
    assert type(model).__name__ == class_name and model.dtype == dtype and type(again) is type(before)
    assert_same_weights(before, again)
    for folder, other in ((ours, model), (back, again)):
        if before.can_generate():
            assert other.generation_config.to_diff_dict() == before.generation_config.to_diff_dict()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer("w5 w7 ?")["input_ids"] == AutoTokenizer.from_pretrained(native)("w5 w7 ?")["input_ids"]
        assert len(tokenizer) < AutoConfig.from_pretrained(folder).vocab_size
    card = (ours / "README.md").read_text()
    assert "<!-- anyformer wrote" in card and "# ours\n" in card and str(tmp_path) not in card
    assert f"Converted from `{native.name}`: both compute the same." in card
    assert "# back\n" in (back / "README.md").read_text()
    assert "is_local" not in (ours / "tokenizer_config.json").read_text()
    assert auto.__name__ in json.loads((ours / "config.json").read_text())["auto_map"]
    assert "auto_map" not in json.loads((back / "config.json").read_text()) and not list(back.glob("*.py"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "deep", native.name]
    assert [path.name for path in ours.parent.iterdir()] == ["ours"]  # nothing half-written stays


def test_a_task_head_and_a_missing_tokenizer_are_converted_as_they_are(save, tmp_path):
    native = save("qwen2", "AutoModelForTokenClassification", tokenizer=False, num_labels=5)
    said = convert(str(native), tmp_path / "ours")
    assert said.endswith("without a tokenizer, since the source has none")
    model = loaded(tmp_path / "ours", AutoModelForTokenClassification)
    assert type(model) is anyformer.AnyformerDecoderForTokenClassification and model.config.num_labels == 5


def test_from_native_takes_a_folder_and_loading_arguments(save):
    folder = save("mistral", dtype=torch.bfloat16)
    assert anyformer.from_native(folder).dtype == torch.bfloat16
    ours = anyformer.from_native(str(folder), dtype=torch.float32)
    assert ours.dtype == torch.float32
    assert_same_weights(anyformer.to_native(ours), loaded(folder).float())


def test_one_weight_off_by_a_millionth_is_found_and_nothing_is_written(save, tmp_path, monkeypatch):
    folder, split = save(), Weights.split

    def off(row, native, config):
        parts = split(row, native, config)
        return parts if len(parts) == 1 else [parts[0] + 1e-6 * parts[0].abs().max(), *parts[1:]]

    monkeypatch.setattr(Weights, "split", off)
    with pytest.raises(UserError, match=r"the twin's logits differ by .* more than 1e-09 of it; nothing was written"):
        convert(str(folder), tmp_path / "made" / "ours")
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    "name, fields",
    [
        ("gpt2", {"reorder_and_upcast_attn": True}),
        *((name, {"hidden_size": 128}) for name in ("gemma", "gemma2", "gemma3")),  # its root is not exact in fp32
    ],
)
def test_what_transformers_computes_in_fp32_alone_is_no_difference(name, fields, save, tmp_path):
    assert "written to" in convert(str(save(name, tokenizer=False, **fields)), tmp_path / "ours")


def test_modules_of_sentence_transformers_go_along(tmp_path):
    source, destination = tmp_path / "source", tmp_path / "out"
    (source / "1_Pooling").mkdir(parents=True)
    destination.mkdir()
    for name in ("modules.json", "1_Pooling/config.json", "other.json"):
        (source / name).write_text(name)
    copy_modules(source, destination)
    copied = {str(path.relative_to(destination)) for path in destination.rglob("*.json")}
    assert copied == {"modules.json", "1_Pooling/config.json"}


def test_nothing_stays_where_writing_fails(save, tmp_path, monkeypatch):
    folder = save()

    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        convert(str(folder), tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_destination_in_use_is_refused_before_anything_is_loaded_and_an_empty_folder_is_not(save, tmp_path):
    folder = save()
    before = sorted(folder.iterdir())
    file = tmp_path / "file"
    file.write_text("mine")
    for destination, words in ((folder, "is not empty"), (file, "is a file")):
        with pytest.raises(UserError, match=words):
            convert("no/such/model/anywhere", destination)
    assert sorted(folder.iterdir()) == before and file.read_text() == "mine"
    (tmp_path / "empty").mkdir()
    convert(str(folder), tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").is_file()


def test_what_cannot_be_converted_is_one_sentence(save, tmp_path, capsys):
    folder = save()
    other = tmp_path / "jamba"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"model_type": "jamba", "architectures": ["JambaForCausalLM"]}))
    broken = save("llama2")
    index = json.loads((broken / "model.safetensors.index.json").read_text())
    (broken / index["weight_map"]["model.norm.weight"]).unlink()
    for arguments, words in (
        ([str(folder), "out", "--to", "native"], "is a native model already (gpt2); leave out --to native"),
        ([str(folder), "out", "--to", "jax"], "invalid choice: 'jax'"),
        (["no/such/model/anywhere", "out"], "MODEL=no/such/model/anywhere"),
        ([str(other), "out"], "model_type='jamba' has no anyformer twin"),
        ([str(broken), "out"], "which is missing; save the model again"),
    ):
        assert main(["convert", *arguments]) == 2
        err = capsys.readouterr().err.strip().splitlines()
        assert words in err[-1] and err[-1].startswith("anyformer: "), err
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_names_no_class_has_the_head_of_pretraining_and_one_that_lacks_weights_is_refused(save):
    def without_class(auto_class, name="deberta_v3"):
        folder = save(name, auto_class, tokenizer=False)
        config = json.loads((folder / "config.json").read_text())
        del config["architectures"]
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    loaded = anyformer.from_native(without_class("AutoModelForMaskedLM"))
    assert type(loaded) is anyformer.AnyformerEncoderForMaskedLM
    loaded = anyformer.from_native(without_class("AutoModelForTokenClassification"))
    assert type(loaded) is anyformer.AnyformerEncoderModel
    with pytest.raises(UserError, match=r"lacks the weight pooler\.dense\.bias"):  # which a bare BERT has
        anyformer.from_native(without_class("AutoModelForTokenClassification", "bert"))

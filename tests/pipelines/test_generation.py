"""Laws of `anyformer generate`: the same seed gives the same text, and what cannot be generated is one sentence."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.generation import (
    _inputs_of,
    _options,
    free_positions,
    generate_text,
    ids_of_question,
    ids_to_continue,
    load_writer,
    locate_model,
)
from tiny_tokenizers import of_bytes, of_words
from tokenizers.normalizers import Lowercase
from tokenizers.processors import TemplateProcessing
from transformers import BartConfig, GPT2Config

from anyformer import AnyformerDecoderForCausalLM
from anyformer_main import main


def test_an_encoders_prompt_takes_no_position_of_the_decoder():
    config = GPT2Config(max_position_embeddings=8)
    assert free_positions(config, 5) == 3
    with pytest.raises(UserError, match="PROMPT has 8 tokens, but the model has 8 positions"):
        free_positions(config, 8)
    pair = BartConfig(max_position_embeddings=8)
    assert free_positions(pair, 5) == free_positions(pair, 8) == 7  # the first is of the token that begins an answer
    with pytest.raises(UserError, match="PROMPT has 9 tokens"):
        free_positions(pair, 9)


@pytest.fixture(scope="module")
def tokenizer():
    return of_bytes(texts=["the import statement combines two operations"], size=300, eos="<|endoftext|>")


@pytest.fixture
def saved(tokenizer, tiny_config, tmp_path):
    """Factory of a folder with a random tiny model and its tokenizer."""

    def save(**overrides):
        config = tiny_config(**({"vocab_size": 300, "eos_token_id": 0, "bos_token_id": None} | overrides))
        # Weights large enough that the likeliest token is not always the same one.
        model = AnyformerDecoderForCausalLM(config)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(5)
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


def test_the_same_seed_gives_the_same_text_and_another_seed_another(saved):
    folder = saved()
    texts = [generate_text(folder, "the ", max_new_tokens=12, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert all(text.startswith("the ") for text in texts)


def test_a_tokenizer_of_lower_case_leaves_the_prompt_as_it_is_and_a_space_behind_it(saved):
    folder, lower = saved(vocab_size=3, eos_token_id=None), of_words(["a", "b", "c"])
    lower.backend_tokenizer.normalizer = Lowercase()
    lower.save_pretrained(folder)
    written = generate_text(folder, "A b C", max_new_tokens=5, do_sample=False)
    assert written.startswith("A b C ")


@pytest.mark.parametrize("around, before", [("{} $A {}", [0]), ("$A {}", [])])
def test_a_token_after_a_text_is_not_before_its_continuation(around, before):
    tokenizer, end = of_words(["<end>", "a", "b"]), "<end>"
    template = TemplateProcessing(single=around.format(end, end), special_tokens=[(end, 0)])
    tokenizer.backend_tokenizer.post_processor = template
    assert ids_to_continue(tokenizer, ["a b", "b"]) == [[*before, 1, 2], [*before, 2]]
    model = SimpleNamespace(config=GPT2Config(), device="cpu")
    assert _inputs_of(model, tokenizer, "a b", False, (), ())["input_ids"].tolist() == [[*before, 1, 2]]


def test_the_command_prints_prompt_and_continuation(saved, capsys):
    folder = saved()
    assert main(["generate", folder, "import ", "--seed", "3", "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().out == generate_text(folder, "import ", max_new_tokens=5, seed=3) + "\n"


def test_learned_positions_end_the_text_and_refuse_a_longer_prompt(saved, tokenizer):
    folder = saved(position_encoding="learned", max_position_embeddings=16, eos_token_id=None)
    text = generate_text(folder, "zq", max_new_tokens=500, do_sample=False)
    assert text.startswith("zq")
    with pytest.raises(UserError, match="PROMPT has 40 tokens, but the model has 16 positions"):
        generate_text(folder, "z" * 40)


def test_an_encoder_decoder_searches_as_it_is_told_and_else_as_it_is_saved(tokenizer):
    for do_sample, beams in ((False, 1), (False, 4), (None, 4)):
        told = _options(tokenizer, True, do_sample, beams, {})
        assert (told["do_sample"], told["num_beams"]) == (False, beams)
    assert not {"do_sample", "num_beams"} & _options(tokenizer, True, None, 1, {}).keys()


def test_an_empty_prompt_begins_a_document(saved):
    assert generate_text(saved(), "", max_new_tokens=5, seed=0) != ""


def test_what_is_no_model_is_one_sentence(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    unfinished = tmp_path / "run" / "checkpoint-3"
    unfinished.mkdir(parents=True)
    (unfinished / "config.json").write_text('{"model_type": "gpt2"}')
    for name, words in [
        ("none", "no such folder"),
        ("empty", "no config.json"),
        ("file", "is a file"),
        ("run", f"newest checkpoint is {unfinished}"),
    ]:
        with pytest.raises(UserError, match=words):
            locate_model(str(tmp_path / name))
    # No weights, no tokenizer: found by transformers, told by us.
    assert main(["generate", str(unfinished), "text"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("anyformer: MODEL=") and err.count("\n") == 1


@pytest.mark.parametrize(
    "template, words",
    [
        ("{% if messages %}", "cannot put a question (Unexpected end of template"),
        ("{{ raise_exception('a system message first') }}", "cannot put a question (a system message first)"),
        ("{{ 1 / 0 }}", "cannot put a question (division by zero)"),
        ("{# nothing #}", "leaves nothing of the question"),
    ],
)
def test_a_chat_template_that_fails_is_one_sentence(template, words, saved, capsys):
    folder = Path(saved())
    (folder / "chat_template.jinja").write_text(template)
    assert main(["generate", str(folder), "hello", "--chat"]) == 2
    sentence = capsys.readouterr().err.strip().splitlines()[-1]
    assert sentence.startswith(f"anyformer: --chat: the chat template of MODEL={folder} {words}")


def test_a_question_in_parts_is_put_with_its_system_message_and_tools(saved):
    _, tokenizer = load_writer(saved())
    tool = {"type": "function", "function": {"name": "snow", "description": "Snow there.", "parameters": {}}}
    said = [{"role": "system", "content": "Be short."}]
    with_tools = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role + ': ' }}"
    with_tools += "{% for part in m.content %}{{ part.text }}{% endfor %};{% endfor %}"  # as of models of images
    tokenizer.chat_template = with_tools
    text = tokenizer.decode(ids_of_question(tokenizer, [*said, {"role": "user", "content": "hello"}], [tool]))
    assert text.endswith("system: Be short.;user: hello;") and "Snow there." in text


def test_text_is_told_piece_by_piece_as_it_is_written(saved):
    folder, pieces = saved(), []
    text = generate_text(folder, "import ", max_new_tokens=24, seed=3, on_text=pieces.append)
    assert "".join(pieces) == text == generate_text(folder, "import ", max_new_tokens=24, seed=3)
    assert len(pieces) > 1
    beams = []
    assert generate_text(folder, "import ", max_new_tokens=4, do_sample=False, num_beams=2, on_text=beams.append)
    assert beams == []  # a search has no text before its end


@pytest.mark.parametrize(
    "architecture, words",
    [
        ("AnyformerEncoderForMaskedLM", "is of AnyformerEncoderForMaskedLM, which writes no text; anyformer predict "),
        ("BertForSequenceClassification", "is of BertForSequenceClassification, which writes no text"),
        ("AnyformerEncoderModel", " FILE answers"),
    ],
)
def test_a_model_that_writes_no_text_is_refused_with_what_it_does(architecture, words, tmp_path, capsys):
    kind = "anyformer_encoder" if architecture.startswith("AnyformerEncoder") else "bert"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "architectures": [architecture]}))
    assert main(["generate", str(tmp_path), "text"]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_a_missing_folder_among_runs_is_answered_with_the_runs_there(tmp_path):
    with pytest.raises(UserError, match="MODEL=runs/x: no such folder; anyformer train quickstart makes runs/quick"):
        locate_model("runs/x")
    (tmp_path / "runs" / "quickstart").mkdir(parents=True)
    (tmp_path / "runs" / "quickstart" / "run.json").write_text("{}")
    with pytest.raises(UserError, match="MODEL=runs/quikstart: no such folder; did you mean runs/quickstart"):
        locate_model("runs/quikstart")
    assert locate_model("other/model") == "other/model"  # may be on the Hub

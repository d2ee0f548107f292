"""A saved model in other hands: in a chat, in a file of another engine, behind a server."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from anyformer.pipelines.cli.parser import parse
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.generation import load_writer
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.serving import export_model
from anyformer.pipelines.serving.chat import converse
from anyformer.pipelines.serving.export_formats import check_format
from anyformer.pipelines.serving.server import server_command
from family_variants import ZOO
from local_hub import client_env
from native_models import native_config
from processes import free_port
from safetensors.torch import load_file, save_file
from task_data import on_rows
from tiny_tokenizers import of_bytes
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertForMultipleChoice,
    BertForTokenClassification,
    GPT2LMHeadModel,
    T5ForConditionalGeneration,
    pipeline,
)

import anyformer
from anyformer import AnyformerDecoderForCausalLM
from anyformer_main import main

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
TOLERANCE = 1e-5  # fp32, onnxruntime's kernels


def byte_tokenizer(template: str | None):
    tokenizer = of_bytes(eos="<|endoftext|>")
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture
def saved(tiny_config, tmp_path):
    """Factory of a folder with a tiny random decoder and its tokenizer."""

    def save(template: str | None = TEMPLATE, **fields) -> str:
        torch.manual_seed(0)
        tokens = {"vocab_size": 257, "eos_token_id": 0, "bos_token_id": None, "max_position_embeddings": 256}
        model = AnyformerDecoderForCausalLM(tiny_config(**tokens | fields))
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(5)  # so that the likeliest token is not always the same one
        model.save_pretrained(tmp_path / "model")
        byte_tokenizer(template).save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


# ------------------------------------------------------------------------------------------------------- in a chat


def test_a_chat_answers_as_the_pipeline_does_after_all_that_was_said_since_reset(saved):
    model, tokenizer = load_writer(saved())
    native = pipeline("text-generation", model=model, tokenizer=tokenizer)
    shown: list[str] = []
    lines = ["hello", "and then?", "/nope", "", "/reset", "again", "/exit", "never"]
    converse(model, tokenizer, lines, shown.append, do_sample=False, max_new_tokens=12)

    def answers(*asked: str) -> list[str]:
        messages = []
        for line in asked:
            messages.append({"role": "user", "content": line})
            messages = native(messages, do_sample=False, max_new_tokens=12)[0]["generated_text"]
        return [message["content"] for message in messages if message["role"] == "assistant"]

    first, second = answers("hello", "and then?")
    (third,) = answers("again")
    commands = "/reset forgets what was said, /exit ends the chat"
    expected = [commands, first, second, f"/nope: no such command; {commands}", "forgotten", third]
    assert "".join(shown) == "".join(f"{line}\n" for line in expected)
    assert len(shown) > len(expected) + 3  # in pieces


def test_without_a_chat_template_each_line_is_continued_by_itself_and_a_conversation_too_long_is_said(saved):
    model, tokenizer = load_writer(saved(template=None))
    shown: list[str] = []
    converse(model, tokenizer, ["abc", "abc"], shown.append, do_sample=False, max_new_tokens=4)
    first, second = "".join(shown).split("\nabc", 1)[1].split("\nabc", 1)
    assert "no chat template" in shown[0] and first + "\n" == second
    model, tokenizer = load_writer(saved(position_encoding="learned", max_position_embeddings=64))
    shown.clear()
    converse(model, tokenizer, ["x" * 30, "y" * 30, "/reset", "z"], shown.append, do_sample=False, max_new_tokens=8)
    told = "".join(shown)
    assert "but the model has 64 positions; shorten it; /reset forgets" in told
    assert not told.endswith("forgotten\n")  # the chat went on


TOOLS = [{"type": "function", "function": {"name": "rain", "parameters": {"type": "object", "properties": {}}}}]
WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}" + TEMPLATE


def test_a_system_message_and_tools_stand_before_each_question(saved, tmp_path, command, capsys, monkeypatch):
    model, file = saved(WITH_TOOLS), tmp_path / "tools.json"
    file.write_text(json.dumps(TOOLS))
    loaded, tokenizer = load_writer(model)
    begin = [{"role": "system", "content": "Be brief."}]

    def answer(begin, tools):
        asked = [*begin, {"role": "user", "content": "hello"}]
        inputs = tokenizer.apply_chat_template(
            asked, tools=tools, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        ids = loaded.generate(**inputs, do_sample=False, max_new_tokens=8, pad_token_id=0)
        return tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    how = ["--greedy", "--max-new-tokens", "8"]
    answers = []
    for words, right in (
        ([], answer([], None)),
        (["--system", "Be brief."], answer(begin, None)),
        (["--tools", file], answer([], TOOLS)),
        (["--system", "Be brief.", "--tools", file], answer(begin, TOOLS)),
    ):
        assert command("generate", model, "hello", "--chat", *words, *how) == 0
        assert capsys.readouterr().out == right + "\n"
        lines = iter(["hello", "/reset", "hello"])
        monkeypatch.setattr("anyformer.pipelines.cli.chat_command.typed", lambda lines=lines: lines)
        assert command("chat", model, *words, *how) == 0
        assert capsys.readouterr().out.split("\n", 1)[1] == f"{right}\nforgotten\n{right}\n"
        answers.append(right)
    assert len({*answers}) > 2  # they are read


def test_mistakes_about_tools_are_one_sentence_before_the_first_question(saved, tmp_path, command, capsys):
    model, file = saved(TEMPLATE), tmp_path / "tools.json"
    for text in ("[", "{}", "[]", '[{"name": "rain"}]', '[{"function": {"name": 3}}]', "[7]"):
        file.write_text(text)
        assert command("chat", tmp_path / "gone", "--tools", file) == 2  # before the model is looked for
        assert f"--tools {file} is no" in (said := capsys.readouterr().err) and said.count("\n") == 1
    assert command("generate", model, "hello", "--chat", "--tools", tmp_path / "none.json") == 2
    assert "none.json is no JSON that can be read" in capsys.readouterr().err
    file.write_text(json.dumps(TOOLS))
    assert command("chat", model, "--tools", file) == 2
    assert "does not write tools" in capsys.readouterr().err
    assert command("generate", model, "hello", "--tools", file) == 2
    assert "add --chat" in capsys.readouterr().err
    template = Path(model) / "chat_template.jinja"
    template.write_text(TEMPLATE.replace("in messages %}", "in messages if m['role'] != 'system' %}"))
    assert command("chat", model, "--system", "Be brief.") == 2
    assert "does not write system messages" in (said := capsys.readouterr().err) and said.count("\n") == 1
    template.unlink()
    assert command("chat", model, "--system", "Be brief.") == 2
    assert "has no chat template, which --chat, --system and" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_answers_the_lines_of_a_pipe(saved, tmp_path):
    words = [sys.executable, "-c", "import sys, anyformer_main; sys.exit(anyformer_main.main())"]
    words += ["chat", saved(), "--greedy", "--max-new-tokens", "8"]
    done = subprocess.run(words, input="hello\n/exit\n", text=True, capture_output=True, env=client_env(tmp_path))
    assert done.returncode == 0, done.stderr
    shown: list[str] = []
    converse(*load_writer(saved()), ["hello"], shown.append, do_sample=False, max_new_tokens=8)
    assert done.stdout == "".join(shown)


# ------------------------------------------------------------------------------------------------------- in a file


def headed(variant: str, head: str):
    (found,) = [each for each in ZOO if str(each) == variant]
    config = found.config(num_labels=3)
    return getattr(anyformer, type(config).__name__.removesuffix("Config") + head)(config)


EXPORTED = {
    "decoder": lambda: headed("decoder-alibi", "ForCausalLM"),
    "mixture": lambda: headed("moe-mixtral", "ForCausalLM"),
    "classifier": lambda: headed("encoder-bert", "ForSequenceClassification"),
    "seq2seq": lambda: headed("seq2seq-t5", "ForConditionalGeneration"),
    "images": lambda: headed("vit-vit", "ForImageClassification"),
    "gpt2": lambda: GPT2LMHeadModel(native_config("gpt2")),
    "bert-tags": lambda: BertForTokenClassification(native_config("bert")),
    "bert-choices": lambda: BertForMultipleChoice(native_config("bert")),
}


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch_export"])
@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_file_computes_what_the_model_does_for_rows_and_lengths_it_has_not_seen(name, to, tmp_path, capsys):
    if to == "onnx":
        pytest.importorskip("onnxruntime"), pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = EXPORTED[name]().eval()
    model.save_pretrained(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "--to", to]) == 0
    folder = tmp_path / f"model-{to}"
    assert capsys.readouterr().out.endswith(f"written to {folder}\n")
    run = export_model.runner(folder / {"onnx": "model.onnx", "torch_export": "model.pt2"}[to])
    inputs = export_model.example(model, 5, 9)
    with torch.no_grad():
        expected = model(**inputs).logits
    scores = run(inputs)[0]
    mask = inputs.get("attention_mask")
    if mask is not None and scores.shape[:2] == mask.shape:
        scores, expected = scores[mask.bool()], expected[mask.bool()]
    torch.testing.assert_close(scores, expected, atol=TOLERANCE * expected.abs().max().item(), rtol=0)


@pytest.mark.slow
def test_an_export_whose_outputs_differ_leaves_nothing(saved, tmp_path, monkeypatch):
    model, runner = saved(), export_model.runner
    monkeypatch.setattr(export_model, "runner", lambda file: lambda x: [each + 0.1 for each in runner(file)(x)])
    with pytest.raises(UserError, match=r"differ .* by 0\.1 where the largest is .*; nothing was written"):
        export_model.export(model, "torch_export", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_only_equal_outputs_of_equal_shapes_pass(tiny_config):
    model = AnyformerDecoderForCausalLM(tiny_config()).eval()

    @torch.no_grad()
    def outputs(inputs, by=0.0):
        return [model(**inputs, use_cache=False).logits + by]

    assert "largest difference of outputs 0 " in export_model.compared(model, outputs)
    for run, words in (
        (lambda x: outputs(x, 1e-3), "differ from those of .* by 0.001"),
        (lambda x: outputs(x, float("nan")), "differ from those of .* by nan"),
        (lambda x: [each[:1] for each in outputs(x)], "gives other outputs"),
        (lambda x: [1 / 0], "does not take 1 x 7"),
    ):
        with pytest.raises(UserError, match=f"{words}.*nothing was written"):
            export_model.compared(model, run)


def test_a_format_that_is_not_made_here_is_said_at_once(monkeypatch):
    with pytest.raises(UserError, match=r"--to onix: no such format; did you mean onnx\?"):
        check_format("onix")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=re.escape("--to onnx needs the package onnx; install anyformer[onnx]")):
        check_format("onnx")
    args = parse(["export", "runs/none", "--to", "torch_export", "--out", __file__])
    with pytest.raises(UserError, match=r"--out=.*test_serving\.py is a file"):
        args.run(args)


# -------------------------------------------------------------------------------------------------- behind a server


@pytest.fixture
def without_vllm(monkeypatch):
    """A function that says which packages there are: at first those of `transformers serve`. No command is vllm."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    find = importlib.util.find_spec

    def installed(*names: str) -> None:
        known = lambda name: (name in names or None) if name in ("fastapi", "uvicorn", "openai") else find(name)  # noqa: E731
        monkeypatch.setattr(importlib.util, "find_spec", known)

    installed("fastapi", "uvicorn", "openai")
    return installed


def test_a_model_of_ours_is_served_by_its_native_twin_which_is_made_once(saved, without_vllm):
    folder = saved()
    words = server_command(folder, "127.0.0.1", 8000)
    start = [sys.executable, "-m", "transformers.cli.transformers", "serve"]
    assert words == [*start, f"{folder}-native", "--host", "127.0.0.1", "--port", "8000"]
    assert json.loads(Path(f"{folder}-native/config.json").read_text())["model_type"] == "llama"
    made = Path(f"{folder}-native/model.safetensors").stat().st_mtime_ns
    assert server_command(folder, "127.0.0.1", 8000) == words
    assert server_command(f"{folder}-native", "127.0.0.1", 8000) == words  # a native model as it is
    assert Path(f"{folder}-native/model.safetensors").stat().st_mtime_ns == made
    os.utime(f"{folder}/config.json")  # its content is as it was
    assert server_command(folder, "127.0.0.1", 8000) == words
    file = Path(folder) / "model.safetensors"  # trained again, and copied with its time
    state, weights = file.stat(), load_file(file)
    save_file({name: x + 0.1 for name, x in weights.items()}, file, {"format": "pt"})
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(UserError, match=r"model-native is not of MODEL=.* as it is now; remove it"):
        server_command(folder, "127.0.0.1", 8000)


def test_vllm_serves_a_model_of_ours_from_its_folder_where_its_code_may_run(saved, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    folder = saved()
    code = ["--model-impl", "transformers", "--trust-remote-code"]
    where = ["--host", "0.0.0.0", "--port", "81"]
    words = ["/bin/vllm", "serve", folder, *code, *where]
    assert server_command(folder, "0.0.0.0", 81, trust_remote_code=True) == words
    assert not Path(f"{folder}-native").exists()
    assert server_command(folder, "0.0.0.0", 81) == ["/bin/vllm", "serve", f"{folder}-native", *where]


def test_a_model_that_no_server_computes_is_one_sentence(saved, tmp_path, without_vllm):
    folder = saved(position_encoding="relative")
    with pytest.raises(UserError, match=r"vLLM refuses it \(position_encoding='relative'.*no native twin: "):
        server_command(folder, "127.0.0.1", 8000)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    T5ForConditionalGeneration(native_config("t5")).save_pretrained(tmp_path / "t5")
    with pytest.raises(UserError, match="is an encoder-decoder"):
        server_command(str(tmp_path / "t5"), "127.0.0.1", 8000)
    GPT2LMHeadModel(native_config("gpt2")).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(UserError, match="holds no tokenizer"):
        server_command(str(tmp_path / "gpt2"), "127.0.0.1", 8000)
    without_vllm("fastapi")
    with pytest.raises(UserError, match=re.escape("needs the package uvicorn; install anyformer[serve]")):
        server_command(folder, "127.0.0.1", 8000)


@contextmanager
def served(folder: str, tmp_path: Path):
    """OpenAI's client of a server of a model, and the name of the model there."""
    openai = pytest.importorskip("openai")
    pytest.importorskip("fastapi"), pytest.importorskip("uvicorn")
    port = free_port()
    words = [sys.executable, "-c", "import sys, anyformer_main; sys.exit(anyformer_main.main())"]
    words += ["serve", folder, "--port", str(port)]
    log = (tmp_path / "server.log").open("w")
    server = subprocess.Popen(words, env=client_env(tmp_path), stdout=log, stderr=subprocess.STDOUT)
    try:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
        there = None
        while there is None:  # pytest's own limit ends it
            assert server.poll() is None, (tmp_path / "server.log").read_text()
            try:
                (there,) = client.models.list()
            except openai.APIConnectionError:
                time.sleep(0.5)
        yield client, there.id
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
        log.close()


@pytest.mark.slow
def test_openais_client_gets_the_models_own_answers_whole_and_in_pieces(saved, tmp_path):
    folder, asked = saved(), [{"role": "user", "content": "hello"}]
    with served(folder, tmp_path) as (client, name):
        how = {"model": name, "messages": asked, "max_tokens": 12, "temperature": 0}
        whole = client.chat.completions.create(**how).choices[0].message.content
        pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**how, stream=True)]
    native = AutoModelForCausalLM.from_pretrained(f"{folder}-native", trust_remote_code=False)
    (answer,) = pipeline("text-generation", model=native, tokenizer=byte_tokenizer(TEMPLATE))(
        asked, do_sample=False, max_new_tokens=12
    )
    assert whole == "".join(pieces) == answer["generated_text"][-1]["content"]
    assert len([piece for piece in pieces if piece]) > 1


@pytest.mark.slow
def test_a_server_asks_with_the_tools_as_the_training_did_and_the_end_of_a_call_ends_the_answer(tmp_path, command):
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rain in Oslo?"}]
    call = {"type": "function", "function": {"name": "rain", "arguments": json.dumps({"place": "Oslo"})}}
    said = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", **call}]}
    task = {"name": "instruction_tuning", "max_length": 500}
    whole = on_rows(tmp_path, [{"messages": [*asked, said], "tools": TOOLS}] * 4, **task) | {
        "model": {"family": "decoder", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
        "tokenizer": {"type": "byte_bpe", "vocab_size": 270, "special_tokens": ["<|im_start|>", "<|im_end|>"]},
        "training": {"output_dir": str(tmp_path / "run"), "max_steps": 60, "per_device_train_batch_size": 1},
    }
    whole["tokenizer"]["chat_template"], whole["training"]["learning_rate"] = "chatml_tools", 5e-3
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(whole))
    assert command("train", recipe) == 0
    row = prepare_data(load_recipe(recipe)).rows["train"][0]
    labels = row["labels"].tolist()
    learned = [number for number, label in enumerate(labels) if label != -100]
    prompt, answer = learned[0], len(learned)
    with served(str(tmp_path / "run"), tmp_path) as (client, name):
        how = {"model": name, "messages": asked, "tools": TOOLS, "max_tokens": 2 * answer, "temperature": 0}
        found = client.chat.completions.create(**how)
        last = [chunk.choices[0] for chunk in client.chat.completions.create(**how, stream=True)]
    from transformers.cli.serving.utils import BaseHandler, Modality

    read = BaseHandler.get_processor_inputs_from_messages(asked, Modality.LLM)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run-native")
    ids = tokenizer.apply_chat_template(read, tools=TOOLS, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids == row["input_ids"][:prompt].tolist() and found.usage.prompt_tokens == prompt
    assert found.choices[0].finish_reason == last[-1].finish_reason == "tool_calls"
    assert found.usage.completion_tokens in (answer, answer - 1)  # with or without what ends it
    (called,), streamed = found.choices[0].message.tool_calls, [one for one in last if one.delta.tool_calls]
    for function in (called.function, streamed[0].delta.tool_calls[0].function):
        assert (function.name, json.loads(function.arguments)) == ("rain", {"place": "Oslo"})

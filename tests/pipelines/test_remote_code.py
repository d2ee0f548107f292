"""Code that comes with a checkpoint runs for those who say so, and never because of what is on standard input."""

import ast
import builtins
import json

import pytest
from anyformer.pipelines.cli.commands import main
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.compose import load_recipe
from image_data import image_recipe
from tiny_tokenizers import of_words
from transformers import LlamaConfig, LlamaForCausalLM

import anyformer

MODEL_CODE = """
import pathlib
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

pathlib.Path(__file__).exists() and open({trace!r}, "a").write("ran\\n")

class StrangerConfig(LlamaConfig):
    model_type = "stranger"

class StrangerForCausalLM(LlamaForCausalLM):
    config_class = StrangerConfig

class StrangerTokenizer(PreTrainedTokenizerFast):
    pass

class StrangerProcessor(ViTImageProcessorPil):
    pass
"""
PROCESSOR = {"image_processor_type": "StrangerProcessor", "size": {"height": 8, "width": 8}}


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """(folder of a model of a stranger, file that its code writes when it runs); a `y` waits on standard input."""
    folder, trace = tmp_path / "stranger", tmp_path / "ran.txt"
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=30, **sizes)).save_pretrained(folder)
    of_words(["<|endoftext|>", "Once", "upon", "a", "time"], eos="<|endoftext|>").save_pretrained(folder)
    (folder / "theirs.py").write_text(MODEL_CODE.format(trace=str(trace)))
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "stranger"}
    config["auto_map"] = {"AutoConfig": "theirs.StrangerConfig", "AutoModelForCausalLM": "theirs.StrangerForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    processor = PROCESSOR | {"auto_map": {"AutoImageProcessor": "theirs.StrangerProcessor"}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": [None, "theirs.StrangerTokenizer"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return folder, trace


@pytest.mark.parametrize("verb", ["train", "preview", "convert", "from_native", "images", "generate"])
def test_a_stranger_s_code_does_not_run_because_of_a_y_on_standard_input(verb, stranger, tiny_recipe, tmp_path, capsys):
    folder, trace = stranger
    recipe = tiny_recipe() if verb != "images" else image_recipe(tmp_path)
    arguments = {
        "train": ("train", recipe, f"model.name_or_path={folder}"),
        "preview": ("preview", recipe, f"model.name_or_path={folder}"),
        "images": ("preview", recipe, f"model.name_or_path={folder}"),
        "convert": ("convert", folder, tmp_path / "converted"),
        "generate": ("generate", folder, "Once"),
    }
    if verb == "from_native":
        with pytest.raises(UserError, match=r"runs only with .*trust_remote_code=True in Python"):
            anyformer.from_native(folder)
    elif verb == "preview":  # the tokenizer is one of transformers' own, and loads as such
        assert main([str(word) for word in arguments[verb]]) == 0
    else:
        assert main([str(word) for word in arguments[verb]]) == 2
        sentence = capsys.readouterr().err.strip().splitlines()[-1]
        assert "it has code of its own, which runs only with --trust-remote-code" in sentence
    assert not trace.exists()


def test_who_means_it_trains_a_stranger_s_model_to_the_end(stranger, tiny_recipe, command, tmp_path):
    folder, trace = stranger
    overrides = [f"model.name_or_path={folder}", "training.max_steps=2", "evaluation.sample_prompts=[Once]"]
    assert command("train", tiny_recipe(), *overrides, "--trust-remote-code") == 0
    assert trace.exists() and (tmp_path / "run" / "theirs.py").is_file()
    run = anyformer.Run(tmp_path / "run", trust_remote_code=True)
    assert type(run.model).__name__ == "StrangerForCausalLM"
    with pytest.raises(ValueError, match="trust_remote_code"):
        _ = anyformer.Run(tmp_path / "run").model


# Classes that run no code but that of installed packages.
PLAIN = {"PreTrainedTokenizerFast", "GenerationConfig", "PeftModel", "cls"}


def test_every_loading_in_the_package_says_whether_code_may_run(repo_root):
    """Where nothing is said, transformers asks on standard input."""
    calls = 0
    for file in (repo_root / "pipelines").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "from_pretrained":
                continue
            says = {keyword.arg for keyword in node.keywords} & {"trust_remote_code", None}  # None: **arguments
            called = ast.unparse(node.func.value).removeprefix("transformers.")
            is_class = called.startswith("type(") or called == "make"  # of a model or config whose code has run
            assert says or called in PLAIN or is_class, f"{file.name}, line {node.lineno}"
            calls += 1
    assert calls > 12


def test_no_recipe_can_trust_for_the_user(tiny_recipe):
    recipe = load_recipe(str(tiny_recipe()))
    assert recipe.trust_remote_code is False and "trust_remote_code" not in recipe.to_yaml()
    for override in ("trust_remote_code=true", "training.trust_remote_code=true", "model.trust_remote_code=true"):
        with pytest.raises(UserError, match="no such se"):
            load_recipe(str(tiny_recipe()), [override])

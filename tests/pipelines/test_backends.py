"""Backends of attention and experts as settings of recipes and commands."""

import json
from functools import partial

import pytest
import torch
import yaml
from anyformer.pipelines import backends
from anyformer.pipelines.backends import ATTENTION, EXPERTS, check_attention, is_flash
from anyformer.pipelines.cli import commands as cli
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.recipes.compose import load_recipe
from golden_runs import losses_of, recipe_of
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel, LlamaConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import is_flash_attention_requested

import anyformer

TOLERANCE = 1e-5  # of losses in fp32: backends add up in another order


def trained(family: str, folder, **backend) -> tuple[list[float], dict]:
    """(losses of 20 steps, run.json) of a tiny run on the backends."""
    folder.mkdir()
    recipe = recipe_of(family, folder)
    recipe["model"] |= backend
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert cli.main(["train", str(folder / "recipe.yaml")]) == 0
    run = folder / "run"
    return losses_of(run), json.loads((run / "run.json").read_text())


@pytest.mark.parametrize("family", ["decoder", pytest.param("seq2seq", marks=pytest.mark.slow)])
def test_twenty_steps_are_the_same_on_every_backend_of_attention(family, tmp_path, capsys):
    losses, run = trained(family, tmp_path / "auto")
    assert len(losses) == 20 and run["backends"]["attention"] == "anyformer"
    assert "| attention by | anyformer |" in (tmp_path / "auto" / "run" / "README.md").read_text()
    found, run = trained(family, tmp_path / "eager", attn_implementation="eager")
    assert run["backends"]["attention"] == "eager" and "attention by eager" in capsys.readouterr().out
    assert found == pytest.approx(losses, abs=TOLERANCE)


@pytest.mark.slow
def test_twenty_steps_are_the_same_on_every_backend_of_experts(tmp_path):
    losses, run = trained("moe", tmp_path / "auto")
    assert run["backends"] == {"attention": "anyformer", "experts": "anyformer_grouped"}
    for name in ("eager", "grouped_mm"):
        found, run = trained("moe", tmp_path / name, experts_implementation=name)
        assert run["backends"]["experts"] == name
        assert found == pytest.approx(losses, abs=TOLERANCE)


@pytest.mark.parametrize("third", ["auto", pytest.param("flex_attention", marks=pytest.mark.slow)])
def test_evaluate_generate_and_convert_take_backends_too(third, tmp_path, capsys):
    trained("decoder", tmp_path / "a")
    run = str(tmp_path / "a" / "run")
    losses = {}
    for name in ("sdpa", "eager", third):  # flex has no gradients on CPUs: it is compared here
        output = tmp_path / f"{name}.json"
        words = ["evaluate", run, f"model.attn_implementation={name}", "--split", "validation", "--output", str(output)]
        assert cli.main(words) == 0
        found = json.loads(output.read_text())
        assert found["backends"] == {"attention": "anyformer" if name == "auto" else name}
        losses[name] = found["metrics"]["loss"]
    assert list(losses.values()) == pytest.approx([losses["sdpa"]] * 3, abs=TOLERANCE)
    capsys.readouterr()
    texts = set()
    for name in ("sdpa", "eager"):
        assert cli.main(["generate", run, "a", "--greedy", "--max-new-tokens=8", f"--attn-implementation={name}"]) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1


REFUSED = {
    "flsh_attention_2": "'flsh_attention_2' is not known; did you mean flash_attention_2?",
    "paged|sdpa": "is for continuous batching, where generate_batch sets it; name 'sdpa'",
    "owner/name/more": "(or a kernel of the Hub: owner/name)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unknown_backend_is_one_sentence_in_every_command(name):
    with pytest.raises(UserError, match=r"^model\.attn_implementation=") as refused:
        load_recipe("quickstart", [f"model.attn_implementation={json.dumps(name)}"])
    assert REFUSED[name] in str(refused.value)
    args = cli.parse(["generate", "gpt2", "a", "--attn-implementation", name])
    with pytest.raises(UserError, match=r"^--attn-implementation=") as refused:
        args.run(args)
    assert REFUSED[name] in str(refused.value)


@pytest.mark.parametrize(
    "recipe, overrides, words",
    [
        (
            "quickstart",
            ["model.experts_implementation=eager"],
            "eager cannot compute a model without experts",
        ),
        ("stdlib_moe", ["model.experts_implementation=grouped"], "'grouped' is not known"),
        (
            "stdlib_moe",
            ["model.experts_implementation=grouped_mm", "model.moe_intermediate_size=100"],
            "model.moe_intermediate_size=100, which is no multiple of 8; anyformer_grouped and eager can",
        ),
    ],
)
def test_experts_that_a_backend_cannot_compute_are_refused_before_torch_is_imported(recipe, overrides, words):
    with pytest.raises(UserError) as refused:
        load_recipe(recipe, overrides)
    assert words in str(refused.value)


def test_training_on_a_cpu_refuses_what_has_no_gradients_there_and_what_is_not_installed(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    recipe = recipe_of("decoder", tmp_path / "a")
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    for name, words in {
        "flex_attention": "has no gradients on a CPU; train with sdpa or eager",
        "flash_attention_2": "model.attn_implementation=flash_attention_2 cannot be used here: ",
        "kernels-community/flash-attn2": "kernels-community/flash-attn2 cannot be used here: ",
    }.items():
        assert cli.main(["train", str(file), f"model.attn_implementation={name}"]) == 2
        assert words in capsys.readouterr().err


def test_a_plug_ins_backend_is_known_by_its_name():
    AttentionInterface.register("of_a_plug_in", lambda *args, **kwargs: None)
    try:
        check_attention("of_a_plug_in")
    finally:
        AttentionInterface._global_mapping.pop("of_a_plug_in")
    with pytest.raises(UserError):
        check_attention("of_a_plug_in")


def test_auto_on_a_gpu_is_a_flash_kernel_or_for_packed_rows_flex_and_nothing_else(monkeypatch, tiny_config):
    """A GPU and its packages are stood in for; which name is chosen, and for which models, is what is tested."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr("transformers.utils.is_flash_attn_3_available", lambda: True)
    rotary, alibi = tiny_config(), tiny_config(position_encoding="alibi")
    for major, expected in ((9, "flash_attention_3"), (8, "flash_attention_2")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda major=major: (major, 0))
        assert backends.backend_arguments("auto", "auto", rotary, half=True) == {"attn_implementation": expected}
    llama, drops = LlamaConfig(), GPT2Config()  # the latter drops weights of attention, which flex cannot
    chosen = partial(backends.fastest_attention, packed=True)
    for native in (llama, drops):
        assert chosen(native, half=True) == "flash_attention_2"
        assert backends.fastest_attention(native, half=True) is None
    assert [chosen(config, half=False) for config in (rotary, alibi, llama, drops)] == [
        None,
        None,
        "flex_attention",
        None,
    ]
    assert chosen(tiny_config(head_dim=16), half=False) == "flex_attention"  # of the tiny model heads are narrower
    assert backends.backend_arguments("auto", "auto", alibi, half=True) == {}
    assert backends.backend_arguments("auto", "auto", rotary, half=False) == {}
    assert backends.backend_arguments("eager", "batched_mm", alibi, half=True) == {
        "attn_implementation": "eager",
        "experts_implementation": "batched_mm",
    }


def test_a_native_class_without_a_choice_of_experts_says_so():
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16))
    with pytest.raises(UserError, match="experts_implementation=batched_mm has no effect on GPT2LMHeadModel"):
        backends.check_got(model, {"experts_implementation": "batched_mm"})


def test_the_names_are_those_that_transformers_has():
    anyformer.register()
    assert set(ATTENTION) - {"auto", "eager"} <= set(ALL_ATTENTION_FUNCTIONS.valid_keys())
    assert set(EXPERTS) - {"auto", "eager"} <= set(ALL_EXPERTS_FUNCTIONS.valid_keys())
    for name in (*ATTENTION, "kernels-community/flash-attn2", "owner/other"):
        assert is_flash(name) == is_flash_attention_requested(requested_attention_implementation=name)

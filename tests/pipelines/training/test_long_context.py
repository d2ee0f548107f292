"""Laws of stretching a checkpoint: only its positions change, every mistake is a sentence, and the gain can be seen."""

import json
from pathlib import Path

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.evaluation import position_perplexity
from anyformer.pipelines.evaluation.position_perplexity import trained_length
from anyformer.pipelines.recipes.checkpoint_overrides import with_fields
from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.reporting.charts import by_position
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from anyformer import AnyformerDecoderConfig, AnyformerDecoderForCausalLM
from anyformer_main import main

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGER = {"max_position_embeddings": 128}
STRETCHED = ["model.max_position_embeddings=128", f"model.rope_parameters={json.dumps(YARN)}"]


@pytest.fixture
def recipe(tiny_recipe, tmp_path) -> str:
    """The file of a recipe that trains for two steps at 32 tokens."""
    own = {"max_position_embeddings": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    training = {"output_dir": str(tmp_path / "base"), "max_steps": 2}
    return str(tiny_recipe(model=own, objective={"sequence_length": 32}, training=training))


@pytest.mark.slow
def test_a_base_model_is_stretched_tuned_and_measured_by_position(recipe, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    base, long = str(tmp_path / "base"), str(tmp_path / "long")
    assert main(["train", recipe]) == 0
    longer = ["objective.sequence_length=96", *STRETCHED]
    tune = ["training.max_steps=1", f"training.output_dir={long}"]
    assert main(["train", recipe, f"model.name_or_path={base}", *longer, *tune]) == 0
    config = AutoConfig.from_pretrained(long)
    assert config.max_position_embeddings == 128
    assert config.rope_parameters == YARN | {"rope_theta": 5000.0}  # theta stays the checkpoint's
    assert trained_length(base, config) == 32 and trained_length(long, config) == 96
    assert [AutoTokenizer.from_pretrained(path).model_max_length for path in (base, long)] == [32, 128]
    capsys.readouterr()
    words = [f"model.name_or_path={base}", longer[0], *tune, f"training.output_dir={long}2"]
    assert main(["train", recipe, *words]) == 2
    assert "sequence_length=96 is longer than the model's max_position_embeddings=32" in capsys.readouterr().err
    before, after = str(tmp_path / "before.json"), str(tmp_path / "after.json")
    measure = ["objective.sequence_length=96", "--by-position", "--output"]
    assert main(["evaluate", base, recipe, *measure, before]) == 0
    assert main(["evaluate", base, recipe, *STRETCHED, *measure, after]) == 0
    first, second = (json.loads(Path(path).read_text()) for path in (before, after))
    assert first["trained_length"] == second["trained_length"] == 32
    assert first["tokens_before"] == second["tokens_before"] and first["perplexity"] != second["perplexity"]
    assert first["tokens_before"][-1] > 90 and len(first["perplexity"]) == len(first["tokens_before"])
    assert (tmp_path / "after.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(position_perplexity, "nll_by_position", lambda *_: torch.full((95,), 1e9, dtype=torch.float64))
    assert main(["evaluate", base, recipe, *measure, before]) == 0  # of a diverged run
    diverged = json.loads(Path(before).read_text())
    assert set(diverged["perplexity"]) == {None} and by_position({base: [diverged]}) is None
    part = first | {"perplexity": [None, *first["perplexity"][1:]]}
    assert by_position({base: [part]})["series"][0]["x"] == first["tokens_before"][1:]


@pytest.mark.parametrize("scheme", ["rotary", "alibi", "none"])
def test_rows_longer_than_the_context_a_model_would_be_saved_with_are_refused(scheme):
    rows = [f"model.position_encoding={scheme}", "objective.sequence_length=2048"]
    with pytest.raises(
        UserError, match=r"objective\.sequence_length=2048 is .*set model\.max_position_embeddings=2048"
    ):
        load_recipe("quickstart", rows)
    load_recipe("quickstart", [*rows, "model.max_position_embeddings=2048"])


@pytest.mark.parametrize(
    "override, sentence",
    [
        ("model.rope_parameters={rope_type: yarn, factr: 4}", "did you mean model.rope_parameters.factor?"),
        ("model.rope_parameters={rope_type: linear}", "model.rope_parameters.factor is not set"),
        ("model.rope_parameters={rope_type: yarn, factor: 2.0}", "original_max_position_embeddings is not set"),
        ("model.pooler_type=men", "model.pooler_type='men' is not one of its choices; did you mean mean?"),
    ],
)
def test_what_a_checkpoint_cannot_take_is_refused_before_anything_is_loaded(override, sentence):
    with pytest.raises(UserError) as error:
        load_recipe("quickstart", ["model.name_or_path=nowhere/model", override])
    assert sentence in str(error.value)


def test_only_rotary_positions_can_be_stretched(tiny_config):
    for config in (tiny_config(position_encoding="learned"), tiny_config(position_encoding="alibi")):
        with pytest.raises(UserError, match="m has no rotary positions, which alone can be stretched"):
            with_fields(config, {"max_position_embeddings": 128}, "m")
    nested = {name: {"rope_type": "default"} for name in ("sliding_attention", "full_attention")}
    config = tiny_config(
        attention_pattern=["sliding_attention", "full_attention"], sliding_window=4, rope_parameters=nested
    )
    with pytest.raises(UserError, match="other ones for each type of layer"):
        with_fields(config, {"rope_parameters": YARN}, "m")


@pytest.mark.parametrize("config_class", [AnyformerDecoderConfig, LlamaConfig])
def test_a_stretched_checkpoint_is_the_model_that_was_built_so(config_class, tmp_path):
    """Ours and native: same weights, and the frequencies of a config that said so from the start."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    base = AutoModelForCausalLM.from_config(config_class(**sizes, max_position_embeddings=32)).eval()
    base.save_pretrained(tmp_path)
    stretched = with_fields(AutoConfig.from_pretrained(tmp_path), {"rope_parameters": YARN} | LONGER, "m")
    theta = base.config.rope_parameters["rope_theta"]
    wanted = config_class(**sizes, **LONGER, rope_parameters=YARN | {"rope_theta": theta})
    built = AutoModelForCausalLM.from_config(wanted).eval()
    built.load_state_dict(base.state_dict())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, config=stretched).eval()
    ids = torch.arange(60)[None]
    assert torch.equal(loaded(ids).logits, built(ids).logits)
    assert not torch.allclose(loaded(ids).logits, base(ids).logits)
    assert isinstance(loaded, AnyformerDecoderForCausalLM) == (config_class is AnyformerDecoderConfig)

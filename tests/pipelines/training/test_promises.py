"""What a run relies on in a native model is asked of a tiny twin of it before the first step."""

from anyformer.pipelines.recipes.compose import load_recipe
from anyformer.pipelines.training.guards.promises import broken_promises
from transformers import LlamaConfig, MarianConfig

import anyformer


def test_a_native_class_that_is_not_saved_as_it_is_is_named():
    recipe = load_recipe("quickstart", ["training.gradient_checkpointing=true"])
    assert broken_promises(LlamaConfig(), "AutoModelForCausalLM", recipe) == []
    (sentence,) = broken_promises(MarianConfig(), "AutoModelForSeq2SeqLM", recipe)
    assert sentence.startswith("MarianMTModel breaks the law saving (") and "embed_positions" in sentence


def test_ours_and_heads_without_laws_are_not_asked():
    recipe = load_recipe("quickstart")
    assert broken_promises(anyformer.AnyformerDecoderConfig(), "AutoModelForCausalLM", recipe) == []
    assert broken_promises(LlamaConfig(), "AutoModelForSequenceClassification", recipe) == []

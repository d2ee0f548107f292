"""ImageGPT: a GPT-2 over colours, with a norm that does not centre and a head without the start token."""

from dataclasses import replace

from ..architecture_map import Computed
from ..heads import Heads
from .gpt import GPT2, SUMMARY

# The CausalLM is ImageGPT's class for causal image modelling; the classifier averages the features of all pixels.
HEADS: Heads = {
    "AutoModel": {},
    "AutoModelForCausalLM": {},
    "AutoModelForImageClassification": {},
}

IMAGEGPT = replace(
    GPT2,
    native="imagegpt",
    fixed=GPT2.fixed | {"norm_type": "rmsnorm"},
    fields={name: row for name, row in GPT2.fields.items() if name not in SUMMARY}
    | {("vocab_size",): Computed(lambda native: {"output_vocab_size": native.vocab_size - 1}, lambda ours: {})},
    heads=HEADS,
)

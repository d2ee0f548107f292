"""torch.compile and torch.export take the whole model as one graph that computes what the model computes."""

import logging

import pytest
import torch
from family_variants import ENCODERS, VITS, ZOO, encoder_row, gradients_of, labelled_batch, tokens
from torch._dynamo.testing import CompileCounter

import anyformer
from anyformer import AnyformerDecoderForCausalLM

TOLERANCE = 1e-5  # inductor reorders sums

VARIANTS = ("rotary", "learned", "alibi", "relative", "relative-sliding", "strided", "yarn", "scaled-and-capped")


def packed_positions(*lengths):
    return torch.cat([torch.arange(n) for n in lengths])[None]


@pytest.fixture(autouse=True)
def fresh_compiler():
    logging.getLogger("torch.__trace").handlers.clear()  # pytest would collect a record of every traced tensor
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
def test_new_lengths_do_not_compile_again_and_again(tiny_config):
    """The first new length compiles once more, for all lengths to come."""
    model = AnyformerDecoderForCausalLM(tiny_config()).train()
    counter = CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for length in (24, 17, 33, 40, 12, 50):
        ids = tokens(2, length)
        compiled(ids, labels=ids, position_ids=packed_positions(5, length - 5).expand(2, -1))
    assert counter.frame_count <= 2


HEADS = {
    "encoder-bert": ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice"),
    "encoder-modernbert": ("SequenceClassification",),
    "encoder-longformer": ("SequenceClassification",),
    "seq2seq-bart": ("SequenceClassification",),
    "seq2seq-umt5": ("SequenceClassification",),
}


def headed(name: str, head: str):
    (variant,) = [variant for variant in ZOO if str(variant) == name]
    config = variant.config(num_labels=2)
    return getattr(anyformer, f"{type(config).__name__.removesuffix('Config')}{head}")(config)


@pytest.mark.slow
@pytest.mark.parametrize("name, head", [(name, head) for name, heads in HEADS.items() for head in heads])
def test_a_compiled_head_has_the_loss_and_gradients_of_the_eager_one(name, head):
    model = headed(name, f"For{head}").train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    rows = labelled_batch(type(model).__name__, model.config)
    expected, got = (gradients_of(model, lambda run=run: run(**rows).loss) for run in (model, compiled))
    torch.testing.assert_close(compiled(**rows).loss, model(**rows).loss, atol=TOLERANCE, rtol=TOLERANCE)
    assert got.keys() == expected.keys()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(got[parameter], gradient, atol=TOLERANCE, rtol=1e-4, msg=parameter)


CLASSIFIERS = ["encoder-bert", "encoder-modernbert", "seq2seq-bart", *(f"vit-{name}" for name in VITS)]
EXPORTED = [(name, "ForSequenceClassification", True) for name in CLASSIFIERS]
EXPORTED += [(f"encoder-{name}", "Model", padded) for name in ENCODERS for padded in (False, True)]
EXPORTED += [(f"decoder-{name}", "ForCausalLM", name == "rotary") for name in VARIANTS]


# Each export takes some seconds: by default one model stands for all.
ROWS = [pytest.param(*each, marks=() if each[0] == "decoder-rotary" else pytest.mark.slow) for each in EXPORTED]


@torch.no_grad()
@pytest.mark.parametrize("name, head, padded", ROWS)
def test_an_exported_model_of_any_family_serves_every_batch_and_length(name, head, padded):
    family = name.split("-")[0]
    model = headed(name, head if family != "vit" else "ForImageClassification").eval()
    # 2 and 3: a seq2seq decoder reads the text shifted by one, and torch takes an axis of 1 for a special case
    first, shortest = (2, 3) if family == "seq2seq" else (1, 2)
    sizes = {0: torch.export.Dim("batch", min=first, max=64)}
    sizes |= {1: torch.export.Dim("length", min=shortest, max=64)} if family != "vit" else {}

    def inputs(batch, length):
        if family == "vit":
            return {"pixel_values": torch.randn(batch, model.config.num_channels, *model.config.image_size)}
        ids = {"input_ids": tokens(batch, length)}
        row = encoder_row(model.config, length, batch=batch) if family == "encoder" else ids
        if padded:
            row["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
            row["attention_mask"][-1, length - 3 :] = 0
        return row

    example = inputs(2, 24)
    fixed = {"use_cache": False} if family == "decoder" else {}
    shapes = {name: sizes for name in example} | dict.fromkeys(fixed)
    # torch < 2.15 guards what holds for every length; deferred, such a guard is checked when the program runs.
    options = {"strict": False, "prefer_deferred_runtime_asserts_over_guards": True}
    program = torch.export.export(model, (), example | fixed, dynamic_shapes=shapes, **options).module()
    for batch, length in ((2, 24), (3, 17), (first, 64)):
        row = inputs(batch, length)
        got, expected = program(**row, **fixed)[0], model(**row, **fixed)[0]
        if expected.dim() == 3 and padded:  # of each token
            got, expected = (x[row["attention_mask"] == 1] for x in (got, expected))
        torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)

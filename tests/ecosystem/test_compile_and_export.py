"""torch.compile and torch.export take the whole model as one graph that computes what the model computes."""

import logging

import pytest
import torch
from family_variants import DECODERS, ZOO, encoder_row, gradients_of, labelled_batch, tokens
from torch._dynamo.testing import CompileCounter

import anyformer
from anyformer import AnyformerDecoderForCausalLM

TOLERANCE = 1e-5  # inductor reorders sums

VARIANTS = ("rotary", "learned", "alibi", "relative", "relative-sliding", "strided", "yarn", "scaled-and-capped")
# Each compilation takes some seconds: by default one variant stands for all.
EVERY_VARIANT = [pytest.param(n, marks=() if n == "rotary" else pytest.mark.slow) for n in VARIANTS]


def packed_positions(*lengths):
    return torch.cat([torch.arange(n) for n in lengths])[None]


@pytest.fixture(autouse=True)
def fresh_compiler():
    logging.getLogger("torch.__trace").handlers.clear()  # pytest would collect a record of every traced tensor
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["rotary", "alibi", "strided"])
@torch.no_grad()
def test_compiled_logits_follow_changing_shapes(tiny_config, name, backend):
    model = AnyformerDecoderForCausalLM(tiny_config(**DECODERS[name])).eval()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for batch, length in ((2, 24), (3, 17), (1, 40)):
        ids = tokens(batch, length)
        expected, got = model(ids, use_cache=False).logits, compiled(ids, use_cache=False).logits
        torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)


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


@pytest.mark.parametrize(
    "strict", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["traced-by-running", "traced-by-dynamo"]
)
@pytest.mark.parametrize("name", EVERY_VARIANT)
@torch.no_grad()
def test_an_exported_program_serves_every_batch_and_length(tiny_config, tmp_path, name, strict):
    model = AnyformerDecoderForCausalLM(tiny_config(**DECODERS[name])).eval()
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=64)}
    program = torch.export.export(
        model,
        args=(),
        kwargs={"input_ids": tokens(2, 24), "use_cache": False},
        dynamic_shapes={"input_ids": sizes, "use_cache": None},
        strict=strict,
    )
    if not strict:
        torch.export.save(program, tmp_path / "model.pt2")
        program = torch.export.load(tmp_path / "model.pt2")
    for batch, length in ((2, 24), (3, 17), (1, 64)):
        ids = tokens(batch, length)
        expected = model(ids, use_cache=False).logits
        got = program.module()(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)


@torch.no_grad()
@pytest.mark.slow
def test_a_padded_batch_exports_too(tiny_config):
    model = AnyformerDecoderForCausalLM(tiny_config()).eval()
    ids = tokens(2, 24)
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=64)}
    program = torch.export.export(
        model,
        args=(),
        kwargs={"input_ids": ids, "attention_mask": mask, "use_cache": False},
        dynamic_shapes={"input_ids": sizes, "attention_mask": sizes, "use_cache": None},
        strict=False,
    )
    ids, mask = tokens(3, 17), torch.ones(3, 17, dtype=torch.long)
    mask[2, :4] = 0
    expected = model(ids, attention_mask=mask, use_cache=False).logits[mask == 1]
    got = program.module()(input_ids=ids, attention_mask=mask, use_cache=False).logits[mask == 1]
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)


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
    return getattr(anyformer, f"{type(config).__name__.removesuffix('Config')}For{head}")(config)


@pytest.mark.slow
@pytest.mark.parametrize("name, head", [(name, head) for name, heads in HEADS.items() for head in heads])
def test_a_compiled_head_has_the_loss_and_gradients_of_the_eager_one(name, head):
    model = headed(name, head).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    rows = labelled_batch(type(model).__name__, model.config)
    expected, got = (gradients_of(model, lambda run=run: run(**rows).loss) for run in (model, compiled))
    torch.testing.assert_close(compiled(**rows).loss, model(**rows).loss, atol=TOLERANCE, rtol=TOLERANCE)
    assert got.keys() == expected.keys()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(got[parameter], gradient, atol=TOLERANCE, rtol=1e-4, msg=parameter)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", ["encoder-bert", "encoder-modernbert", "seq2seq-bart"])
def test_an_exported_classifier_serves_every_padded_batch_and_length(name):
    model = headed(name, "SequenceClassification").eval()
    # 2 and 3: a seq2seq decoder reads the text shifted by one, and torch takes an axis of 1 for a special case
    sizes = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=3, max=64)}

    def inputs(batch, length):
        row = (
            encoder_row(model.config, length, batch=batch)
            if "encoder" in name
            else {"input_ids": tokens(batch, length)}
        )
        row["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
        row["attention_mask"][-1, length - 3 :] = 0
        return row

    example = inputs(2, 12)
    shapes = {name: sizes for name in example}
    program = torch.export.export(model, (), example, dynamic_shapes=shapes, strict=False).module()
    for batch, length in ((2, 12), (3, 17), (4, 60)):
        row = inputs(batch, length)
        torch.testing.assert_close(program(**row).logits, model(**row).logits, atol=TOLERANCE, rtol=TOLERANCE)

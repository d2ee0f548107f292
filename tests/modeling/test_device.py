"""No forward pass makes tensors beside its input's device, or waits for it, seen here without a GPU.

Fake tensors of a device that this machine lacks: torch computes their shapes only, refuses operations on two devices as
the real one would, and raises where a number is read on the host (`.item()`, `nonzero`, `if tensor`).
"""

import contextlib
import sys

import pytest
import torch
from family_variants import HEADS, TINY_FIELDS, ZOO, config_class, labelled_batch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.initialization import no_init_weights
from transformers.modeling_utils import local_torch_dtype
from zoo_subject import ZooSubject

import anyformer

LENGTHS = (60, 33, 41, 35)
FAST = [next(variant for variant in ZOO if variant.family == family) for family in HEADS]
FAST += [variant for variant in ZOO if str(variant) in ("decoder-sliding", "decoder-alibi")]
# The number of global tokens is read on the host, as `global_attention_context` says.
READS_HOST = ("longformer",)


@pytest.fixture(autouse=True)
def no_driver(monkeypatch):
    """What is asked of the driver, answered for a GPU that is not there."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


@contextlib.contextmanager
def no_numbers_copied():
    """No tensors of Python numbers: the host waits until they are copied to the device; `torch.full` fills them in."""
    tensor = torch.tensor

    def refused(*args, **kwargs):
        caller = sys._getframe(1).f_code.co_filename
        assert "/modeling/" not in caller or "/tests/" in caller, f"{caller} copies numbers to the device"
        return tensor(*args, **kwargs)

    torch.tensor = refused
    try:
        yield
    finally:
        torch.tensor = tensor


def every(variants):
    """Some of them; the rest is slow: three minutes for all."""
    rows = [pytest.param(v, id=str(v), marks=() if v in FAST else pytest.mark.slow) for v in variants]
    return pytest.mark.parametrize("variant", rows)


def packed(variant, model) -> dict:
    """A row of several documents, and the positions that say so."""
    subject = ZooSubject(variant, model)
    rows = [subject.labelled(1, length, seed) for seed, length in enumerate(LENGTHS)]
    row = {name: torch.cat([each[name] for each in rows], dim=1) for name in rows[0]}
    row["position_ids"] = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    if variant.family == "seq2seq":
        row["decoder_position_ids"] = torch.cat([torch.arange(each["labels"].shape[1]) for each in rows])[None]
    return row


def plain(variant, model) -> dict:
    return ZooSubject(variant, model).labelled()


def masked(variant, model) -> dict:
    batch = plain(variant, model)
    return batch | {"attention_mask": torch.ones(batch["input_ids"].shape, dtype=torch.long)}


def run(build, batch_of):
    """The outputs of a pass on the device that is not there; its tensors are all on that device."""
    with FakeTensorMode(allow_non_fake_inputs=False):
        # In bf16: torch < 2.15 knows the shapes of grouped products of it alone.
        with torch.device("cuda"), no_init_weights(), local_torch_dtype(torch.bfloat16):
            model = build()
        batch = {name: x.to("cuda") for name, x in batch_of(model).items()}
        with no_numbers_copied():
            outputs = model(**batch)
        assert all(x.device.type == "cuda" for x in outputs.values() if torch.is_tensor(x))
        return outputs


@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch_of", [plain, masked, packed])
@every([variant for variant in ZOO if variant.name not in READS_HOST])
def test_a_forward_pass_stays_on_the_device(variant, batch_of, training):
    if batch_of is not plain and not variant.reads_text:
        pytest.skip("images are neither packed nor padded")

    def inputs(model):
        batch = batch_of(variant, model)
        if variant.family == "encoder":  # its head reads on the host which positions are labelled
            batch.pop("labels")
        return batch

    run(lambda: variant.model_class()(variant.config()).train(training), inputs)


@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
@pytest.mark.parametrize("family", ["decoder", "encoder", "moe"])
def test_a_task_head_stays_on_the_device(family, head):
    name = HEADS[family].split("For")[0] + "For" + head
    if not hasattr(anyformer, name):
        pytest.skip(f"there is no {name}")
    for pad_token_id in (None, 0):
        fields = TINY_FIELDS[family] | {"pad_token_id": pad_token_id}
        model = run(
            lambda fields=fields: getattr(anyformer, name)(config_class(family)(**fields)),
            lambda model: labelled_batch(name, model.config),
        )
        assert model is not None


def test_a_number_that_is_read_on_the_host_is_seen():
    """The law can fail: one of its models reads a number, and says so."""
    variant = next(variant for variant in ZOO if variant.name in READS_HOST)
    with pytest.raises(Exception, match="_local_scalar_dense"):
        run(lambda: variant.model_class()(variant.config()), lambda model: variant.inputs(model))

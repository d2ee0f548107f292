"""Laws of meshes of many ranks, in one process: torch's LocalTensorMode computes the real numbers of each.

A tensor stands for those of all ranks, and collectives are computed. Its process group is a fake one.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from anyformer.pipelines.recipes.schema import ParallelismSettings, TrainingSection
from anyformer.pipelines.training.engines import mesh
from family_variants import TINY_FIELDS, config_class
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

local_tensor = pytest.importorskip("torch.distributed._local_tensor", reason="needs a torch that simulates ranks")
fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")

VOCABULARY, LENGTH = 96, 16
DECODER = TINY_FIELDS["decoder"] | {"vocab_size": VOCABULARY, "num_attention_heads": 8, "num_key_value_heads": 8}
DECODER |= {"hidden_size": 64, "intermediate_size": 64, "hidden_dropout": 0.0, "num_hidden_layers": 2}
SMALL = {"fp32": 1e-5, "bf16": 6e-2}  # of the largest gradient of a weight: sums in another order; 8 bits


class Sent(TorchDispatchMode):
    """Lists the collectives: (kind, size of what is gathered, scattered or reduced)."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            sizes = [x.numel() for x in tree_leaves((args, out)) if isinstance(x, torch.Tensor)]
            self.calls.append((func._schema.name.split("::")[1].strip("_"), max(sizes, default=0)))
        return out


def weights_for_all_ranks(monkeypatch):
    """Let transformers' loading split a weight as DTensor does, for all ranks; it reads the one rank of a process."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param
    from torch.distributed.tensor import DTensor, Replicate
    from transformers.distributed import sharding_utils

    def made(self, param):
        self.device_mesh, self.placements, self.param_ndim = param.device_mesh, param.placements, param.ndim

    def shard(self, source, tensor_idx=None, device=None, dtype=None):
        whole = [Replicate()] * self.device_mesh.ndim
        split = DTensor.from_local(source[...], self.device_mesh, whole, run_check=False)
        return split.redistribute(placements=self.placements).to_local().to(dtype=dtype)

    monkeypatch.setattr(sharding_utils.DtensorShardOperation, "__init__", made)
    monkeypatch.setattr(sharding_utils.DtensorShardOperation, "shard_tensor", shard)
    for name in ("free_storage", "alloc_storage"):  # a tensor of all ranks has no storage of its own
        monkeypatch.setattr(_fsdp_param, name, lambda tensor: None)


def gradient_of(parameter) -> torch.Tensor:
    gradient = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
    return torch.stack([*gradient._local_tensors.values()])


@pytest.fixture
def ranks(monkeypatch):
    """Starts a group of so many ranks, all of them in this process -> a LocalTensorMode."""
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # a mode is of one thread
    monkeypatch.setenv("LOCAL_RANK", "0")
    weights_for_all_ranks(monkeypatch)

    def start(number):
        dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=number)
        return local_tensor.LocalTensorMode(number)

    yield start
    dist.destroy_process_group()


UNTIED = {"tie_word_embeddings": False}
MESHES = {
    "8": ({"dp_shard": 8}, {}),
    "8-untied": ({"dp_shard": 8}, UNTIED),
    "8-by-tp": ({"tp": 8}, {"vocab_size": VOCABULARY - 1, "final_logit_softcapping": 5.0}),
    "8-looking-ahead": ({"dp_shard": 8}, {"num_nextn_predict_layers": 1}),
    "2-copies-of-4": ({"dp_replicate": 2, "dp_shard": 4}, {}),
    "2-x-tp-4": ({"dp_shard": 2, "tp": 4}, UNTIED),
    "16-of-experts": ({"dp_shard": 16}, {"num_experts": 16, "router_aux_loss_coef": 0.1}),
    "4-x-tp-4": ({"dp_shard": 4, "tp": 4}, {}),
    "2-copies-of-4-x-tp-4": ({"dp_replicate": 2, "dp_shard": 4, "tp": 4}, {}),
}


FAST = ("8", "8-by-tp", "2-x-tp-4")


@pytest.mark.parametrize(
    "name, precision",
    [pytest.param(name, "fp32", marks=[] if name in FAST else pytest.mark.slow) for name in MESHES]
    + [("8", "bf16"), pytest.param("16-of-experts", "bf16", marks=pytest.mark.slow)]
    + [pytest.param("2-x-tp-4", "bf16", marks=pytest.mark.slow)],
)
def test_ranks_have_the_gradients_of_one_process(name, precision, ranks):
    """Also: a tied table is gathered once and its gradient sent once, and no logits are sent."""
    shares, fields = MESHES[name]
    settings, half = ParallelismSettings(**shares), precision == "bf16"
    readers = settings.dp_shard * settings.dp_replicate
    torch.manual_seed(0)
    config = config_class("moe" if "num_experts" in fields else "decoder")(**DECODER | fields)
    model = AutoModelForCausalLM.from_config(config).train()
    ids = torch.randint(3, VOCABULARY - 1, (readers, LENGTH))
    alone = copy.deepcopy(model)
    alone(input_ids=ids, labels=ids).loss.backward()
    section = TrainingSection(output_dir="", parallelism=settings, bf16=half)
    with ranks(readers * settings.tp) as mode, Sent() as sent:
        split = mesh.Mesh(section).share(model, torch.device("cpu"))
        own = mode.rank_map(lambda rank: ids[rank // settings.tp :][:1])
        sent.calls.clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=half, cache_enabled=False):
            loss = split(input_ids=own, labels=own).loss
        loss.backward()
        calls = list(sent.calls)
        found = {name: gradient_of(p) for name, p in split.named_parameters()}
    if readers == 1:
        assert max(size for _, size in calls) < LENGTH * fields["vocab_size"]
    elif settings.tp == 1:  # the table, and all else
        table, weights = alone.get_input_embeddings().weight.numel(), sum(p.numel() for p in alone.parameters())
        for kind, times in (("allgather_base", 2), ("reduce_scatter_base", 1)):
            is_tied = alone.config.tie_word_embeddings
            most = times * (weights - is_tied * table) + is_tied * table
            assert sum(size for call, size in calls if call == kind) < most + table / 2, kind
    for weight, parameter in alone.named_parameters():
        apart = (found[weight] - parameter.grad).abs().max() / parameter.grad.abs().max()
        assert apart <= SMALL[precision], weight
    assert found.keys() == {weight for weight, _ in alone.named_parameters()}

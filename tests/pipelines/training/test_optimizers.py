"""An optimizer is a row; Muon for hidden matrices, AdamW for the rest, behind one optimizer's interface."""

import copy
import json
import math

import pytest
import torch
import torch.distributed as dist
from anyformer.pipelines.recipes.optimizer_rows import FUSED, ROWS, Optimizer, own_optimizer
from anyformer.pipelines.recipes.schema import TrainingSection
from anyformer.pipelines.training.optimizers import BatchedMuon, Muon, build_muon, muon_parameter_names
from processes import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.pytorch_utils import Conv1D

from anyformer import (
    AnyformerDecoderForCausalLM,
    AnyformerMoeConfig,
    AnyformerMoeForCausalLM,
    AnyformerViTForImageClassification,
)


@pytest.fixture
def model(tiny_config):
    return AnyformerDecoderForCausalLM(tiny_config(position_encoding="learned", norm_type="layernorm"))


def build(model):
    decay = {n for n, p in model.named_parameters() if p.ndim > 1}
    return build_muon(model, decay, muon_lr=0.02, adamw_lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8)


def take_steps(model, optimizer, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids = torch.randint(3, 97, (2, 16), generator=generator)
        model.train()(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_muon_takes_hidden_matrices_only_and_every_parameter_has_one_optimizer(model):
    names = muon_parameter_names(model)
    assert all(".self_attn." in n or ".mlp." in n for n in names) and len(names) == 2 * 7
    optimizer = build(model)
    held = [p for g in optimizer.param_groups for p in g["params"]]
    assert len(held) == len({id(p) for p in held}) == len(list(model.parameters()))


def test_of_an_image_model_the_patches_are_left_to_adamw(tiny_vit_config):
    names = muon_parameter_names(AnyformerViTForImageClassification(tiny_vit_config()))
    assert names and all(".layers." in n for n in names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("most", [1 << 24, 16 * 24], ids=["together", "one by one"])
def test_batched_muon_takes_the_steps_of_torch(dtype, most, monkeypatch):
    monkeypatch.setattr("anyformer.pipelines.training.optimizers.MOST_NUMBERS", most)
    generator = torch.Generator().manual_seed(0)
    shapes = [(24, 16), (16, 24), (16, 24), (16, 16)]
    ours = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    starts, theirs = [p.detach().clone() for p in ours], copy.deepcopy(ours)
    settings = {"lr": 0.1, "weight_decay": 0.1}
    optimizers = [BatchedMuon(ours, dtype, **settings), torch.optim.Muon(theirs, **settings)]
    for _ in range(3):
        for one, other in zip(ours, theirs):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        ours[3].grad = theirs[3].grad = None  # a matrix without a gradient stays as it is
        for optimizer in optimizers:
            optimizer.step()
    for one, other, start in zip(ours[:3], theirs, starts):
        assert (one - other).norm() < 0.01 * (one - start).norm()  # torch computes in bf16, which has 8 bits
    assert torch.equal(ours[3], starts[3])


MIXTURE = {"vocab_size": 97, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
MIXTURE |= {"intermediate_size": 24, "num_key_value_heads": 2}


def mixture():
    shared = {"shared_expert_intermediate_size": 8, "shared_expert_gate": True}
    return AnyformerMoeForCausalLM(AnyformerMoeConfig(**MIXTURE, **shared, num_experts=4))


def native_mixture():
    return MixtralForCausalLM(MixtralConfig(**MIXTURE, num_local_experts=4))


@pytest.mark.parametrize("shape", [(3, 8, 12), (3, 12, 8)])
@pytest.mark.parametrize("most", [1 << 24, 100], ids=["together", "one by one"])
def test_muon_of_stacked_experts_is_one_muon_for_each_expert(shape, most, monkeypatch):
    monkeypatch.setattr("anyformer.pipelines.training.optimizers.MOST_NUMBERS", most)
    stacked = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64))
    experts = [torch.nn.Parameter(matrix.clone()) for matrix in stacked.detach()]
    settings = {"lr": 0.1, "weight_decay": 0.1}
    optimizers = [BatchedMuon([stacked], torch.float64, **settings)]
    optimizers += [BatchedMuon([expert], torch.float64, **settings) for expert in experts]
    for _ in range(3):
        stacked.grad = torch.randn(shape, dtype=torch.float64)
        for expert, gradient in zip(experts, stacked.grad.clone()):
            expert.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(stacked.detach(), torch.stack(list(experts)).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("build_model", [mixture, native_mixture])
def test_experts_are_muons_and_routers_are_adamws(build_model):
    model = build_model()
    matrices, optimizer = muon_parameter_names(model), build(model)
    experts = {n for n, _ in model.named_parameters() if ".experts." in n}
    assert experts and experts < matrices and not any("gate.weight" in n for n in matrices)
    muons = {id(p) for g in optimizer.parts["muon"].param_groups for p in g["params"]}
    assert muons == {id(p) for n, p in model.named_parameters() if n in matrices}
    muon, adamw = own_optimizer(TrainingSection(optim="muon")).describe(model).split("; ")
    assert {"gate_up_proj", "down_proj", "q_proj"} <= set(
        muon.removeprefix("muon: ").split(" (")[0].split(", ")
    ) and ", gate, " in adamw
    before = copy.deepcopy(model.state_dict())
    take_steps(model, optimizer, 1, 0)
    assert all(not torch.equal(p, before[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize("part", ["muon", "adamw"])
def test_of_an_adapter_either_optimizer_may_have_nothing(model, part):
    hidden = muon_parameter_names(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_((name in hidden) == (part == "muon"))
    before = copy.deepcopy(model.state_dict())
    optimizer = build(model)
    take_steps(model, optimizer, 2, 1)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert list(optimizer.parts) == [part] and changed == {n for n, p in model.named_parameters() if p.requires_grad}


class Toy(Muon):
    """Steps of torch's SGD."""

    def build(self, model, decayed, arguments):
        return torch.optim.SGD(model.parameters(), lr=arguments.learning_rate, momentum=0.9)

    def words(self):
        return f"toy at {self.section.learning_rate:g}"

    def state_bytes(self, model):
        return 4 * model.num_parameters(only_trainable=True)


def test_an_optimizer_of_one_row_and_one_class_trains_is_planned_and_refused_where_matrices_are_split(
    tiny_recipe, without_activations, command, capsys, monkeypatch, tmp_path
):
    row = Optimizer("toy", FUSED, "plain steps", code=f"{__name__}:Toy", whole_matrices=True)
    recipe = [tiny_recipe(), "training.optim=toy", "training.max_steps=3"]
    assert command("train", *recipe) == 2
    assert "training.optim='toy' is not known" in capsys.readouterr().err
    monkeypatch.setitem(ROWS, "toy", row)
    assert command("train", *recipe) == 0 and "toy at 0.005" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"
    assert command("plan", *recipe, "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    (whole,) = (row for row in planned["stages"] if row["states"]["stage"] == "none")
    assert whole["states"]["optimizer"] == 4 * planned["parameters"]
    for refused in (["plan", *recipe, "--zero", "2"], ["train", *recipe, "training.deepspeed=zero2"]):
        assert command(*refused) == 2
        assert "training.optim=toy needs whole matrices, but DeepSpeed" in capsys.readouterr().err
    assert command("train", *recipe, "training.parallelism={dp_shard: 2}") == 2
    assert "training.optim=toy looks at whole matrices" in capsys.readouterr().err


def steps_on_shares(placements, sizes) -> float:
    """On each rank: the largest difference of shared matrices and experts from whole ones, after three steps."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", sizes)
    generator, settings = torch.Generator().manual_seed(0), {"lr": 0.1, "weight_decay": 0.1}
    whole = [torch.randn(s, generator=generator).double() for s in ((8, 5), (4, 8), (8, 5), (3, 4, 6))]

    def shared(tensor):
        return distribute_tensor(tensor, mesh, placements[tensor.ndim])

    parameters, parts = ([torch.nn.Parameter(made(p)) for p in whole] for made in (torch.clone, shared))
    optimizers = [BatchedMuon(each, torch.float64, **settings) for each in (parameters, parts)]
    for _ in range(3):
        for one, part in zip(parameters, parts):
            one.grad = torch.randn(one.shape, generator=generator).double()
            part.grad = shared(one.grad)
        for optimizer in optimizers:
            optimizer.step()
    differences = [(part.full_tensor() - one).abs().max().item() for one, part in zip(parameters, parts)]
    dist.destroy_process_group()
    return max(differences)


ROWS_COLUMNS = {
    "rows": ((2,), (Shard(0),), (Shard(1),)),
    "columns": ((2,), (Shard(1),), (Shard(2),)),
    "copies of rows": ((2, 2), (Replicate(), Shard(0)), (Replicate(), Shard(1))),
    "rows and columns": ((2, 2), (Shard(0), Shard(1)), (Shard(0), Shard(2))),
    "rows of rows": ((2, 2), (_StridedShard(0, split_factor=2), Shard(0)), (Shard(0), Shard(0))),
}


@pytest.mark.parametrize(
    "sizes, of_matrices, of_experts",
    [
        pytest.param(*found, id=name, marks=() if name in ("columns", "rows and columns") else pytest.mark.slow)
        for name, found in ROWS_COLUMNS.items()
    ],
)
def test_muon_of_matrices_that_processes_share_is_that_of_whole_ones(sizes, of_matrices, of_experts, tmp_path):
    found = run_ranks(math.prod(sizes), steps_on_shares, {2: of_matrices, 3: of_experts}, sizes, folder=tmp_path)
    assert max(found) < 1e-12


def test_weights_stored_as_inputs_and_outputs_take_the_steps_of_linear_layers():
    linear, conv = torch.nn.Linear(8, 32), Conv1D(32, 8)
    with torch.no_grad():
        conv.weight.copy_(linear.weight.T)
    models = [torch.nn.ModuleDict({"layers": torch.nn.ModuleList([layer])}) for layer in (linear, conv)]
    gradient = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    linear.weight.grad, conv.weight.grad = gradient, gradient.T.clone()
    for model in models:
        build(model).step()
    torch.testing.assert_close(conv.weight.T, linear.weight, atol=1e-2, rtol=1e-2)  # bf16, where it is fast

"""Fresh models whose weights are drawn while processes share them: those of one process, and never whole in memory."""

import ctypes
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from anyformer.pipelines.recipes.parallelism import FIELD
from anyformer.pipelines.recipes.schema import ParallelismSettings, TrainingSection
from anyformer.pipelines.training.engines.deepspeed_engine import share_out
from anyformer.pipelines.training.engines.late_weights import built_late, fill, is_late
from anyformer.pipelines.training.engines.mesh import Mesh
from anyformer.pipelines.training.engines.pipeline import Stages
from processes import memory, run_ranks
from test_distributed import forget_the_parents_state, needs_deepspeed, talk_by_gloo_alone
from torch import nn
from transformers import AutoConfig, AutoModel, set_seed

SMALL = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def make(family="decoder", auto_class=AutoModel, **fields):
    """What builds a model of the seed 3."""

    def build():
        set_seed(3)
        return auto_class.from_config(AutoConfig.for_model(f"anyformer_{family}", **(SMALL | fields)))

    return build


@pytest.mark.parametrize(
    "family, fields",
    [
        ("decoder", {"position_encoding": "alibi"}),
        ("decoder", {"fan_in_init": True, "scale_residual_init": True, "pad_token_id": 0}),
        ("moe", {"num_experts": 4}),
        ("encoder", {}),
        ("seq2seq", {}),
    ],
)
@pytest.mark.parametrize("ties", [True, False])
def test_weights_drawn_late_are_those_of_the_seed(family, fields, ties):
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

    heads = {"encoder": AutoModelForMaskedLM, "seq2seq": AutoModelForSeq2SeqLM}
    build = make(family, heads.get(family, AutoModelForCausalLM), tie_word_embeddings=ties, **fields)
    whole, after = build(), torch.get_rng_state()
    late = built_late(build)
    assert is_late(late) and torch.equal(torch.get_rng_state(), after)
    fill(late)
    assert not is_late(late) and torch.equal(torch.get_rng_state(), after)
    assert [name for name, _ in late.named_parameters()] == [name for name, _ in whole.named_parameters()]  # ties
    for tensors in (nn.Module.named_parameters, nn.Module.named_buffers):
        expected = dict(tensors(whole))
        assert all(torch.equal(x, expected[name]) for name, x in tensors(late))
    assert all(p.requires_grad for p in late.parameters())


def test_a_model_whose_constructor_sets_weights_is_built_whole():
    plain = make()

    def build():
        model = plain()
        model.scale = nn.Parameter(torch.full((2,), 5.0))  # which no `_init_weights` knows
        return model

    model = built_late(build)
    assert not is_late(model) and model.scale.tolist() == [5.0, 5.0]
    assert torch.equal(model.embed_tokens.weight, plain().embed_tokens.weight)


# ------------------------------------------------------------------------------------------- memory of two processes

LARGE = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 16, "tie_word_embeddings": False}


def section(**shares):
    return TrainingSection(output_dir="", parallelism=ParallelismSettings(**shares) if shares else None)


def under_mesh(model, **shares):
    return (Stages if "pp" in shares else Mesh)(section(**shares)).share(model, torch.device("cpu"))


def under_zero3(model):
    from transformers.integrations import HfDeepSpeedConfig

    zero = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    config = HfDeepSpeedConfig(zero)  # which transformers reads as long as it is referred to
    return share_out(model, torch.device("cpu")) if config and is_late(model) else model


def whole_weights_of(model) -> dict[str, torch.Tensor]:
    if any(hasattr(p, "ds_id") for p in model.parameters()):
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            return {name: p.detach().clone() for name, p in model.named_parameters()}
    if hasattr(model, "pipeline"):
        return model.pipeline.whole_state()
    if getattr(model.config, "distributed_config", None):
        return model.gather_sharded_state_dict_for_save(
            model, model.state_dict(), model.config.distributed_config, save_on_this_rank=dist.get_rank() == 0
        )
    return {name: x.full_tensor() if hasattr(x, "full_tensor") else x for name, x in model.state_dict().items()}


def share_in_a_rank(share, shares, is_built_late) -> tuple[int, bool]:
    """(bytes that this process needed at most, whether the shared weights are those of the seed)."""
    from transformers import AutoModelForCausalLM

    forget_the_parents_state()
    if share is under_zero3:
        import deepspeed

        talk_by_gloo_alone()
        deepspeed.init_distributed(dist_backend="gloo")
    else:
        dist.init_process_group("gloo")
    build = make("decoder", AutoModelForCausalLM, **LARGE)
    built_late(make("decoder", AutoModelForCausalLM))  # imports what only it needs
    ctypes.CDLL(None).malloc_trim(0)  # what the tests before have freed would be taken again, and not counted
    Path("/proc/self/clear_refs").write_text("5")  # forgets the most so far
    before = memory("VmRSS")
    model = share(built_late(build) if is_built_late else build(), **shares)
    most, found, expected = memory("VmHWM") - before, whole_weights_of(model), build().state_dict()
    return most, all(torch.equal(x, expected[name]) for name, x in found.items())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the most memory of a process")
@pytest.mark.parametrize(
    "share, shares",
    [
        (under_mesh, {"dp_shard": 2}),
        (under_mesh, {"tp": 2}),
        (under_mesh, {"pp": 2}),
        pytest.param(under_zero3, {}, marks=needs_deepspeed),
    ],
    ids=["dp_shard", "tp", "pp", "zero3"],
)
def test_two_processes_never_hold_the_whole_of_a_fresh_model(share, shares, tmp_path, record_property):
    """Measured against weights that are built whole first."""
    most = {}
    for is_built_late in (False, True):
        folder = tmp_path / str(is_built_late)
        folder.mkdir()
        found = run_ranks(
            2, share_in_a_rank, share, shares, is_built_late, folder=folder, env={"DS_ACCELERATOR": "cpu"}
        )
        assert all(is_equal for _, is_equal in found)
        most[is_built_late] = [size for size, _ in found]
    print(FIELD, shares, {late: [size >> 20 for size in sizes] for late, sizes in most.items()}, "MiB")
    size = sum(p.numel() * 4 for p in built_late(make(**LARGE)).parameters())
    assert min(most[False]) > 0.95 * size
    assert max(most[True]) < 0.85 * min(most[False])

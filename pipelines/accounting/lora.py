"""LoRA (Hu et al. 2021) through PEFT: low-rank matrices are trained beside the frozen weights of a checkpoint.

New weights, such as the head of a classifier, are trained and saved whole (PEFT's modules_to_save).
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from ..adapters import (
    ADAPTED_CONFIG,
    HEADS_OF_TASKS,
    NF4,
    is_adapter,
    load_config,
    need_peft,
    quiet_peft,
    whole_in_fp32,
    words_of_base,
)
from ..backends import AUTO
from ..errors import CANNOT_LOAD, UserError, did_you_mean, first_line
from ..gguf_files import native_folder
from ..patches import write
from ..plugins import objective_of
from ..precision import computed_dtype
from ..recipes.schema import LoraSettings, Recipe
from ..transformers_logging import errors_only

# {Auto class: PEFT's task type}; models with other heads get none.
TASK_TYPES = {head: task for task, head in HEADS_OF_TASKS.items()}


def check_lora(recipe: Recipe) -> None:
    """Raise UserError if the recipe asks for LoRA without PEFT, or on top of an adapter. Imports nothing heavy."""
    if recipe.training.lora is None:
        return
    need_peft("training.lora")
    name = recipe.model.name_or_path
    if name is not None and is_adapter(name):
        raise UserError(
            f"training.lora: model.name_or_path={name!r} is an adapter itself; make a whole model of it first, with "
            f"anyformer merge {name} OUT"
        )


def with_base(recipe: Recipe, computed: torch.dtype | None = None) -> Recipe:
    """The recipe with a dtype in place of training.lora.base=auto, unless the checkpoint is quantised and stays so.

    computed: the dtype that the run computes in; None: that of a run on this machine. Raises UserError for weights of a
    few bits that are asked for in another dtype, whole, or without LoRA.
    """
    name, lora = recipe.model.name_or_path, recipe.training.lora
    if name is None or is_adapter(name):
        return recipe
    try:
        with errors_only():
            config = load_config(name, trust_remote_code=recipe.trust_remote_code)
    except CANNOT_LOAD:
        return recipe  # load_checkpoint says why in a sentence
    quantized = getattr(config, "quantization_config", None) is not None
    if quantized and (lora is None or lora.base != AUTO):
        raise UserError(
            f"model.name_or_path={name!r} holds weights in {words_of_base(config.to_dict())}, which stay as they are; "
            f"train training.lora={{base: auto}} on them, or take the model in 16 or 32 bits"
        )
    if lora is not None and lora.merge and (quantized or lora.base == NF4):
        raise UserError("training.lora.merge=true adds to no quantised weights; leave it out, and use anyformer merge")
    if quantized or lora is None or lora.base != AUTO:
        return recipe
    is_causal = objective_of(recipe).auto_class == HEADS_OF_TASKS["CAUSAL_LM"]
    is_half = is_causal and (computed or computed_dtype(recipe.training)) == torch.bfloat16
    reason = "a causal model under bf16" if is_half else "not a causal model under bf16"
    settled = replace(lora, base="bfloat16" if is_half else "float32")
    return recipe.with_(training={"lora": settled}, chosen=recipe.chosen | {"training.lora.base": reason})


def with_lora(model, settings: LoraSettings, auto_class: str, fresh: Collection[str], unused: tuple[str, ...] = ()):
    """Wrap a model into a PeftModel, in which only the adapter's weights and the new ones are trained.

    fresh: names of weights that the checkpoint did not have. unused: prefixes of the names of weights that get no
    gradient and so no adapter, because DDP would wait for their gradients. Raises UserError for target modules that the
    model does not have, and for new weights that cannot be saved beside an adapter.
    """
    import peft

    fresh = [name for name in fresh if not name.startswith(unused)]
    whole = [*modules_of(model, fresh), *(settings.modules_to_save or [])]
    check_modules(model, "modules_to_save", settings.modules_to_save or [])
    targets = settings.target_modules
    check_modules(model, "target_modules", targets if isinstance(targets, list) else [])
    config = peft.LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets,
        exclude_modules=[name for name, _ in model.named_modules() if name.startswith(unused)] or None,
        modules_to_save=whole or None,
        use_rslora=settings.use_rslora,
        use_dora=settings.use_dora,
        task_type=TASK_TYPES.get(auto_class),
    )
    base = native_folder(model.name_or_path)
    model.name_or_path = str(Path(base).resolve()) if Path(base).is_dir() else base  # valid in any folder
    try:
        whole_in_fp32(model, whole)
        with whole_layers(model, whole), quiet_peft():
            adapted = peft.get_peft_model(model, config)
    except ValueError as error:
        raise UserError(
            f"training.lora.target_modules={targets!r} does not suit {type(model).__name__} ({first_line(error)}); "
            f"all-linear does"
        ) from error
    write(adapted, "create_or_update_model_card", lambda folder: None)
    for module in adapted.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            module.register_forward_pre_hook(keep_input)
    return adapted


def keep_input(adapter, args) -> None:
    """Under autocast let an adapter read its layer's input itself, of which PEFT's cast to fp32 would keep a copy."""
    casts = not torch.is_autocast_enabled(args[0].device.type)
    if not torch.compiler.is_compiling():  # compiled code, which would be guarded by what is written, fuses the casts
        adapter.cast_input_dtype_enabled = casts


def left_by_all_linear(model) -> list[str]:
    """Names of the parameters of experts and routers that PEFT's all-linear skips, because they are no nn.Linear."""
    names = {}
    for mixture in (module for module in model.modules() if hasattr(module, "experts")):
        for name, part in mixture.named_modules():
            if name and not isinstance(part, torch.nn.Linear):
                names |= {f"{name}.{leaf}": None for leaf, _ in part.named_parameters(recurse=False)}
    return list(names)


@contextmanager
def whole_layers(model, names: Collection[str]) -> Iterator[None]:
    """In the block the named layers of a model that is split over a mesh (mesh.py) are whole on each process.

    PEFT trains copies of new layers, and a split copy would never be gathered. Trainer averages the gradients of whole
    weights, and so keeps them equal on all processes.
    """
    split = {}
    for name, module in model.named_modules():
        if any(name == one or name.endswith(f".{one}") for one in names):
            for path, parameter in list(module.named_parameters()):
                if hasattr(parameter, "full_tensor"):
                    inner, _, leaf = path.rpartition(".")
                    split[module.get_submodule(inner), leaf] = parameter
    for (module, leaf), parameter in split.items():
        setattr(module, leaf, torch.nn.Parameter(parameter.detach().full_tensor().clone()))
    try:
        yield
    finally:
        for (module, leaf), parameter in split.items():
            setattr(module, leaf, parameter.requires_grad_(False))


def modules_of(model, fresh: Collection[str]) -> list[str]:
    """Names of the modules that consist of new weights. Raises UserError for a module that has other weights, too."""
    names, modules = set(fresh), {}
    for name in fresh:
        module = name.rpartition(".")[0]
        names_inside = [f"{module}.{other}" for other, _ in model.get_submodule(module).named_parameters()]
        if not module or not set(names_inside) <= names:
            raise UserError(
                f"training.lora: {name} is new, but stands in no layer of its own, and could not be saved beside an "
                f"adapter; train without training.lora"
            )
        modules[module] = None
    return list(modules)


def check_modules(model, field: str, wanted: Collection[str]) -> None:
    """Raise UserError for a name that no module of the model ends with."""
    modules = [name for name, _ in model.named_modules() if name]
    for name in wanted:
        if not any(module == name or module.endswith(f".{name}") for module in modules):
            leaves = dict.fromkeys(module.rpartition(".")[2] for module in modules)
            near = did_you_mean(name, [leaf for leaf in leaves if not leaf.isdecimal()])
            raise UserError(f"training.lora.{field}: {type(model).__name__} has no module {name!r}{near}")


def plain(model: torch.nn.Module) -> torch.nn.Module:
    """The model without PEFT's wrapper, if it has one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def is_adapted(model: torch.nn.Module) -> bool:
    """Whether PEFT wraps the model, so that only the adapter's weights are saved."""
    return plain(model) is not model


def save_adapted_config(model, folder: Path) -> None:
    """Write the adapted model's config and generation config into the folder of its adapter."""
    model = plain(model)
    model.config.architectures = [type(model).__name__.removeprefix("FSDP")]  # FSDP2 makes a subclass
    model.config.to_json_file(str(folder / ADAPTED_CONFIG))
    if model.can_generate():
        model.generation_config.save_pretrained(folder)

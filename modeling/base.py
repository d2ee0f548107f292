"""Base class of all models: transformers' flags, weight initialisation, saving models with their code."""

import math
import shutil
import sys
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.output_capturing import OutputRecorder

from .attention import Attention
from .attention_masks import given_cache, make_masks
from .block import TransformerBlock
from .families import FAMILIES
from .lm_head import FillsOutputs
from .traits import ATTENTION_KINDS, POSITION_SCHEMES, RULES, files_of

WITH_PARTS = "_with_parts"  # suffix of the saved code file's name if the family's own file does not import all parts
PLUGIN_CODE = "plugin_code"  # file in saved folders of models with plug-in parts; it imports these, then the family
# Arguments of `save_pretrained` that it passes on to `push_to_hub`.
HUB_ARGUMENTS = ("repo_id", "commit_message", "commit_description", "private", "revision", "create_pr", "tags")
# Prefixes of the attention backends of transformers and ours; any other name belongs to a serving engine.
OWN_BACKENDS = ("anyformer", "eager", "sdpa", "flex_attention", "flash_attention", "paged|")


# The modules whose outputs `output_hidden_states` and `output_attentions` collect, if layers may cross-attend.
LAYERS_THAT_CROSS = {
    "hidden_states": TransformerBlock,
    "attentions": OutputRecorder(Attention, index=1, layer_name="self_attn"),
    "cross_attentions": OutputRecorder(Attention, index=1, layer_name="cross_attn"),
}


def is_own_backend(implementation: str | None) -> bool:
    """Whether `attn_implementation` is a backend of transformers or ours, or a kernel from the Hub (`owner/name`)."""
    return implementation is None or implementation.startswith(OWN_BACKENDS) or "/" in implementation


def unserved(c, pages: bool = False) -> str | None:
    """The first config field, as `name=value`, for which a serving engine would compute something else, or None.

    Engines replace attention, experts and head by kernels of their own, made from the config. transformers' continuous
    batching (`pages`) runs our modules, but on rows of many users' texts. The reasons stand in rules/serving.py.
    """
    kinds, scheme = [ATTENTION_KINDS[kind] for kind in c.attention_kinds], POSITION_SCHEMES[c.position_encoding]
    rope = (c.rope_parameters or {}) if scheme.acts_on == "rotation" else {}
    rope_types = {each.get("rope_type") for each in (rope, *rope.values()) if isinstance(each, dict)}
    has_experts, has_bias = "sparse" in c.mlp_kinds, getattr(c, "lm_head_bias", False)
    wrong = {
        "layer_types": any(kind.lookback is not None or kind.cache_values for kind in kinds),
        "add_cross_attention": getattr(c, "add_cross_attention", False),
        "rope_parameters": rope_types & {"dynamic", "longrope"},
        "expert_capacity": has_experts and c.expert_capacity is not None,
        "prefix_lm": getattr(c, "prefix_lm", False),
        "differential_attention": getattr(c, "differential_attention", False),
    }
    if not pages:
        windows_to_both_sides = any(kind.windowed for kind in kinds) and not c.is_causal
        wrong |= {
            "position_encoding": scheme.adds_to_scores,
            "attention_pattern": windows_to_both_sides or any(kind.own_scores or not kind.flash for kind in kinds),
            "attn_logit_softcapping": (c.attn_logit_softcapping or 1) < 1,
            "attention_sinks": c.attention_sinks,
            "value_residual": getattr(c, "value_residual", False),
            "hidden_act": has_experts and c.hidden_act not in ("silu", "swish"),
            "mlp_type": has_experts and (c.mlp_type != "glu" or c.mlp_bias),
            "apply_router_weight_on_input": has_experts and c.apply_router_weight_on_input,
            "num_hidden_groups": getattr(c, "num_hidden_groups", None) not in (None, c.num_hidden_layers),
            "conv_kernel_size": getattr(c, "conv_kernel_size", 0),
            "output_vocab_size": getattr(c, "output_vocab_size", None) not in (None, getattr(c, "vocab_size", None)),
            "logit_multiplier": c.is_causal
            and getattr(c, "logit_multiplier", 1) != 1
            and (c.final_logit_softcapping is not None or has_bias),
        }
    return next((f"{name}={getattr(c, name)}" for name, is_wrong in wrong.items() if is_wrong), None)


def _with_imports(file: Path) -> set[Path]:
    """A code file and the sibling files that it imports, directly or indirectly."""
    return {file, *map(Path, get_relative_import_files(file))}


def enter_peft_defaults(model_type: str) -> None:
    """Add a family to PEFT's tables of default target modules, if PEFT is loaded: our modules are named as Qwen2's.

    In PEFT 0.21 the tables have no defaults for bare parameters such as experts'; `target_parameters` names those.
    """
    for name, table in vars(sys.modules.get("peft.utils.constants", object)).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_") and name.endswith("_MODULES_MAPPING") and "qwen2" in table:
            table.setdefault(model_type, table["qwen2"])


class AnyformerPreTrainedModel(FillsOutputs, PreTrainedModel):
    """Base of all families. A family sets `config_class`, and has a row in FAMILIES."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TransformerBlock", "InsideNormBlock", "SandwichBlock", "ParallelBlock"]
    _skip_keys_device_placement = ["cache", "past_key_values"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": TransformerBlock, "attentions": Attention}

    auto_classes: dict[str, str] = {}  # {Auto class: our class}, for a family with `config_class` its row's heads
    # Whether `forward` takes `label_smoothing`. The signature must not show it: Trainer treats every argument with
    # "label" in its name as labels, and computes neither loss nor metrics for a batch that lacks one of them.
    takes_label_smoothing = False

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "config_class" in vars(cls) and cls.config_class.model_type in FAMILIES:
            cls.auto_classes = FAMILIES[cls.config_class.model_type].heads
        for auto_class, name in cls.auto_classes.items():
            if name == cls.__name__:
                cls.register_for_auto_class(auto_class)

    def __init__(self, config, *args, **kwargs):
        # Switch off backends that would silently ignore a feature; transformers reads these flags to build a model.
        kinds = [ATTENTION_KINDS[kind] for kind in config.attention_kinds]
        if POSITION_SCHEMES[config.position_encoding].adds_to_scores:
            self._supports_flash_attn = self._supports_attention_backend = self._supports_context_parallel = False
        if not all(kind.flash for kind in kinds) or getattr(config, "prefix_lm", False):
            self._supports_flash_attn = self._supports_attention_backend = False
        if any(kind.keeps_states or kind.cache_values for kind in kinds):  # serving engines expect keys and values
            self._supports_attention_backend = self._supports_context_parallel = False
        if config.attn_logit_softcapping is not None:
            self._supports_sdpa = False
        if config.attention_sinks:
            self._supports_flash_attn = self._supports_context_parallel = False
        enter_peft_defaults(config.model_type)
        super().__init__(config, *args, **kwargs)

    def get_correct_attn_implementation(self, requested_attention, is_init_check: bool = False) -> str:
        """The backend to use. Raises ValueError for a serving engine that would silently compute something else.

        A serving engine builds the model with a backend of its own, and never reads the flags set in `__init__`.
        """
        if requested_attention is None and "anyformer" in ALL_ATTENTION_FUNCTIONS.valid_keys():
            requested_attention = "anyformer"  # registered by kernels/, if the package is installed
        backend = super().get_correct_attn_implementation(requested_attention, is_init_check)
        if not is_own_backend(requested_attention) and (reason := self.serving_refusal()) is not None:
            raise ValueError(
                f"attn_implementation={requested_attention!r} would compute something else than "
                f"{type(self).__name__}: {reason}; anyformer convert makes a native model, where one computes the same"
            )
        return backend

    def serving_refusal(self, pages: bool = False) -> str | None:
        """Why a serving engine (with `pages`, continuous batching) would compute something else, or None."""
        field = unserved(self.config, pages)
        explain = RULES.get("explain_unserved", lambda config, pages: f"it does not compute {field}")
        return field and explain(self.config, pages)

    def _get_resized_lm_head(self, old_lm_head, *args, **kwargs):
        """As in transformers, but in the same module: a plain nn.Linear would drop its softcap and multiplier."""
        new = super()._get_resized_lm_head(old_lm_head, *args, **kwargs)
        old_lm_head.weight, old_lm_head.bias, old_lm_head.out_features = new.weight, new.bias, new.out_features
        if getattr(self.config, "output_vocab_size", None) is not None:
            self.config.output_vocab_size = new.out_features
        return old_lm_head

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        std = residual_std = self.config.initializer_range
        if self.config.fan_in_init:
            std, residual_std = self._init_by_inputs(module)
        if self.config.scale_residual_init:
            # For modules marked by `writes_residual`: smaller weights keep the variance of the residual stream from
            # growing with depth (Radford et al. 2019, section 2.3).
            residual_std /= math.sqrt(2 * self.config.num_hidden_layers)
        if getattr(module, "writes_residual", False):
            init.normal_(module.weight, mean=0.0, std=residual_std)
        if hasattr(module, "init_own_weights"):
            module.init_own_weights(std, residual_std)

    def _init_by_inputs(self, module) -> tuple[float, float]:
        """Draw weights of standard deviation 1 / sqrt(inputs) in linear layers, 1 in embeddings (mesh_tensorflow's T5).

        Returns (std, residual_std) for what `_init_weights` draws next: for a linear layer the std used here, for
        other modules the stds of linear layers with hidden_size and with intermediate_size inputs.
        """
        gain = getattr(module, "init_gain", 1.0)
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=gain)
        elif isinstance(module, nn.Linear):
            std = gain * module.in_features**-0.5
            init.normal_(module.weight, mean=0.0, std=std)
            return std, std
        return self.config.hidden_size**-0.5, self.config.intermediate_size**-0.5

    @staticmethod
    def create_masks_for_generate(config, inputs_embeds, attention_mask, past_key_values=None, **kwargs):
        """Called by `generate` before a compiled step; transformers' version does not know all our attention kinds."""
        return make_masks(config, inputs_embeds, attention_mask, given_cache(past_key_values, kwargs))

    def own_class(self) -> type:
        """The model's class as defined here: FSDP2 replaces `type(self)` by a class that torch generates."""
        return next(base for base in type(self).__mro__ if not base.__module__.startswith("torch."))

    def code_files(self) -> list[Path]:
        """The code files to save: those of parts that the family's file does not import, then the family's file."""
        module = sys.modules[self.own_class().__module__]
        name = PLUGIN_CODE if f"{module.__package__}.{PLUGIN_CODE}" in sys.modules else Path(module.__file__).stem
        family = Path(module.__file__).with_name(f"{name}.py")
        parts = [family.with_name(f"{part}.py") for part in files_of(self.config)]
        return [part for part in parts if part not in _with_imports(family)] + [family]

    def save_pretrained(self, save_directory, *, push_to_hub: bool = False, is_main_process: bool = True, **kwargs):
        """Save weights, config and code files, so that the folder loads with or without anyformer installed.

        transformers alone enters only the saved class into `auto_map`, and copies only what its file imports; pipelines
        and serving tools need the whole family, and some configs need more files.

        `auto_map` names the model's file for the config, too. transformers looks a model up by its config's class, and
        makes one class per folder name and code file (with its imports): if the config's own file were named and equal
        in two folders of the same name, the second folder would be loaded with the model of the first.
        """
        files, config = self.code_files(), type(self.config)
        own_file = files[-1].stem
        code_file = own_file if len(files) == 1 else f"{own_file}{WITH_PARTS}"
        auto_map = {auto_class: f"{code_file}.{name}" for auto_class, name in self.auto_classes.items()}
        auto_map["AutoConfig"] = f"{code_file}.{config.__name__}"
        self.config.auto_map = dict(auto_map)
        if own_file == code_file == self.own_class().__module__.rpartition(".")[2] and self.own_class() is type(self):
            super().save_pretrained(save_directory, push_to_hub=push_to_hub, is_main_process=is_main_process, **kwargs)
            return
        hub = {name: kwargs.pop(name) for name in HUB_ARGUMENTS if name in kwargs}
        self._auto_class, self.is_remote_code = None, lambda: False  # else transformers copies the class's own file
        super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)
        del self._auto_class, self.is_remote_code
        if hasattr(self, "should_save_on_this_rank"):  # transformers < 5.23
            is_main_process = self.should_save_on_this_rank(is_main_process)
        if is_main_process:
            self.config.auto_map = auto_map
            self.config.save_pretrained(save_directory)
            for path in {path for file in files for path in _with_imports(file)}:
                shutil.copyfile(path, Path(save_directory) / path.name)
            if len(files) > 1:
                source = "".join(f"from .{file.stem} import *\n" for file in files)
                (Path(save_directory) / f"{code_file}.py").write_text(source, encoding="utf-8")
            if push_to_hub:  # saves again: the first save's upload would lack the files added here
                hub.setdefault("repo_id", Path(save_directory).name)
                self.push_to_hub(**hub, **{"token": kwargs["token"]} if "token" in kwargs else {})

"""Base class of all models: transformers' flags, initialisation, saving with code."""

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
from .lm_head import FillsOutputs
from .traits import ATTENTION_KINDS, POSITION_SCHEMES, RULES, parts_of

WITH_PARTS = "_with_parts"  # behind the family's name: in folders of models with parts that its file does not import
PLUGIN_CODE = "plugin_code"  # in folders of models with parts of plug-ins: imports them, then the family
# Of `save_pretrained(push_to_hub=True)`, which passes them on.
HUB_ARGUMENTS = ("repo_id", "commit_message", "commit_description", "private", "revision", "create_pr", "tags")
# Backends of transformers and ours; all others are those of an engine.
OWN_BACKENDS = ("anyformer", "eager", "sdpa", "flex_attention", "flash_attention", "paged|")


# What `output_hidden_states` and `output_attentions` collect of layers that may attend to an encoder's tokens.
LAYERS_THAT_CROSS = {
    "hidden_states": TransformerBlock,
    "attentions": OutputRecorder(Attention, index=1, layer_name="self_attn"),
    "cross_attentions": OutputRecorder(Attention, index=1, layer_name="cross_attn"),
}


def is_own_backend(implementation: str | None) -> bool:
    """Whether an `attn_implementation` is one of transformers or a kernel from the Hub, `owner/name`."""
    return implementation is None or implementation.startswith(OWN_BACKENDS) or "/" in implementation


def unserved(c, pages: bool = False) -> str | None:
    """The field of a config by which an engine for serving would compute something else, as `name=value`, or None.

    Engines answer attention, experts and head by kernels of their own, made from the config; transformers' continuous
    batching (`pages`) asks ours, but has texts of many users in one row. The reasons stand in the package's rules/.
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
    """A code file and the siblings that it imports, and so on."""
    return {file, *map(Path, get_relative_import_files(file))}


def enter_peft_defaults(model_type: str) -> None:
    """Enter a family into PEFT's tables of default target modules, where PEFT is loaded: modules are named as Qwen2's.

    The tables have no default for parameters such as experts', in PEFT 0.21; `target_parameters` names those.
    """
    for name, table in vars(sys.modules.get("peft.utils.constants", object)).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_") and name.endswith("_MODULES_MAPPING") and "qwen2" in table:
            table.setdefault(model_type, table["qwen2"])


class AnyformerPreTrainedModel(FillsOutputs, PreTrainedModel):
    """Base of all families. A family sets `config_class` and `auto_classes` (Auto class name -> own class name)."""

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

    auto_classes: dict[str, str] = {}
    # Whether `forward` takes `label_smoothing`. Its signature cannot say so: Trainer takes every argument with "label"
    # in its name for labels, and without all of them in a batch its evaluation has neither loss nor metrics.
    takes_label_smoothing = False

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for auto_class, name in cls.auto_classes.items():
            if name == cls.__name__:
                cls.register_for_auto_class(auto_class)

    def __init__(self, config, *args, **kwargs):
        # A backend that would drop something silently is refused; transformers reads these flags when a model is built.
        kinds = [ATTENTION_KINDS[kind] for kind in config.attention_kinds]
        if POSITION_SCHEMES[config.position_encoding].adds_to_scores:
            self._supports_flash_attn = self._supports_attention_backend = self._supports_context_parallel = False
        if not all(kind.flash for kind in kinds) or getattr(config, "prefix_lm", False):
            self._supports_flash_attn = self._supports_attention_backend = False
        if any(kind.keeps_states or kind.cache_values for kind in kinds):  # engines expect keys and values
            self._supports_attention_backend = self._supports_context_parallel = False
        if config.attn_logit_softcapping is not None:
            self._supports_sdpa = False
        if config.attention_sinks:
            self._supports_flash_attn = self._supports_context_parallel = False
        enter_peft_defaults(config.model_type)
        super().__init__(config, *args, **kwargs)

    def get_correct_attn_implementation(self, requested_attention, is_init_check: bool = False) -> str:
        """The backend to use. Raises ValueError for an engine that would silently compute something else.

        Serving engines name a backend of their own and build the model; the instance's flags they never read.
        """
        if requested_attention is None and "anyformer" in ALL_ATTENTION_FUNCTIONS.valid_keys():
            requested_attention = "anyformer"  # of kernels/, where the package is installed
        found = super().get_correct_attn_implementation(requested_attention, is_init_check)
        if not is_own_backend(requested_attention) and (reason := self.serving_refusal()) is not None:
            raise ValueError(
                f"attn_implementation={requested_attention!r} would compute something else than "
                f"{type(self).__name__}: {reason}; anyformer convert makes a native model, where one computes the same"
            )
        return found

    def serving_refusal(self, pages: bool = False) -> str | None:
        """Why an engine for serving would compute something else, or None. pages: continuous batching."""
        field = unserved(self.config, pages)
        explain = RULES.get("explain_unserved", lambda config, pages: f"it does not compute {field}")
        return field and explain(self.config, pages)

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        std = residual_std = self.config.initializer_range
        if self.config.fan_in_init:
            std, residual_std = self._init_by_inputs(module)
        if self.config.scale_residual_init:
            # Projections that write to the residual stream are marked. Scaled down, the stream's variance does not grow
            # with depth (Radford et al. 2019, section 2.3).
            residual_std /= math.sqrt(2 * self.config.num_hidden_layers)
        if getattr(module, "writes_residual", False):
            init.normal_(module.weight, mean=0.0, std=residual_std)
        if hasattr(module, "init_own_weights"):
            module.init_own_weights(std, residual_std)

    def _init_by_inputs(self, module) -> tuple[float, float]:
        """Draw a linear layer with the standard deviation 1 / sqrt(inputs), an embedding with 1 (mesh_tensorflow's T5).

        Returns (std, residual_std) for what `_init_weights` draws after it: a linear layer's own; for modules with
        parameters of their own those of hidden_size and of intermediate_size inputs.
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
        """Called by `generate` ahead of a compiled step; transformers' own does not know all our kinds of attention."""
        return make_masks(config, inputs_embeds, attention_mask, given_cache(past_key_values, kwargs))

    def own_class(self) -> type:
        """The model's class; FSDP2 puts one that torch has made in its place."""
        return next(each for each in type(self).__mro__ if not each.__module__.startswith("torch."))

    def code_files(self) -> list[Path]:
        """The files of the config's parts that the family's file does not import; and that file, the last."""
        module = sys.modules[self.own_class().__module__]
        name = PLUGIN_CODE if f"{module.__package__}.{PLUGIN_CODE}" in sys.modules else Path(module.__file__).stem
        family = Path(module.__file__).with_name(f"{name}.py")
        parts = [family.with_name(f"{part}.py") for part in parts_of(self.config)]
        return [part for part in parts if part not in _with_imports(family)] + [family]

    def save_pretrained(self, save_directory, *, push_to_hub: bool = False, is_main_process: bool = True, **kwargs):
        """Save weights, config and the code files, so that the folder loads with or without anyformer installed.

        transformers enters only the saved class into `auto_map`, and copies the imports of its file; pipelines and
        serving tools need the whole family, and some configs more files.

        The config is named in the model's file, which imports it. transformers knows models by the class of their
        config, and makes a class for each file (with its imports) and name of a folder: of two folders of one name the
        second would get the first one's model if the file of their configs were the same.
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
        self._auto_class, self.is_remote_code = None, lambda: False  # or transformers would copy the class's own file
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
            if push_to_hub:  # after a second save: transformers uploads no file that was added after its own
                hub.setdefault("repo_id", Path(save_directory).name)
                self.push_to_hub(**hub, **{"token": kwargs["token"]} if "token" in kwargs else {})

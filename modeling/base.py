"""What every anyformer model is to transformers: flags, initialisation, self-contained saving."""

import math

import torch
from transformers import PreTrainedModel
from transformers import initialization as init

from .attention import Attention
from .attention_masks import causal_masks
from .attention_recurrent import CompressiveAttention
from .block import TransformerBlock
from .experts import Experts, TopKRouter
from .experts_grouped import best_implementation, up_weight
from .experts_losses import head_losses
from .legality_memory import SEGMENT_KINDS, STATE_KINDS
from .positions import AlibiBias


class AnyformerPreTrainedModel(PreTrainedModel):
    """Base of all families. A family sets `config_class` and `auto_classes` (Auto class name -> own class name)."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TransformerBlock"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_set_experts_implementation_cached_value = True  # transformers looks for experts in the model's own file only
    _keep_in_fp32_modules_strict = {"e_score_correction_bias"}  # steps of 0.001 would vanish in bf16
    _can_record_outputs = {"hidden_states": TransformerBlock, "attentions": Attention}

    auto_classes: dict[str, str] = {}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for auto_class, name in cls.auto_classes.items():
            if name == cls.__name__:
                cls.register_for_auto_class(auto_class)

    def __init__(self, config, *args, **kwargs):
        # What a backend would drop silently it must refuse; transformers reads these flags when the model is built.
        if config.position_encoding in ("alibi", "relative", "disentangled"):
            self._supports_flash_attn = self._supports_attention_backend = self._supports_context_parallel = False
        kinds = set(config.attention_kinds)
        if kinds & {"strided_attention", "local_global_attention", *SEGMENT_KINDS}:
            self._supports_flash_attn = self._supports_attention_backend = False
        if kinds & set(STATE_KINDS):  # serving engines and context parallelism have their own idea of a cache and a row
            self._supports_attention_backend = self._supports_context_parallel = False
        if config.attn_logit_softcapping is not None:
            self._supports_sdpa = False
        super().__init__(config, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, AlibiBias):
            init.copy_(module.slopes, module.compute_slopes())
        if isinstance(module, CompressiveAttention):
            init.zeros_(module.gate)
        std, residual_std = self.config.initializer_range, self.config.initializer_range
        if self.config.scale_residual_init:
            # A block marks the projections that write to the residual stream. Scaled down, the stream's variance does
            # not grow with depth (Radford et al. 2019, section 2.3).
            residual_std /= math.sqrt(2 * self.config.num_hidden_layers)
        if getattr(module, "writes_residual", False):
            init.normal_(module.weight, mean=0.0, std=residual_std)
        if isinstance(module, TopKRouter):
            init.normal_(module.weight, mean=0.0, std=std)
            if module.bias_update_rate > 0:
                init.zeros_(module.e_score_correction_bias)
        if isinstance(module, Experts):
            init.normal_(up_weight(module), mean=0.0, std=std)
            init.normal_(module.down_proj, mean=0.0, std=residual_std)

    def get_correct_experts_implementation(self, requested_experts: str | None) -> str:
        return super().get_correct_experts_implementation(best_implementation(self.config, requested_experts))

    def head_output(self, output_class, outputs, loss, labels, num_items_in_batch=None, **own):
        """The output of a head: loss, fields of its own, and what `output_class` takes of the base model's `outputs`.

        In training the routers' losses are part of the loss. An evaluation's loss is the task's alone, so that it
        compares with models of other routers, or none.
        """
        passed_on = {name: x for name, x in outputs.items() if name in output_class.__dataclass_fields__}
        router_losses = passed_on.pop("router_losses", None)
        if router_losses is not None and loss is not None:
            added, aux_loss, z_loss = head_losses(self.config, router_losses, labels, num_items_in_batch)
            passed_on |= {"aux_loss": aux_loss, "z_loss": z_loss}
            loss = loss + added if self.training else loss
        return output_class(loss=loss, **own, **passed_on)

    @staticmethod
    def create_masks_for_generate(config, inputs_embeds, attention_mask, past_key_values, position_ids=None, **kwargs):
        """What `generate` calls ahead of a compiled step; transformers' own does not know all our kinds."""
        return causal_masks(config, inputs_embeds, attention_mask, past_key_values)

    def save_pretrained(self, save_directory, **kwargs):
        """Save weights, config and the code files, so that the folder loads with or without anyformer installed.

        transformers enters only the saved class into `auto_map`; pipelines and serving tools need the whole family.
        """
        module = type(self).__module__.rsplit(".", 1)[-1]
        config_class = type(self.config)
        self.config.auto_map = {
            "AutoConfig": f"{config_class.__module__.rsplit('.', 1)[-1]}.{config_class.__name__}",
            **{auto_class: f"{module}.{name}" for auto_class, name in self.auto_classes.items()},
        }
        super().save_pretrained(save_directory, **kwargs)

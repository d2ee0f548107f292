"""What every anyformer model is to transformers: flags, initialisation, self-contained saving."""

import math

import torch
from transformers import PreTrainedModel
from transformers import initialization as init

from .attention import Attention
from .block import TransformerBlock
from .masking import causal_masks
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
    _can_record_outputs = {"hidden_states": TransformerBlock, "attentions": Attention}

    auto_classes: dict[str, str] = {}

    def __init__(self, config, *args, **kwargs):
        # What a backend would drop silently it must refuse; transformers reads these flags when the model is built.
        if config.position_encoding in ("alibi", "relative", "disentangled"):
            self._supports_flash_attn = self._supports_attention_backend = self._supports_context_parallel = False
        if {"strided_attention", "local_global_attention"} & set(config.attention_kinds):
            self._supports_flash_attn = self._supports_attention_backend = False
        if config.attn_logit_softcapping is not None:
            self._supports_sdpa = False
        super().__init__(config, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, AlibiBias):
            init.copy_(module.slopes, module.compute_slopes())
        if getattr(module, "writes_residual", False) and self.config.scale_residual_init:
            # A block marks the projections that write to the residual stream. Scaled down, the stream's variance does
            # not grow with depth (Radford et al. 2019, section 2.3).
            std = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(module.weight, mean=0.0, std=std)

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

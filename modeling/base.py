"""What every anyformer model is to transformers: flags, initialisation, self-contained saving."""

import math

import torch
from transformers import PreTrainedModel
from transformers import initialization as init

from .attention import Attention
from .block import TransformerBlock


class AnyformerPreTrainedModel(PreTrainedModel):
    """Base of all families. A family sets `config_class` and `auto_classes` (Auto class name -> own class name)."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TransformerBlock"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flex_attn = True
    # flash kernels would need the documents of packed rows as sequence lengths; until then transformers refuses them
    # with a sentence of its own, which is better than documents that leak into each other.
    _supports_flash_attn = False
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": TransformerBlock, "attentions": Attention}

    auto_classes: dict[str, str] = {}

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if getattr(module, "writes_residual", False) and self.config.scale_residual_init:
            # A block marks the projections that write to the residual stream. Scaled down, the stream's variance does
            # not grow with depth (Radford et al. 2019, section 2.3).
            std = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(module.weight, mean=0.0, std=std)

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

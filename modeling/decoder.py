"""The decoder family: causal language models from GPT-2 to LLaMA."""

import inspect

import torch
from torch import nn
from transformers import DynamicCache, GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .base import AnyformerPreTrainedModel
from .block import TransformerBlock
from .configuration import AnyformerDecoderConfig
from .heads import LanguageModelHead, language_model_loss
from .losses import shift_left
from .masking import causal_masks, document_ids_from_positions, flash_sequences
from .normalization import build_norm
from .positions import LearnedPositions, apply_positions, build_positions
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification


class AnyformerDecoderPreTrainedModel(AnyformerPreTrainedModel):
    config_class = AnyformerDecoderConfig
    auto_classes = {
        "AutoModel": "AnyformerDecoderModel",
        "AutoModelForCausalLM": "AnyformerDecoderForCausalLM",
        "AutoModelForSequenceClassification": "AnyformerDecoderForSequenceClassification",
        "AutoModelForTokenClassification": "AnyformerDecoderForTokenClassification",
        "AutoModelForQuestionAnswering": "AnyformerDecoderForQuestionAnswering",
    }


class AnyformerDecoderModel(AnyformerDecoderPreTrainedModel):
    """Token embeddings, positions and a stack of causal blocks; no head.

    Packed rows: give `position_ids` that restart at 0 for each document. Tokens then attend within their document
    only, whatever `use_cache` and `attention_mask` say. With a cache passed in, `position_ids` are positions only.
    """

    def __init__(self, config: AnyformerDecoderConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.position_encoding = build_positions(config)
        self.embedding_norm = build_norm(config) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList([TransformerBlock(config, i) for i in range(config.num_hidden_layers)])
        # Post-norm blocks end in a norm of their own.
        self.norm = build_norm(config) if config.norm_position == "pre" else nn.Identity()
        self.attention_kinds = config.attention_kinds
        self.layers_by_kind = {
            kind: (self.attention_kinds.index(kind), config.layer_types[self.attention_kinds.index(kind)])
            for kind in self.attention_kinds
        }
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values=None,
        inputs_embeds: torch.FloatTensor | None = None,
        use_cache: bool | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPast:
        """input_ids (B, T) or inputs_embeds (B, T, D) -> last_hidden_state (B, T, D), past_key_values."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x_BTD = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if self.config.embedding_multiplier != 1:
            x_BTD = x_BTD * self.config.embedding_multiplier
        documents = None
        if position_ids is not None and past_key_values is None and x_BTD.shape[1] > 1:
            documents = document_ids_from_positions(position_ids.expand(x_BTD.shape[0], -1))
        if documents is None and isinstance(self.position_encoding, LearnedPositions):
            self.position_encoding.check_length(x_BTD.shape[1])
        if use_cache and past_key_values is None and not self.training:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            past = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(x_BTD.shape[1], device=x_BTD.device) + past).unsqueeze(0)

        if documents is not None and self.config._attn_implementation.startswith("flash"):
            kwargs |= flash_sequences(documents, attention_mask)
            attention_mask = None
        masks = causal_masks(self.config, x_BTD, attention_mask, past_key_values, documents, self.layers_by_kind)
        x_BTD, position_kwargs = apply_positions(
            self.position_encoding, x_BTD, position_ids, past_key_values, self.layers_by_kind
        )
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)
        x_BTD = self.dropout(x_BTD)
        for layer, kind in zip(self.layers, self.attention_kinds):
            x_BTD = layer(
                x_BTD,
                attention_mask=masks[kind],
                position_ids=position_ids,
                past_key_values=past_key_values,
                use_cache=use_cache,
                **position_kwargs[kind],
                **kwargs,
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x_BTD), past_key_values=past_key_values)


class AnyformerDecoderForCausalLM(AnyformerDecoderPreTrainedModel, GenerationMixin):
    """The decoder with a language-model head: next-token loss, logits, `generate`."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config: AnyformerDecoderConfig):
        super().__init__(config)
        self.model = AnyformerDecoderModel(config)
        self.lm_head = LanguageModelHead(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values=None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        shift_labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        **kwargs,
    ) -> CausalLMOutputWithPast:
        """Predict the next token.

        Args:
            labels: (B, T), aligned with `input_ids` (shifted here); -100 is not counted.
            shift_labels: (B, T), already aligned with the predictions; instead of `labels`.
            num_items_in_batch: labels counted over the whole optimizer step; the loss is the sum divided by it.
            logits_to_keep: only the last so many positions (0: all), or the positions of this index tensor.
            return_logits: whether `logits` is filled. None: not in a training step with labels, where only the loss
                is wanted and the logits would be the largest tensor of all.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_states, loss, logits = outputs.last_hidden_state, None, None
        if shift_labels is None and labels is not None:
            shift_labels = shift_left(labels)
        if shift_labels is not None:
            loss = language_model_loss(self.lm_head, hidden_states, shift_labels, num_items_in_batch)
        if return_logits if return_logits is not None else (shift_labels is None or not self.training):
            keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(hidden_states[:, keep, :])
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class AnyformerDecoderForSequenceClassification(ForSequenceClassification, AnyformerDecoderPreTrainedModel):
    base_class = AnyformerDecoderModel


class AnyformerDecoderForTokenClassification(ForTokenClassification, AnyformerDecoderPreTrainedModel):
    base_class = AnyformerDecoderModel


class AnyformerDecoderForQuestionAnswering(ForQuestionAnswering, AnyformerDecoderPreTrainedModel):
    base_class = AnyformerDecoderModel


# `generate` asks models that can be loaded from the Hub for this at every token; computed anew, it would cost a tenth
# of a small model's time.
AnyformerDecoderForCausalLM.forward.__signature__ = inspect.signature(AnyformerDecoderForCausalLM.forward)

for _auto_class, _name in AnyformerDecoderPreTrainedModel.auto_classes.items():
    globals()[_name].register_for_auto_class(_auto_class)

"""The decoder family: causal language models from GPT-2 to LLaMA.

`CausalModel` and `CausalLanguageModel` are mixins, which the mixture-of-experts family uses, too.

Read in this order: decoder.py (models and heads), stack.py (embeddings, masks, the row of layers), block.py (norms,
feed-forward, the layer), attention.py, positions.py, lm_head.py (the loss, too); configuration.py has the fields.
"""

import inspect
from typing import Unpack

import torch
from torch import nn
from transformers import DynamicCache, GenerationMixin, modeling_outputs
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention_masks import CACHE, given_cache, paged_masks
from .base import LAYERS_THAT_CROSS, AnyformerPreTrainedModel
from .configuration import AnyformerDecoderConfig
from .lm_head import (
    LanguageModelHead,
    language_model_loss,
    loss_of_logits,
    shift_left,
    with_router_fields,
    without_logits,
)
from .stack import TransformerStack, embeddings_of
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification, Head
from .traits import PARTS

BaseModelOutputWithPastAndCrossAttentions = with_router_fields(
    modeling_outputs.BaseModelOutputWithPastAndCrossAttentions, __name__
)
CausalLMOutputWithCrossAttentions = with_router_fields(modeling_outputs.CausalLMOutputWithCrossAttentions, __name__)
CausalLMOutputWithCrossAttentionsWithoutLogits = without_logits(CausalLMOutputWithCrossAttentions)


class CausalModel(TransformerStack):
    """Token embeddings, positions and a stack of causal blocks; no head. Packed rows: see TransformerStack."""

    # Weights of heads in the same folder, which servers of embeddings would report as unknown.
    _keys_to_ignore_on_load_unexpected = [r"^(model\.)?(score|qa_outputs|mtp)\."]

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.build_stack(config, config.add_cross_attention)
        self.read_encoder = None
        if config.add_cross_attention:
            self.read_encoder = PARTS.options["add_cross_attention"].load()
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
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """input_ids (B, T) or inputs_embeds (B, T, D) -> last_hidden_state (B, T, D), past_key_values."""
        x_BTD = embeddings_of(self.embed_tokens, input_ids, inputs_embeds)
        past_key_values = given_cache(past_key_values, kwargs)
        paged = "cache" in kwargs  # passed by transformers' continuous batching
        packs = past_key_values is None and not paged  # rows may be packed, unless a cache is passed in
        if use_cache and packs and not self.training:
            past_key_values = DynamicCache(config=self.config)
        if self.read_encoder is not None:
            positions = position_ids if packs else None
            past_key_values, kwargs = self.read_encoder(self, x_BTD, positions, past_key_values, **kwargs)
        elif kwargs.get("encoder_hidden_states") is not None:
            raise ValueError("encoder_hidden_states cannot be read by a decoder built without add_cross_attention=True")
        batch = self.read_batch(x_BTD, attention_mask, position_ids, past_key_values, packs, paged, **kwargs)
        batch.seen_by_all = kwargs.pop("prefix_mask", None)
        if paged:
            cumulated = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
            batch.attention_mask, batch.distances = paged_masks(self.config, attention_mask, position_ids, *cumulated)
        x_BTD, routed = self.run_stack(x_BTD, batch, use_cache=use_cache, **kwargs)
        fields = {"last_hidden_state": x_BTD, CACHE: past_key_values} | routed
        return self.output(BaseModelOutputWithPastAndCrossAttentions, **fields)


class CausalLanguageModel:
    """`base_class` with a language-model head: next-token loss, logits. A family adds PrefixGenerationMixin."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = self.base_class(config)
        self.lm_head = LanguageModelHead(config)
        self.mtp = None
        if getattr(config, "num_nextn_predict_layers", 0):
            self.mtp = PARTS.options["num_nextn_predict_layers"].load()(config)
        self.post_init()

    def init_continuous_batching(self, *args, **kwargs):
        """As in transformers, called by `generate_batch`. Raises ValueError for a model that it would compute wrong."""
        if (reason := self.serving_refusal(pages=True)) is not None:
            raise ValueError(f"continuous batching cannot run {type(self).__name__}: {reason}; generate can")
        return super().init_continuous_batching(*args, **kwargs)

    def _get_candidate_generator(self, generation_config, **kwargs):
        if generation_config.use_mtp and self.mtp is not None:
            return self.mtp.draft(self, generation_config)
        return super()._get_candidate_generator(generation_config=generation_config, **kwargs)

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
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        encoder_hidden_states: torch.FloatTensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache=None,  # transformers' pipeline stages hand on what the signature names
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithCrossAttentions:
        """Predict the next token.

        Args:
            labels: (B, T), aligned with `input_ids` (shifted here); -100 is not counted.
            kwargs: `shift_labels` (B, T), already aligned with the predictions, instead of `labels`. Not in the
                signature, see `takes_label_smoothing`. `prefix_mask` (B, P), nonzero at tokens that every token of
                their document sees, also earlier ones: a prefix (Raffel et al. 2020), or if all ones, whole rows.
            logits_to_keep: compute logits of this many last positions (0: of all), or of those in an index tensor.
            encoder_hidden_states, encoder_attention_mask: (B, S, D) and (B, S), an encoder's output and its padding
                mask, for models with `add_cross_attention`.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        if encoder_hidden_states is not None:
            kwargs |= {"encoder_hidden_states": encoder_hidden_states, "encoder_attention_mask": encoder_attention_mask}
        inputs = kwargs | {"input_ids": input_ids, "inputs_embeds": inputs_embeds}
        inputs |= {"attention_mask": attention_mask, "position_ids": position_ids, "return_dict": True}
        outputs = self.model(past_key_values=past_key_values, cache=cache, use_cache=use_cache, **inputs)
        hidden_states, loss, losses, logits, mtp_loss = outputs.last_hidden_state, None, None, None, None
        if shift_labels is None and labels is not None:
            shift_labels = shift_left(labels)
        if self.returns_logits(return_logits, shift_labels):
            keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(hidden_states[:, keep, :])
        if shift_labels is not None and logits is not None and isinstance(logits_to_keep, int) and logits_to_keep == 0:
            loss = loss_of_logits(logits, shift_labels, num_items_in_batch)
        elif shift_labels is not None:
            loss, losses = language_model_loss(self.lm_head, hidden_states, shift_labels, num_items_in_batch)
        if self.mtp is not None and self.training and loss is not None:
            mtp_loss = self.mtp(self.model, self.lm_head, hidden_states, shift_labels, num_items_in_batch, **inputs)
            loss = loss + self.config.mtp_loss_coef * mtp_loss
        fields = {"logits": logits, "row_losses": None if losses is None else losses.sum(-1)}
        fields |= {} if self.mtp is None else {"mtp_loss": mtp_loss}
        return self.head_output(
            CausalLMOutputWithCrossAttentions, outputs, loss, shift_labels, num_items_in_batch, **fields
        )


# Cached: for models with Hub code `generate` inspects the signature at every token, a tenth of a small model's time.
CausalLanguageModel.forward.__signature__ = inspect.signature(CausalLanguageModel.forward)


class CausalForMaskedLM(Head, CausalLanguageModel):
    """A decoder that fills in masks, if trained to (Charpentier and Samuel 2024): all tokens see each other, and the
    token before a mask predicts the hidden one. The first token of a text is never predicted."""

    @can_return_tuple
    def forward(
        self, labels: torch.LongTensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> CausalLMOutputWithCrossAttentions:
        """labels: (B, T), the right token at each position; -100 is not counted. Returns logits there, and loss."""
        inputs = kwargs["input_ids"] if kwargs.get("inputs_embeds") is None else kwargs["inputs_embeds"]
        kwargs |= {"prefix_mask": inputs.new_ones(inputs.shape[:2]), "use_cache": False, "return_dict": True}
        outputs = super().forward(labels=labels, **kwargs)
        if outputs.get("logits") is not None:
            outputs.logits = nn.functional.pad(outputs.logits[:, :-1], (0, 0, 1, 0))
        return outputs


class PrefixGenerationMixin(GenerationMixin):
    """`generate` for models with `prefix_lm`: the prompt's tokens see each other, and what follows is causal."""

    def _prepare_model_inputs(self, inputs, bos_token_id, model_kwargs):
        prompt, name, model_kwargs = super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)
        if self.config.prefix_lm and model_kwargs.get("prefix_mask") is None:
            model_kwargs["prefix_mask"] = torch.ones(prompt.shape[:2], dtype=torch.long, device=prompt.device)
        return prompt, name, model_kwargs

    def prepare_inputs_for_generation(
        self,
        input_ids,
        next_sequence_length=None,
        cache=None,
        attention_mask=None,
        inputs_embeds=None,
        is_first_iteration=False,
        prefix_mask=None,
        **kwargs,
    ):
        """As in transformers, plus `prefix_mask` while the prompt is read. Raises ValueError for a prompt in pieces."""
        arguments = {"attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        arguments |= {"next_sequence_length": next_sequence_length, "is_first_iteration": is_first_iteration}
        if CACHE == "cache":
            kwargs[CACHE] = cache
        inputs = super().prepare_inputs_for_generation(input_ids, **arguments, **kwargs)
        cache = kwargs.get(CACHE)
        past = 0 if cache is None else cache.get_seq_length()
        if prefix_mask is None or past >= prefix_mask.shape[1]:
            return inputs
        length = next(inputs[name].shape[1] for name in ("inputs_embeds", "input_ids") if inputs.get(name) is not None)
        if past + length < prefix_mask.shape[1]:
            raise ValueError("prefix_lm reads a prompt at once; leave prefill_chunk_size out of the generation config")
        return inputs | {"attention_mask": attention_mask, "prefix_mask": prefix_mask}


class AnyformerDecoderPreTrainedModel(AnyformerPreTrainedModel):
    config_class = AnyformerDecoderConfig
    _can_record_outputs = LAYERS_THAT_CROSS


class AnyformerDecoderModel(CausalModel, AnyformerDecoderPreTrainedModel):
    """Token embeddings, positions and a stack of causal blocks; no head."""


class AnyformerDecoderForCausalLM(CausalLanguageModel, AnyformerDecoderPreTrainedModel, PrefixGenerationMixin):
    base_class = AnyformerDecoderModel


class AnyformerDecoderForMaskedLM(CausalForMaskedLM, AnyformerDecoderPreTrainedModel):
    base_class = AnyformerDecoderModel


class AnyformerDecoderForSequenceClassification(ForSequenceClassification, AnyformerDecoderPreTrainedModel):
    base_class = AnyformerDecoderModel


class AnyformerDecoderForTokenClassification(ForTokenClassification, AnyformerDecoderPreTrainedModel):
    base_class = AnyformerDecoderModel


class AnyformerDecoderForQuestionAnswering(ForQuestionAnswering, AnyformerDecoderPreTrainedModel):
    base_class = AnyformerDecoderModel


class AnyformerDecoderForImageClassification(ForSequenceClassification, AnyformerDecoderPreTrainedModel):
    """One class for an image whose pixels are tokens, from the mean over them (Chen et al. 2020, section 2.3)."""

    base_class = AnyformerDecoderModel

    def pool(self, outputs, input_ids, attention_mask):
        """(B, T, D) -> (B, D), the mean over all pixels: none is ever padding."""
        return outputs.last_hidden_state.mean(dim=1)

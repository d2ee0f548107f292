"""The sequence-to-sequence family: an encoder, and a decoder that attends to it; the first Transformer, T5, BART.

Read in this order: seq2seq.py (both halves, models and heads), stack.py (embeddings, masks, the row of layers),
block.py (norms, feed-forward, the layer), attention.py, positions.py, lm_head.py (the loss, too); configuration.py and
configuration_seq2seq.py have the fields.
"""

import copy
from typing import Unpack

import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, StaticCache, modeling_outputs
from transformers.modeling_outputs import ModelOutput
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention_cross import read_encoder
from .attention_masks import CACHE, given_cache
from .base import LAYERS_THAT_CROSS, AnyformerPreTrainedModel
from .configuration_seq2seq import AnyformerSeq2SeqConfig
from .experts_losses import ROUTER_LOGITS, ModelWithExperts, merged
from .lm_head import (
    IGNORE_INDEX,
    LanguageModelHead,
    language_model_loss,
    loss_of_logits,
    with_router_fields,
    without_logits,
)
from .masked_head import Pooler
from .stack import TransformerStack, check_one_is_given, embeddings_of
from .task_heads import Head, classification_loss, classifier_dropout, last_token_index
from .traits import PLAIN
from .unpadding import PaddedTextStack

BaseModelOutput = with_router_fields(modeling_outputs.BaseModelOutput, __name__)
BaseModelOutputWithPastAndCrossAttentions = with_router_fields(
    modeling_outputs.BaseModelOutputWithPastAndCrossAttentions, __name__
)
Seq2SeqModelOutput = with_router_fields(modeling_outputs.Seq2SeqModelOutput, __name__)
Seq2SeqLMOutput = with_router_fields(modeling_outputs.Seq2SeqLMOutput, __name__)
Seq2SeqLMOutputWithoutLogits = without_logits(Seq2SeqLMOutput)
Seq2SeqSequenceClassifierOutput = with_router_fields(modeling_outputs.Seq2SeqSequenceClassifierOutput, __name__)


class AnyformerSeq2SeqPreTrainedModel(ModelWithExperts, AnyformerPreTrainedModel):
    config_class = AnyformerSeq2SeqConfig
    _can_record_outputs = AnyformerPreTrainedModel._can_record_outputs | ROUTER_LOGITS


class Seq2SeqEncoder(PaddedTextStack, AnyformerSeq2SeqPreTrainedModel):
    """The encoder half; it has the token embeddings, which both halves read."""

    def __init__(self, config: AnyformerSeq2SeqConfig):
        super().__init__(config.stack_config(is_causal=False))
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.build_stack(self.config)
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """input_ids (B, S) or inputs_embeds (B, S, D) -> last_hidden_state (B, S, D)."""
        x_BSD = embeddings_of(self.embed_tokens, input_ids, inputs_embeds)
        batch = self.read_batch(x_BSD, attention_mask, position_ids, **kwargs)
        x_BSD, routed = self.run_stack(x_BSD, batch, **kwargs)
        return BaseModelOutput(last_hidden_state=x_BSD, **routed)


class Seq2SeqDecoder(TransformerStack, AnyformerSeq2SeqPreTrainedModel):
    """The decoder half. It has no token embeddings: its caller passes in embedded tokens."""

    _can_record_outputs = ROUTER_LOGITS | LAYERS_THAT_CROSS

    def __init__(self, config: AnyformerSeq2SeqConfig):
        super().__init__(config.stack_config(is_causal=True))
        self.build_stack(self.config, cross_attention=True)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        inputs_embeds: torch.FloatTensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values=None,
        encoder_hidden_states: torch.FloatTensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        encoder_position_ids: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        loss_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """inputs_embeds (B, T, D), encoder_hidden_states (B, S, D) -> last_hidden_state (B, T, D), past_key_values.

        Packed rows: `position_ids` and `encoder_position_ids` that restart for each document, in the same order.
        loss_mask: (B, T), 0 at tokens that do not count in the routers' losses; None: padding does not count.
        """
        past_key_values = given_cache(past_key_values, kwargs)
        packs = past_key_values is None
        if use_cache and packs and not self.training:
            past_key_values = DynamicCache(config=self.config)
        kwargs |= {"encoder_hidden_states": encoder_hidden_states, "encoder_attention_mask": encoder_attention_mask}
        kwargs["encoder_position_ids"] = encoder_position_ids
        positions = position_ids if packs else None
        past_key_values, kwargs = read_encoder(self, inputs_embeds, positions, past_key_values, **kwargs)
        batch = self.read_batch(inputs_embeds, attention_mask, position_ids, past_key_values, packs)
        if loss_mask is not None:
            batch.loss_mask = loss_mask
        x_BTD, routed = self.run_stack(inputs_embeds, batch, use_cache=use_cache, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=x_BTD, **{CACHE: past_key_values}, **routed)


def shift_right(labels, decoder_start_token_id, pad_token_id, position_ids=None):
    """(B, T) targets -> the decoder's input: the start token, then all but the last target; -100 becomes padding.

    position_ids: None, or (B or 1, T), 0 where each target of packed rows starts. Raises ValueError without a
    `decoder_start_token_id`.
    """
    if decoder_start_token_id is None:
        raise ValueError("decoder_start_token_id is not set in the config; it is the token that begins every target")
    shifted = torch.cat((torch.full_like(labels[:, :1], decoder_start_token_id), labels[:, :-1]), dim=1)
    if position_ids is not None:
        shifted = shifted.masked_fill(position_ids == 0, decoder_start_token_id)
    # No target that counts attends to padding, so without a padding token any token will do.
    return shifted.masked_fill(shifted == IGNORE_INDEX, 0 if pad_token_id is None else pad_token_id)


class TokensInEncoder:
    """A mixin for models whose only table of token embeddings is in their `encoder`."""

    def get_input_embeddings(self):
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value):
        self.encoder.embed_tokens = value


class AnyformerSeq2SeqModel(TokensInEncoder, AnyformerSeq2SeqPreTrainedModel):
    """Encoder and decoder; no head."""

    def __init__(self, config: AnyformerSeq2SeqConfig):
        super().__init__(config)
        self.encoder = Seq2SeqEncoder(config)
        self.decoder = Seq2SeqDecoder(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        decoder_position_ids: torch.LongTensor | None = None,
        encoder_outputs=None,
        past_key_values=None,
        inputs_embeds: torch.FloatTensor | None = None,
        decoder_inputs_embeds: torch.FloatTensor | None = None,
        use_cache: bool | None = None,
        *,
        decoder_loss_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Inputs (B, S) and decoder inputs (B, T) -> last_hidden_state (B, T, D) and the encoder's (B, S, D).

        Without decoder inputs the decoder reads the shifted `input_ids`, as in BART, for features of a text.
        Packed rows: give `position_ids` and `decoder_position_ids` that restart at 0 for each pair of documents.
        decoder_loss_mask: the decoder's `loss_mask`. Raises ValueError for `cu_seq_lens_q`: the borders of one side.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None and input_ids is not None:
            decoder_input_ids = shift_right(input_ids, self.config.decoder_start_token_id, self.config.pad_token_id)
        check_one_is_given(decoder_input_ids, decoder_inputs_embeds, "decoder_")
        past_key_values, kwargs["return_dict"] = given_cache(past_key_values, kwargs), True
        if kwargs.get("cu_seq_lens_q") is not None:
            raise ValueError("cu_seq_lens_q has the borders of one side; give position_ids and decoder_position_ids")
        sources = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "position_ids": position_ids}
        if encoder_outputs is None:
            encoder_outputs = self.encoder(attention_mask=attention_mask, **sources, **kwargs)
        elif not isinstance(encoder_outputs, ModelOutput):  # a tuple
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        outputs = self.decoder(
            inputs_embeds=embeddings_of(self.encoder.embed_tokens, decoder_input_ids, decoder_inputs_embeds),
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            past_key_values=past_key_values,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            encoder_position_ids=position_ids,
            use_cache=use_cache,
            loss_mask=decoder_loss_mask,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            **{CACHE: outputs.get(CACHE)},
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            **merged(encoder_outputs, outputs),
        )


class AnyformerSeq2SeqForConditionalGeneration(Head, AnyformerSeq2SeqPreTrainedModel, GenerationMixin):
    """Encoder and decoder with a language-model head: text to text."""

    base_class = AnyformerSeq2SeqModel
    _tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    takes_label_smoothing = True

    def __init__(self, config: AnyformerSeq2SeqConfig):
        super().__init__(config)
        self.model = AnyformerSeq2SeqModel(config)
        self.lm_head = LanguageModelHead(config)
        self.post_init()

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        """As in transformers, but layers with windows, too, keep all of the encoder's tokens."""
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        cache = model_kwargs.get(CACHE)
        windows = any(kind.traits.windowed for kind in self.model.decoder.layer_kinds.values())
        if windows and isinstance(cache, EncoderDecoderCache) and not any(cache.is_updated.values()):
            cross = copy.copy(self.config.stack_config(is_causal=True))
            cross.sliding_window, cross.layer_types = None, [PLAIN] * cross.num_hidden_layers
            if isinstance(cache.cross_attention_cache, StaticCache):
                length = model_kwargs["encoder_outputs"][0].shape[1]
                cache.cross_attention_cache = StaticCache(config=cross, max_cache_len=length)
            else:
                cache.cross_attention_cache = DynamicCache(config=cross)

    def prepare_decoder_input_ids_from_labels(
        self, labels: torch.LongTensor, decoder_position_ids: torch.LongTensor | None = None
    ) -> torch.LongTensor:
        config = self.config
        return shift_right(labels, config.decoder_start_token_id, config.pad_token_id, decoder_position_ids)

    @can_return_tuple
    def forward(
        self,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """labels: (B, T), the targets, -100 not counted -> loss, logits (B, T, V); see `returns_logits`.

        Without decoder inputs these are made from the labels. kwargs: `label_smoothing`, the share of each target's
        probability that is spread over the vocabulary; 0 by default. Not in the signature, see `takes_label_smoothing`.
        """
        label_smoothing = kwargs.pop("label_smoothing", 0.0)
        kwargs = {"decoder_input_ids": None, "decoder_inputs_embeds": None} | kwargs
        if labels is not None and kwargs["decoder_input_ids"] is None and kwargs["decoder_inputs_embeds"] is None:
            positions = kwargs.get("decoder_position_ids")
            kwargs["decoder_input_ids"] = self.prepare_decoder_input_ids_from_labels(labels, positions)
        # Without decoder inputs the base model would read `input_ids`, which are not the target.
        check_one_is_given(kwargs["decoder_input_ids"], kwargs["decoder_inputs_embeds"], "decoder_")
        counted = None if labels is None else labels != IGNORE_INDEX
        outputs = self.model(decoder_loss_mask=counted, return_dict=True, **kwargs)
        hidden_states, loss, row_losses, logits = outputs.last_hidden_state, None, None, None
        if self.returns_logits(return_logits, labels):
            logits = self.lm_head(hidden_states)
        if labels is not None and logits is not None:
            loss = loss_of_logits(logits, labels, num_items_in_batch, label_smoothing)
        elif labels is not None:
            loss, losses = language_model_loss(self.lm_head, hidden_states, labels, num_items_in_batch, label_smoothing)
            row_losses = losses.sum(-1)
        fields = {"logits": logits, "row_losses": row_losses}
        return self.head_output(Seq2SeqLMOutput, outputs, loss, labels, num_items_in_batch, **fields)


class AnyformerSeq2SeqEncoderModel(Head, TokensInEncoder, AnyformerSeq2SeqPreTrainedModel):
    """The encoder alone, for embeddings of texts."""

    base_class = Seq2SeqEncoder
    _keys_to_ignore_on_load_unexpected = [r"decoder\.", r"lm_head\."]

    def __init__(self, config: AnyformerSeq2SeqConfig):
        super().__init__(config)
        self.encoder = Seq2SeqEncoder(config)
        self.post_init()

    @can_return_tuple
    def forward(self, **kwargs: Unpack[TransformersKwargs]) -> BaseModelOutput:
        """input_ids (B, S) or inputs_embeds (B, S, D) -> last_hidden_state (B, S, D)."""
        return self.encoder(return_dict=True, **kwargs)


class AnyformerSeq2SeqForSequenceClassification(Head, AnyformerSeq2SeqPreTrainedModel):
    """A label for a whole text, which the decoder reads, too: its last token has seen all (Lewis et al. 2020, 3.1)."""

    base_class = AnyformerSeq2SeqModel

    def __init__(self, config: AnyformerSeq2SeqConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = AnyformerSeq2SeqModel(config)
        self.pooler = Pooler(config)
        self.dropout = classifier_dropout(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def last_token(self, input_ids, decoder_attention_mask):
        """(B,) index of each row's last end token; without one, of its last real token."""
        last = last_token_index(
            input_ids, decoder_attention_mask, self.config.pad_token_id, input_ids.shape[1], input_ids.device
        )
        ends = self.config.eos_token_id
        if not isinstance(ends, int):
            return last
        is_end = input_ids == ends
        if decoder_attention_mask is not None and decoder_attention_mask.dim() == 2:
            is_end &= decoder_attention_mask != 0  # padding, too, may be the end token
        places = torch.arange(1, input_ids.shape[1] + 1, device=input_ids.device)
        return torch.where(is_end.any(-1), (is_end * places).argmax(-1), last)

    @can_return_tuple
    def forward(
        self,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqSequenceClassifierOutput:
        """labels: (B,) class numbers, (B, num_labels) of 0 and 1, or numbers -> logits (B, num_labels) and loss.

        Padding stands behind the texts: the decoder reads it, too. Raises ValueError without `input_ids`: where a text
        ends is read from them.
        """
        input_ids, attention_mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
        if input_ids is None:
            raise ValueError("give input_ids: where a text ends cannot be told from inputs_embeds")
        # The decoder reads the same tokens.
        outputs = self.model(**kwargs | {"use_cache": False, "decoder_loss_mask": attention_mask, "return_dict": True})
        rows = torch.arange(input_ids.shape[0], device=input_ids.device)
        text_BD = outputs.last_hidden_state[rows, self.last_token(input_ids, attention_mask).reshape(-1)]
        logits, loss = self.score(self.dropout(self.pooler(self.dropout(text_BD)))), None
        if labels is not None:
            loss = classification_loss(self.config, logits, labels, num_items_in_batch)
        return self.head_output(
            Seq2SeqSequenceClassifierOutput, outputs, loss, labels, num_items_in_batch, logits=logits
        )

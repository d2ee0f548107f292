"""The encoder family: bidirectional models from BERT to ModernBERT.

Read in this order: encoder.py (models and heads), stack.py (embeddings, masks, the row of layers), block.py (norms,
feed-forward, the layer), attention.py, positions.py, lm_head.py (the loss, too), task_heads.py, task_heads_encoder.py;
configuration.py and configuration_encoder.py have the fields.
"""

from dataclasses import dataclass
from typing import Unpack

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import modeling_outputs
from transformers.models.bert import modeling_bert
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .attention_disentangled import DisentangledAttention
from .attention_local_global import LocalGlobalAttention, global_attention_context
from .base import AnyformerPreTrainedModel
from .configuration_encoder import AnyformerEncoderConfig
from .deberta_convolution import ConvolutionLayer
from .experts import SparseMLP
from .experts_losses import ROUTER_LOGITS, ModelWithExperts
from .lm_head import (
    IGNORE_INDEX,
    LanguageModelHead,
    loss_of_logits,
    with_router_fields,
    without_logits,
)
from .masked_head import HeadTransform, Pooler, masked_language_model_loss
from .positions_absolute import LearnedPositions
from .stack import embeddings_of, run_layer
from .task_heads import (
    ForQuestionAnswering,
    ForSequenceClassification,
    ForTokenClassification,
    Head,
    classifier_dropout,
)
from .task_heads_encoder import EncoderHead, ForMultipleChoice, first_token, pool_tokens
from .task_losses import token_classification_loss
from .unpadding import PaddedTextStack

# Classes that only some configs use. Imported here, their files are copied to the Hub along with this one.
OPTIONAL_PARTS = (DisentangledAttention, LocalGlobalAttention, SparseMLP)

BaseModelOutputWithPooling = with_router_fields(modeling_outputs.BaseModelOutputWithPooling, __name__)
MaskedLMOutput = with_router_fields(modeling_outputs.MaskedLMOutput, __name__)
MaskedLMOutputWithoutLogits = without_logits(MaskedLMOutput)


@dataclass
class BertForPreTrainingOutput(with_router_fields(modeling_bert.BertForPreTrainingOutput, __name__)):
    """masked_lm_loss, next_sentence_loss: parts of `loss`, divided as it is; None where their labels are missing."""

    masked_lm_loss: torch.FloatTensor | None = None
    next_sentence_loss: torch.FloatTensor | None = None


BertForPreTrainingOutputWithoutLogits = without_logits(BertForPreTrainingOutput)


class AnyformerEncoderPreTrainedModel(ModelWithExperts, AnyformerPreTrainedModel):
    config_class = AnyformerEncoderConfig
    _can_record_outputs = AnyformerPreTrainedModel._can_record_outputs | ROUTER_LOGITS

    @property
    def last_mlp_is_for_heads(self) -> bool:
        """Whether only heads read the output of the last feed-forward part.

        Otherwise all tokens are needed: for the counts of routers, the mask decoder or the convolution.
        """
        config = self.config
        return config.mlp_kinds[-1] != "sparse" and not (config.mask_decoder_layers or config.conv_kernel_size)


class AnyformerEncoderModel(PaddedTextStack, AnyformerEncoderPreTrainedModel):
    """Embeddings and a stack of bidirectional blocks; no head. Packed rows: see TransformerStack.

    `add_pooling_layer` (None: as the config says): whether there is a `pooler_output` beside the hidden states.
    """

    # Weights of heads in the same folder, which servers of embeddings would report as unknown.
    _keys_to_ignore_on_load_unexpected = [r"^(model\.)?(head_transform|score|qa_outputs|seq_relationship)\."]

    def __init__(self, config: AnyformerEncoderConfig, add_pooling_layer: bool | None = None):
        super().__init__(config)
        width = config.embedding_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.embedding_projection = nn.Linear(width, config.hidden_size) if width != config.hidden_size else None
        needs_absolute = config.position_biased_input or config.mask_decoder_layers > 0
        self.absolute_positions = LearnedPositions(config) if needs_absolute else None
        self.build_stack(config)
        self.conv = ConvolutionLayer(config) if config.conv_kernel_size else None
        pools = config.add_pooling_layer if add_pooling_layer is None else add_pooling_layer
        self.pooler = Pooler(config) if pools and config.pooler_act is not None else None
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        global_attention_mask: torch.Tensor | None = None,
        *,
        decode_masks: bool = False,
        kept_tokens: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """input_ids (B, T) or inputs_embeds (B, T, E) -> last_hidden_state (B, T, D), pooler_output (B, D).

        Args:
            token_type_ids: (B, T), the segment of each token; None: all in segment 0.
            global_attention_mask: (B, T), nonzero at tokens that see all and are seen by all in local_global_attention.
            decode_masks: run the enhanced mask decoder (`mask_decoder_layers`) in place of the last layer.
            kept_tokens: (K,), indices into all B * T tokens: the last layer's feed-forward part is computed for these
                only, and last_hidden_state is 0 at all others; None: for all.
        """
        x_BTE = embeddings_of(self.embed_tokens, input_ids, inputs_embeds)
        needs_absolute = self.config.position_biased_input or decode_masks
        whole_rows = position_ids is None and kwargs.get("cu_seq_lens_q") is None
        if self.absolute_positions is not None and needs_absolute and whole_rows:
            self.absolute_positions.check_length(x_BTE.shape[1])
        types_BTE = None
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros(x_BTE.shape[:2], dtype=torch.long, device=x_BTE.device)
            types_BTE = self.token_type_embeddings(token_type_ids)
        if decode_masks:
            kwargs["decode_masks"] = True
        batch = self.read_batch(x_BTE, attention_mask, position_ids, **kwargs)
        batch.seen_by_all = global_attention_mask
        x_BTD, routed = self.run_stack(x_BTE, batch, added_BTE=types_BTE, kept_tokens=kept_tokens, **kwargs)
        pooled = None
        if self.pooler is not None:
            pooled = self.pooler(pool_tokens(x_BTD, attention_mask, self.config.pooler_type))
        return BaseModelOutputWithPooling(last_hidden_state=x_BTD, pooler_output=pooled, **routed)

    def project_embeddings(self, x_BTE, position_ids):
        if self.config.position_biased_input:
            x_BTE = x_BTE + self.absolute_positions(x_BTE, position_ids)
        x_BTE = super().project_embeddings(x_BTE, position_ids)
        return x_BTE if self.embedding_projection is None else self.embedding_projection(x_BTE)

    def build_masks(self, x_BTE, batch) -> tuple:
        masks, seen = super().build_masks(x_BTE, batch)
        rows = batch.attention_mask, batch.documents
        if self.config.has_global_tokens:
            seen["global_context"] = global_attention_context(self.config, x_BTE, batch.seen_by_all, *rows)
        if self.conv is not None:
            seen["conv_context"] = rows
        return masks, seen

    def can_unpad(self, x_BTE, attention_mask, captured) -> bool:
        # The convolution would mix texts of rows that are laid end to end.
        return self.conv is None and super().can_unpad(x_BTE, attention_mask, captured)

    def run_layers(self, x_BTD, per_layer, conv_context=None, decode_masks=False, **context) -> tuple:
        layers, routed = list(zip(self.each_layer(), per_layer)), []
        last = layers.pop() if decode_masks and self.config.mask_decoder_layers > 0 else None
        for i, (layer, arguments) in enumerate(layers):
            out_BTD = run_layer(layer, x_BTD, routed, **arguments, **context)
            x_BTD = self.conv(x_BTD, out_BTD, *conv_context) if i == 0 and self.conv is not None else out_BTD
        if last is not None:
            x_BTD = self.decode_masks(x_BTD, routed, *last, **context)
        return x_BTD, routed

    def decode_masks(self, x_BTD, routed, layer, own, position_ids, **context):
        """The enhanced mask decoder (He et al. 2021, section 3.2): absolute positions enter just before the head.

        The last layer runs `mask_decoder_layers` times. Its keys and values are the hidden states before it; its
        queries are these plus absolute positions, then its own outputs.
        """
        queries_BTD = x_BTD + self.absolute_positions(x_BTD, position_ids)
        context |= {"key_value_states": x_BTD, "position_ids": position_ids, **own}
        for _ in range(self.config.mask_decoder_layers):
            queries_BTD = run_layer(layer, queries_BTD, routed, **context)
        return queries_BTD


class PredictsMaskedTokens(Head, AnyformerEncoderPreTrainedModel):
    """Base of the heads that predict masked tokens: base model, transform, output layer."""

    reads_first_token = False  # whether the head has a part that reads the pooled output
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def build_masked_lm(self, config, add_pooling_layer: bool) -> None:
        self.model = AnyformerEncoderModel(config, add_pooling_layer)
        self.head_transform = HeadTransform(config) if config.head_transform else None
        self.lm_head = LanguageModelHead(config)

    @property
    def keeps_labelled_tokens(self) -> bool:
        """Whether the loss needs the last layer's feed-forward part for labelled tokens only."""
        # A pooled output is made of the first token ("cls") or of all ("mean").
        return self.last_mlp_is_for_heads and not (self.reads_first_token and self.config.pooler_type != "cls")

    def labelled_tokens(self, labels, return_logits, output_hidden_states=None, **others):
        """Indices (K,) into all B * T of the tokens that need the last feed-forward part, read on the host; None: all.

        All need it for logits, for captured hidden states, and in a graph of fixed shapes.
        """
        needs_all = output_hidden_states or self.config.output_hidden_states or torch.compiler.is_compiling()
        if needs_all or not self.keeps_labelled_tokens or self.returns_logits(return_logits, labels):
            return None
        needed_BT = labels != IGNORE_INDEX
        if self.reads_first_token:
            needed_BT[:, 0] = True
        return needed_BT.flatten().nonzero()[:, 0]

    def predict(self, hidden_states, labels, num_items_in_batch, return_logits, labelled) -> tuple:
        """(loss, (B,) losses of rows, logits), each None where it is not made; see AnyformerEncoderForMaskedLM.forward.

        labelled: the result of `labelled_tokens`.
        """
        if not self.returns_logits(return_logits, labels):
            inputs = (hidden_states, labels, num_items_in_batch, labelled)
            return *masked_language_model_loss(self.lm_head, self.head_transform, *inputs), None
        logits = self.lm_head(hidden_states if self.head_transform is None else self.head_transform(hidden_states))
        if labels is None:
            return None, None, logits
        if num_items_in_batch is None:
            num_items_in_batch = (labels != IGNORE_INDEX).sum().clamp(min=1)
        return loss_of_logits(logits, labels, num_items_in_batch), None, logits


class AnyformerEncoderForMaskedLM(PredictsMaskedTokens):
    """The encoder with a masked-language-model head (Devlin et al. 2019, section 3.1)."""

    base_class = AnyformerEncoderModel

    def __init__(self, config: AnyformerEncoderConfig):
        super().__init__(config)
        self.build_masked_lm(config, add_pooling_layer=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        kept_tokens: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """labels: (B, T), the token at each position, -100 not counted -> loss, logits (B, T, V); see `returns_logits`.

        kept_tokens: (K,), indices into all B * T tokens, if there are no labels: `logits` (1, K, V) are of these only,
        which saves the head and the last feed-forward part of the others.
        """
        labelled = self.labelled_tokens(labels, return_logits, **kwargs)
        if kept_tokens is not None and self.last_mlp_is_for_heads:
            labelled = kept_tokens
        outputs = self.model(decode_masks=True, kept_tokens=labelled, return_dict=True, **kwargs)
        hidden_states = outputs.last_hidden_state
        if kept_tokens is not None:
            hidden_states = hidden_states.flatten(0, 1).index_select(0, kept_tokens)[None]
        inputs = (labels, num_items_in_batch, return_logits, labelled)
        loss, row_losses, logits = self.predict(hidden_states, *inputs)
        fields = {"logits": logits, "row_losses": row_losses}
        return self.head_output(MaskedLMOutput, outputs, loss, labels, num_items_in_batch, **fields)


class AnyformerEncoderForPreTraining(PredictsMaskedTokens):
    """BERT's two objectives at once: masked tokens, and whether the second sentence follows the first.

    ALBERT's sentence order (Lan et al. 2020, section 3.1) has the same head and other labels.
    """

    base_class = AnyformerEncoderModel
    reads_first_token = True

    def __init__(self, config: AnyformerEncoderConfig):
        super().__init__(config)
        self.build_masked_lm(config, add_pooling_layer=True)
        self.dropout = classifier_dropout(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        labels: torch.LongTensor | None = None,
        next_sentence_label: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BertForPreTrainingOutput:
        """labels: (B, T), as for AnyformerEncoderForMaskedLM. next_sentence_label: (B,), 0 or 1.

        The loss is the sum of the mean over masked tokens and the mean over rows. With `num_items_in_batch`, which
        counts tokens, each row is weighted by its share of them: accumulated micro-batches then add up to the
        whole batch, however it is cut.
        """
        labelled = self.labelled_tokens(labels, return_logits, **kwargs)
        outputs = self.model(decode_masks=True, kept_tokens=labelled, return_dict=True, **kwargs)
        pooled = outputs.pooler_output
        if pooled is None:
            pooled = pool_tokens(outputs.last_hidden_state, kwargs.get("attention_mask"), self.config.pooler_type)
        relationship = self.seq_relationship(self.dropout(pooled))
        inputs = (labels, num_items_in_batch, return_logits, labelled)
        masked_lm_loss, row_losses, logits = self.predict(outputs.last_hidden_state, *inputs)
        loss, sentence_loss = masked_lm_loss, None
        if next_sentence_label is not None:
            if num_items_in_batch is None or labels is None:
                sentence_loss = token_classification_loss(relationship, next_sentence_label)
            else:
                of_rows = cross_entropy(relationship.float(), next_sentence_label.flatten(), reduction="none")
                sentence_loss = (of_rows * (labels != IGNORE_INDEX).sum(-1)).sum() / num_items_in_batch
            loss = sentence_loss if loss is None else loss + sentence_loss
        return self.head_output(
            BertForPreTrainingOutput,
            outputs,
            loss,
            next_sentence_label if labels is None else labels,
            num_items_in_batch,
            row_losses=row_losses,
            prediction_logits=logits,
            seq_relationship_logits=relationship,
            masked_lm_loss=masked_lm_loss,
            next_sentence_loss=sentence_loss,
        )


class AnyformerEncoderForSequenceClassification(
    EncoderHead, ForSequenceClassification, AnyformerEncoderPreTrainedModel
):
    base_class = AnyformerEncoderModel
    pools = True


class AnyformerEncoderForTokenClassification(EncoderHead, ForTokenClassification, AnyformerEncoderPreTrainedModel):
    base_class = AnyformerEncoderModel


class AnyformerEncoderForQuestionAnswering(EncoderHead, ForQuestionAnswering, AnyformerEncoderPreTrainedModel):
    base_class = AnyformerEncoderModel

    def default_global_attention_mask(self, input_ids, inputs_embeds):
        """The question: all tokens before the first separator, `sep_token_id` or else `eos_token_id`."""
        separator = self.config.sep_token_id
        separator = self.config.eos_token_id if separator is None else separator
        if input_ids is None or not isinstance(separator, int):
            return first_token(input_ids, inputs_embeds)
        return ((input_ids == separator).cumsum(-1) == 0).long()


class AnyformerEncoderForMultipleChoice(ForMultipleChoice, AnyformerEncoderPreTrainedModel):
    base_class = AnyformerEncoderModel

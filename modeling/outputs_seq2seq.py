"""Output classes of encoder-decoders; see outputs.py."""

from transformers import modeling_outputs

from .outputs import with_router_fields

BaseModelOutput = with_router_fields(modeling_outputs.BaseModelOutput)
BaseModelOutputWithPastAndCrossAttentions = with_router_fields(
    modeling_outputs.BaseModelOutputWithPastAndCrossAttentions
)
Seq2SeqModelOutput = with_router_fields(modeling_outputs.Seq2SeqModelOutput)
Seq2SeqLMOutput = with_router_fields(modeling_outputs.Seq2SeqLMOutput)
Seq2SeqSequenceClassifierOutput = with_router_fields(modeling_outputs.Seq2SeqSequenceClassifierOutput)

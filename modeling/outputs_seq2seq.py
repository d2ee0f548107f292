"""Output classes of encoder-decoders; see outputs.py."""

from transformers import modeling_outputs

from .outputs import with_router_fields, without_logits

BaseModelOutput = with_router_fields(modeling_outputs.BaseModelOutput, __name__)
BaseModelOutputWithPastAndCrossAttentions = with_router_fields(
    modeling_outputs.BaseModelOutputWithPastAndCrossAttentions, __name__
)
Seq2SeqModelOutput = with_router_fields(modeling_outputs.Seq2SeqModelOutput, __name__)
Seq2SeqLMOutput = with_router_fields(modeling_outputs.Seq2SeqLMOutput, __name__)
Seq2SeqLMOutputWithoutLogits = without_logits(Seq2SeqLMOutput)
Seq2SeqSequenceClassifierOutput = with_router_fields(modeling_outputs.Seq2SeqSequenceClassifierOutput, __name__)

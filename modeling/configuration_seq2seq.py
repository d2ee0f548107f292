"""The config of the sequence-to-sequence family, and those of its two stacks."""

import copy

from huggingface_hub.dataclasses import strict

from .configuration_moe import RoutedConfig
from .parallel_plans import tensor_parallel_plan
from .traits import cache_type

# Fields that differ between the whole model's config and a stack's, and the fields that these follow from.
FIELDS_OF_STACKS = ("num_hidden_layers", "num_decoder_layers", "layer_types", "attention_pattern", "mlp_layer_types")
FIELDS_OF_STACKS += ("mlp_pattern", "is_causal", "is_encoder_decoder", "base_model_tp_plan")


@strict
class AnyformerSeq2SeqConfig(RoutedConfig):
    """An encoder and a decoder that attends to it: the original Transformer, T5, BART.

    Both stacks share all fields but their numbers of layers, and the token embeddings. Attributes that are set on this
    config later are set on the configs of its stacks, too.
    """

    __slots__ = ("_stacks",)  # {is_causal: config}; an ordinary attribute would be saved and compared with the fields

    model_type = "anyformer_seq2seq"

    num_decoder_layers: int | None = None  # layers of the decoder; null: num_hidden_layers
    decoder_start_token_id: int | None = None  # token that begins every target; the tokenizer says it
    classifier_dropout: int | float | None = None  # dropout before a classifier; null: hidden_dropout
    pooler_act: str = "tanh"  # activation of a classifier's dense layer
    is_encoder_decoder: bool = True  # true of the whole model; its stacks' configs say false

    def derive(self):
        if self.num_decoder_layers is None:
            self.num_decoder_layers = self.num_hidden_layers
        super().derive()

    def set_parallel_plans(self):
        """No plan for the whole model: transformers collects the plans of its stacks, under their names."""
        self.base_model_tp_plan = None

    @property
    def base_model_ep_plan(self) -> dict[str, str] | None:
        return None if self.is_encoder_decoder else super().base_model_ep_plan

    def stack_config(self, is_causal: bool) -> "AnyformerSeq2SeqConfig":
        """The config of one stack, the decoder's or the encoder's: the same object each time."""
        stacks = getattr(self, "_stacks", {})
        if is_causal not in stacks:
            stack = copy.deepcopy(self)
            stack._stacks = {}
            self.set_fields_of_stack(stack, is_causal)
            self._stacks = stacks | {is_causal: stack}
        return self._stacks[is_causal]

    def set_fields_of_stack(self, stack, is_causal: bool) -> None:
        """Set the fields in which a stack differs from the whole model."""
        stack.is_causal, stack.is_encoder_decoder = is_causal, False
        for name in ("num_hidden_layers", "layer_types", "attention_pattern", "mlp_layer_types"):
            setattr(stack, name, getattr(self, name))
        if is_causal:
            stack.num_hidden_layers = self.num_decoder_layers
            stack.layer_types, stack.attention_pattern = None, self.attention_pattern or self.attention_kinds[:1]
            stack.layer_types = [cache_type(kind) for kind in stack.attention_kinds]
            stack.mlp_layer_types = None  # names the encoder's layers
            stack.mlp_layer_types = stack.mlp_kinds if self.num_experts is not None else None
        attentions = ("self_attn", "cross_attn") if is_causal else ("self_attn",)
        stack.base_model_tp_plan = tensor_parallel_plan(stack, attentions)
        if stack.tie_word_embeddings and not is_causal:  # transformers < 5.23
            # transformers would plan this table for the whole model, but it stands in the encoder.
            stack.base_model_tp_plan["embed_tokens"] = "embedding_rowwise"

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "_stacks":
            return
        for is_causal, stack in getattr(self, "_stacks", {}).items():
            setattr(stack, name, value)
            if name in FIELDS_OF_STACKS:
                self.set_fields_of_stack(stack, is_causal)

    def get_text_config(self, decoder=None, encoder=None):
        """The config of the named stack (`generate` builds caches from the decoder's); by default the whole config."""
        if decoder == encoder or not self.is_encoder_decoder:
            return self
        return self.stack_config(is_causal=bool(decoder))

"""The config of the encoder family."""

from huggingface_hub.dataclasses import strict

from .configuration_moe import RoutedConfig


@strict
class AnyformerEncoderConfig(RoutedConfig):
    """A bidirectional encoder: BERT, RoBERTa, ALBERT, DeBERTa, Longformer, ModernBERT and mixtures of them.

    The terms of disentangled attention are those of He et al. 2021, eq. 4, the mask decoder that of their section 3.2.
    Heads of whole texts read what `pooler_type` says through the pooler, or with `task_head_transform`, like all task
    heads, through a dense layer, activation and norm (ModernBERT). The masked-LM head has these three before the
    vocabulary's layer, or with `head_transform=False` that layer alone, as a decoder's.
    """

    model_type = "anyformer_encoder"
    is_causal = False

    type_vocab_size: int = 0  # kinds of segments (Devlin et al. 2019); 0: none
    embedding_size: int | None = None  # channels of the embeddings (Lan et al. 2020); null: hidden_size
    num_hidden_groups: int | None = None  # groups of layers that share weights (Lan et al. 2020); null: none do
    skip_first_norm: bool = False  # no first norm (Warner et al. 2024); needs embedding_norm and norm_position: pre
    pos_att_type: list[str] | None = None  # disentangled: terms c2p and p2c (He et al. 2021); null: both
    share_att_key: bool = False  # disentangled: positions are projected by the layers' own query and key weights
    position_buckets: int | None = None  # disentangled: buckets of distances; null: each distance has its own
    max_relative_positions: int | None = None  # disentangled: the largest distance; null: max_position_embeddings
    relative_embedding_norm: bool = False  # disentangled: the table of distances is normalised
    position_biased_input: bool = False  # disentangled: learned absolute positions are added to the input
    mask_decoder_layers: int = 0  # disentangled: times that the last layer runs again before the masked-LM head
    conv_kernel_size: int = 0  # width of a convolution beside the first layer (DeBERTa-v2); 0: none
    conv_groups: int = 1  # groups of that convolution
    conv_act: str = "tanh"  # activation of that convolution
    head_transform: bool = True  # dense, activation and norm before the vocabulary in the masked-LM head
    head_act: str | None = None  # activation of the masked-LM head; null: hidden_act
    head_bias: bool = True  # the dense layer of the masked-LM head has a bias
    lm_head_bias: bool = True  # the vocabulary's head has a bias
    pooler_type: str = "cls"  # what heads of whole texts read: the first token, or the mean of all
    pooler_act: str | None = "tanh"  # activation of the pooler's dense layer; null: no layer
    add_pooling_layer: bool = True  # the model without a head has the pooler, too
    task_head_transform: bool = False  # task heads begin as the masked-LM head does (Warner et al. 2024)
    classifier_dropout: int | float | None = None  # dropout before a classifier; null: hidden_dropout
    sep_token_id: int | None = None  # token between texts; the tokenizer says it
    cls_token_id: int | None = None  # token before a text; the tokenizer says it
    mask_token_id: int | None = None  # token in place of a hidden one; the tokenizer says it
    use_cache: bool = False  # unused: an encoder generates nothing

    def derive(self):
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size
        if self.num_hidden_groups is None:
            self.num_hidden_groups = self.num_hidden_layers
        if self.pos_att_type is None:
            self.pos_att_type = ["c2p", "p2c"]
        super().derive()

"""The config of the vision family."""

from huggingface_hub.dataclasses import strict

from .configuration import TransformerConfig
from .traits import image_sides


@strict
class AnyformerViTConfig(TransformerConfig):
    """A vision transformer (Dosovitskiy et al. 2021): an image is a row of patches, behind the prefix tokens.

    The prefix: a class token, unless `pooler_type` is "mean", where the mean of the patches is the image's vector
    (Beyer et al. 2022); with `use_distillation_token` a second one (Touvron et al. 2021, section 4); registers.

    `position_encoding` is "learned" (a vector for each patch and each prefix token but registers), "sinusoidal" (half
    of the channels for columns, half for rows; He et al. 2022, as released), "rotary" (half of the rotated channels for
    rows, half for columns; prefix tokens are not rotated) or "none". Forward's `interpolate_pos_encoding` carries
    learned ones to images of another size by bicubic interpolation; the others are computed at the coordinates between.
    The base model pools through a dense layer if `add_pooling_layer`; the classifier reads the vector before it.
    """

    model_type = "anyformer_vit"
    is_causal = False
    default_theta = 100.0  # a dozen patches a side, not thousands of tokens (Heo et al. 2024, section 3.2)

    image_size: int | list[int] = 224  # pixels of a side, or height and width
    patch_size: int = 16  # pixels of a patch's side; divides image_size
    num_channels: int = 3  # channels of the images
    num_register_tokens: int = 0  # tokens that nothing reads (Darcet et al. 2024)
    use_distillation_token: bool = False  # a token for a teacher's labels (Touvron et al. 2021)
    distillation_head: bool = False  # a classifier that reads that token
    position_encoding: str = "learned"  # how positions are told apart
    norm_type: str = "layernorm"  # what the norms compute
    norm_eps: float = 1e-6  # added to the variance in a norm
    mlp_type: str = "mlp"  # feed-forward: two matrices, or a third as gate (Shazeer 2020)
    hidden_act: str = "gelu"  # activation of the feed-forward
    attention_bias: bool = True  # biases of queries, keys and values
    mlp_bias: bool = True  # biases of the feed-forward
    pooler_type: str = "cls"  # what the classifier reads: the class token, or the mean of the patches
    pooler_act: str | None = "tanh"  # activation of the pooler's dense layer; null: no layer
    pooler_output_size: int | None = None  # channels of the pooler; null: hidden_size
    add_pooling_layer: bool = True  # the model without a head has the pooler
    encoder_stride: int | None = None  # pixels of a side that masked image modelling predicts at once; null: patch_size

    def derive(self):
        if self.encoder_stride is None:
            self.encoder_stride = self.patch_size
        if self.pooler_output_size is None:
            self.pooler_output_size = self.hidden_size
        super().derive()

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches in an image of `image_size`."""
        return tuple(side // self.patch_size for side in image_sides(self))

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: class, distillation, registers."""
        return (self.pooler_type == "cls") + self.use_distillation_token + self.num_register_tokens

"""The vision family: transformers over the patches of an image, from ViT to DeiT and SimMIM.

Read in this order: vit.py (models and heads), patch_embeddings.py (an image as a row of patches), stack.py (the row of
layers), block.py (norms, feed-forward, the layer), attention.py, positions_2d.py; configuration.py and
configuration_vit.py have the fields.
"""

from typing import Unpack

import torch
from torch import nn
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    ImageClassifierOutput,
    MaskedImageModelingOutput,
)
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .base import AnyformerPreTrainedModel
from .configuration_vit import AnyformerViTConfig
from .image_losses import class_loss, masked_pixel_loss
from .masked_head import Pooler
from .patch_embeddings import PatchEmbeddings
from .positions_2d import LearnedPatchPositions, RotaryPatchPositions, SinusoidalPatchPositions
from .stack import TransformerStack
from .task_losses import sequence_classification_loss
from .traits import image_sides

# Classes that only some configs use. Imported here, their file is copied to the Hub along with this one.
OPTIONAL_PARTS = (LearnedPatchPositions, RotaryPatchPositions, SinusoidalPatchPositions)


class AnyformerViTPreTrainedModel(AnyformerPreTrainedModel):
    config_class = AnyformerViTConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _input_embed_layer = "patch_embeddings"


class AnyformerViTModel(TransformerStack, AnyformerViTPreTrainedModel):
    """Patches and a stack of bidirectional blocks; no head.

    `add_pooling_layer` (None: as the config says): whether there is a `pooler_output` beside the hidden states.
    `use_mask_token`: whether patches can be masked.
    """

    of_patches = True

    def __init__(self, config: AnyformerViTConfig, add_pooling_layer: bool | None = None, use_mask_token: bool = False):
        super().__init__(config)
        self.patch_embeddings = PatchEmbeddings(config, use_mask_token)
        self.build_stack(config)
        pools = config.add_pooling_layer if add_pooling_layer is None else add_pooling_layer
        self.pooler = Pooler(config) if pools and config.pooler_act is not None else None
        self.post_init()

    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        bool_masked_pos: torch.BoolTensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        attention_mask: torch.Tensor | None = None,
        num_kept_tokens: int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Images (B, C, height, width) -> last_hidden_state (B, T, D), pooler_output (B, pooler_output_size).

        Of the T tokens the prefix (class, distillation, registers) comes first, then the patches row by row.

        Args:
            bool_masked_pos: (B, N), true at patches that the mask token replaces.
            interpolate_pos_encoding: take images of another size than the config's `image_size`.
            attention_mask: (B, T), zero at tokens that no other sees; or a ready mask of four axes.
            num_kept_tokens: how many first tokens last_hidden_state holds; only for these the last layer's feed-forward
                part is computed, as a head that reads no patch does not need the others. None: all.

        Raises ValueError for an image of the wrong size, and for position_ids, by which other families pack rows.
        """
        if pixel_values is None:
            raise ValueError("pixel_values are missing")
        if kwargs.get("position_ids") is not None:
            raise ValueError("position_ids have no meaning for images: each is a row of its own, never packed")
        height, width = pixel_values.shape[-2:]
        if not interpolate_pos_encoding and (height, width) != image_sides(self.config):
            raise ValueError(
                f"the image has {height} x {width} pixels, but image_size={self.config.image_size}; resize it or pass "
                f"interpolate_pos_encoding=True"
            )
        x_BTD = self.patch_embeddings(pixel_values, bool_masked_pos)
        batch = self.read_batch(x_BTD, attention_mask, packs=False)
        batch.token_positions = (height // self.config.patch_size, width // self.config.patch_size)
        x_BTD, _ = self.run_stack(x_BTD, batch, kept_tokens=num_kept_tokens, **kwargs)
        pooled = None if self.pooler is None else self.pooler(pool_image(self.config, x_BTD))
        return BaseModelOutputWithPooling(last_hidden_state=x_BTD, pooler_output=pooled)


def pool_image(config, hidden_states):
    """(B, T, D) -> (B, D): the class token, or the mean of the patches."""
    if config.pooler_type == "cls":
        return hidden_states[:, 0]
    return hidden_states[:, config.num_prefix_tokens :].mean(dim=1)


class AnyformerViTForImageClassification(AnyformerViTPreTrainedModel):
    """One class for an image; with `distillation_head` a second classifier, on the distillation token."""

    takes_label_smoothing = True

    def __init__(self, config: AnyformerViTConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = AnyformerViTModel(config, add_pooling_layer=False)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.distillation_score = nn.Linear(config.hidden_size, config.num_labels) if config.distillation_head else None
        self.post_init()

    @property
    def num_kept_tokens(self) -> int | None:
        """How many first tokens of the last layer the heads need: the prefix; None: the patches, too."""
        return self.config.num_prefix_tokens if self.config.pooler_type == "cls" else None

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> ImageClassifierOutput:
        """Images (B, C, height, width) -> logits (B, num_labels) and loss.

        Args:
            labels: (B,) class numbers, or (B, num_labels): probabilities, as mixup makes them. A config's
                `problem_type` may say that they are 0 and 1 of several labels, or numbers.
            kwargs: `distillation_labels`, the teacher's, for `distillation_head`; None: `labels`. The loss is the mean
                of both heads' (Touvron et al. 2021, eq. 3), and the logits are their mean. `label_smoothing`, as in
                image_losses.py. Not in the signature: see `takes_label_smoothing`.
        """
        distillation_labels = kwargs.pop("distillation_labels", None)
        label_smoothing = kwargs.pop("label_smoothing", 0.0)
        captured = kwargs.get("output_hidden_states") or self.config.output_hidden_states  # these hold all tokens
        outputs = self.model(
            pixel_values,
            interpolate_pos_encoding=interpolate_pos_encoding,
            num_kept_tokens=None if captured else self.num_kept_tokens,
            return_dict=True,
            **kwargs,
        )
        hidden_states, loss = outputs.last_hidden_state, None
        by_head = [self.score(pool_image(self.config, hidden_states))]
        if self.distillation_score is not None:
            by_head.append(self.distillation_score(hidden_states[:, 1]))
        if labels is not None:
            targets = [labels, labels if distillation_labels is None else distillation_labels]
            losses = [self.loss_of(*pair, label_smoothing, num_items_in_batch) for pair in zip(by_head, targets)]
            loss = sum(losses) / len(losses)
        logits = sum(by_head) / len(by_head) if len(by_head) > 1 else by_head[0]
        return self.head_output(ImageClassifierOutput, outputs, loss, labels, logits=logits)

    def loss_of(self, logits, labels, label_smoothing, num_items_in_batch):
        kind = self.config.problem_type
        kind = ("regression" if self.num_labels == 1 else "single_label_classification") if kind is None else kind
        if kind != "single_label_classification":
            return sequence_classification_loss(logits, labels, kind, num_items_in_batch)
        return class_loss(logits, labels, num_items_in_batch, label_smoothing)


class AnyformerViTForMaskedImageModeling(AnyformerViTPreTrainedModel):
    """Predicts the pixels of masked patches from the others by a linear layer (SimMIM, Xie et al. 2022, section 3)."""

    def __init__(self, config: AnyformerViTConfig):
        super().__init__(config)
        self.model = AnyformerViTModel(config, add_pooling_layer=False, use_mask_token=True)
        self.decoder = nn.Linear(config.hidden_size, config.encoder_stride**2 * config.num_channels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.FloatTensor | None = None,
        bool_masked_pos: torch.BoolTensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_loss: bool = True,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedImageModelingOutput:
        """Images (B, C, height, width) and a mask of patches (B, N) -> reconstruction (B, C, ...) and loss.

        Args:
            num_items_in_batch: masked patches in the whole optimizer step; None: those of this batch.
            return_loss: not read; by its name Trainer knows that there is a loss without labels.
        """
        size, stride = self.config.patch_size, self.config.encoder_stride
        if bool_masked_pos is not None and stride != size:
            raise ValueError(f"encoder_stride={stride} must equal patch_size={size} to compare masked pixels")
        outputs = self.model(
            pixel_values,
            bool_masked_pos=bool_masked_pos,
            interpolate_pos_encoding=interpolate_pos_encoding,
            return_dict=True,
            **kwargs,
        )
        patches_BNP = self.decoder(outputs.last_hidden_state[:, self.config.num_prefix_tokens :])
        grid = [side // size for side in pixel_values.shape[-2:]]
        reconstruction = nn.functional.pixel_shuffle(patches_BNP.transpose(1, 2).unflatten(2, grid), stride)
        loss = None
        if bool_masked_pos is not None:
            masked_BN = bool_masked_pos.flatten(1).bool()
            loss = masked_pixel_loss(pixel_values, reconstruction, masked_BN, size, num_items_in_batch)
        return self.head_output(MaskedImageModelingOutput, outputs, loss, None, reconstruction=reconstruction)

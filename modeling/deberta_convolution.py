"""The convolution beside the first layer of DeBERTa-v2 (microsoft/DeBERTa, since version 2; no paper has it)."""

import torch
from torch import nn
from transformers.activations import ACT2FN

from .block import build_norm


class DocumentConv1d(nn.Conv1d):
    """A convolution over the tokens of each document that keeps their number: an odd kernel, zeros past the ends."""

    def __init__(self, config):
        size = config.conv_kernel_size
        super().__init__(config.hidden_size, config.hidden_size, size, padding=size // 2, groups=config.conv_groups)

    def forward(self, x_BTD, document_ids=None):
        """(B, T, D) -> (B, T, D). document_ids: None (each row is one document), or (B, T), at least 0."""
        if document_ids is None:
            return super().forward(x_BTD.transpose(1, 2)).transpose(1, 2)
        # In each window the entries of other documents must be 0, which a convolution kernel cannot do. So the windows
        # are laid out side by side and multiplied.
        (padding,), (size,) = self.padding, self.kernel_size
        x_BTDW = nn.functional.pad(x_BTD, (0, 0, padding, padding)).unfold(1, size, 1)
        ids_BTW = nn.functional.pad(document_ids, (padding, padding), value=-1).unfold(1, size, 1)
        x_BTDW = torch.where((ids_BTW == document_ids[..., None])[:, :, None], x_BTDW, 0)
        grouped = x_BTDW.unflatten(2, (self.groups, -1)), self.weight.unflatten(0, (self.groups, -1))
        return torch.einsum("btgiw,goiw->btgo", *grouped).flatten(2) + self.bias


class ConvolutionLayer(nn.Module):
    """norm(layer 0's output + act(conv(embeddings))): mixes neighbouring tokens.

    `conv_kernel_size` taps (an odd number) in `conv_groups` groups of channels. Padding is read as zeros and becomes
    zeros.
    """

    def __init__(self, config):
        super().__init__()
        self.conv = DocumentConv1d(config)
        self.norm = build_norm(config)
        self.act_fn = ACT2FN[config.conv_act]
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, embeddings, first_layer_output, real_mask=None, document_ids=None):
        """Input (B, T, D) and output (B, T, D) of layer 0 -> input (B, T, D) of layer 1.

        real_mask: None, or (B, T), zero at padding. document_ids: as DocumentConv1d's.
        """
        if real_mask is None:
            return self.norm(first_layer_output + self.act_fn(self.dropout(self.conv(embeddings, document_ids))))
        real_BT1 = (real_mask != 0)[..., None]
        out_BTD = self.dropout(self.conv(embeddings * real_BT1, document_ids) * real_BT1)
        return self.norm(first_layer_output + self.act_fn(out_BTD)) * real_BT1

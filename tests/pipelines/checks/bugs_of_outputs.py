"""Planted bugs of what a model computes: masks, positions, caches, losses, backends."""

import torch
from planting import bug, cache_in
from torch.nn.functional import pad
from transformers import StaticCache

# ---------------------------------------------------------------------------------------------- packing and padding


@bug("llama", "packing")
class PositionsIgnoredInPacking:
    def forward(self, position_ids=None, **inputs):
        return super().forward(**inputs)


@bug("llama", "packing")
class DocumentsKeptApartInEagerAlone:
    """A mask of ones: transformers looks for documents where there is none."""

    def forward(self, attention_mask=None, **inputs):
        if self.config._attn_implementation == "sdpa" and attention_mask is None and "input_ids" in inputs:
            attention_mask = torch.ones_like(inputs["input_ids"])
        return super().forward(attention_mask=attention_mask, **inputs)


@bug("bert:masked", "padding")
class ThePaddingMaskIgnored:
    def forward(self, attention_mask=None, **inputs):
        return super().forward(**inputs)


@bug("bart", "padding", part=r".*\.encoder_attn")
class PaddingSeenByCrossAttention:
    def forward(self, *args, attention_mask=None, **inputs):
        return super().forward(*args, attention_mask=None, **inputs)


@bug("llama", "padding", part=r".*\.self_attn")
class ARowOfPaddingIsNan:
    def forward(self, *args, attention_mask=None, **inputs):
        if attention_mask is not None and attention_mask.is_floating_point():
            attention_mask = attention_mask.masked_fill(attention_mask < 0, -torch.inf)
        return super().forward(*args, attention_mask=attention_mask, **inputs)


@bug("vit", "batches", part="classifier")
class ARowSeesTheBatch:
    def forward(self, x):
        return super().forward(x - x.mean(0, keepdim=True))


# ------------------------------------------------------------------------------------------------------- causality


@bug("llama", "causality", part=r"model\.layers\.1\.self_attn")
class TheLastLayerSeesLaterTokens:
    def forward(self, hidden_states, attention_mask=None, **inputs):
        if cache_in(inputs) is None:
            tokens = hidden_states.shape[1]
            attention_mask = hidden_states.new_zeros(1, 1, tokens, tokens)
        return super().forward(hidden_states, attention_mask=attention_mask, **inputs)


# ----------------------------------------------------------------------------------------------------------- cache


@bug("gpt2", "cache")
class PositionsIgnoreTheCache:
    def forward(self, position_ids=None, **inputs):
        if cache_in(inputs) is not None:
            position_ids = torch.arange(inputs["input_ids"].shape[1])[None]
        return super().forward(position_ids=position_ids, **inputs)


@bug("llama", "cache")
class BeamsDoNotReorderTheCache:
    def _reorder_cache(self, cache, beam_idx):
        return cache


@bug("llama", "cache", part=r".*\.self_attn")
class AStaticCacheReadOffByOne:
    def forward(self, *args, attention_mask=None, **inputs):
        if isinstance(cache_in(inputs), StaticCache) and attention_mask is not None:
            attention_mask = attention_mask.roll(1, -1)
        return super().forward(*args, attention_mask=attention_mask, **inputs)


@bug("llama", "cache", part=r".*\.self_attn")
class AChunkOntoACacheIsNotCausal:
    def forward(self, hidden_states, attention_mask=None, **inputs):
        if attention_mask is not None and attention_mask.shape[-1] > hidden_states.shape[1] > 1:
            attention_mask = torch.zeros_like(attention_mask, dtype=hidden_states.dtype)
        return super().forward(hidden_states, attention_mask=attention_mask, **inputs)


# -------------------------------------------------------------------------------------------------------- backends


@bug("mistral", "backends")
class AWindowOffByOneInSdpa:
    def forward(self, **inputs):
        window = self.config.sliding_window
        self.config.sliding_window += self.config._attn_implementation == "sdpa"
        try:
            return super().forward(**inputs)
        finally:
            self.config.sliding_window = window


@bug("mixtral", "backends", part=r".*\.experts")
class ExpertsUnweightedInOneImplementation:
    def forward(self, hidden_states, top_k_index, top_k_weights):
        if self.config._experts_implementation == "grouped_mm":
            top_k_weights = torch.ones_like(top_k_weights)
        return super().forward(hidden_states, top_k_index, top_k_weights)


# ---------------------------------------------------------------------------------------------------------- labels


@bug("llama", "labels")
class LabelsShiftedTwice:
    def forward(self, labels=None, **inputs):
        if labels is not None:
            labels = pad(labels[:, 1:], (0, 1), value=-100)
        return super().forward(labels=labels, **inputs)


@bug("llama", "labels")
class IgnoredLabelsCount:
    def forward(self, labels=None, **inputs):
        return super().forward(labels=None if labels is None else labels.clamp(min=0), **inputs)


@bug("llama", "labels")
class LogitsCappedAfterTheLoss:
    def forward(self, **inputs):
        out = super().forward(**inputs)
        out.logits = out.logits.tanh()
        return out


@bug("bart", "labels")
class TheDecoderReadsItsLabels:
    def forward(self, labels=None, decoder_input_ids=None, **inputs):
        if labels is not None and decoder_input_ids is None:
            decoder_input_ids = labels.clamp(min=0)
        return super().forward(labels=labels, decoder_input_ids=decoder_input_ids, **inputs)

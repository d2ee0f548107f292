"""Prediction of tokens further ahead: modules behind the layers, for the loss and as a draft in generation.

DeepSeek-AI 2024 (DeepSeek-V3), section 2.2; modules are named as transformers' MtpLayer names them. Shapes as in
attention.py; k is the number of a module, from 1.
"""

import torch
from torch import nn
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.generation.candidate_generator import CandidateGenerator

from .attention import build_attention
from .block import build_block, build_norm
from .lm_head import IGNORE_INDEX, language_model_loss
from .stack import embeddings_of, run_layer
from .traits import ATTENTION_KINDS


class NextTokenModule(nn.Module):
    """post_norm(block(M [enorm(embedding of t + k); hnorm(h of t)])), eq. 21 and 22; h is from the module before."""

    def __init__(self, config):
        super().__init__()
        last = config.num_hidden_layers - 1
        self.enorm, self.hnorm = build_norm(config), build_norm(config)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block = build_block(config, last, build_attention(config, last))
        self.post_norm = build_norm(config)

    def forward(self, ahead_BTD, hidden_BTD, **context):
        """(B, T, D), (B, T, D) -> (B, T, D)."""
        joined_BTE = torch.cat((self.enorm(ahead_BTD), self.hnorm(hidden_BTD)), dim=-1)
        return self.post_norm(run_layer(self.block, self.eh_proj(joined_BTE), [], **context))


class MultiTokenPrediction(nn.Module):
    """`num_nextn_predict_layers` modules; the k-th predicts token t + k + 1 from the hidden state of t and token t + k.

    Embeddings, positions and head are the model's own. A module's layer is built as the last layer of the model.
    """

    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList(NextTokenModule(config) for _ in range(config.num_nextn_predict_layers))

    def entered(self, stack, input_ids, inputs_embeds, attention_mask, position_ids, cache=None, **kwargs) -> tuple:
        """Return (the first layer's input (B, T, D), arguments of the last layer, document ids or None)."""
        x_BTE = embeddings_of(stack.embed_tokens, input_ids, inputs_embeds)
        batch = stack.read_batch(x_BTE, attention_mask, position_ids, cache, packs=cache is None, **kwargs)
        x_BTD, per_layer, context = stack.enter(x_BTE, batch)
        return x_BTD, context | per_layer[-1], batch.documents

    def forward(self, stack, head, hidden_BTD, shift_labels, num_items_in_batch=None, **inputs):
        """The mean of the modules' losses (eq. 24 and 25 without lambda), divided as the model's loss is.

        hidden_BTD: the model's last hidden states. shift_labels: (B, T), labels of the next tokens. inputs: the model's
        inputs. In packed rows no token is predicted from those of another document.
        """
        if num_items_in_batch is None:
            num_items_in_batch = (shift_labels != IGNORE_INDEX).sum()
        x_BTD, context, documents = self.entered(stack, **inputs)
        losses = []
        for k, layer in enumerate(self.layers, start=1):
            hidden_BTD = layer(pad(x_BTD, (0, 0, 0, k))[:, k:], hidden_BTD, **context)
            labels = pad(shift_labels, (0, k), value=IGNORE_INDEX)[:, k:]
            if documents is not None:
                labels = labels.masked_fill(pad(documents, (0, k), value=-1)[:, k:] != documents, IGNORE_INDEX)
            losses.append(language_model_loss(head, hidden_BTD, labels, num_items_in_batch)[0])
        return sum(losses) / len(losses)

    @staticmethod
    def draft(model, generation_config) -> "MultiTokenDraft":
        """What proposes tokens to `generate`."""
        return MultiTokenDraft(model, generation_config)


class CacheOfOneLayer(DynamicCache):
    """A cache for a single layer, which ignores the layer index that it is called with."""

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        return super().update(key_states, value_states, 0, *args, **kwargs)

    def get_mask_sizes(self, query_length, layer_idx):
        return super().get_mask_sizes(query_length, 0)


class MultiTokenDraft(CandidateGenerator):
    """Drafts one token per module for `generate(use_mtp=True)`; one pass of the model verifies them all.

    Tokens 0 to n are final, and the model has read those before n. Module k has read a position i < n for good once
    token i + k is final; later positions depend on drafts, and are read again in the next call.

    Raises ValueError for a model with layers that keep states.
    """

    requires_model_outputs = True
    model_kwargs_overrides = {"output_hidden_states": True}

    def __init__(self, model, generation_config):
        kind = next((kind for kind in model.config.attention_kinds if ATTENTION_KINDS[kind].keeps_states), None)
        if kind is not None:
            raise ValueError(f"use_mtp=True drafts tokens, and {kind} layers cannot forget a wrong one; leave it out")
        self.model, self.most = model, generation_config.max_length
        self.ends = getattr(generation_config, "_eos_token_tensor", None)
        self.first = None  # the place of the first token whose hidden states are known
        self.read = 0  # n of the call before
        # [a module, its cache, its output at the last position that is read for good] for each module.
        self.modules = [[module, CacheOfOneLayer(), None] for module in model.mtp.layers]

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        """Does nothing: there are as many drafts as modules, however many were right."""

    @torch.no_grad()
    def get_candidates(self, input_ids, model_kwargs=None, model_outputs=None, is_first_iteration=False, **kwargs):
        """(1, T) tokens, of which the model has read all but the last -> (these and the drafts, None)."""
        if is_first_iteration:
            return input_ids, None
        length, hidden_BTD = input_ids.shape[1], model_outputs.hidden_states[-1]
        if self.first is None:
            self.first = length - 1 - hidden_BTD.shape[1]
        tokens, mask = input_ids[:, self.first :], (model_kwargs or {}).get("attention_mask")
        n = tokens.shape[1] - 1
        mask = None if mask is None else mask[:, self.first : self.first + n]
        hidden_BTD = hidden_BTD[:, : n - self.read]
        for k, state in enumerate(self.modules, start=1):
            hidden_BTD = self.run(k, state, tokens, hidden_BTD, mask, n)
            drafted = self.model.lm_head(hidden_BTD[:, -1:]).argmax(dim=-1)
            tokens = torch.cat((tokens, drafted), dim=1)
        self.read = n
        return torch.cat((input_ids, self.kept(tokens[:, n + 1 :], self.most - length - 1)), dim=1), None

    def run(self, k: int, state: list, tokens, hidden_BTD, mask, n: int):
        """Run module k at positions below n not yet read for good -> outputs there and at one before, for module k + 1.

        hidden_BTD: (1, P, D), of these P positions.
        """
        module, cache, before = state
        start = n - hidden_BTD.shape[1]
        positions = torch.arange(start + k, n + k, device=tokens.device)[None]
        positions = positions.clamp(max=self.model.config.max_position_embeddings - 1)  # the last one in a table
        inputs = (tokens[:, start + k : n + k], None, mask, positions, cache)
        ahead_BTD, context, _ = self.model.mtp.entered(self.model.model, *inputs)
        out_BTD = module(ahead_BTD, hidden_BTD, **context)
        if k > 1 and n > 0:
            cache.crop(-min(k - 1, n))
        final = n - k - start  # the place in `out_BTD` of the last position read for good
        state[2] = out_BTD[:, final : final + 1] if final >= 0 else None
        return out_BTD if before is None else torch.cat((before, out_BTD), dim=1)

    def kept(self, drafts, room: int):
        """The drafts to keep: at most `room`, and none behind an end token."""
        drafts = drafts[:, : max(0, room)]
        if self.ends is None:
            return drafts
        is_end = torch.isin(drafts[0], self.ends.to(drafts.device)).nonzero()
        return drafts[:, : is_end[0, 0] + 1] if len(is_end) else drafts

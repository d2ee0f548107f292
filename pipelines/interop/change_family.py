"""Makes a model of another family of the same weights: encoders or encoder-decoders of decoders, decoders of encoders.

Each token then sees other tokens than before, so the model needs more pretraining. Sources: BehnamGhader et al. 2024
(LLM2Vec) and Weller et al. 2025 (Ettin) for decoders and encoders, Zhang et al. 2025 (T5Gemma) for encoder-decoders.
"""

import copy

import torch
from anyformer.modeling.traits import ATTENTION_KINDS, PLAIN, POSITION_SCHEMES
from transformers import PreTrainedModel

from ..errors import UserError
from ..open_tokenizer import vocabulary_size
from ..recipes.introspection import family_fields, family_row
from ..recipes.tokenizer_section import MASK
from ..transformers_logging import errors_only
from .families import family_name

# family -> the families that it can be made from
SOURCES = {"encoder": ("decoder", "moe"), "decoder": ("encoder",), "seq2seq": ("decoder", "moe")}
SEED = 0  # of new weights
TOLERANCE = 1e-6  # of the largest number, in float64: the sum of two tables of a BERT is rounded
# Fields that follow from others, or belong to a head; other fields that a family lacks must have their defaults.
DERIVED = {"layer_types", "mlp_layer_types", "use_cache", "is_encoder_decoder", "prefix_lm", "type_vocab_size"}
DERIVED |= {"output_router_logits"}
HEADS = {"pooler_type", "pooler_act", "add_pooling_layer", "classifier_dropout", "task_head_transform", "head_act"}
HEADS |= {"head_bias", "head_transform", "sep_token_id", "cls_token_id", "mask_token_id"}
POSITIONS = "model.position_encoding."  # prefix of the names of position weights
NEW_HEADS = ("head_transform.", "pooler.", "model.pooler.", "seq_relationship.", "score.", "classifier.", "qa_outputs.")


def in_family(model: PreTrainedModel, family: str) -> PreTrainedModel:
    """Return a pretraining model of `family` with the weights of one of ours, which is left as it is.

    encoder: the decoder's layers, bidirectional, and its head. decoder: the encoder's layers, causal, and of its
    masked-LM head only the product with the vocabulary. seq2seq: both stacks are the decoder; cross-attention starts
    from self-attention. A window of n tokens on each side is n + 1 in a decoder, which counts the token itself.

    Raises:
        UserError: the family cannot be made from this one, or does not have one of the model's fields.
    """
    source = family_name(model.config)
    if source not in SOURCES[family]:
        raise UserError(
            f"to={family!r} takes the weights of {' or '.join(SOURCES[family])}, and this model is of family {source}; "
            f"{' and '.join(name for name, of in SOURCES.items() if source in of) or 'none'} can be made of it"
        )
    config = config_in_family(model.config, family)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if not any(name.startswith("model.") for name in weights):
        weights = {f"model.{name}": tensor for name, tensor in weights.items()}
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith(NEW_HEADS)}
    scheme = model.config.position_encoding
    if POSITION_SCHEMES[scheme].acts_on == "scores" and any(name.startswith(POSITIONS) for name in weights):
        raise UserError(
            f"position_encoding={scheme!r} learns other distances where tokens see those after them; no weights of "
            f"family {family} follow from it"
        )
    if family != "encoder":
        weights = {"decoder": decoder_weights, "seq2seq": seq2seq_weights}[family](model.config, weights)
    weights = {name: tensor.clone() for name, tensor in weights.items()}  # one tensor may serve several parameters
    row = family_row(family)
    with errors_only(), torch.random.fork_rng():
        torch.manual_seed(SEED)
        cls = row.load(row.heads[row.pretraining])
        converted, report = cls.from_pretrained(
            None, config=config, state_dict=weights, dtype=model.dtype, output_loading_info=True
        )
    if report["unexpected_keys"] or report["mismatched_keys"]:
        name = min(report["unexpected_keys"] or (entry[0] for entry in report["mismatched_keys"]))
        raise UserError(f"{type(model).__name__} and {cls.__name__} disagree about the parameter {name}")
    if converted.can_generate() and model.can_generate():
        converted.generation_config = copy.deepcopy(model.generation_config)
    if family == "seq2seq":
        converted.generation_config.decoder_start_token_id = config.decoder_start_token_id
    return converted.to(model.device).eval()


def config_in_family(config, family: str):
    """The config of the same layers in another family; raises UserError for a field that this family does not have."""
    source, row = family_name(config), family_row(family)
    known, source_fields = family_fields(family), family_fields(source)
    fields = {name: getattr(config, name) for name in source_fields if name in known and name not in DERIVED}
    if set(config.attention_kinds) != {PLAIN}:
        fields["attention_pattern"] = list(config.attention_kinds)
    if getattr(config, "num_experts", None) is not None:
        fields["mlp_pattern"] = list(config.mlp_kinds)
    windowed = any(ATTENTION_KINDS[kind].windowed for kind in config.attention_kinds)
    if windowed:
        fields["sliding_window"] = config.sliding_window + {"decoder": 1, "encoder": -1, "seq2seq": 0}[family]
    if family == "encoder":
        fields |= {"head_transform": False, "pooler_type": "mean", "pooler_act": None}
        fields["mask_token_id"] = config.mask_token_id
    elif family == "seq2seq":
        starts = (config.bos_token_id, config.eos_token_id, config.pad_token_id)
        fields["decoder_start_token_id"] = next((token for token in starts if isinstance(token, int)), None)
    plain = type(config)(**{name: value for name, value in fields.items() if name in source_fields})
    for name in sorted(source_fields.keys() - known.keys() - DERIVED - HEADS):
        if getattr(config, name) != getattr(plain, name):
            raise UserError(
                f"{name}={getattr(config, name)} is of family {source} alone; family {family} has no such part"
            )
    try:
        return row.load(row.config)(**fields)
    except ValueError as error:
        raise UserError(f"no model of family {family} has these layers: {error}") from error


def decoder_weights(source, weights: dict) -> dict:
    """An encoder's weights as a decoder's; the embedding of the first segment is added to the learned positions."""
    segments = weights.pop("model.token_type_embeddings.weight", None)
    table = next((name for name in weights if name.startswith(POSITIONS)), None)
    if segments is not None:
        if table is None:
            raise UserError(
                f"type_vocab_size={source.type_vocab_size} adds a vector to every token, and without learned positions "
                f"a decoder has no place for it"
            )
        weights[table] = weights[table] + segments[0]
    return weights


def seq2seq_weights(source, weights: dict) -> dict:
    """A decoder's weights in both stacks; those of self-attention also serve as cross-attention."""
    converted = {name: tensor for name, tensor in weights.items() if not name.startswith("model.")}
    for name in weights.keys() - converted.keys():
        part, tensor = name.removeprefix("model."), weights[name]
        converted[f"model.encoder.{part}"] = tensor
        if part.startswith("embed_tokens"):
            continue
        converted[f"model.decoder.{part}"] = tensor
        cross = part.replace(".self_attn.", ".cross_attn.").replace(".input_layernorm.", ".cross_attention_layernorm.")
        cross = cross.replace(".attention_output_layernorm.", ".cross_attention_output_layernorm.")
        converted[f"model.decoder.{cross}"] = tensor
    return converted


@torch.no_grad()
def same_in_both_directions(model: PreTrainedModel, twin: PreTrainedModel, ids: torch.Tensor) -> tuple[float, float]:
    """(largest number, largest difference) of both models' outputs in float64, where all tokens see each other.

    The outputs are the logits for an encoder made from a decoder, else the last hidden states (of an encoder-decoder,
    those of its encoder). ids: (B, T).
    """
    models = [copy.deepcopy(one).double().eval() for one in (model, twin)]
    causal = next(one for one in models if one.config.is_causal and not one.config.is_encoder_decoder)
    other = models[1] if causal is models[0] else models[0]
    if any(ATTENTION_KINDS[kind].windowed for kind in causal.config.attention_kinds):
        causal.config.sliding_window = other.config.sliding_window + 1
    moved = other is models[1] and not other.config.is_encoder_decoder
    outputs = []
    for one in (causal, other):
        inputs = {"prefix_mask": torch.ones_like(ids), "use_cache": False} if one is causal else {}
        part = one if moved else one.base_model
        part = part.encoder if part.config.is_encoder_decoder else part
        out = part(input_ids=ids, **inputs)
        outputs.append(out.logits if moved else out.last_hidden_state)
    return outputs[0].abs().max().item(), (outputs[0] - outputs[1]).abs().max().item()


def prepared(model: PreTrainedModel, tokenizer, family: str) -> None:
    """Adapt tokenizer and model in place: a mask token for encoders, no special tokens around texts for decoders."""
    if tokenizer is None:
        return
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing

    if family == "encoder" and tokenizer.mask_token is None:
        tokenizer.add_special_tokens({"mask_token": AddedToken(MASK, lstrip=True, special=True, normalized=False)})
        if (size := vocabulary_size(tokenizer)) > model.config.vocab_size:
            with errors_only():
                model.resize_token_embeddings(size)
    if family == "encoder":
        model.config.mask_token_id = tokenizer.mask_token_id
    if family == "decoder":  # a token that ends each text would end each prompt, too
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B")
        tokenizer.model_input_names = ["input_ids", "attention_mask"]

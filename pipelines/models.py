"""From a recipe's model section to a model: fresh weights of one of our families, or any checkpoint."""

from transformers import AutoConfig

from .arguments import whole_weights
from .errors import UserError
from .schema import Recipe


def model_config(recipe: Recipe, tokenizer):
    """The config of fresh weights, with vocabulary and special tokens taken from the tokenizer where not set.

    Raises UserError where the model's vocabulary is smaller than the tokenizer's, or the config is illegal.
    """
    section = recipe.model
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    fields = {"vocab_size": len(tokenizer), **special, **section.fields}
    if fields["vocab_size"] < len(tokenizer):
        raise UserError(
            f"model.vocab_size={fields['vocab_size']} is smaller than the tokenizer's {len(tokenizer)} entries; "
            f"leave it out, or set at least {len(tokenizer)}"
        )
    try:
        return AutoConfig.for_model(f"anyformer_{section.family}", **fields)
    except ValueError as error:
        raise UserError(f"model: {error}") from error


def build_model(recipe: Recipe, tokenizer, auto_class, arguments):
    """A model to train: fresh weights of the recipe's architecture, or the checkpoint `model.name_or_path`, in fp32.

    fp32 because autocast keeps master weights in it; a checkpoint stored in bf16 would otherwise train in pure bf16.
    """
    import torch

    name = recipe.model.name_or_path
    if name is None:
        with whole_weights(arguments):
            return auto_class.from_config(model_config(recipe, tokenizer))
    try:
        model = auto_class.from_pretrained(name, dtype=torch.float32)
    except (OSError, ValueError) as error:
        sentence = str(error).strip().splitlines()[0]
        raise UserError(f"model.name_or_path={name!r} cannot be loaded: {sentence}") from error
    size = model.get_input_embeddings().weight.shape[0]
    if size < len(tokenizer):
        raise UserError(
            f"model.name_or_path={name!r} has a vocabulary of {size}, the tokenizer has {len(tokenizer)} entries; "
            f"set tokenizer.name_or_path={name!r}"
        )
    return model


def check_length(recipe: Recipe, config) -> None:
    """Raise UserError where rows are longer than the positions a model has vectors for."""
    most = getattr(config, "max_position_embeddings", None)
    learned = getattr(config, "position_encoding", "learned") == "learned"
    if learned and most is not None and recipe.objective.sequence_length > most:
        raise UserError(
            f"objective.sequence_length={recipe.objective.sequence_length} is longer than the model's "
            f"max_position_embeddings={most}; at most {most} works"
        )

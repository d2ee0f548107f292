"""How many tokens a model's positions take, and whether they are counted from its padding token (RoBERTa, ESM)."""

import copy
from collections.abc import Iterator

from .errors import UserError

UNLIMITED = 10**9  # transformers gives a tokenizer without model_max_length a number above this


def most_positions(config) -> int | None:
    """The longest row in tokens for which a model has positions; None where its config does not say.

    The config's max_position_embeddings, but for learned positions no more than the rows of their table that are used:
    those up to the padding token's number are none (RoBERTa: 512 of 514), nor are the first two of OPT and BART.
    """
    most = getattr(config, "max_position_embeddings", None)
    if hasattr(config, "position_encoding") or not learns_positions(config):
        return most
    sides: dict[bool, int] = {}  # LED's decoder has fewer positions than its encoder
    for name, table in position_tables(empty_model(config)):
        if (rows := len(getattr(table, "weight", ()))) and "Embedding" in type(table).__name__:
            padding = getattr(table, "padding_idx", None)
            rows -= getattr(table, "offset", 0) + (0 if padding is None else padding + 1)
            sides["decoder" in name] = min(rows, sides.get("decoder" in name, rows))
    limits = [value for value in (most, max(sides.values(), default=None)) if value is not None]
    return min(limits, default=None)


def check_rows(objective, most: int, field: str = "the model's max_position_embeddings") -> None:
    """Raise UserError where an objective's rows are longer than the `most` positions a model has embeddings for."""
    _refuse_longer(objective, most, field, f"; at most {most} works: learned positions need one for each token")


def check_context(objective, most: int) -> None:
    """Raise UserError where an objective's rows are longer than `most`, the context that the config would state.

    Training would work with positions that are not learned, but the saved config would be wrong.
    """
    way_out = ", the context it would be saved with; set model.max_position_embeddings={length} or {name}={most}"
    _refuse_longer(objective, most, "the model's max_position_embeddings", way_out)


def _refuse_longer(objective, most: int, field: str, way_out: str) -> None:
    for name, length in objective.lengths().items():
        if length is not None and length > most:
            name = f"{objective.section}.{name}"
            said = f"{name}={length} is longer than {field}={most}"
            raise UserError(said + way_out.format(length=length, name=name, most=most))


def position_scheme(config) -> str:
    """The kind of a model's positions: our configs name it; others are taken as rotary or learned."""
    return getattr(config, "position_encoding", "rotary" if getattr(config, "rope_parameters", None) else "learned")


def learns_positions(config) -> bool:
    return position_scheme(config) == "learned"


def counts_from_padding(model) -> bool:
    """Whether a model counts positions from its padding token, so that another one makes it another model."""
    return any(getattr(table, "padding_idx", None) is not None for _, table in position_tables(model))


def position_tables(model) -> Iterator:
    """(name, module) of the tables of a model's positions in a text."""
    for name, module in model.named_modules() if model is not None else ():
        if "position" in name.rpartition(".")[2] and not any(word in name for word in ("vision", "relative_")):
            yield name, module


def empty_model(config):
    """A model of the config without memory for weights; None without a class in transformers, and under ZeRO-3."""
    import torch
    import transformers
    from transformers.integrations import is_deepspeed_zero3_enabled

    if is_deepspeed_zero3_enabled():  # which would split the weights; the rows were checked before it began
        return None
    for auto_class in (transformers.AutoModel, transformers.AutoModelForSeq2SeqLM):
        try:
            with torch.device("meta"):
                return auto_class.from_config(copy.deepcopy(config), trust_remote_code=False)
        except Exception:  # transformers has no such model, or load_checkpoint says why it cannot be built
            continue
    return None

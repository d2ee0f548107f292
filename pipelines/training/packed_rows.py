"""Whether a native model keeps the documents of a packed row apart, as our own families do."""

import torch
from anyformer.modeling.traits import FAMILIES

from ..errors import UserError
from .model_loss import without_cache

PROBED_TOKENS = 8  # of each of two documents
TOLERANCE, HALF_TOLERANCE = 1e-3, 3e-2  # of the largest logit, in fp32 and in half: rounding, not another document


def check_documents_apart(model, name: str) -> None:
    """Raise UserError where a document of a packed row sees the one before it in a native model.

    Packed rows tell documents apart by positions that begin anew, without a mask. Native encoders, and decoders that
    make their mask without positions, ignore them. The weights have to be whole: ZeRO-3's empty tensors are not probed.
    """
    config = model.config
    in_parts = any(hasattr(p, "ds_shape") for p in model.parameters())
    if config.model_type in FAMILIES or config.is_encoder_decoder or in_parts or keeps_documents_apart(model):
        return
    raise UserError(
        f"model.name_or_path={name!r} is a {type(model).__name__}, in which the documents of a packed row see each "
        f"other; convert it (anyformer convert {name} FOLDER), or set task.packing=false where the task has that"
    )


@torch.no_grad()
def keeps_documents_apart(model) -> bool:
    """Whether the logits of the second document of a row are those that it has by itself."""
    training = model.training
    model.eval()
    ids = torch.arange(2 * PROBED_TOKENS, device=model.device)[None] % model.config.get_text_config().vocab_size
    positions = torch.arange(PROBED_TOKENS, device=model.device)[None]
    try:
        with without_cache(model):  # transformers tells packed rows by their positions where no cache is made
            together = model(input_ids=ids, position_ids=positions.repeat(1, 2)).logits[:, PROBED_TOKENS:]
            alone = model(input_ids=ids[:, PROBED_TOKENS:], position_ids=positions).logits
    except TypeError:  # it takes no positions
        return False
    finally:
        model.train(training)
    tolerance = TOLERANCE if alone.dtype == torch.float32 else HALF_TOLERANCE
    return (together - alone).abs().max().item() <= tolerance * alone.abs().max().item()

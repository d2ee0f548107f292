"""`anyformer inspect`: a model opened with what it reads, and its page written."""

from pathlib import Path

from ..adapters import is_adapter, load_config, load_model
from ..errors import UserError, loading_reason
from ..generation import locate_model
from ..words import short_number, watched
from .page import write_page
from .views import view_of_image, view_of_text


def open_model(name: str, trust_remote_code: bool = False):
    """A model with the head that it was saved with, in evaluation mode. Raises UserError where it cannot be loaded."""
    import transformers

    import anyformer

    anyformer.register()
    try:
        config = load_config(name, trust_remote_code=trust_remote_code)
        known = (config.architectures or ["AutoModel"])[0]
        kind = getattr(anyformer, known, None) or getattr(transformers, known, transformers.AutoModel)
        if is_adapter(name):
            kind = transformers.AutoModel
        return load_model(kind, name, trust_remote_code=trust_remote_code).eval()
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"MODEL={name} cannot be loaded: {loading_reason(error)}") from error


def inspect_model(
    name: str,
    shown: list[str],
    out: Path,
    *,
    word: str | None = None,
    layers: list[int] | None = None,
    target: str | None = None,
    trust_remote_code: bool = False,
) -> int:
    """Write the page of a model on some texts, or on images where it is a vision transformer; returns its bytes.

    Args:
        word: part of the texts; the page shows which tokens look at it.
        layers: numbers of the layers whose maps the page holds; None: all.
        target: what an encoder-decoder writes; None: what it generates.
    """
    from transformers import AutoImageProcessor, AutoTokenizer

    model, chosen = open_model(locate_model(name), trust_remote_code), None if layers is None else set(layers)
    config = model.config
    count = getattr(config, "num_hidden_layers", 0)
    wrong = [layer for layer in layers or [] if not 0 <= layer < count]
    if wrong:
        raise UserError(f"--layers {wrong[0]}: the model has {count} layers, from 0 to {count - 1}")
    if getattr(config, "patch_size", None) is not None:
        processor = AutoImageProcessor.from_pretrained(name, trust_remote_code=trust_remote_code)
        views = [view_of_image(model, processor, Path(file), chosen) for file in watched(shown, "images")]
    else:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
        views = [view_of_text(model, tokenizer, text, word, chosen, target) for text in watched(shown, "texts")]
    parameters = sum(p.numel() for p in model.parameters())
    about = f"{type(model).__name__}, {short_number(parameters)} parameters"
    return write_page(out, {"model": Path(name).name or name, "about": about, "views": views})

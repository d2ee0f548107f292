"""`anyformer inspect`: opens a model and its tokenizer or image processor, and writes its page."""

from pathlib import Path

from ..adapters import HEADS_OF_TASKS, is_adapter, load_config, load_model, task_of
from ..errors import UserError, loading, refuse_file
from ..generation import locate_model
from ..lazy import transformers
from ..open_tokenizer import open_tokenizer
from ..transformers_logging import errors_only
from ..words import counted, short_number, watched
from .maps_page import write_page
from .views import view_of_image, view_of_text


def open_model(name: str, trust_remote_code: bool = False):
    """A model with the head that it was saved with, in evaluation mode. Raises UserError where it cannot be loaded."""

    # Errors only: an adapter's head is in its own file, which transformers reads afterwards.
    with loading(f"MODEL={name}"), errors_only():
        kind = class_of(name, load_config(name, trust_remote_code=trust_remote_code))
        return load_model(kind, name, trust_remote_code=trust_remote_code).eval()


def class_of(name: str, config):
    """The class to load a saved model with: the one in its config; for an adapter the one it was trained with."""
    import anyformer

    trained_for = HEADS_OF_TASKS.get(task_of(name)) if is_adapter(name) else None
    class_name = trained_for or (config.architectures or ["AutoModel"])[0]
    return getattr(anyformer, class_name, None) or getattr(transformers, class_name, transformers.AutoModel)


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
    """Write the page of a model on some texts, or on images for a vision transformer; returns the page's bytes.

    Args:
        word: part of the texts; the page shows which tokens attend to it.
        layers: numbers of the layers whose maps the page holds; None: all.
        target: what an encoder-decoder writes; None: what it generates.
    """

    transformers.utils.logging.disable_progress_bar()
    name = locate_model(name)
    with loading(f"MODEL={name}"):
        reads_text = getattr(load_config(name, trust_remote_code=trust_remote_code), "patch_size", None) is None
    for text in [*shown, target or ""] if reads_text else ():
        refuse_file("TEXT", text)
    model, chosen = open_model(name, trust_remote_code), None if layers is None else set(layers)
    config = model.config
    count = getattr(config, "num_hidden_layers", 0)
    wrong = [layer for layer in layers or [] if not 0 <= layer < count]
    if wrong:
        raise UserError(f"--layers {wrong[0]}: the model has {counted(count, 'layer')}, from 0 to {count - 1}")
    if not reads_text:
        with loading(f"MODEL={name}: its image processor"):
            processor = transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=trust_remote_code)
        views = [view_of_image(model, processor, Path(file), chosen) for file in watched(shown, "images")]
    else:
        with loading(f"MODEL={name}: its tokenizer"):
            tokenizer = open_tokenizer(name, trust_remote_code)
        views = [view_of_text(model, tokenizer, text, word, chosen, target) for text in watched(shown, "texts")]
    parameters = sum(p.numel() for p in model.parameters())
    about = f"{type(model).__name__}, {short_number(parameters)} parameters"
    return write_page(out, {"model": Path(name).name or name, "about": about, "views": views})

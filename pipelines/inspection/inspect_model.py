"""`anyformer inspect`: looks at a model's texts or images, and writes its page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..words import counted, short_number, watched
from .maps_page import write_page
from .views import Wanted, view_of_image, view_of_text


def inspect_model(
    name: str,
    model,
    processor,
    shown: Sequence[tuple[str, Any, str | None]],
    out: Path,
    wanted: Wanted,
    target: str | None = None,
) -> tuple[int, list[dict]]:
    """Write the page of a model on texts or images; returns its bytes, and view's heads for each of them.

    Args:
        processor: the model's tokenizer or image processor.
        shown: (title, texts that are read together or a Pillow image, the model's answer; None: there is none).
        target: what an encoder-decoder writes; None: its answer.

    Raises UserError for layers or heads that the model does not have, and for a word that is in no text.
    """
    count, views, heads = getattr(model.config, "num_hidden_layers", 0), [], []
    wrong = [layer for layer in wanted.layers or [] if not 0 <= layer < count]
    if wrong:
        raise UserError(f"--layers {wrong[0]}: the model has {counted(count, 'layer')}, from 0 to {count - 1}")
    for title, read, answer in watched(shown, "looking at"):
        if isinstance(read, list):
            one = view_of_text(model, processor, read, wanted, answer if target is None else target)
        else:
            one = view_of_image(model, processor, read, wanted)
        if answer is None and model.can_generate() and "lens" in one:
            answer = ", ".join(f"{token!r} {share:.1%}" for token, share in one["lens"][-1]) + " comes next"
        heads.append(one.pop("heads"))
        views.append({"title": title, "answer": answer} | one)
    for word in wanted.words:
        if not any(word in one["words"] for one in views):
            raise UserError(f"--word {word!r} is in none of the texts")
    about = f"{type(model).__name__}, {short_number(sum(p.numel() for p in model.parameters()))} parameters"
    return write_page(out, {"model": Path(name).name or name, "about": about, "views": views}), heads

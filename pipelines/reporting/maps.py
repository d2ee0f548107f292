"""The attention maps of a finished run's model on one sample, as a part of its report."""

import base64
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from ..lazy import transformers
from ..transformers_logging import errors_only
from .run_log import RunLog

MOST_PARAMETERS, MOST_MAPS = 1_000_000_000, 144


def maps_of_run(
    log: RunLog, rows: dict[str, Any], load: Callable[[], Any] | None = None, trust_remote_code: bool = False
) -> tuple[str, str]:
    """(what views shows of the model, as a part of a page; a sentence about it), one of which may be empty.

    rows: of rows.json, with the text or image to look with. load: gives the model;
    None: from the run's folder. Nothing is shown of a run that has not finished, of one that has left neither, and of a
    model without attention maps.
    """
    sample = next((one["text"] for one in log.run.get("samples") or [] if one.get("text")), None)
    text = rows.get("text") or sample
    if not log.is_finished or not (log.folder / "config.json").is_file() or not (text or rows.get("image")):
        return "", ""
    if (log.run.get("parameters") or 0) > MOST_PARAMETERS:
        return "", f'A model of this size has a command of its own: anyformer inspect {log.folder} "some text"'
    from ..inspection.inspect_model import open_model
    from ..inspection.maps_page import maps_of

    transformers.utils.logging.disable_progress_bar()  # of loading weights, which a report is no place for
    try:
        with errors_only():
            model = open_model(str(log.folder), trust_remote_code) if load is None else load()
            view = view_of(model, log.folder, rows, text, trust_remote_code)
    except Exception as error:  # of any model, native or with code of its own: the rest of the page is worth having
        return "", f"This model shows none ({' '.join(str(error).split())[:200] or type(error).__name__})."
    return maps_of([view], "h3"), ""


def view_of(model, folder: Path, rows: dict[str, Any], text: str | None, trust_remote_code: bool) -> dict:
    """The maps of a model on the image or text, of at most so many layers as a page holds."""
    from ..inspection.views import view_of_image, view_of_text

    of_config = (getattr(model.config, name, 1) or 1 for name in ("num_hidden_layers", "num_attention_heads"))
    count, heads = (max(1, number) for number in of_config)
    shown = max(1, min(count, MOST_MAPS // heads))
    layers = {round(place * (count - 1) / max(1, shown - 1)) for place in range(shown)}
    if rows.get("image"):
        image = BytesIO(base64.b64decode(rows["image"]))
        image.name = "an image of the training data"
        processor = transformers.AutoImageProcessor.from_pretrained(folder, trust_remote_code=trust_remote_code)
        return view_of_image(model, processor, image, layers)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    return view_of_text(model, tokenizer, text, None, layers, None)

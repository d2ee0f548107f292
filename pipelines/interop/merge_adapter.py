"""`anyformer merge`: an adapter and its base model become one model, in a folder of the usual form."""

import os
from pathlib import Path

from ..adapters import (
    ADAPTED_CONFIG,
    HEADS_OF_TASKS,
    base_of,
    is_adapter,
    load_config,
    load_merged,
    need_peft,
    task_of,
)
from ..errors import CANNOT_LOAD, UserError, loading_reason
from ..generation import locate_model
from ..lazy import transformers
from ..publishing.objective_facts import objective_facts
from ..publishing.run_facts import RunFacts
from ..storage.atomic import destination_folder
from .convert_checkpoint import save, saved_image_processor, saved_tokenizer
from .families import saved_class


def check_adapter(source: str, destination: str | os.PathLike) -> Path:
    """The folder to write; raises UserError if source is no adapter, PEFT is missing, or the folder is in use."""
    if not is_adapter(source):
        raise UserError(f"ADAPTER={source} holds no adapter (adapter_config.json); name the folder of a run with LoRA")
    need_peft(f"ADAPTER={source} is an adapter and")
    locate_model(source, "ADAPTER")
    return destination_folder(destination)


def merge(source: str, destination: str | os.PathLike, *, trust_remote_code: bool = False) -> str:
    """Save the model that the adapter in `source` and its base make up; return what was done, in one line.

    Tokenizer and card are saved with it, and the facts of the run that trained the adapter. The folder appears complete
    or not at all. Raises UserError as check_adapter does, and if adapter or base cannot be loaded.
    """
    destination = check_adapter(source, destination)

    transformers.utils.logging.disable_progress_bar()
    trust = {"trust_remote_code": trust_remote_code}
    try:
        config = load_config(source, **trust)
        model, lacking = load_merged(class_of(source, config), source, config=config, dtype="auto")
    except CANNOT_LOAD as error:
        raise UserError(f"ADAPTER={source} cannot be loaded on its base: {loading_reason(error)}") from error
    learned = objective_facts(RunFacts.read(Path(source).expanduser()).recipe)
    lacking = [name for name in lacking if not name.startswith(learned.unused_weights)]
    if lacking:
        raise UserError(f"ADAPTER={source}: neither it nor its base {base_of(source)} has the weight {min(lacking)}")
    parts = [saved_tokenizer(source, **trust), saved_image_processor(source, to="anyformer", **trust)]
    save([model, *(part for part in parts if part is not None)], destination, source, {})
    count = sum(parameter.numel() for parameter in model.parameters())
    name = type(model).__name__
    return f"{name} of {count:,} parameters, the adapter added to {base_of(source)}; written to {destination}"


def class_of(source: str, config):
    """The class of an adapted model: the one its config names; of a head that PEFT put on the base, the Auto class."""
    head = HEADS_OF_TASKS.get(task_of(source), "LM")
    if head.endswith("LM") or (Path(source).expanduser() / ADAPTED_CONFIG).is_file():
        return saved_class(config, f"ADAPTER={source}")
    return getattr(transformers, head)

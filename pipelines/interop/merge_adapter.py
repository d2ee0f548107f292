"""`anyformer merge`: an adapter and its base model become one model, in a folder of the usual form."""

import inspect
import math
import os
from pathlib import Path

from anyformer.modeling.traits import image_sides

from ..adapters import base_of, check_mergeable, is_adapter, load_config, load_merged, load_model
from ..errors import CANNOT_LOAD, UserError, loading_reason
from ..generation import locate_model
from ..lazy import torch, transformers
from ..positions import most_positions
from ..publishing.run_facts import RunFacts, objective_facts
from ..storage.atomic import destination_folder
from .convert_checkpoint import save, saved_image_processor, saved_tokenizer
from .families import saved_class
from .verify import OUTPUTS

# On these an adapter and its sum are compared; short, so that they fit every model.
TEXTS = ("The train to the coast was late.", "def mean(values):", "1. Wash the rice. 2.", "¿Qué hora es? 14:05")


def check_adapter(source: str, destination: str | os.PathLike) -> Path:
    """The folder to write; raises UserError if source is no adapter that can be merged, or the folder is in use."""
    if not is_adapter(source):
        raise UserError(f"ADAPTER={source} holds no adapter (adapter_config.json); name the folder of a run with LoRA")
    check_mergeable(source)
    locate_model(source, "ADAPTER")
    return destination_folder(destination)


def merge(source: str, destination: str | os.PathLike, *, trust_remote_code: bool = False) -> str:
    """Save the model that the adapter in `source` and its base make up; return what was done, in one line.

    The sum is made in float32, of what the weights of a quantised base stand for, and saved in the base's dtype; in
    bfloat16 where that is of few bits. Its logits are compared with those of the adapter beside its base, as trained.
    Tokenizer and card are saved with it, and the facts of the run that trained the adapter. The folder appears complete
    or not at all. Raises UserError as check_adapter does, and if adapter or base cannot be loaded.
    """
    destination = check_adapter(source, destination)

    transformers.utils.logging.disable_progress_bar()
    trust = {"trust_remote_code": trust_remote_code}
    try:
        config = load_config(source, **trust)
        tokenizer, cls = saved_tokenizer(source, **trust), saved_class(config, f"ADAPTER={source}")
        trained, info = load_model(cls, source, config=config, dtype="auto", output_loading_info=True)
        _refuse_lacking(source, info["missing_keys"])
        dtype = torch.bfloat16 if getattr(trained, "hf_quantizer", None) is not None else trained.config.dtype
        expected = outputs_of(trained, tokenizer)
        del trained  # before the sum, which takes float32
        model, _ = load_merged(cls, source, config=load_config(source, **trust), dtype="auto")
    except CANNOT_LOAD as error:
        raise UserError(f"ADAPTER={source} cannot be loaded on its base: {loading_reason(error)}") from error
    for parameter in model.parameters():  # not buffers: rotary frequencies stay as from_pretrained makes them
        parameter.data = parameter.data.to(dtype)
    words = compared(expected, outputs_of(model, tokenizer), f"ADAPTER={source}")
    parts = [tokenizer, saved_image_processor(source, to="anyformer", **trust)]
    save([model, *(part for part in parts if part is not None)], destination, source, {})
    count = sum(parameter.numel() for parameter in model.parameters())
    name = type(model).__name__
    made = f"{name} of {count:,} parameters in {str(dtype).removeprefix('torch.')}"
    return f"{made}, the adapter added to {base_of(source)}; {words}; written to {destination}"


def _refuse_lacking(source: str, lacking: set[str]) -> None:
    learned = objective_facts(RunFacts.read(Path(source).expanduser()).recipe)
    lacking = {name for name in lacking if not name.startswith(learned.unused_weights)}
    if lacking:
        raise UserError(f"ADAPTER={source}: neither it nor its base {base_of(source)} has the weight {min(lacking)}")


def outputs_of(model, tokenizer) -> list[torch.Tensor]:
    """Logits in float32 of what a model is asked: TEXTS, or random tokens or images where it has no tokenizer."""
    config, generator, asked = model.config, torch.Generator().manual_seed(0), []
    if model.main_input_name == "pixel_values":
        sides = image_sides(config) if hasattr(config, "image_size") else (224, 224)
        asked = [torch.randn(len(TEXTS), config.num_channels, *sides, generator=generator)]
    elif tokenizer is not None:
        most = most_positions(config)
        cut = {"truncation": most is not None, "max_length": most}
        asked = [tokenizer(text, return_tensors="pt", **cut)["input_ids"] for text in TEXTS]
    asked = [one for one in asked if one.numel()]  # a tokenizer may leave out all that it does not know
    if not asked:
        size = config.get_text_config().vocab_size
        asked = [torch.randint(size, (1, 16), generator=generator) for _ in TEXTS]
    found, has_decoder = [], "decoder_input_ids" in inspect.signature(model.forward).parameters
    for one in asked:
        one = (one[:, None] if type(model).__name__.endswith("MultipleChoice") else one).to(model.device)
        read = {model.main_input_name: one} | ({"decoder_input_ids": one} if has_decoder else {})
        with torch.no_grad():
            output = model.eval()(**read)
        found += [output[name].float().cpu() for names in OUTPUTS for name in names if name in output]
    return found


def compared(expected: list[torch.Tensor], found: list[torch.Tensor], what: str) -> str:
    """How far two models' logits are from each other, in words. Raises UserError, beginning with `what`, for NaN."""
    difference = max((one - other).abs().max().item() for one, other in zip(expected, found, strict=True))
    if not math.isfinite(difference):
        raise UserError(f"{what}: logits of the sum hold NaN or infinity; see whether the adapter's own do")
    largest = max(one.abs().max().item() for one in expected)
    same = [(one.argmax(-1) == other.argmax(-1)).flatten() for one, other in zip(expected, found)]
    return (
        f"largest difference of logits from the adapter on its base as trained {difference:.2g} (largest logit "
        f"{largest:.3g}), argmax equal in {torch.cat(same).float().mean():.1%}"
    )

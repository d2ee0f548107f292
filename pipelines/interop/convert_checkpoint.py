"""`anyformer convert`: writes a saved model as one of the other kind, if both compute the same."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

from anyformer.modeling.families import FAMILIES

from ..adapters import TOKENIZERS, refuse_adapter, tokenizer_place
from ..errors import UserError, loading
from ..generation import locate_model
from ..gguf_files import WORDS, is_gguf, native_folder
from ..lazy import transformers
from ..manifest import read_json
from ..open_tokenizer import open_tokenizer
from ..publishing.model_card import write_model_card
from ..publishing.publish import MODULE_FILES, MODULE_FOLDERS
from ..publishing.run_facts import RunFacts
from ..storage.atomic import destination_folder, new_folder, share_files
from ..storage.local_facts import forget_loading
from ..storage.record import OF, Record, local_names
from ..words import working

CONVERTED = "converted_weights"  # key in run.json: the weights of the source
PROBE_ROWS, PROBE_TOKENS, PROBE_SEED = 2, 48, 0
FAMILIES_MADE = ("encoder", "decoder", "seq2seq")  # from the weights of another family


def convert(
    source: str,
    destination: str | os.PathLike,
    to: str | None = None,
    *,
    trust_remote_code: bool = False,
) -> str:
    """Convert a saved model with its tokenizer and generation config; return what was done, in one line.

    Both models are run in float64 on the same random tokens; nothing is written unless the logits agree within the
    architecture's tolerance: 1e-9 of the largest for all but BLOOM, Marian, GPT-J, DeBERTa and Gemma. The
    folder appears complete or not at all.

    Args:
        source: folder of a run or of a saved model, or a Hub repository; ours or native. Or a GGUF file, which becomes
            a native model.
        destination: a folder that does not exist yet, or is empty.
        to: "native" or "anyformer"; None: the other kind than the source's. "encoder", "decoder" or "seq2seq": a model
            of that family of ours with the source's weights (change_family.py), which needs more pretraining.
        trust_remote_code: whether code that comes with the source may run.

    Raises:
        UserError: the model is not found or has no twin, the destination is in use, or the logits differ.
    """
    from .conversion import from_native, load_config, load_model, to_native

    transformers.utils.logging.disable_progress_bar()
    destination = destination_folder(destination)
    if is_gguf(source) and to in (None, "native"):
        folder = Path(native_folder(source))
        facts = {"converted_from": str(source), CONVERTED: Record.now(folder).weights}
        save([load_model(folder), saved_tokenizer(str(folder), False)], destination, str(folder), facts)
        return f"{(folder / WORDS).read_text(encoding='utf-8')}; written to {destination}"
    source = locate_model(str(source))
    refuse_adapter(source)

    trust, record = {"trust_remote_code": trust_remote_code}, Record.now(source)
    if to in FAMILIES_MADE:
        return change_family(source, destination, to, trust)
    direction = direction_of(source, load_config(source, **trust), to)
    parts = [saved_tokenizer(source, **trust), saved_image_processor(source, to=direction, **trust)]
    with working("loading the weights"), loading(f"MODEL={source}"):
        model = load_model(source, **trust)
    with working("turning them into the twin's"):
        twin = to_native(model) if direction == "native" else from_native(model)
    ours, native = (model, twin) if direction == "native" else (twin, model)
    result = compared(model, twin, ours, native)
    missing = "an image processor" if FAMILIES[ours.config.model_type].of_images else "a tokenizer"
    del model, ours, native
    parts = [part for part in parts if part is not None]
    with working(f"writing {destination}"):
        record.check_still(source, "MODEL")
        save([twin, *parts], destination, source, {"converted_from": source, CONVERTED: record.weights})
    return f"{result}; written to {destination}{'' if parts else f', without {missing}, since the source has none'}"


def is_twin(folder: Path, source: str) -> bool:
    """Whether a folder holds what `convert` has made of a model as it is now."""
    run = read_json(folder / "run.json") if (folder / "run.json").is_file() else {}
    return Record(run.get(CONVERTED)).differs_from(Record.now(source)) is None


def change_family(source: str, destination: Path, family: str, trust: dict) -> str:
    """Write a model of another family with the source's weights; return what was done. Raises as `convert` does."""
    from .change_family import TOLERANCE, in_family, prepared, same_in_both_directions
    from .conversion import from_native, load_model
    from .families import family_name, is_ours
    from .verify import probe

    tokenizer = saved_tokenizer(source, **trust)
    with working("loading the weights"), loading(f"MODEL={source}"):
        model = load_model(source, **trust)
        model = model if is_ours(model.config) else from_native(model)
    prepared(model, tokenizer, family)
    twin = in_family(model, family)
    with working("comparing in float64"):
        ids = probe(model, rows=PROBE_ROWS, tokens=PROBE_TOKENS, seed=PROBE_SEED, padded=False)["input_ids"]
        scale, difference = same_in_both_directions(model, twin, ids)
    kinds = f"{family_name(model.config)} -> {family}"
    if not difference <= TOLERANCE * scale:
        raise UserError(
            f"{kinds}: where all tokens see each other they differ by {difference:.2g}; nothing was written"
        )
    with working(f"writing {destination}"):
        parts = [part for part in (twin, tokenizer) if part is not None]
        save(parts, destination, source, {"converted_from": source, "to_family": family}, same_model=False)
    count = sum(parameter.numel() for parameter in twin.parameters())
    return (
        f"{kinds}: {count:,} parameters, largest difference {difference:.2g} (largest number {scale:.3g}) where all "
        f"tokens see each other; written to {destination}, to be trained on"
    )


def direction_of(source: str, config, to: str | None) -> str:
    """The other kind than the source's: native or anyformer; raises UserError if `to` is not that one."""
    from .families import is_ours

    direction = "native" if is_ours(config) else "anyformer"
    if to not in (None, direction):
        kind = "an anyformer" if to == "anyformer" else "a native"
        raise UserError(f"MODEL={source} is {kind} model already ({config.model_type}); leave out --to {to}")
    return direction


def compared(model, twin, ours, native) -> str:
    """Compare both models' logits in float64; return the result in words, raise UserError if they differ."""
    from .matching import architecture_of
    from .verify import probe, scale_and_difference

    tolerance = architecture_of(native.config).tolerance
    with working("comparing logits in float64"):
        inputs = probe(ours, rows=PROBE_ROWS, tokens=PROBE_TOKENS, seed=PROBE_SEED)
        scale, difference = scale_and_difference(model, twin, inputs)
    kinds = f"{model.config.model_type} -> {twin.config.model_type}"
    if not difference <= tolerance * scale:
        raise UserError(
            f"{kinds}: the twin's logits differ by {difference:.2g} where the largest is {scale:.3g}, more than "
            f"{tolerance:g} of it; nothing was written"
        )
    count = sum(parameter.numel() for parameter in twin.parameters())
    words = f"largest difference of logits {difference:.2g} (largest logit {scale:.3g})"
    return f"{kinds}: {count:,} parameters, {words}"


def save(parts: list, destination: Path, source: str, facts: dict, same_model: bool = True) -> None:
    """Save each part (a model, a tokenizer, a processor) and a card into a temporary folder, then rename it.

    run.json gets `facts` and, if `same_model`, the facts of the run that made the source.
    """
    with new_folder(destination) as aside:
        for part in parts:
            part.save_pretrained(aside)
        if same_model:
            copy_modules(Path(source).expanduser(), aside)
        known = RunFacts.read(Path(source)).run if same_model and Path(source).is_dir() else {}
        known = {name: value for name, value in known.items() if name not in ("status", "published", "world_size")}
        known |= Record.of_run(aside).facts() if OF in known else {}  # the same model, in other files
        facts |= {"local": sorted({*known.get("local", ()), *local_names(facts)})}
        (aside / "run.json").write_text(json.dumps(known | facts, indent=1, ensure_ascii=False), encoding="utf-8")
        write_model_card(aside, name=destination.name)
        share_files(aside.glob("*.safetensors"))


def copy_modules(source: Path, destination: Path) -> None:
    """Copy the modules that sentence-transformers has added to a folder's model, such as its pooling.

    Without them sentence-transformers would take the mean over all tokens.
    """
    for path in [*(source / name for name in MODULE_FILES), *source.glob(MODULE_FOLDERS)]:
        if path.is_dir():
            shutil.copytree(path, destination / path.name)
        elif path.is_file():
            shutil.copy(path, destination)


def saved_tokenizer(source: str, trust_remote_code: bool):
    """The source's tokenizer, or None. It is loaded, not copied: some are chosen by the config's model_type."""
    source = tokenizer_place(source)
    find = partial(transformers.utils.cached_file, source, _raise_exceptions_for_missing_entries=False)
    if not any(map(find, TOKENIZERS)):
        return None
    with loading(f"MODEL={source}: its tokenizer"):
        return forget_loading(open_tokenizer(source, trust_remote_code))


def saved_image_processor(source: str, to: str, trust_remote_code: bool):
    """The source's image processor, or None; for a native model, transformers' own if it computes the same."""
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    utils, source = transformers.utils, tokenizer_place(source)
    if utils.cached_file(source, utils.IMAGE_PROCESSOR_NAME, _raise_exceptions_for_missing_entries=False) is None:
        return None
    with loading(f"MODEL={source}: its image processor"):
        processor = AutoImageProcessor.from_pretrained(source, trust_remote_code=trust_remote_code)
    if to != "native" or getattr(processor, "num_channels", None) != 3:  # transformers' own makes no grey images
        return processor
    fields = {
        name: value for name, value in processor.to_dict().items() if hasattr(transformers.ViTImageProcessorPil, name)
    }
    for name in ("image_mean", "image_std"):
        fields[name] = list(fields[name]) * (3 if len(fields[name]) == 1 else 1)
    return transformers.ViTImageProcessorPil(**fields, do_convert_rgb=True)

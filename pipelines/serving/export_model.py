"""`anyformer export`: a saved model as one file, without Python code of a model, once it has computed the same."""

import inspect
import io
import logging
import os
from collections.abc import Callable
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import torch
import transformers
from torch.utils._pytree import tree_leaves

import anyformer

from ..adapters import is_adapter, load_config
from ..checks.inputs import pixels, text
from ..errors import UserError, first_line, loading
from ..generation import locate_model
from ..interop.convert_checkpoint import saved_image_processor, saved_tokenizer
from ..interop.families import saved_class
from ..storage.atomic import destination_folder, new_folder, share_files
from ..transformers_logging import silent
from ..words import working
from .export_formats import FORMATS, check_format

TRACED, COMPARED = (2, 12), ((1, 7), (3, 17))  # rows and tokens
# Of the largest number: other kernels add in another order.
TOLERANCE = 1e-4


def export(
    source: str, to: str, destination: str | os.PathLike | None = None, *, trust_remote_code: bool = False
) -> str:
    """Export a saved model in fp32 to a folder, with its config, tokenizer and processor; return what was done.

    The graph takes any number of rows and any length, and computes a whole text, without a cache. Its outputs are
    compared with the model's on two shapes that it was not traced with; the folder appears complete or not at all.

    Args:
        source: folder of a run or a model, or a Hub repository; ours or native.
        to: "onnx" or "torch_export".
        destination: a folder that does not exist yet, or is empty; None: beside the source, `-onnx` after its name.
        trust_remote_code: whether code that comes with the source may run.

    Raises:
        UserError: no such model or format, a destination in use, a model that transformers' exporter cannot take, or
            outputs that differ.
    """
    check_format(to, source)
    folder = destination_folder(destination or f"{Path(source).name if is_name(source) else source}-{to}", "--out")
    source = locate_model(source)
    if is_adapter(source):
        raise UserError(
            f"MODEL={source} is an adapter; make a whole model of it first, with anyformer merge {source} OUT"
        )
    anyformer.register()
    trust = {"trust_remote_code": trust_remote_code}
    with working("loading the weights"), silent(), loading(f"MODEL={source}"):
        cls = saved_class(load_config(source, **trust), f"MODEL={source}")
        model = cls.from_pretrained(source, dtype=torch.float32, **trust).eval()
    parts = [saved_tokenizer(source, **trust), saved_image_processor(source, "anyformer", **trust)]
    with new_folder(folder) as aside:
        with working(f"exporting to {to}"):
            write_program(model, to, aside)
        with working("comparing outputs"):
            said = compared(model, runner(aside / FORMATS[to]), to)
        for part in parts:
            if part is not None:
                part.save_pretrained(aside)
        share_files(file for file in aside.iterdir() if file.is_file())
    return f"{said}; written to {folder}"


def is_name(source: str) -> bool:
    """Whether a source is a repository's name, and no folder."""
    return not Path(source).expanduser().is_dir()


def write_program(model, to: str, folder: Path) -> None:
    """Export a model by transformers' exporter, with free rows and lengths, and save the program in a folder.

    Raises:
        UserError: the exporter cannot take the model, or some axis would be fixed.
    """
    from transformers import exporters

    exporter, config = (
        (exporters.OnnxExporter, exporters.OnnxConfig)
        if to == "onnx"
        else (exporters.DynamoExporter, exporters.DynamoConfig)
    )
    inputs = example(model, *TRACED)
    free = {name: free_axes(name, tensor) for name, tensor in inputs.items()}
    flags = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    try:
        with quiet():
            made = exporter().export(model, inputs | flags, config(dynamic=True, dynamic_shapes=free))
            if hasattr(made, "save_pretrained"):
                made.save_pretrained(folder)
                return
            # transformers < 5.23
            model.config.save_pretrained(folder)
            made.save(str(folder / FORMATS[to])) if to == "onnx" else torch.export.save(made, folder / FORMATS[to])
    except Exception as error:  # torch's own, and those of a model's code under tracing
        raise UserError(
            f"{type(model).__name__} cannot be exported to {to} by transformers {transformers.__version__}: "
            f"{first_line(error)}"
        ) from error


def example(model, rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """What a model reads: images, or texts of ordinary tokens with the end of the last row padded.

    Texts are (rows, tokens), of a head that chooses among texts (rows, 2, tokens).
    """
    config, takes = model.config, inspect.signature(model.forward).parameters
    if model.main_input_name == "pixel_values":
        return {"pixel_values": pixels(config, rows)}
    head = type(model).__name__
    ids, mask = text(config, rows, tokens), torch.ones(rows, tokens, dtype=torch.long)
    if rows > 1:
        mask[-1, -3:] = 0
        ids[-1, -3:] = config.pad_token_id if (config.pad_token_id or -1) >= 0 else ids[-1, -3:]
    if config.is_encoder_decoder and head.endswith("ForSequenceClassification"):  # it reads the end of a text
        ids.scatter_(1, mask.sum(1, keepdim=True) - 1, config.eos_token_id)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(config, "type_vocab_size", 0) > 1 and "token_type_ids" in takes:
        inputs["token_type_ids"] = (torch.arange(tokens) > tokens // 2).long() * mask
    if config.is_encoder_decoder and "decoder_input_ids" in takes and not head.endswith("Classification"):
        inputs["decoder_input_ids"] = text(config, rows, tokens - 2, seed=1)
    if head.endswith("ForMultipleChoice"):
        inputs = {name: torch.stack([tensor, tensor.flip(0)], dim=1) for name, tensor in inputs.items()}
    return {name: tensor for name, tensor in inputs.items() if name in takes}


def free_axes(name: str, tensor: torch.Tensor) -> dict:
    """The axes of an input that the exported file takes in any size: rows, and of texts their length."""
    return dict.fromkeys((0,) if name == "pixel_values" else (0, tensor.dim() - 1), torch.export.Dim.DYNAMIC)


def runner(file: Path) -> Callable[[dict[str, torch.Tensor]], list[torch.Tensor]]:
    """What computes the outputs of an exported file, in the order of the model's own."""
    if file.suffix == ".pt2":
        program = torch.export.load(file).module()
        return lambda inputs: tree_leaves(program(**inputs))
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    taken = {each.name for each in session.get_inputs()}

    def outputs(inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in inputs.items() if name in taken}
        return [torch.from_numpy(array) for array in session.run(None, arrays)]

    return outputs


def compared(model, run: Callable, to: str) -> str:
    """What a comparison of the exported file's outputs with the model's has found; raises UserError where they differ.

    Padding is left out: what stands there is undefined.
    """
    sizes, differences = [], []
    flags = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    for rows, tokens in COMPARED:
        inputs = example(model, rows, tokens)
        with torch.no_grad():
            ours = [each for each in tree_leaves(model(**inputs, **flags)) if torch.is_tensor(each)]
        try:
            theirs = run(inputs)
        except Exception as error:  # of torch's and onnxruntime's guards
            raise UserError(
                f"{to}: the file of {type(model).__name__} does not take {rows} rows of {tokens} tokens "
                f"({first_line(error)}); nothing was written"
            ) from error
        if [each.shape for each in ours] != [each.shape for each in theirs]:
            raise UserError(f"{to}: the file gives other outputs than {type(model).__name__}; nothing was written")
        mask = inputs.get("attention_mask")
        for one, other in zip(ours, theirs, strict=True):
            if mask is not None and one.shape[:2] == mask.shape and one.dim() > 2:
                one, other = one[mask.bool()], other[mask.bool()]
            sizes.append(one.abs().max())
            differences.append((one - other).abs().max())
    largest, difference = (torch.stack(each).max().item() for each in (sizes, differences))  # NaN stays NaN
    if not difference <= TOLERANCE * largest:
        raise UserError(
            f"{to}: outputs of {type(model).__name__} differ by {difference:.2g} where the largest is {largest:.3g}, "
            f"more than {TOLERANCE:g} of it; nothing was written"
        )
    shapes = " and ".join(f"{rows} x {tokens}" for rows, tokens in COMPARED)
    count = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"{to}: {type(model).__name__} of {count:,} parameters, largest difference of outputs {difference:.2g} "
        f"(largest output {largest:.3g}) on rows x tokens of {shapes}"
    )


@contextmanager
def quiet():
    """In the block exporters neither print their steps nor warn of versions that they were not tested with."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with silent(), redirect_stdout(io.StringIO()):
            yield
    finally:
        log.setLevel(level)

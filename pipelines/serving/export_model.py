"""`anyformer export`: a saved model as one file without Python code, kept only if its outputs equal the model's."""

import inspect
import io
import logging
import os
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import torch
import transformers
from torch.utils._pytree import tree_leaves

from ..adapters import load_config, refuse_adapter
from ..checks.inputs import pixels, text
from ..errors import UserError, first_line, loading
from ..generation import locate_model
from ..interop.convert_checkpoint import saved_image_processor, saved_tokenizer
from ..interop.families import saved_class
from ..patches import replaced
from ..storage.atomic import destination_folder, has_no_space, new_folder, share_files
from ..transformers_logging import silent
from ..words import working
from .export_formats import FORMATS

TRACED, COMPARED = (2, 12), ((1, 7), (3, 17))  # (rows, tokens)
TOLERANCE = 1e-4  # of the largest output: other kernels sum in another order


def export(source: str, to: str, destination: str | os.PathLike, *, trust_remote_code: bool = False) -> str:
    """Export a saved model in fp32, with its config, tokenizer and image processor; return what was done.

    The graph takes any number of rows and any length, and computes a whole text, without a cache. Its outputs are
    compared with the model's on two shapes that it was not traced with; the folder appears complete or not at all.

    Args:
        source: folder of a run or a model, or a Hub repository; ours or native. to: one of FORMATS.
        destination: a folder that does not exist yet, or is empty.

    Raises:
        UserError: no such model, a destination in use, a model that transformers' exporter cannot take, or outputs that
            differ.
    """
    folder, source = destination_folder(destination, "--out"), locate_model(source)
    refuse_adapter(source)
    trust = {"trust_remote_code": trust_remote_code}
    with working("loading the weights"), silent(), loading(f"MODEL={source}"):
        cls = saved_class(load_config(source, **trust), f"MODEL={source}")
        model = cls.from_pretrained(source, dtype=torch.float32, **trust).eval()
    with new_folder(folder) as aside:
        with working(f"exporting to {to}"):
            write_program(model, to, aside)
        with working("comparing outputs"):
            comparison = compared(model, runner(aside / FORMATS[to]))
        for part in (saved_tokenizer(source, **trust), saved_image_processor(source, "anyformer", **trust)):
            if part is not None:
                part.save_pretrained(aside)
        share_files(file for file in aside.iterdir() if file.is_file())
    return f"{to}: {comparison}; written to {folder}"


def write_program(model, to: str, folder: Path) -> None:
    """Export a model by transformers' exporter, with dynamic rows and lengths, and save the program in a folder.

    Raises UserError where the exporter cannot take the model, or would fix one of these axes.
    """
    from transformers import exporters

    made_by = {"onnx": (exporters.OnnxExporter, exporters.OnnxConfig)}
    exporter, config = made_by.get(to, (exporters.DynamoExporter, exporters.DynamoConfig))
    inputs = example(model, *TRACED)
    # The sides of images are fixed by the model.
    axes = {name: (0,) if name == "pixel_values" else (0, tensor.dim() - 1) for name, tensor in inputs.items()}
    free = {name: dict.fromkeys(each, torch.export.Dim.DYNAMIC) for name, each in axes.items()}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of operators of packages that are not installed
    try:
        with silent(), redirect_stdout(io.StringIO()):
            graph = exporter().export(model, inputs | flags(model), config(dynamic=True, dynamic_shapes=free))
            with replaced(torch.export, save=partial(save_program, torch.export.save)):
                if hasattr(graph, "save_pretrained"):
                    graph.save_pretrained(folder)
                    return
                # transformers < 5.23
                model.config.save_pretrained(folder)
                file = folder / FORMATS[to]
                graph.save(str(file)) if to == "onnx" else torch.export.save(graph, file)
    except Exception as error:  # torch's errors, and those of a model's code under tracing
        if has_no_space(error):
            raise
        raise UserError(
            f"{type(model).__name__} cannot be exported to {to} by transformers {transformers.__version__}: "
            f"{first_line(error)}"
        ) from error


def save_program(save: Callable, program, file: str | Path, **options) -> None:
    """torch.export.save by way of memory: its own writer aborts the process where the disk is full."""
    buffer = io.BytesIO()
    save(program, buffer, **options)
    Path(file).write_bytes(buffer.getbuffer())


def flags(model) -> dict[str, bool]:
    """Arguments that keep a cache out of the outputs."""
    return {"use_cache": False} if hasattr(model.config, "use_cache") else {}


def example(model, rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """Inputs for a model: images, or texts (rows, tokens) of ordinary tokens, with the end of the last row padded."""
    config, head, takes = model.config, type(model).__name__, inspect.signature(model.forward).parameters
    if model.main_input_name == "pixel_values":
        return {"pixel_values": pixels(config, rows)}
    ids, mask = text(config, rows, tokens), torch.ones(rows, tokens, dtype=torch.long)
    if rows > 1:
        mask[-1, -3:] = 0
        ids[-1, -3:] = config.pad_token_id if (config.pad_token_id or -1) >= 0 else ids[-1, -3:]
    if config.is_encoder_decoder and head.endswith("ForSequenceClassification"):  # it reads the end-of-text token
        ids.scatter_(1, mask.sum(1, keepdim=True) - 1, config.eos_token_id)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = (torch.arange(tokens) > tokens // 2).long() * mask
    if config.is_encoder_decoder and not head.endswith("Classification"):
        inputs["decoder_input_ids"] = text(config, rows, tokens - 2, seed=1)
    if head.endswith("ForMultipleChoice"):
        inputs = {name: torch.stack([tensor, tensor.flip(0)], dim=1) for name, tensor in inputs.items()}
    return {name: tensor for name, tensor in inputs.items() if name in takes}


def runner(file: Path) -> Callable[[dict[str, torch.Tensor]], list[torch.Tensor]]:
    """A function that computes the outputs of an exported file, in the order of the model's."""
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


@torch.no_grad()
def compared(model, run: Callable) -> str:
    """Compare the exported file's outputs with the model's; return a sentence, or raise UserError where they differ.

    Padding is left out: the outputs there are undefined.
    """
    sizes, differences, name = [], [], type(model).__name__
    for rows, tokens in COMPARED:
        inputs = example(model, rows, tokens)
        ours = [each for each in tree_leaves(model(**inputs, **flags(model))) if torch.is_tensor(each)]
        try:
            theirs = run(inputs)
        except Exception as error:  # from torch's and onnxruntime's guards
            raise UserError(
                f"the file of {name} does not take {rows} x {tokens} ({first_line(error)}); nothing was written"
            ) from error
        if [each.shape for each in ours] != [each.shape for each in theirs]:
            raise UserError(f"the file gives other outputs than {name}; nothing was written")
        mask = inputs.get("attention_mask", torch.ones(0))
        for one, other in zip(ours, theirs, strict=True):
            if one.dim() > 2 and one.shape[:2] == mask.shape:
                one, other = one[mask.bool()], other[mask.bool()]
            sizes.append(one.abs().max())
            differences.append((one - other).abs().max())
    largest, difference = (torch.stack(each).max().item() for each in (sizes, differences))  # NaN stays NaN
    if not difference <= TOLERANCE * largest:
        raise UserError(
            f"the file's outputs differ from those of {name} by {difference:.2g} where the largest is {largest:.3g}, "
            f"more than {TOLERANCE:g} of it; nothing was written"
        )
    shapes = " and ".join(f"{rows} x {tokens}" for rows, tokens in COMPARED)
    return f"{name}, largest difference of outputs {difference:.2g} (largest output {largest:.3g}) on {shapes} tokens"

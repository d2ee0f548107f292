"""Formats of exported models, checked before torch is loaded."""

from ..errors import UserError, did_you_mean, need_package

FORMATS = {"onnx": "model.onnx", "torch_export": "model.pt2"}  # the file in the exported folder


def check_format(to: str, model: str) -> None:
    """Raise UserError for a format that is not supported, or whose packages are missing."""
    if to == "gguf":
        raise UserError(
            f"--to gguf: llama.cpp makes such a file, of a native model; run anyformer convert {model} NATIVE --to "
            f"native, then python convert_hf_to_gguf.py NATIVE --outfile model.gguf in its folder (see docs/serving.md)"
        )
    if to not in FORMATS:
        raise UserError(f"--to {to}: no such format{did_you_mean(to, FORMATS)}; known: {', '.join(FORMATS)}")
    for package in ("onnx", "onnxscript", "onnxruntime") if to == "onnx" else ():
        need_package("--to onnx", package, "onnx")

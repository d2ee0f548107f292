"""Formats of exported models, checked before torch is loaded."""

from ..errors import UserError, did_you_mean, need_package

FORMATS = {"onnx": "model.onnx", "torch_export": "model.pt2", "gguf": "model.gguf"}  # the file that is written


def check_format(to: str) -> None:
    """Raise UserError for a format that is not supported, or whose packages are missing."""
    if to not in FORMATS:
        raise UserError(f"--to {to}: no such format{did_you_mean(to, FORMATS)}; known: {', '.join(FORMATS)}")
    for package in ("onnx", "onnxscript", "onnxruntime") if to == "onnx" else ():
        need_package("--to onnx", package, "onnx")

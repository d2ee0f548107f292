"""Formats of exported models, checked before torch is loaded."""

from ..errors import UserError, did_you_mean, loading, need_package

FORMATS = {"onnx": "model.onnx", "torch_export": "model.pt2"}  # the file in the exported folder


def way_to_gguf(model: str) -> str:
    """The commands by which llama.cpp makes a file of a model; raises UserError where there is no native twin."""

    from ..adapters import load_config, refuse_adapter
    from ..generation import locate_model
    from ..interop.conversion import native_twin_of
    from ..interop.families import is_ours

    refuse_adapter(model)
    locate_model(model)
    with loading(f"MODEL={model}"):
        config = load_config(model)
    way = "python convert_hf_to_gguf.py {} --outfile model.gguf in its folder (see docs/serving.md)"
    if not is_ours(config):
        return way.format(model)
    try:
        native_twin_of((config.architectures or [""])[0], config)
    except UserError as error:
        raise UserError(f"--to gguf: llama.cpp makes such a file of a native model, and {error}") from None
    return f"anyformer convert {model} NATIVE --to native, then {way.format('NATIVE')}"


def check_format(to: str, model: str) -> None:
    """Raise UserError for a format that is not supported, or whose packages are missing."""
    if to == "gguf":
        raise UserError(f"--to gguf: llama.cpp makes such a file of a native model; run {way_to_gguf(model)}")
    if to not in FORMATS:
        raise UserError(f"--to {to}: no such format{did_you_mean(to, FORMATS)}; known: {', '.join(FORMATS)}")
    for package in ("onnx", "onnxscript", "onnxruntime") if to == "onnx" else ():
        need_package("--to onnx", package, "onnx")

"""Formats of exported models, checked before torch is loaded."""

from pathlib import Path

from ..errors import UserError, did_you_mean, loading, need_package

FORMATS = {"onnx": "model.onnx", "torch_export": "model.pt2"}  # the file in the exported folder


def is_native(model: str) -> bool:
    """Whether a model's folder holds one of transformers' own classes, which llama.cpp reads.

    Raises UserError for one that neither is native nor has a native twin, by the rules of `anyformer convert`.
    """
    from ..adapters import load_config, refuse_adapter

    refuse_adapter(model)
    if not (Path(model).expanduser() / "config.json").is_file():
        return False
    import anyformer

    from ..interop.conversion import native_twin_of
    from ..interop.families import is_ours

    anyformer.register()
    with loading(f"MODEL={model}"):
        config = load_config(Path(model).expanduser())
    if not is_ours(config):
        return True
    try:
        native_twin_of((config.architectures or [""])[0], config)
    except UserError as error:
        raise UserError(f"--to gguf: llama.cpp makes such a file of a native model alone, and {error}") from None
    return False


def check_format(to: str, model: str) -> None:
    """Raise UserError for a format that is not supported, or whose packages are missing."""
    if to == "gguf":
        way = "python convert_hf_to_gguf.py {} --outfile model.gguf in its folder (see docs/serving.md)"
        if is_native(model):
            raise UserError(f"--to gguf: llama.cpp makes such a file; run {way.format(model)}")
        raise UserError(
            f"--to gguf: llama.cpp makes such a file, of a native model; run anyformer convert {model} NATIVE --to "
            f"native, then {way.format('NATIVE')}"
        )
    if to not in FORMATS:
        raise UserError(f"--to {to}: no such format{did_you_mean(to, FORMATS)}; known: {', '.join(FORMATS)}")
    for package in ("onnx", "onnxscript", "onnxruntime") if to == "onnx" else ():
        need_package("--to onnx", package, "onnx")

"""Types of the numbers in a GGUF file, checked before torch is loaded."""

import shutil
from pathlib import Path

from ...errors import UserError, did_you_mean, need_package

# Largest difference of outputs, of the largest output: the rounding of weights, and of llama.cpp's products with them.
BOUNDS = {"f32": 0.0, "f16": 1e-2, "bf16": 5e-2, "q8_0": 0.1}
SMALLER = ("q2_k", "q3_k_s", "q3_k_m", "q3_k_l", "q4_0", "q4_1", "q4_k_s", "q4_k_m", "q5_0", "q5_1", "q5_k_s")
SMALLER += ("q5_k_m", "q6_k", "iq4_nl", "iq4_xs")
QUANTIZE = "llama-quantize"


def check_gguf(kind: str, out: str) -> Path:
    """The file to write. Raises UserError for an unknown type, a missing package or program, and a file in use."""
    file = Path(out).expanduser()
    if kind not in (*BOUNDS, *SMALLER):
        raise UserError(f"--type={kind}: no such type{did_you_mean(kind, [*BOUNDS, *SMALLER])}")
    if kind in SMALLER and shutil.which(QUANTIZE) is None:
        made_here = ", ".join(BOUNDS)
        raise UserError(f"--type={kind} needs llama.cpp's {QUANTIZE} on the PATH; install it, or take {made_here}")
    need_package("--to gguf", "gguf", "gguf")
    if file.suffix != ".gguf" or file.exists():
        raise UserError(f"--out={out} must be a new file whose name ends in .gguf; name another one")
    return file

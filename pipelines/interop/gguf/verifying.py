"""A GGUF file compared with the model that it is of: by llama.cpp, else by transformers' own reader."""

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...chat_templates import ASK, PROBES, SAY, ChatTemplate
from ...errors import UserError
from .architectures import GgufArchitecture

PROMPT = 'def read(self, name):\n    """Return the value of the sea and the sky, as they were.'
PROMPT_TOKENS, NEW_TOKENS, MOST_TOKENS = 48, 50, 256


@dataclass(frozen=True)
class Exported:
    """A native model on its way into a file. texts: {hard text: its ids}. stops: the tokens that end an answer."""

    model: Any
    tokenizer: Any
    architecture: GgufArchitecture
    texts: dict[str, list[int]]
    stops: list[int]


def has_llama() -> bool:
    return importlib.util.find_spec("llama_cpp") is not None


def verifier() -> str:
    """What compares a file here, with its version."""
    if has_llama():
        return f"llama.cpp (llama-cpp-python {importlib.metadata.version('llama-cpp-python')})"
    return f"transformers {importlib.metadata.version('transformers')} alone; install anyformer[gguf] for llama.cpp"


@cache
def _silence():
    """A listener to llama.cpp that drops what it says; it must not be freed."""
    import llama_cpp

    return llama_cpp.llama_log_callback(lambda level, text, data: None)


def open_llama(file: Path, **options):
    """A llama_cpp.Llama on the CPU; raises UserError where llama.cpp cannot load the file."""
    import llama_cpp

    llama_cpp.llama_log_set(_silence(), None)
    try:
        return llama_cpp.Llama(str(file), verbose=False, n_gpu_layers=0, **options)
    except ValueError as error:
        raise UserError(f"--to gguf: llama.cpp cannot load the file; nothing was written ({error})") from error


def unlike(file: Path, texts: dict[str, list[int]], most: int) -> int:
    """How many texts get other ids from llama.cpp by the vocabulary of a file, counted up to `most` + 1."""
    llama = open_llama(file, vocab_only=True)
    wrong = (text for text, ids in texts.items() if llama.tokenize(text.encode(), False, True) != ids)
    return sum(1 for _ in islice(wrong, most + 1))


def other_stops(file: Path, it: Exported) -> list[str]:
    """The tokens at which llama.cpp stops beside the model's own.

    Raises UserError where it lacks one of these, or puts other tokens around a text than the tokenizer.
    """
    import llama_cpp

    llama, names = open_llama(file, vocab_only=True), it.tokenizer.convert_ids_to_tokens
    if it.tokenizer(PROMPT)["input_ids"] != llama.tokenize(PROMPT.encode(), True, True):
        framed = it.tokenizer.decode(it.tokenizer("TEXT")["input_ids"])
        raise UserError(f"--to gguf: llama.cpp cannot put tokens around a text as in {framed}; nothing was written")
    vocabulary = llama_cpp.llama_model_get_vocab(llama.model)
    there = {token for token in range(llama.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocabulary, token)}
    if missing := set(it.stops) - there:
        raise UserError(f"--to gguf: llama.cpp does not stop at {names(sorted(missing))}; nothing was written")
    return names(sorted(there - set(it.stops)))


class TemplateInFile:
    """A file's chat template as llama.cpp's Python package renders it, in the place of a tokenizer."""

    def __init__(self, llama):
        import llama_cpp
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        words = llama_cpp.llama_model_get_vocab(llama.model)
        eos, bos = (llama_cpp.llama_vocab_get_text(words, it).decode() for it in (llama.token_eos(), llama.token_bos()))
        self.formatted = Jinja2ChatFormatter(llama.metadata["tokenizer.chat_template"], eos, bos)

    def apply_chat_template(self, messages: list[dict], tools: list[dict] | None = None, **others: Any) -> str:
        return self.formatted(messages=messages, tools=tools).prompt


def unlike_chats(file: Path, it: Exported) -> list[str]:
    """What of conversations becomes other tokens by the chat template in a file than by the tokenizer's: tools, ..."""
    llama, unlike = open_llama(file, vocab_only=True), []
    ours, theirs = (ChatTemplate(each) for each in (it.tokenizer, TemplateInFile(llama)))
    asked = {"questions": ([ASK], {}), "several turns": ([ASK, SAY, ASK], {})}
    for what, (messages, variables) in (asked | {name: probe[:2] for name, probe in PROBES.items()}).items():
        how = variables | {"tokenize": False, "add_generation_prompt": True}
        try:
            text = ours.write(messages, **how)
        except Exception:  # its template is not for such conversations
            continue
        ids = it.tokenizer(text, add_special_tokens=False)["input_ids"]
        try:
            is_same = llama.tokenize(theirs.write(messages, **how).encode(), False, True) == ids
        except Exception:  # a template is a program, and can fail in any way
            is_same = False
        unlike += [] if is_same else [what]
    return unlike


def compared_by_llama(file: Path, it: Exported, bound: float) -> tuple[str, dict]:
    """Compare what llama.cpp computes of a file with a native model; return it in words and as facts.

    Outputs are compared on a prompt, logits or an encoder's hidden states, and of a decoder 50 greedy tokens. Raises
    UserError where they differ by more than `bound` of the largest output.
    """
    positions = getattr(it.model.config, "max_position_embeddings", MOST_TOKENS)
    options = {"n_ctx": min(positions, MOST_TOKENS), "type_k": 0, "type_v": 0}  # the cache in fp32
    if it.architecture.embeds:
        llama = open_llama(file, embedding=True, pooling_type=0, **options)
        return compared_outputs(it, it.tokenizer("The sea.")["input_ids"], llama.embed("The sea."), bound)
    llama, ids = open_llama(file, logits_all=True, **options), prompt_of(it)
    llama.eval(ids)
    words, facts = compared_outputs(it, ids, llama.scores[: len(ids)], bound)
    number = min(NEW_TOKENS, positions - len(ids))
    same = same_greedy_tokens(it.model, llama, ids, number, 2 * max(bound * facts["largest"], facts["difference"]))
    words += f", {same} of {number} greedy tokens equal" + ", then two within the rounding" * (same < number)
    return words, facts | {"greedy_tokens_equal": same, "greedy_tokens": number}


def prompt_of(it: Exported) -> list[int]:
    most = getattr(it.model.config, "max_position_embeddings", MOST_TOKENS) // 2
    return it.tokenizer(PROMPT)["input_ids"][: min(PROMPT_TOKENS, most)]


@torch.no_grad()
def compared_outputs(it: Exported, ids: list[int], theirs, bound: float) -> tuple[str, dict]:
    """The difference of outputs (tokens, channels) for `ids`, in words and as facts.

    Raises UserError above `bound` of the largest output. In a mixture of rounded numbers half of the tokens may differ
    by more, since a router that is close to a tie takes another expert.
    """
    out = getattr(it.model, "bert", it.model)(torch.tensor([ids]))
    ours = (out.logits if "logits" in out else out.last_hidden_state)[0].numpy()
    apart, largest = np.abs(ours - np.array(theirs)).max(axis=1), float(np.abs(ours).max())
    routed = "num_local_experts" in it.architecture.holds and bound > it.architecture.tolerance
    said = f"largest difference of outputs {apart.max():.2g} (largest output {largest:.3g})"
    if not (np.median(apart) if routed else apart.max()) <= bound * largest:
        raise UserError(f"the file computes something else: {said}, more than {bound:g} of it; nothing was written")
    return said, {"difference": float(apart.max()), "largest": largest, "bound": bound}


@torch.no_grad()
def same_greedy_tokens(model, llama, ids: list[int], number: int, tied: float) -> int:
    """How many greedy tokens after `ids` are equal, until two differ whose logits are within `tied`.

    Raises UserError where they differ by more.
    """
    cache, read = None, torch.tensor([ids])
    for done in range(number):
        out = model(read, past_key_values=cache, use_cache=True)
        logits, cache = out.logits[0, -1], out.past_key_values
        ours, theirs = int(logits.argmax()), int(llama.scores[llama.n_tokens - 1].argmax())
        if logits[ours] - logits[theirs] > tied:
            raise UserError(f"after {done} greedy tokens llama.cpp writes another one; nothing was written")
        if ours != theirs:
            return done
        llama.eval([ours])
        read = torch.tensor([[ours]])
    return number


@torch.no_grad()
def compared_by_reader(file: Path, it: Exported, bound: float) -> tuple[str, dict]:
    """As compared_by_llama, by transformers' reader: ids of the texts and outputs. Raises UserError as that does."""
    from ...gguf_files import load_gguf

    read, reader, _ = load_gguf(file, type(it.model))
    if reader(list(it.texts), add_special_tokens=False)["input_ids"] != [*it.texts.values()]:
        raise UserError("--to gguf: hard texts are read as other tokens; install anyformer[gguf]; nothing was written")
    return compared_outputs(it, prompt_of(it), read.eval()(torch.tensor([prompt_of(it)])).logits[0].numpy(), bound)

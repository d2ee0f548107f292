"""Text to rows of tokens: ours against run_clm.py of transformers' examples, on the same text and tokenizer.

run_clm: `datasets.map` tokenises, a second `map` (group_texts) concatenates and cuts; both write Arrow files. Ours:
`tokenize_corpus` writes the token store and PackedDataset lays the rows out. Bare: the tokenizer alone. Ours must hold
the very tokens that run_clm's rows hold.

`--beside datatrove processes` adds datatrove's DocumentTokenizer, which writes the same tokens and lays out no rows,
and ours by two processes (data.num_proc=2). Processes gain time and no work, so `--clock wall` measures them, on a
machine that is quiet; the CPU clock, which counts all processes of an arm, shows what they cost.
"""

import copy
import multiprocessing
import resource
import shutil
import tempfile
import time
import zlib
from itertools import chain
from pathlib import Path

import datasets
import method
import numpy as np
from anyformer.pipelines.data.documents import Corpus, Document, SkipCounts
from anyformer.pipelines.data.packing import PackedDataset, tokenize_corpus
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

GOAL, TWO_PROCESSES = method.Goal(1.3), method.Goal(1.8)


class Texts(Corpus):
    """Documents from memory."""

    split, name = "train", "texts"

    def __init__(self, texts):
        self.texts, self.skipped = texts, SkipCounts()

    def documents(self):
        return (Document(text, str(number)) for number, text in enumerate(self.texts))

    def identity(self):
        return [zlib.crc32(text.encode()) for text in self.texts]


def stdlib_texts(size: int) -> list[str]:
    """Source files of Python's standard library, in name order, until `size` bytes."""
    texts, total = [], 0
    for path in sorted(Path(tempfile.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        if text.strip():
            texts.append(text)
            total += len(text)
        if total >= size:
            break
    return texts


def byte_bpe(texts: list[str], vocab: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def run_clm(texts, tokenizer, length, folder: Path):
    """The two maps of examples/pytorch/language-modeling/run_clm.py, with its group_texts."""

    def tokenize(examples):
        return tokenizer(examples["text"])

    def group_texts(examples):
        concatenated = {k: list(chain(*examples[k])) for k in examples}
        total = len(concatenated["input_ids"]) // length * length
        result = {k: [t[i : i + length] for i in range(0, total, length)] for k, t in concatenated.items()}
        result["labels"] = result["input_ids"].copy()
        return result

    raw = datasets.Dataset.from_dict({"text": texts})
    options = {"batched": True, "load_from_cache_file": False}
    tokenized = raw.map(tokenize, remove_columns=["text"], cache_file_name=str(folder / "tokens.arrow"), **options)
    return tokenized.map(group_texts, cache_file_name=str(folder / "rows.arrow"), **options)


def ours(texts, tokenizer, length, folder: Path, num_proc=1):
    store = tokenize_corpus(
        Texts(texts), tokenizer, folder, add_bos=False, add_eos=False, progress=False, num_proc=num_proc
    )
    return PackedDataset(store, length)


def by_two(texts, tokenizer, length, folder: Path):
    return ours(texts, tokenizer, length, folder, num_proc=2)


def by_datatrove(texts, tokenizer, length, folder: Path):
    from datatrove.data import Document as TheirDocument
    from datatrove.pipeline.tokens import DocumentTokenizer

    tokenizer.save_pretrained(folder / "tokenizer")
    step = DocumentTokenizer(
        str(folder / "tokens"), str(folder / "tokenizer" / "tokenizer.json"), shuffle_documents=False
    )
    documents = (TheirDocument(text=text, id=str(number)) for number, text in enumerate(texts))
    for _ in step.run(documents) or ():
        pass
    (file,) = (folder / "tokens").glob("*.ds")
    return np.fromfile(file, dtype=np.uint16)


# Further arms: name, function, (arm, peer, goal) of its row beside the one against run_clm.
BESIDE = {
    "datatrove": ("datatrove", by_datatrove, ("ours", "datatrove", None)),
    "processes": ("ours, 2 processes", by_two, ("ours, 2 processes", "ours", TWO_PROCESSES)),
}


def wait_for_processes() -> None:
    """Until those that encode have ended: their seconds count, and a fork must not find them."""
    for child in multiprocessing.active_children():
        child.join()


def seconds_of(clock: str) -> float:
    """The wall clock, or the CPU seconds of this process and those that it has ended."""
    if clock == "wall":
        return time.perf_counter()
    usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main(argv=None):
    p = method.parser(__doc__)
    p.add_argument("--bytes", type=int, default=2_000_000, help="of text")
    p.add_argument("--vocab", type=int, default=16384)
    p.add_argument("--length", type=int, default=256, help="tokens per row")
    p.add_argument("--beside", nargs="*", choices=BESIDE, default=[], help="further arms")
    p.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    args = method.start(p, argv)
    if args.quick:
        args.rounds, args.bytes, args.vocab = min(args.rounds, method.QUICK_ROUNDS), min(args.bytes, 500_000), 4096
    datasets.disable_progress_bars()
    texts = stdlib_texts(args.bytes)
    tokenizer = byte_bpe(texts, args.vocab)

    def first_time(function):
        """Seconds of one run in a process of its own, with a tokenizer whose cache of words is empty."""

        def arm():
            folder = Path(tempfile.mkdtemp())

            def timed() -> float:
                begun = seconds_of(args.clock)
                function(texts, tokenizer, args.length, folder)
                wait_for_processes()
                return seconds_of(args.clock) - begun

            try:
                return method.seconds_in_fork(timed)
            finally:
                shutil.rmtree(folder)

        return arm

    def bare(texts, tokenizer, length, folder):
        return tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)

    with tempfile.TemporaryDirectory() as folder:
        used = copy.deepcopy(tokenizer)
        theirs, own = (function(texts, used, args.length, Path(folder)) for function in (run_clm, ours))
        held = np.concatenate(theirs["input_ids"][:])
        # group_texts drops the rest of every map batch of 1,000 texts; there is one here.
        if not np.array_equal(own.store.tokens[: len(held)], held) or own.store.num_tokens - len(held) >= args.length:
            raise SystemExit("not comparable: the two pipelines hold different tokens")
        tokens = own.store.num_tokens
        for name in args.beside:
            found = BESIDE[name][1](texts, used, args.length, Path(folder) / name)
            found = found.store.tokens if name == "processes" else found
            if not np.array_equal(found, own.store.tokens):
                raise SystemExit(f"not comparable: {name} holds different tokens")
            wait_for_processes()
    arms = {"run_clm": first_time(run_clm), "ours": first_time(ours), "bare tokenizer": first_time(bare)}
    arms |= {arm: first_time(function) for arm, function, _ in map(BESIDE.get, args.beside)}
    timings = method.compare(arms, "run_clm", args.rounds, warm=1)
    what = f"{sum(map(len, texts)) / 1e6:.1f} MB, {tokens:,} tokens"
    print(method.HEADER)
    print(method.guard_row(what, "run_clm", timings))
    void = method.is_void(timings)
    print(method.row(what, "ours", "run_clm", timings["ours"], GOAL, void))
    print(method.row(what, "bare tokenizer", "run_clm", timings["bare tokenizer"], None, void))
    against_bare = method.relative_to(timings, "bare tokenizer", "ours")
    print(method.row(what, "ours", "bare tokenizer", against_bare, method.Goal(0.9), void), flush=True)
    for name, _, (arm, peer, goal) in map(BESIDE.get, args.beside):
        print(method.row(what, name, "run_clm", timings[name], None, void))
        print(method.row(what, arm, peer, method.relative_to(timings, peer, arm), goal, void), flush=True)


if __name__ == "__main__":
    main()

"""Text to rows of tokens: ours against run_clm.py of transformers' examples, on the same text and tokenizer.

run_clm: `datasets.map` tokenises, a second `map` (group_texts) concatenates and cuts; both write Arrow files. Ours:
`tokenize_corpus` writes the token store and PackedDataset lays the rows out. Bare: the tokenizer alone. Ours must hold
the very tokens that run_clm's rows hold.
"""

import copy
import shutil
import tempfile
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

GOAL = method.Goal(1.3)


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


def ours(texts, tokenizer, length, folder: Path):
    store = tokenize_corpus(Texts(texts), tokenizer, folder, add_bos=False, add_eos=False, progress=False)
    return PackedDataset(store, length)


def main(argv=None):
    p = method.parser(__doc__)
    p.add_argument("--bytes", type=int, default=2_000_000, help="of text")
    p.add_argument("--vocab", type=int, default=16384)
    p.add_argument("--length", type=int, default=256, help="tokens per row")
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
            try:
                return method.seconds_in_fork(lambda: function(texts, tokenizer, args.length, folder))
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
    arms = {"run_clm": first_time(run_clm), "ours": first_time(ours), "bare tokenizer": first_time(bare)}
    timings = method.compare(arms, "run_clm", args.rounds, warm=1)
    what = f"{sum(map(len, texts)) / 1e6:.1f} MB, {tokens:,} tokens"
    print(method.HEADER)
    print(method.guard_row(what, "run_clm", timings))
    void = method.is_void(timings)
    print(method.row(what, "ours", "run_clm", timings["ours"], GOAL, void))
    print(method.row(what, "bare tokenizer", "run_clm", timings["bare tokenizer"], None, void))
    against_bare = method.relative_to(timings, "bare tokenizer", "ours")
    print(method.row(what, "ours", "bare tokenizer", against_bare, method.Goal(0.9), void), flush=True)


if __name__ == "__main__":
    main()

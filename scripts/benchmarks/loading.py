"""What brings rows to a model: texts to tokens, and batches of images."""

import multiprocessing
import resource
import shutil
import tempfile
import time
import zlib
from pathlib import Path

import datasets
import numpy as np
import torch
from anyformer.pipelines.data.documents import Corpus, Document, SkipCounts
from anyformer.pipelines.data.image_store import store_images
from anyformer.pipelines.data.packing import PackedDataset, tokenize_corpus
from anyformer.pipelines.images.augmentation import Augmentation, ImageCollator
from anyformer.pipelines.objectives.image_classification import ImageRows
from method import Timed
from models import Step
from plain_transformers import grouped
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from anyformer import AnyformerViTConfig, AnyformerViTForImageClassification


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


def run_clm(texts, tokenizer, length: int, folder: Path) -> np.ndarray:
    """The two maps of examples/pytorch/language-modeling/run_clm.py."""
    return grouped(texts, tokenizer, length, str(folder))["input_ids"]


def ours(texts, tokenizer, length: int, folder: Path, num_proc: int = 1) -> np.ndarray:
    """The token store and its rows."""
    options = {"add_bos": False, "add_eos": False, "progress": False, "num_proc": num_proc}
    rows = PackedDataset(tokenize_corpus(Texts(texts), tokenizer, folder, **options), length)
    return rows.store.tokens


def seconds_of(clock: str) -> float:
    """The wall clock, or the CPU seconds of this process and those that it has ended."""
    if clock == "wall":
        return time.perf_counter()
    usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def texts_to_rows(setting, size: int, vocab: int, length: int, clock: str) -> dict:
    """`size` bytes of text to rows of tokens, equal ones: run_clm.py of transformers' examples, ours.

    Two processes gain time and no work, so clock="wall" measures them, on a machine that is quiet; the CPU clock counts
    all processes. run_clm drops what fills no row of each 1,000 texts: equal for fewer texts.
    """
    datasets.disable_progress_bars()
    texts = stdlib_texts(size)
    tokenizer = byte_bpe(texts, vocab)

    def timed(function, **options):
        def variant() -> Timed:
            folder = Path(tempfile.mkdtemp(dir=setting.folder))
            begun = seconds_of(clock)
            tokens = function(texts, tokenizer, length, folder, **options)
            for child in multiprocessing.active_children():  # their seconds count
                child.join()
            seconds = seconds_of(clock) - begun
            tokens = np.concatenate(tokens[:]) if function is run_clm else tokens
            whole = np.asarray(tokens[: len(tokens) // length * length], dtype=np.int64)
            shutil.rmtree(folder)
            return Timed(seconds, (len(whole), zlib.crc32(whole.tobytes())))

        return variant

    found = {"run_clm": timed(run_clm), "ours": timed(ours)}
    return found | ({"ours, 2 processes": timed(ours, num_proc=2)} if clock == "wall" else {})


def images(setting, count: int, batch: int, padding: int, image: int, patch: int, layers: int, hidden: int) -> dict:
    """Augmented batches beside the training steps of a vision transformer that consume them.

    Images are decoded once, into a store of bytes on disk. The loader reads a batch from it in random order, shifts,
    mirrors and mixes it (mixup) and makes it fp32.
    """
    draw = np.random.default_rng(0)

    def drawn():
        yield draw.integers(256, size=(count, 3, image, image), dtype=np.uint8), draw.integers(10, size=count).tolist()

    rows = ImageRows(store_images(setting.folder, f"of{image}", "benchmark", drawn), augment=True)
    augmentation = Augmentation(padding, horizontal_flip=0.5, mixup_alpha=0.1)
    collator = ImageCollator(augmentation, store=rows.store, num_classes=10, mean=[120.0] * 3, std=[70.0] * 3, seed=0)

    def loader() -> dict:
        return collator(rows.__getitems__(draw.permutation(count)[:batch].tolist()))

    config = AnyformerViTConfig(
        image_size=image,
        patch_size=patch,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_attention_heads=6,
        num_labels=10,
    )
    torch.manual_seed(0)
    inputs = {key: x for key, x in loader().items() if key in ("pixel_values", "labels")}
    step = Step(AnyformerViTForImageClassification(config), inputs, "fp32")
    return {"step": step, "loader": lambda: loader() and None}

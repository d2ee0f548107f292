"""Sentences of texts as rows of a JSONL file.

In scripts/results: ten million words for recipes/sentences_decoder.yaml; questions and sentences for teacher.files:

    python sentences.py wikitext2/train.txt.gz imdb/unsupervised_15k.parquet imdb/train.parquet \
        --before " " --words 10_000_000 --out data/sentences.jsonl
    python sentences.py squad_v1_dev_split/train.jsonl.gz:question --tokens --out questions.jsonl
    python sentences.py imdb/unsupervised_15k.parquet --tokens --lowercase --columns sentence --shuffle \
        --rows 60_000 --out film_sentences.jsonl
    python sentences.py ag_news/train.jsonl.gz --tokens --split --columns tokens --shuffle --out news.jsonl
    python sentences.py multi30k_en_de/train.jsonl.gz:en ag_news/train.jsonl.gz wikitext2/train.txt.gz \
        --columns sentence1 sentence2 --shuffle --rows 40_000 --out pairs.jsonl

A file of rows has its column after a colon, `text` where none is named. Articles of WikiText-2 get their spaces as
people write them, sentences with <unk> are left out. Sentences end at . ! or ? before a capital; those of 3 to 60 words
are kept.
"""

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow.parquet as parquet
from anyformer.pipelines.storage.atomic import replaced_file

SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]?[A-Z])")
SPACES = (  # removed between WikiText's tokens
    (r" @(.)@ ", r"\1"),
    (r" ([.,;:!?)%])", r"\1"),
    (r"([($]) ", r"\1"),
    (r" (n't|'s|'re|'ve|'ll|'d|'m)\b", r"\1"),
    (r'" ([^"]*) "', r'"\1"'),
)
TOKENS = ((r"([.,;:!?()\"]|--)", r" \1 "), (r"(n't|'s|'re|'ve|'ll|'d|'m)\b", r" \1"), (r"\s+", " "))


def rewritten(text: str, rules) -> str:
    for pattern, written in rules:
        text = re.sub(pattern, written, text)
    return text.strip()


def paragraphs_of(file: str) -> Iterator[str]:
    """Yield the texts of a column, split at <br>, or the paragraphs of a text file without its headings."""
    name, _, column = file.partition(":")
    path, column = Path(name), column or "text"
    if path.suffix == ".parquet":
        rows = iter(parquet.read_table(path, columns=[column])[column].to_pylist())
    else:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            lines = list(map(str.strip, lines))
        if ".jsonl" not in path.name:
            yield from (rewritten(line, SPACES) for line in lines if line and not line.startswith("="))
            return
        rows = (json.loads(line)[column] for line in lines)
    for text in rows:
        yield from re.split(r"(?:<br ?/?>)+", text)


def sentences_of(files: list[str]) -> Iterator[str]:
    for paragraph in (paragraph for file in files for paragraph in paragraphs_of(file)):
        for sentence in map(str.strip, SENTENCE_END.split(paragraph)):
            if 3 <= len(sentence.split()) <= 60 and "<unk>" not in sentence:
                yield sentence


def up_to(sentences: Iterator[str], words: int) -> Iterator[str]:
    for sentence in sentences:
        words -= len(sentence.split())
        if words < 0:
            return
        yield sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="FILE or FILE:COLUMN, read in this order")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--columns", nargs="+", default=["text"], help="of a row, each with a sentence (default text)")
    parser.add_argument("--words", type=int, default=10**12, help="stop at so many words")
    parser.add_argument("--rows", type=int, help="stop at so many rows")
    parser.add_argument("--shuffle", action="store_true", help="sentences in another order, by a seed")
    parser.add_argument("--tokens", action="store_true", help="signs stand apart from words, as in TREC and SST-2")
    parser.add_argument("--lowercase", action="store_true")
    parser.add_argument("--split", action="store_true", help="a list of words in place of each sentence")
    parser.add_argument("--before", default="", help="what each sentence begins with, such as a space")
    options = parser.parse_args()
    sentences = up_to(sentences_of(options.files), options.words)
    if options.shuffle:
        sentences = list(sentences)
        random.Random(0).shuffle(sentences)
    words = rows = 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(options.out) as unfinished, unfinished.open("w", encoding="utf-8") as out:
        for row in islice(zip(*[iter(sentences)] * len(options.columns), strict=False), options.rows):
            words, rows = words + sum(len(sentence.split()) for sentence in row), rows + 1
            row = [rewritten(sentence, TOKENS if options.tokens else ()) for sentence in row]
            row = [options.before + (sentence.lower() if options.lowercase else sentence) for sentence in row]
            row = [sentence.split() for sentence in row] if options.split else row
            out.write(json.dumps(dict(zip(options.columns, row)), ensure_ascii=False) + "\n")
    print(f"{options.out}: {rows:,} rows, {words:,} words")


if __name__ == "__main__":
    main()

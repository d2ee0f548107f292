"""Ten million words of English, a sentence in each row of a JSONL file, for recipes/sentences_decoder.yaml.

    python scripts/ten_million_words.py wikitext2/train.txt.gz imdb/unsupervised_15k.parquet imdb/train.parquet \
        --out data/sentences.jsonl

Articles of WikiText-2 get their spaces as people write them, sentences with <unk> are left out. Reviews are columns
`text` of parquet files. Sentences end at . ! or ? before a capital; those of 3 to 60 words are kept, each after a
space, as minimal_pairs.before has it, so that a first word is the token it is elsewhere.
"""

import argparse
import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet

SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]?[A-Z])")
SPACES = (  # of WikiText's tokens
    (r" @(.)@ ", r"\1"),
    (r" ([.,;:!?)%])", r"\1"),
    (r"([($]) ", r"\1"),
    (r" (n't|'s|'re|'ve|'ll|'d|'m)\b", r"\1"),
    (r'" ([^"]*) "', r'"\1"'),
)


def paragraphs_of(path: Path) -> Iterator[str]:
    """Reviews of a parquet file by their line breaks, or articles of a text file without their headings."""
    if path.suffix == ".parquet":
        for text in parquet.read_table(path, columns=["text"])["text"].to_pylist():
            yield from re.split(r"(?:<br ?/?>)+", text)
        return
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in map(str.strip, lines):
            if line and not line.startswith("="):
                for pattern, written in SPACES:
                    line = re.sub(pattern, written, line)
                yield line


def sentences_of(path: Path) -> Iterator[str]:
    for paragraph in paragraphs_of(path):
        for sentence in map(str.strip, SENTENCE_END.split(paragraph)):
            if 3 <= len(sentence.split()) <= 60 and "<unk>" not in sentence:
                yield sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="read in this order")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--words", type=int, default=10_000_000, help="stop at so many words (default 10,000,000)")
    options = parser.parse_args()
    words = rows = 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = options.out.with_name(options.out.name + ".part")
    with unfinished.open("w", encoding="utf-8") as out:
        for sentence in (sentence for path in options.files for sentence in sentences_of(path)):
            words += len(sentence.split())
            if words > options.words:
                words -= len(sentence.split())
                break
            out.write(json.dumps({"text": f" {sentence}"}, ensure_ascii=False) + "\n")
            rows += 1
    os.replace(unfinished, options.out)
    print(f"{options.out}: {rows:,} sentences, {words:,} words")


if __name__ == "__main__":
    main()

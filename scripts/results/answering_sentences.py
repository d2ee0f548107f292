"""Pairs of a question and a sentence, and whether the sentence answers it, of a file of SQuAD (QNLI, Wang et al. 2019).

    python scripts/results/answering_sentences.py squad_v1_dev_split/train.jsonl.gz --out data/answering/train.jsonl

Each question has one row: by a coin's toss the sentence of its paragraph that holds the answer, or of the others the
one with most of the question's words. Questions on paragraphs of one sentence are left out. Says, too, how often the
words tell: of all thresholds of the share of the question's words that the sentence has, the best.
"""

import argparse
import gzip
import json
import random
import re
from itertools import pairwise
from pathlib import Path

from anyformer.pipelines.storage.atomic import write_atomically
from sentences import SENTENCE_END

NAMES = ("not_answering", "answering")


def pair_of(row: dict, draw: random.Random) -> dict | None:
    context, start = row["context"], row["answers"]["answer_start"][0]
    ends = [match.end() for match in SENTENCE_END.finditer(context)]
    borders = [0, *ends, len(context)]
    sentences = [context[a:b].strip() for a, b in pairwise(borders)]
    place = sum(end <= start for end in ends)
    question, others = row["question"].strip(), sentences[:place] + sentences[place + 1 :]
    if not others:
        return None
    label = draw.randrange(2)
    sentence = sentences[place] if label else max(others, key=lambda other: shared(question, other))
    return {"question": question, "sentence": sentence, "label": label, "label_name": NAMES[label]}


def shared(question: str, sentence: str) -> float:
    """The share of the question's words that the sentence has."""
    question_words, sentence_words = (set(re.findall(r"\w+", text.lower())) for text in (question, sentence))
    return len(question_words & sentence_words) / len(question_words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    draw = random.Random(0)
    with gzip.open(options.file, "rt") as lines:
        pairs = [pair for pair in (pair_of(json.loads(line), draw) for line in lines) if pair is not None]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs))
    shares = [(shared(pair["question"], pair["sentence"]), pair["label"]) for pair in pairs]
    right = {limit: sum((share >= limit) == label for share, label in shares) for limit in {cut for cut, _ in shares}}
    best = max(right, key=right.get)
    print(f"{options.out}: {len(pairs):,} pairs, {sum(label for _, label in shares):,} answering")
    print(f"words alone: {right[best] / len(pairs):.1%}, at a share of {best:.2f} or more")


if __name__ == "__main__":
    main()

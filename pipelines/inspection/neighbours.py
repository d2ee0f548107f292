"""Static and contextual neighbours of a word: what lies near its input embedding, and near what a layer makes of it.

The input embedding of a word is one vector wherever the word stands; a layer's state differs from sentence to sentence.
Near is by cosine similarity.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from torch.nn.functional import normalize

from ..errors import UserError
from ..storage.packed_files import is_damage, open_packed
from ..words import watched
from .inspect_model import open_model

NEAREST = 8  # words that are shown
SHOWN = 6  # occurrences that are printed; the JSON has all
MOST_SENTENCES = 1000
BATCH = 16
MOST_TOKENS = 128  # of a sentence; what is behind is not read
WORD = re.compile(r"\w+(?:['’]\w+)*")


@dataclass
class Occurrence:
    """The word at one place: its sentence, and what lies nearest elsewhere and within the sentence.

    nearest: (word, cosine, its sentence) of other sentences. beside: (word, cosine) of the same sentence.
    """

    sentence: str
    place: tuple[int, int]
    nearest: list[tuple[str, float, str]] = field(default_factory=list)
    beside: list[tuple[str, float]] = field(default_factory=list)


@dataclass
class Neighbours:
    """layer: whose states were compared, 0 the embeddings. tokens: the word's own. static: (token, cosine).

    same: mean cosine of two occurrences of the word. any: of any two words of the sentences, which says how much of the
    former is the layer's own (Ethayarajh 2019, section 3). sentences: how many were read; count: occurrences in them.
    occurrences: the most different ones first.
    """

    word: str
    layer: int
    tokens: list[str]
    static: list[tuple[str, float]]
    sentences: int
    count: int
    same: float | None
    any: float
    occurrences: list[Occurrence]

    def facts(self) -> dict:
        """All of it as JSON."""
        return vars(self) | {"occurrences": [vars(one) for one in self.occurrences]}


def neighbours_of(
    name: str, word: str, file: Path, layer: int | None = None, trust_remote_code: bool = False
) -> Neighbours:
    """The neighbours of a word by a model of texts, over the sentences of a file.

    Args:
        name: a model's folder, or its name on the Hub.
        word: as it stands in the sentences; upper and lower case are alike.
        file: text with a sentence per line, also compressed; of more than 1,000 those with the word come first.
        layer: number of the layer after which states are compared; None: the last.

    Raises:
        UserError: a file that cannot be read, in which the word is not, or without another sentence; no such layer; a
            model without input embeddings of tokens.
    """
    transformers.utils.logging.disable_progress_bar()
    sentences = sentences_of(file, word)
    model = open_model(name, trust_remote_code)
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    table = model.get_input_embeddings()
    if not isinstance(table, torch.nn.Embedding):
        raise UserError(f"MODEL={name} has no embeddings of tokens, which --neighbours compares; name a model of texts")
    reader = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    states, spans = states_of(reader, tokenizer, sentences, layer, name)
    ids = ids_of_word(tokenizer, word)
    chosen = [row for row, (_, _, found) in enumerate(spans) if found.lower() == word.lower()]
    any_two = float((states.sum(0).square().sum() - len(states)) / (len(states) * (len(states) - 1)))
    same = None
    if len(chosen) > 1:
        own = states[chosen]
        same = float((own.sum(0).square().sum() - len(own)) / (len(own) * (len(own) - 1)))
    return Neighbours(
        word,
        layer_of(reader, layer, name),
        tokenizer.convert_ids_to_tokens(ids),
        static_neighbours(table.weight, tokenizer, ids),
        len(sentences),
        len(chosen),
        same,
        any_two,
        [occurrence(chosen[place], states, spans, sentences) for place in most_different(states[chosen])],
    )


def most_different(states: torch.Tensor) -> list[int]:
    """The order of some states (N, D) in which each is the one that is least like all before it."""
    nearest, order = states @ states[0], [0]
    while len(order) < len(states):
        nearest[order] = torch.inf
        order.append(int(nearest.argmin()))
        nearest = torch.maximum(nearest, states @ states[order[-1]])
    return order


def sentences_of(file: Path, word: str) -> list[str]:
    """The sentences that are read: those with the word, at most half of MOST_SENTENCES, and others over the file."""
    try:
        with open_packed(file) as opened:
            lines = list(dict.fromkeys(line.decode().strip() for line in opened if line.strip()))
    except Exception as error:
        if not (isinstance(error, OSError | UnicodeDecodeError) or is_damage(error, file)):
            raise
        raise UserError(
            f"--sentences {file} cannot be read as text ({error}); give a file with a sentence per line"
        ) from error
    having = [line for line in lines if any(found.lower() == word.lower() for found in WORD.findall(line))]
    if not having:
        raise UserError(f"--neighbours {word!r} is in no sentence of {file}; name a whole word that is")
    if len(lines) < 2:
        raise UserError(f"--sentences {file} has one sentence; neighbours are looked for in others")
    with_word = set(having)
    others = [line for line in lines if line not in with_word]
    first = spread(having, max(MOST_SENTENCES // 2, MOST_SENTENCES - len(others)))
    return first + spread(others, MOST_SENTENCES - len(first))


def spread(items: list, most: int) -> list:
    """At most so many of them, evenly over all."""
    return items if len(items) <= most else [items[number * len(items) // most] for number in range(most)]


def layer_of(model, layer: int | None, name: str) -> int:
    """The layer asked for, or the last. Raises UserError where there is none."""
    count = model.config.num_hidden_layers
    if layer is not None and not 0 <= layer <= count:
        raise UserError(
            f"--layers {layer}: the model has {count} layers; states are after 0 (the embeddings) to {count}"
        )
    return count if layer is None else layer


@torch.no_grad()
def states_of(model, tokenizer, sentences: list[str], layer: int | None, name: str):
    """(W, D) states of each word of the sentences, of length 1; and (sentence's number, place, word) of each.

    The state of a word is the mean of its tokens'.
    """
    layer, vectors, spans = layer_of(model, layer, name), [], []
    read = tokenizer(sentences, return_offsets_mapping=True, truncation=True, max_length=MOST_TOKENS)
    order = sorted(range(len(sentences)), key=lambda number: len(read["input_ids"][number]))  # little to pad
    batches = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]
    for batch in watched(batches, "reading, batch"):
        rows = [read["input_ids"][number] for number in batch]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=model.device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=model.device)
        states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[layer].float().cpu()
        for number, state in zip(batch, states):
            offsets = read["offset_mapping"][number]
            for found in WORD.finditer(sentences[number]):
                begin, end = found.span()
                tokens = [place for place, (a, b) in enumerate(offsets) if a < end and b > begin and b > a]
                if tokens and offsets[tokens[-1]][1] >= end:  # whole, not cut
                    vectors.append(state[tokens].mean(0))
                    spans.append((number, (begin, end), found.group()))
    places = sorted(range(len(spans)), key=lambda place: spans[place][:2])
    return normalize(torch.stack([vectors[place] for place in places]), dim=-1), [spans[place] for place in places]


def ids_of_word(tokenizer, word: str) -> list[int]:
    """The tokens of the word as it stands within a text: after a space, where the tokenizer tells that apart."""
    plain = tokenizer(word, add_special_tokens=False)["input_ids"]
    within = tokenizer(f"a {word}", add_special_tokens=False)["input_ids"]
    before = tokenizer("a", add_special_tokens=False)["input_ids"]
    return within[len(before) :] if within[: len(before)] == before and len(within) > len(before) else plain


def static_neighbours(table: torch.Tensor, tokenizer, ids: list[int]) -> list[tuple[str, float]]:
    """The tokens nearest to the mean of the word's embeddings, its own and special ones left out."""
    rows = normalize(table.detach().float().cpu(), dim=-1)
    near = rows @ normalize(rows[ids].mean(0), dim=-1)
    left_out = {*ids, *tokenizer.all_special_ids}
    order = [int(number) for number in near.argsort(descending=True)[: NEAREST + len(left_out)]]
    kept = [number for number in order if number not in left_out][:NEAREST]
    return [
        (tokenizer.decode([number]).strip() or tokenizer.convert_ids_to_tokens(number), float(near[number]))
        for number in kept
    ]


def occurrence(row: int, states: torch.Tensor, spans: list, sentences: list[str]) -> Occurrence:
    """What lies nearest to one word: in other sentences, one of each, and in its own."""
    number, place, _ = spans[row]
    near = states @ states[row]
    found = Occurrence(sentences[number], place)
    seen = set()
    for other in near.argsort(descending=True).tolist():
        of, _, word = spans[other]
        if of == number:
            if other != row and len(found.beside) < 3:
                found.beside.append((word, float(near[other])))
        elif of not in seen and len(found.nearest) < NEAREST:
            seen.add(of)
            found.nearest.append((word, float(near[other]), sentences[of]))
        if len(found.nearest) == NEAREST and len(found.beside) == 3:
            break
    return found


def print_neighbours(found: Neighbours) -> None:
    """The neighbours as text for people."""
    tokens = " ".join(found.tokens)
    print(f"{found.word!r} ({tokens}), nearest input embeddings: {listed(found.static)}")
    same = "" if found.same is None else f"two of them have a cosine of {found.same:.2f} on average, "
    print(
        f"after layer {found.layer}, {found.count:,} times in {found.sentences:,} sentences: {same}any two words "
        f"{found.any:.2f}"
    )
    for one in found.occurrences[:SHOWN]:
        begin, end = one.place
        print(f"\n  {around(one.sentence, begin, end)}")
        print(f"    in other sentences: {listed([(word, near) for word, near, _ in one.nearest])}")
        for word, near, sentence in one.nearest[:2]:
            print(f"      {near:.2f} {word}: {sentence[:100]}")
        print(f"    in its own: {listed(one.beside)}")


def listed(pairs: list[tuple[str, float]]) -> str:
    return ", ".join(f"{word} {near:.2f}" for word, near in pairs)


def around(sentence: str, begin: int, end: int, most: int = 60) -> str:
    """The word in brackets, and so many letters before and after it."""
    left, right = sentence[max(0, begin - most) : begin], sentence[end : end + most]
    dots = "..." if begin > most else "", "..." if end + most < len(sentence) else ""
    return f"{dots[0]}{left}[{sentence[begin:end]}]{right}{dots[1]}"

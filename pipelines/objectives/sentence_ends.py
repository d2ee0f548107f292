"""Where sentences end in a row of token ids, for objectives that move whole sentences."""

import re

from ..lazy import np

STOPS = r"[.!?…]"
WIDE_STOPS = r"[。！？]"  # after which Chinese and Japanese write no space
CLOSERS = r"[\"'”’»)\]]"
# First characters of tokens with white space in front: as text, in GPT-2's bytes (space, line feed, tab, carriage
# return), in SentencePiece.
SPACES = " \n\t\rĠĊĉč▁"


class SentenceEnds:
    """The ends of sentences as far as tokens tell them: a full stop, ! or ?, and whatever quotes and brackets close
    after it, before a token that begins with white space.

    "3.14" and "e.g.," thus end nothing, "Mr. Smith" does: as in BART, whose sentences end with full stops. Where the
    tokenizer keeps no white space (WordPiece), a token that is no continuation (##) counts as one with white space.

    tokenizer: a fast one; each entry of its vocabulary is looked at once.
    """

    def __init__(self, tokenizer):
        vocabulary, backend = tokenizer.get_vocab(), tokenizer.backend_tokenizer
        pieces, ids = list(vocabulary), list(vocabulary.values())
        texts = [text.rstrip() for text in backend.decode_batch([[i] for i in ids], skip_special_tokens=False)]
        keeps_spaces = type(backend.model).__name__ != "WordPiece"
        stop, wide = re.compile(f"{STOPS}{CLOSERS}*$"), re.compile(f"{WIDE_STOPS}{CLOSERS}*$")
        closer = re.compile(f"^{CLOSERS}+$")

        def table(which):
            found = np.zeros(max(ids) + 1, dtype=bool)
            found[ids] = which
            return found

        self.stops = table([bool(stop.search(text)) for text in texts])
        self.wide_stops = table([bool(wide.search(text)) for text in texts])
        self.closers = table([bool(closer.match(text)) for text in texts])
        self.begins = table([p[:1] in SPACES if keeps_spaces else not p.startswith("##") for p in pieces])
        self.begins[tokenizer.all_special_ids] = True

    def lengths(self, ids):
        """Tokens of each sentence (an array) of a document, without its end-of-text: their sum is len(ids)."""
        if not len(ids):
            return np.zeros(0, dtype=np.int64)
        stops, wide = self.stops[ids], self.wide_stops[ids]
        for place in np.flatnonzero(self.closers[ids]):
            if place and not self.begins[ids[place]]:  # of its own after a stop: the sentence ends with it
                stops[place] |= stops[place - 1]
                wide[place] |= wide[place - 1]
        before_space = np.append(self.begins[ids[1:]], True)
        before_closer = np.append(self.closers[ids[1:]] & ~self.begins[ids[1:]], False)
        ends = (stops & before_space) | (wide & ~before_closer)
        ends[-1] = True
        return np.diff(np.flatnonzero(ends) + 1, prepend=0)

"""Where words and sentences begin in token ids, read off a vocabulary once and kept as arrays over the ids."""

import unicodedata

import numpy as np

from ..lazy import transformers

SPACE, LETTER, NUMBER, SIGN, SPECIAL = range(5)  # kinds of characters; special tokens are a kind of their own
WORD_MARK = "▁"  # SentencePiece's space
SENTENCE_ENDS, WIDE_ENDS = ".!?…", "。！？"  # after the latter no space follows
CLOSERS, OPENERS = "\"'”’»)]", "\"'“‘«([¿¡—–-"
SIGN_BYTES = (0xC2, 0xE2, 0xF0)  # first bytes, in UTF-8, of blocks of signs: « and °, quotes and dashes, emoji
PIECE, BEFORE = 2**22, 256  # tokens read at once; tokens before them that are read again as context


class WordMarks:
    """Word and sentence beginnings of token ids of one vocabulary.

    A token continues the word of the token before it where its mark says so (WordPiece's ##, the rest of a character in
    bytes), or where both meet in characters of the same kind (letters, digits, signs, white space) without a space
    between them: this is the pre-tokenization of byte-level BPE and Unigram, read off the vocabulary. A space belongs
    to the word after it. If a character falls into several tokens, its first byte decides whether it counts as a letter
    or as a sign.

    after_space: int array, the entry of the same text with a space before it; where there is none, the entry itself.
    """

    def __init__(self, tokenizer: "transformers.PreTrainedTokenizerFast"):
        vocabulary = tokenizer.get_vocab()
        special = set(tokenizer.all_special_ids)
        size = max(vocabulary.values()) + 1
        self.spaced = np.zeros(size, dtype=bool)  # begins with white space, and has more than that
        self.lone = np.zeros(size, dtype=bool)  # a space alone, which the rest of its word may follow
        self.continues = np.zeros(size, dtype=bool)  # can only continue the token before it
        self.hangs = np.zeros(size, dtype=bool)  # holds only bytes of the character that the token before it begins
        self.first = np.full(size, LETTER, dtype=np.int8)  # kinds of the first and the last character
        self.last = np.full(size, LETTER, dtype=np.int8)
        self.ends = np.zeros(size, dtype=bool)  # its last sign, closing ones aside, ends a sentence
        self.ends_wide = np.zeros(size, dtype=bool)
        self.passes = np.zeros(size, dtype=bool)  # white space or closing signs: neither ends nor begins a sentence
        self.opens = np.zeros(size, dtype=bool)  # a sentence can begin with it
        self.lines = np.zeros(size, dtype=np.int8)  # number of line breaks in it, at most 2
        read = TokenText(tokenizer.backend_tokenizer)
        # Where the vocabulary knows no spaces, each token that continues nothing may begin a word and a sentence.
        self.writes_spaces = read.writes_spaces
        texts = {number: read(token) for token, number in vocabulary.items() if number not in special}
        cased = any(text[:3].strip()[:1].isupper() for text, _ in texts.values())
        for number, (text, continues) in texts.items():
            self._describe(number, text, continues, cased)
        self.after_space = np.arange(size)
        if self.writes_spaces:
            whole = {text: number for number, (text, _) in texts.items() if "\ufffd" not in text}
            for text, number in whole.items():
                self.after_space[number] = whole.get(f" {text}", number) if text[:1].strip() else number
        for number in special:
            self.first[number] = self.last[number] = SPECIAL

    def _describe(self, number: int, text: str, continues: bool, cased: bool) -> None:
        self.continues[number] = continues
        self.hangs[number] = continues and not text.strip("\ufffd")
        if not text:
            return
        self.first[number], self.last[number] = kind_of(text[0]), kind_of(text[-1])
        bare = text.strip()
        self.spaced[number] = bool(bare) and text[0].isspace()
        self.lone[number] = text == " "
        self.lines[number] = min(text.count("\n"), 2)
        inner = bare.rstrip(CLOSERS)
        self.ends[number] = inner[-1:] in tuple(SENTENCE_ENDS + WIDE_ENDS) if inner else False
        self.ends_wide[number] = inner[-1:] in tuple(WIDE_ENDS) if inner else False
        self.passes[number] = not inner
        start = bare[:1]
        lower = cased and start.islower()
        self.opens[number] = bool(start) and not continues and not lower and (start.isalnum() or start in OPENERS)

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """Bool array: whether a word begins at each of some ids (an int array); special tokens are words."""
        starts = np.ones(len(ids), dtype=bool)
        here, before = ids[1:], ids[:-1]
        first = self.first[here]
        whole = np.maximum.accumulate(np.where(self.hangs[ids], 0, np.arange(len(ids))))
        last = self.last[ids[whole]][:-1]
        if self.writes_spaces:
            starts[1:] = self.spaced[here] | ((first != last) & ~self.continues[here])
            follows_its_space = self.lone[before] & (first != SPACE)
            starts[:-1] |= follows_its_space
            starts[1:] &= ~follows_its_space
        else:
            starts[1:] = ~self.continues[here]
        starts[1:] |= (first == SPECIAL) | (last == SPECIAL)
        return starts

    def sentence_starts(self, ids: np.ndarray) -> np.ndarray:
        """Places (int64, ascending, without 0) at which a sentence begins in an array of ids.

        It does after a token that ends in . ! ? or …, closing quotes and brackets and white space aside, at a word with
        a space before it that has no lower-case initial (if the vocabulary has capitals); and after an empty line.
        """
        starts = []
        for begin in range(0, len(ids), PIECE):
            from_ = max(begin - BEFORE, 0)
            places = from_ + self._sentence_starts(np.asarray(ids[from_ : begin + PIECE]))
            starts.append(places[places >= max(begin, 1)])
        return np.concatenate(starts) if starts else np.empty(0, dtype=np.int64)

    def _sentence_starts(self, ids: np.ndarray) -> np.ndarray:
        passes, places = self.passes[ids], np.arange(len(ids))
        # The last token before each one that is more than white space and closing signs.
        solid = np.maximum.accumulate(np.where(passes, 0, places))[:-1]
        here, ending = ids[1:], ids[solid]
        lines = np.cumsum(self.lines[ids])
        breaks = lines[:-1] - lines[solid]
        apart = self.spaced[here] | (self.last[ids[:-1]] == SPACE) | self.ends_wide[ending]
        if not self.writes_spaces:
            apart[:] = True
        after_end = self.ends[ending] & apart & self.opens[here]
        starts = ~passes[1:] & ~self.continues[here] & (after_end | (breaks >= 2))
        return places[1:][starts]


def kind_of(character: str) -> int:
    """SPACE, LETTER (marks on letters, too), NUMBER or SIGN."""
    if character.isspace():
        return SPACE
    if character == "\ufffd":  # some bytes of a character
        return LETTER
    return {"L": LETTER, "M": LETTER, "N": NUMBER}.get(unicodedata.category(character)[0], SIGN)


class TokenText:
    """Entry of a vocabulary -> (its text with the spaces around it, whether it can only continue the entry before it).

    Reads the marks of all kinds of tokenizers: ## (WordPiece), bytes as letters (byte-level BPE), ▁ and
    <0x0A> (SentencePiece), </w> at words' ends.
    """

    def __init__(self, backend):
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        model = backend.model
        wordpiece = type(model).__name__ == "WordPiece"
        self.continuing = getattr(model, "continuing_subword_prefix", None) if wordpiece else None
        self.ending = getattr(model, "end_of_word_suffix", None)
        parts = b"".join(part.__getstate__() for part in (backend.decoder, backend.pre_tokenizer) if part is not None)
        self.bytes = {letter: byte for byte, letter in bytes_to_unicode().items()} if b'"ByteLevel"' in parts else None
        self.writes_spaces = self.continuing is None

    def __call__(self, entry: str) -> tuple[str, bool]:
        if self.continuing and entry.startswith(self.continuing):
            return entry.removeprefix(self.continuing), True
        if self.bytes is not None and all(letter in self.bytes for letter in entry):
            return self._of_bytes(bytes(self.bytes[letter] for letter in entry))
        if len(entry) == 6 and entry.startswith("<0x") and entry.endswith(">"):
            return self._of_bytes(bytes.fromhex(entry[3:5]))
        if self.ending and entry.endswith(self.ending):
            entry = entry.removesuffix(self.ending) + " "
        return entry.replace(WORD_MARK, " "), False

    @staticmethod
    def _of_bytes(data: bytes) -> tuple[str, bool]:
        text, continues = data.decode("utf-8", errors="replace"), bool(data) and data[0] & 0xC0 == 0x80
        last = next((byte for byte in reversed(data) if byte & 0xC0 != 0x80), 0)
        if text.endswith("\ufffd") and last in SIGN_BYTES:
            text = text[:-1] + "•"
        return text, continues

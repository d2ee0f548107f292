"""A corpus tokenised into a store: at once where it is small, else shard by shard, by any number of machines.

A shard is a TokenStore of its own, of 64 MiB of text, in a folder of the cache that is complete or absent and has a
manifest: cache/shards/KEY/PART-NUMBER. Its meta.json names the place of the corpus where the next one begins. So a
killed run goes on after the last finished shard, a damaged shard is made again, and machines that share the cache make
shards for each other. Where shards end depends on the corpus alone. Once all are there, they are joined to the store of
the whole corpus, which is byte for byte what one process would have written, and removed.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from ..lazy import transformers
from ..storage.cache import cached_folder, is_complete, remove_at_once, sha
from ..tokenizers.control_tokens import ControlTokens
from ..words import is_shown
from .account import READ_AS, Account
from .documents import Corpus, Share
from .encoding import Encoder
from .mapped_store import META
from .token_store import Encoded, TokenStore, TokenWriter, count_words, framed, framing_tokens, token_dtype

_FORMAT = 3  # raise it when the files or the way to make them change
SHARD_BYTES = 2**26  # of text: some seconds of work
PART_BYTES = 2**30  # of files: a part, which one machine reads alone
WHOLE = Share(1, 1)
_GROUP = 500_000  # characters that are encoded at once


class Border(NamedTuple):
    """The end of a shard. place: where the next document begins (Corpus.documents_from); None: the corpus ends.

    tally: what was counted of the corpus from its beginning to here (Corpus.tally).
    """

    place: Any
    tally: Account


BEGINNING = Border(None, Account())


class Tokenization:
    """A corpus that is to be tokenised, each document framed as [beginning] tokens [end] where asked for.

    Tokenised once per corpus, tokenizer and framing, under cache_dir/tokens.
    Raises UserError where the tokenizer has no such framing token, a file of the corpus cannot be read, or the cache
    cannot be written.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: "transformers.PreTrainedTokenizerFast",
        cache_dir: Path,
        *,
        add_bos: bool,
        add_eos: bool,
    ):
        self.corpus, self.encoder, self.cache = corpus, Encoder(tokenizer), Path(cache_dir)
        self.frame, self.control = framing_tokens(tokenizer, add_bos=add_bos, add_eos=add_eos), ControlTokens(tokenizer)
        # Ids may have gaps, as after added tokens: the greatest one counts, not their number.
        self.dtype = token_dtype(max(tokenizer.get_vocab().values()) + 1)
        # Still 1: texts without control tokens are encoded as before, so that runs begun with them can be resumed.
        self.fingerprint = sha([1, corpus.fingerprint(), self.encoder.fingerprint, *self.frame])
        self.key = sha([_FORMAT, self.fingerprint])

    def store(self) -> TokenStore:
        """The store of the whole corpus, from the cache or made; shards that are there already are not made again."""
        try:
            return self._store()
        except FileNotFoundError:  # another process was faster, and has removed the shards that were to be joined
            return self._store()

    def _store(self) -> TokenStore:
        def build(folder: Path) -> None:
            size, tally = self.corpus.size_hint(), None
            with progress_of(self.corpus) as advance, TokenWriter(folder, self.dtype) as writer:
                if size is not None and size <= SHARD_BYTES:
                    self._write(writer, encoded_stream(self.corpus, self._encoded), advance)
                else:
                    tally = self._join(writer, self.shards(WHOLE, advance))
                has_control_tokens = bool(writer.account.number(READ_AS, "control token"))
                writer.account.update(self.corpus.account(tally))
                fingerprint = self.key if has_control_tokens else self.fingerprint
                writer.finish(fingerprint, self.corpus.name)

        store = TokenStore.cached(self.cache, self.key, build, self.corpus.files)
        remove_at_once(self.cache / self._kind, beside=store.folder)
        return store

    def make_share(self, share: Share) -> int:
        """Make the shards of one share, unless they are there; return how many it has: 0 once the store is there."""
        if is_complete(self.cache / TokenStore.kind / self.key):
            return 0
        with progress_of(self.corpus) as advance:
            return sum(1 for _ in self.shards(share, advance))

    def shards(self, share: Share, advance: Callable[[int], None]) -> Iterator[Path]:
        """The folders of a share's shards in their order, made where they are missing.

        A share consists of whole parts of the corpus where there are enough of them: then nothing else is read.
        """
        parts = self.corpus.parts(PART_BYTES)
        by_part = len(parts) >= share.of
        for part, corpus in enumerate(parts):
            if not by_part:
                yield from self._shards_of(part, corpus, lambda number, part=part: share.holds(part + number), advance)
            elif share.holds(part):
                yield from self._shards_of(part, corpus, lambda number: True, advance)

    def _shards_of(
        self, part: int, corpus: Corpus, wanted: Callable[[int], bool], advance: Callable[[int], None]
    ) -> Iterator[Path]:
        border, stream = BEGINNING, None
        shards_from = partial(encoded_stream, corpus, self._encoded, size=SHARD_BYTES, wanted=wanted)
        for number in count():
            name, is_made = f"{part:05}-{number:06}", False

            def build(folder: Path, number=number, border=border) -> None:
                nonlocal stream, is_made
                stream = stream or shards_from(first=number, start=border)
                with TokenWriter(folder, self.dtype) as writer:
                    after = self._write(writer, stream, advance)
                    writer.finish(self.key, corpus.name, next=after.place, tally=after.tally.to_json())
                is_made = True

            folder = self.cache / self._kind / name
            if wanted(number) or is_complete(folder):
                cached_folder(self.cache, self._kind, name, build, self.corpus.files)
                meta = json.loads((folder / META).read_text())
                border = Border(meta["next"], Account.from_json(meta["tally"]))
                if not is_made:
                    advance(meta["num_bytes"])
                    stream = stream and stream.close()  # it stands before this shard
                if wanted(number):
                    yield folder
            else:
                stream = stream or shards_from(first=number, start=border)
                border = next(stream)
            if border.place is None:
                return

    @staticmethod
    def _write(writer: TokenWriter, stream: Iterator, advance: Callable[[int], None]) -> Border:
        """Write the stream's documents up to its next border, and return the border."""
        for item in stream:
            if isinstance(item, Border):
                return item
            writer.add(item)
            advance(item.num_bytes)
        raise RuntimeError("a stream that ends without a border")

    def _encoded(self, texts: list[str]) -> Encoded:
        documents = [framed(ids, *self.frame, self.dtype) for ids in self.encoder.encode(texts)]
        account = Account()
        account.used("document", number=len(texts))
        for token, number in self.control.count(texts).items():
            account.read_as("control token", token, "ordinary text", number)
        num_bytes = sum(len(text.encode()) for text in texts)
        return Encoded(documents, num_bytes, sum(map(count_words, texts)), account)

    def _join(self, writer: TokenWriter, folders: Iterator[Path]) -> Account:
        """Write all shards; the sum of their tallies."""
        parts = {}
        for folder in folders:
            writer.add_store(folder)
            parts[folder.name.split("-")[0]] = json.loads((folder / META).read_text())["tally"]  # of its last shard
        return sum(map(Account.from_json, parts.values()), Account())

    @property
    def _kind(self) -> str:
        return f"shards/{self.key}"


def encoded_stream(
    corpus: Corpus,
    encoded: Callable[[list[str]], Encoded],
    *,
    size: float = math.inf,
    first: int = 0,
    start: Border = BEGINNING,
    wanted: Callable[[int], bool] = lambda number: True,
) -> Iterator[Encoded | Border]:
    """A pass over the corpus, cut into shards of `size` bytes of text, each ending after the document that fills it.

    Yields Encoded objects, and a Border at the end of every shard. Raises UserError where the corpus cannot be read.

    first: the number of the shard that begins at `start`. wanted: (number of a shard) -> whether its documents are
    encoded; the documents of other shards are read and dropped.
    """
    coming: deque[Future | Border] = deque()
    with ThreadPoolExecutor(1) as thread:  # it tokenizes on all cores, while this thread reads and writes
        for one in _groups(corpus, size, first, start, wanted):
            coming.append(one if isinstance(one, Border) else thread.submit(encoded, one))
            while len(coming) > 3:
                yield _result(coming.popleft())
        yield from map(_result, coming)


def _result(one: Future | Border) -> Encoded | Border:
    return one if isinstance(one, Border) else one.result()


def _groups(
    corpus: Corpus, most: float, number: int, start: Border, wanted: Callable[[int], bool]
) -> Iterator[list[str] | Border]:
    """The wanted documents' texts in groups of about half a million characters, and a Border after each shard."""
    filled, group, size = 0, [], 0
    for document, place in corpus.documents_from(start.place):
        filled += len(document.text.encode())
        if wanted(number):
            group.append(document.text)
            size += len(document.text)
        if group and (filled >= most or size >= _GROUP):
            yield group
            group, size = [], 0
        if filled >= most:
            yield Border(place, start.tally + corpus.tally())
            number, filled = number + 1, 0
    if group:
        yield group
    yield Border(None, start.tally + corpus.tally())


@contextmanager
def progress_of(corpus: Corpus) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the bytes of text just done and shows them in a progress bar."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, TimeRemainingColumn(), disable=not is_shown(), transient=True) as bar:
        task = bar.add_task(f"tokenising {corpus.split}", total=corpus.size_hint())
        yield partial(bar.advance, task)

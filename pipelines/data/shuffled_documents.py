"""Streamed documents in another order in each pass, read from several files at once.

datasets' own `IterableDataset.shuffle` does not resume exactly: its state lacks the buffer, which is filled anew (5.2
warns of this). And since that buffer keeps half of its documents when it is filled again, it may hold any earlier one:
a position would have to name thousands of places. Here the buffer is emptied before it is filled again: a position is
the place in each open file where the buffer's documents begin, and the number of those already given.
"""

from collections.abc import Iterator

import numpy as np

from .documents import Corpus, Document

FILES_AT_ONCE = 8


def shuffled_documents(
    corpus: Corpus, buffer: int, key: list[int], place: dict | None = None
) -> Iterator[tuple[Document, dict]]:
    """The documents of a corpus in blocks of `buffer`, each block shuffled by `key`, each with the place after it.

    A block is filled from FILES_AT_ONCE files in turn, with a document of each; the order in which files are opened is
    shuffled, too. key: integers, such as a seed and the number of the pass.

    place: {"block": number, "given": documents of it so far, "opened": files, "open": [[file, its place], ...]}, the
    last two at the block's beginning; nothing before it is read. None: the beginning.
    """
    begin = place or {"block": 0, "given": 0, "opened": 0, "open": []}
    files = np.random.default_rng(key).permutation(corpus.num_shards).tolist()
    streams: dict[int, Iterator] = {}
    while True:
        block, after = _filled(corpus, buffer, begin, files, streams)
        order = np.random.default_rng([*key, begin["block"]]).permutation(len(block)).tolist()
        for done in range(begin["given"], len(block)):
            is_last = done + 1 == len(block)
            yield block[order[done]], after if is_last else begin | {"given": done + 1}
        if not block:
            return
        begin = after


def _filled(
    corpus: Corpus, buffer: int, begin: dict, files: list[int], streams: dict[int, Iterator]
) -> tuple[list[Document], dict]:
    """(documents of the block that begins here, where the next block begins). streams: of the open files."""
    block, opened, waiting = [], begin["opened"], [list(entry) for entry in begin["open"]]
    while len(block) < buffer:
        while len(waiting) < FILES_AT_ONCE and opened < len(files):
            waiting.append([files[opened], None])
            opened += 1
        if not waiting:
            break
        file, place = entry = waiting.pop(0)
        if file not in streams:
            streams[file] = corpus.shard(file).documents_from(place)
        read = next(streams[file], None)
        if read is None:
            del streams[file]
            continue
        document, entry[1] = read
        block.append(document)
        waiting.append(entry)
    return block, {"block": begin["block"] + 1, "given": 0, "opened": opened, "open": waiting}

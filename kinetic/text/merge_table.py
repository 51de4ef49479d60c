"""Merges that are looked up one by one in a table on disk, so that a text need not wait until all are read.

Reading half a million merges takes longer than most prompts. The table holds no merge, only where each lies in the
array of the model file. It is named by the digest of that array, and begins with one of both; what does not agree is
not used, and every find is compared with the array. So an answer is the same with a table, without one, and beside a
broken one. Layout, little-endian:

    BLAKE3 of the array's BLAKE3 and the rest, 32 bytes | starts u32 [2^BITS + 1] | ranks u32 [n] | offsets u32 [n]

A merge is in the bucket of the low BITS bits of its CRC-32: starts[bucket] up to starts[bucket + 1] are its places in
the other two. In a bucket ranks ascend, so that the first of equal merges is found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from zlib import crc32

from kinetic.text.merging import NEVER, Ranks

BITS = 18
FEWEST = 250_000
"""Fewer merges are soon read, and long texts need them all anyway."""
MOST_TABLES = 32
"""Of at most some 8 MB each; the oldest go first."""
_DIGEST = 32


class MergeTable:
    """The table of one array of merges. ``content`` is the array as it lies in the file, ``count`` its length."""

    def __init__(self, content: bytes, count: int, table: bytes) -> None:
        words = memoryview(table)[_DIGEST:].cast("I")
        split = (1 << BITS) + 1
        self._content = content
        self._starts, self._ranks, self._offsets = words[:split], words[split : split + count], words[split + count :]

    def rank(self, merge: str) -> int | None:
        """Place of a merge ("left right") in the array, or None."""
        text = merge.encode("utf-8", "surrogateescape")
        bucket = crc32(text) & ((1 << BITS) - 1)
        record = len(text).to_bytes(8, "little") + text
        for place in range(self._starts[bucket], self._starts[bucket + 1]):
            if self._content.startswith(record, self._offsets[place]):
                return self._ranks[place]
        return None


class SoughtRanks:
    """Ranks from a table, each looked for once; after many, all merges are read, which is quicker from there on."""

    SOUGHT = 20_000
    """Then the time of looking has come near that of reading all."""

    def __init__(self, table: MergeTable, read_all: Callable[[], Ranks]) -> None:
        self._table, self._read_all = table, read_all
        self._known: dict[str, int] = {}
        self.get: Callable[[str, int], int] = self._seek

    def _seek(self, merge: str, default: int) -> int:
        found = self._known.get(merge)
        if found is None:
            if len(self._known) >= self.SOUGHT:
                self.get = self._read_all().get
                return self.get(merge, default)
            rank = self._table.rank(merge)
            found = self._known[merge] = NEVER if rank is None else rank
        return default if found == NEVER else found


def table_path(folder: Path, content: bytes) -> Path:
    """Where the table of an array is kept."""
    return folder / f"{_blake3(content).hex()}.merges"


def load(path: Path, content: bytes, count: int) -> MergeTable | None:
    """The table, or None where there is none or it is not what was written."""
    size = _DIGEST + 4 * ((1 << BITS) + 1 + 2 * count)
    try:
        table = path.read_bytes() if path.stat().st_size == size else b""
    except OSError:
        return None
    if not table or table[:_DIGEST] != _blake3(_blake3(content) + table[_DIGEST:]):
        return None
    return MergeTable(content, count, table)


def build(content: bytes, merges: Sequence[str]) -> bytes:
    """The bytes of the table of an array that holds these merges."""
    import numpy as np

    texts = [merge.encode("utf-8", "surrogateescape") for merge in merges]
    buckets = np.fromiter(map(crc32, texts), np.uint32, len(texts)) & np.uint32((1 << BITS) - 1)
    offsets = np.fromiter(accumulate(map((8).__add__, map(len, texts)), initial=0), np.uint32, len(texts) + 1)
    ranks = np.argsort(buckets, kind="stable").astype("<u4")
    starts = np.zeros((1 << BITS) + 1, "<u4")
    starts[1:] = np.cumsum(np.bincount(buckets, minlength=1 << BITS))  # exact: integers
    rest: bytes = starts.tobytes() + ranks.tobytes() + offsets[ranks].astype("<u4").tobytes()
    return _blake3(_blake3(content) + rest) + rest


def save(path: Path, table: bytes) -> None:
    """Keep a table for the next start. A folder that can't be written, or is full, is no reason to stop."""
    from kinetic.store import write_atomically  # Not at the top: few files need a table, and each only once.

    with contextlib.suppress(OSError):
        tables = sorted(path.parent.glob("*.merges"), key=lambda other: other.stat().st_mtime)
        for old in tables[: max(0, len(tables) + 1 - MOST_TABLES)]:
            old.unlink()
        write_atomically(path, table)


def _blake3(data: bytes) -> bytes:
    from blake3 import blake3

    return bytes(blake3(data).digest())

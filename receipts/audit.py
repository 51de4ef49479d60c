"""An audit of many receipts, without an engine: which files they are, which of them are rerun, and what that finds.

A sample is chosen by a seed of 32 bytes that is drawn anew and then published,
so that nobody can know beforehand what is rerun and everybody can say
afterwards whether it was chosen fairly.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from blake3 import blake3

from ktc import canonical
from ktc.errors import FileProblem, Malformed

SAMPLE = b"kinetic audit sample v1\0"
SEED_BYTES = 32

SUFFIXES = (".json", ".cbor")
"""Endings, in any case, of the files in a folder that may be receipts."""

_WORD = 1 << 64
_MAGIC = re.compile(r"[*?[]")

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


# Which files


class Source(NamedTuple):
    """A file to look at."""

    path: str
    is_named: bool
    """It was asked for by its own name, so it had better be a receipt."""


def find_files(names: Iterable[str]) -> list[Source]:
    """The files that names of files, folders and patterns stand for, each once, in the order of the names.

    A folder stands for all it holds, further down too, that ends in .json or
    .cbor; hidden files and folders are passed over, and links to folders. A
    pattern is one only if no file is called so. Raises FileProblem if a pattern fits nothing.
    """
    found: dict[str, Source] = {}
    for name in names:
        for source in _sources(name):
            place = os.path.realpath(source.path)
            if place not in found or source.is_named:
                found[place] = source
    return list(found.values())


def _sources(name: str) -> Iterator[Source]:
    if os.path.isdir(name):
        yield from _inside(name)
    elif os.path.lexists(name) or not _MAGIC.search(name):
        yield Source(name, True)
    else:
        for match in _matches(name):
            yield from _inside(match) if os.path.isdir(match) else (Source(match, True),)


def _matches(pattern: str) -> list[str]:
    from glob import glob

    found = sorted(glob(pattern, recursive=True))
    if not found:
        raise FileProblem(f"nothing is called like {pattern}", name="NO_FILE")
    return found


def _inside(folder: str) -> Iterator[Source]:
    closed: list[Source] = []  # a folder that can't be listed is looked at like a file, which says why

    def refuse(error: OSError) -> None:
        closed.append(Source(str(error.filename), True))

    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = os.path.join(place, name)
            is_other = os.path.exists(path) and not os.path.isfile(path)  # a FIFO would keep us waiting
            if not name.startswith(".") and name.lower().endswith(SUFFIXES) and not is_other:
                yield Source(path, False)
    yield from closed


def is_among(path: str, sources: Iterable[Source], names: Iterable[str]) -> bool:
    """Whether a file is one of those found under these names, or would be if it were there."""
    place = os.path.realpath(path)
    if any(os.path.realpath(source.path) == place for source in sources):
        return True
    if not place.lower().endswith(SUFFIXES):
        return False
    return any(_is_inside(place, os.path.realpath(name)) for name in names if os.path.isdir(name))


def _is_inside(place: str, folder: str) -> bool:
    """Whether it is somewhere below, and nothing on the way is hidden."""
    steps = os.path.relpath(place, folder).split(os.sep)
    return not any(step.startswith(".") for step in steps)


# Which of them are rerun


class Size(NamedTuple):
    """How many are rerun: ``number``, or a share in hundred-millionths (a per cent is a million of them)."""

    number: int = 0
    share: int = 0

    def of(self, count: int) -> int:
        """The same of ``count`` receipts; a share is rounded up."""
        return min(count, self.number or -(-count * self.share // 10**8))


def parse_size(text: str) -> Size:
    """``20``, or ``2.5%``. Raises Malformed."""
    number = re.fullmatch(r"([0-9]{1,9})(?:(\.[0-9]{1,6})?%)?", text)
    if number and not text.endswith("%") and int(number[1]):
        return Size(number=int(number[1]))
    share = int(number[1]) * 10**6 + int((number[2] or ".")[1:].ljust(6, "0")) if number and "%" in text else 0
    if not 0 < share <= 10**8:
        raise Malformed(f"{canonical.show(text)} is no sample: write a number, as 20, or a share, as 5%", name="SAMPLE")
    return Size(share=share)


def parse_seed(text: str) -> bytes:
    """The seed of a sample from 64 hex digits. Raises Malformed."""
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise Malformed("the seed of a sample is 32 bytes in hex, 64 digits", name="SAMPLE_SEED")
    return bytes.fromhex(text)


def choose(count: int, size: int, seed: bytes) -> list[int]:
    """``size`` different indices below ``count``, rising; every set of so many is equally likely.

    The first ``size`` swaps of a Fisher-Yates shuffle: place i trades with place
    i + (a number below count - i). Numbers come from the stream that BLAKE3
    gives for the domain string and the seed, in words of 8 bytes,
    little-endian. A word at or above the greatest multiple of the bound is
    passed over, so that no remainder is likelier than another.
    """
    words, moved, chosen = _words(seed), dict[int, int](), []
    for place in range(size):
        other = place + _below(count - place, words)
        chosen.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return sorted(chosen)


def _words(seed: bytes) -> Iterator[int]:
    hasher, position = blake3(SAMPLE + seed), 0
    while True:
        block = hasher.digest(length=8192, seek=position)
        position += len(block)
        yield from (int.from_bytes(block[at : at + 8], "little") for at in range(0, len(block), 8))


def _below(bound: int, words: Iterator[int]) -> int:
    fair = _WORD - _WORD % bound
    return next(word for word in words if word < fair) % bound


def chance(count: int, size: int, bad: int) -> float:
    """Probability that ``size`` of ``count``, chosen as by ``choose``, hold at least one of ``bad`` ones.

    1 - C(count - bad, size) / C(count, size), in as many factors as the smaller of the two has.
    """
    fewer, more = sorted((size, bad))
    missed = 1.0
    for step in range(fewer):
        missed *= max(count - more - step, 0) / (count - step)
    return 1.0 - missed


def chances(count: int, size: int) -> list[tuple[str, float]]:
    """The chance to meet a bad one if there is one bad, and if 1, 5 and 10 per cent are (rounded up)."""
    cases = [("1 is bad", 1)] + [(f"{share}% are", -(-count * share // 100)) for share in (1, 5, 10)]
    return [(case, chance(count, size, bad)) for case, bad in cases] if count else []


def percent(probability: float) -> str:
    """A probability for people. Rounded down, so that only certainty is 100%."""
    thousandths = min(int(probability * 1e5 + 1e-6), 99_999) if probability < 1.0 else 100_000
    return f"{thousandths / 1000:.3f}".rstrip("0").rstrip(".") + "%"


def grouped(items: Sequence[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by key, keys and items in the order in which they came."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups

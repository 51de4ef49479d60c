"""Checking a model file leaf by leaf, when its bytes are first used."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from blake3 import blake3

from ktc.errors import Malformed
from ktc.layout import Section
from ktc.passes import LEAF_BYTES, leaf_count, leaf_digest, read_bytes

if TYPE_CHECKING:
    from ktc.reader import Bundle

_LOCKS = 64


class LeafChecker:
    """Checks leaves of a bundle's model file, each once, from any number of threads.

    What is hashed are the mapped bytes themselves, those that are then used.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Reads the list of leaf digests and checks it against its own digest (part of step B11)."""
        gguf = bundle.gguf
        self._data = bundle.view(gguf)
        self._gguf = gguf
        self._digests = read_leaf_list(bundle)
        self._done = bytearray(leaf_count(gguf.length))
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    @property
    def checked(self) -> int:
        """Leaves checked so far."""
        return self._done.count(1)

    @property
    def count(self) -> int:
        """Leaves altogether."""
        return len(self._done)

    def touch(self, offset: int, length: int) -> None:
        """Check the leaves that hold these bytes, counted from the beginning of the model file.

        Raises Malformed LEAF_DIGEST, naming the leaf; the bytes must then not be used.
        """
        if length <= 0:
            return
        first, last = offset // LEAF_BYTES, (offset + length - 1) // LEAF_BYTES
        if not 0 <= offset <= offset + length <= len(self._data):
            raise ValueError(f"bytes {offset} to {offset + length} are not in a model file of {len(self._data)}")
        index = self._done.find(0, first, last + 1)
        while index >= 0:
            self._check(index)
            index = self._done.find(0, index + 1, last + 1)

    def _check(self, index: int) -> None:
        with self._locks[index % _LOCKS]:  # whoever comes second waits until the first knows
            if self._done[index]:
                return
            leaf = self._data[index * LEAF_BYTES : (index + 1) * LEAF_BYTES]
            if leaf_digest(index, leaf) != self._digests[32 * index : 32 * index + 32]:
                raise bad_leaf(self._gguf, index)
            self._done[index] = 1


def read_leaf_list(bundle: Bundle) -> bytes:
    """The digests of all leaves, 32 bytes each: as many as there must be, and with the digest that was promised."""
    section = bundle.section("leaves")
    if section is None:
        raise Malformed("the bundle has no list of leaves", name="SECTIONS")
    fault = leaf_count_fault(section, bundle.gguf)
    if fault:
        raise fault
    data = read_bytes(bundle.fileno(), section.offset, section.length)
    if blake3(data).hexdigest() != section.blake3:
        raise bad_section(section)
    return data


def leaf_count_fault(leaves: Section, gguf: Section) -> Malformed | None:
    """What is wrong with the length of the list; None if it is as it must be."""
    due = leaf_count(gguf.length)
    if leaves.length == 32 * due:
        return None
    return Malformed(
        f"section '{leaves.name}' has {leaves.length} bytes, but {due} leaves need {32 * due}", name="LEAF_COUNT"
    )


def bad_section(section: Section) -> Malformed:
    return Malformed(
        f"section '{section.name}' (bytes {section.offset} to {section.end}) does not have the manifest's digest",
        name="SECTION_DIGEST",
    )


def bad_leaf(section: Section, index: int) -> Malformed:
    begin = index * LEAF_BYTES
    end = min(begin + LEAF_BYTES, section.length)
    return Malformed(
        f"leaf {index} of section '{section.name}' (its bytes {begin} to {end}) is damaged",
        name="LEAF_DIGEST",
    )

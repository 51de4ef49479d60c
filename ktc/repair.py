"""Making a damaged bundle whole again, in a new file, with the help of another copy of the model.

What is needed of the damaged file is a sound manifest and slot: they say what
every other byte must be. Leaves that are damaged come from the other copy, each
checked by itself; padding is zero, and the other sections follow from the model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from blake3 import blake3

from ktc import layout, passes, slot
from ktc.errors import Malformed
from ktc.gguf_keys import read_keys
from ktc.layout import MAGIC, Section
from ktc.leaves import bad_section
from ktc.manifest import GGUF, LEAVES, TEMPLATE, TOKENIZER
from ktc.newfile import NewFile
from ktc.passes import LEAF_BYTES, Name, leaf_digest
from ktc.reader import Bundle, Progress, open_bundle
from ktc.verify import Damage, check_content, check_keys, survey


class Repaired(NamedTuple):
    """What was mended; nothing at all: the bundle was sound, and no file was written."""

    leaves: list[int]
    """Leaves of the model file that came from the other copy."""
    sections: list[str]
    """Sections that were written anew; the model file's own name only if all of it was replaced."""
    gaps: int
    """Stretches of padding that were not zero."""


class _Donor(NamedTuple):
    """The other copy: where in an open file its model file stands, and what it is called."""

    path: str
    handle: int
    begin: int
    length: int


def repair(
    path: Name, donor: Name, target: Name, *, overwrite: bool = False, progress: Progress | None = None
) -> Repaired:
    """Write to ``target`` the bundle that ``path`` was; ``donor`` is a model file or another bundle.

    The new file is verified whole, SHA-256 included, before it takes its name.
    Raises any KtcError: Malformed DONOR if the other copy lacks what is needed.
    """
    with open_bundle(path) as bundle, _opened(donor) as other:
        slot.check_signatures(bundle.manifest_bytes, bundle.signatures)
        damage = survey(bundle, progress=progress)
        if damage.first(bundle) is None:
            return Repaired([], [], 0)
        with NewFile(target, overwrite=overwrite) as new:
            _write(bundle, damage, other.donor, new)
            bundle.check_unchanged()
            _check(new, progress)
            new.keep()
        return _mended(bundle, damage)


class _opened:
    """The donor's file, open. A context manager."""

    def __init__(self, path: Name) -> None:
        handle, status = passes.open_regular(path)
        self.donor = _Donor(os.fspath(path), handle, 0, status.st_size)
        try:
            if passes.read_bytes(handle, 0, min(len(MAGIC), status.st_size)) == MAGIC:
                self.donor = self._inside(path, handle)
        except BaseException:
            os.close(handle)
            raise

    @staticmethod
    def _inside(path: Name, handle: int) -> _Donor:
        try:
            with Bundle(path, os.dup(handle)) as bundle:
                return _Donor(os.fspath(path), handle, bundle.gguf.offset, bundle.gguf.length)
        except Malformed as error:
            raise Malformed(f"{os.fspath(path)}: {error}", name=error.name) from error

    def __enter__(self) -> _opened:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.donor.handle)


def _mended(bundle: Bundle, damage: Damage) -> Repaired:
    whole = [section.name for section in damage.sections if section.kind != GGUF or not damage.has_leaf_list]
    return Repaired(damage.leaves, whole, len(damage.gaps))


def _write(bundle: Bundle, damage: Damage, donor: _Donor, new: NewFile) -> None:
    """The whole file: what is sound from the bundle, what is not from elsewhere. What is skipped is zero."""
    gguf = bundle.gguf
    new.write_at(b"", gguf.offset)
    for piece in _model(bundle, damage, donor):
        new.write(piece)
    for section in bundle.sections:
        if section.kind != GGUF:
            is_bad = section in damage.sections
            _write_small(bundle, section, new, is_bad)
    new.write_at(bundle.read(bundle.header.slot_at, layout.SLOT_BYTES), bundle.header.slot_at)
    new.write_at(bundle.header.raw + bundle.manifest_bytes, 0)


def _model(bundle: Bundle, damage: Damage, donor: _Donor) -> Iterator[memoryview]:
    """The model file: sound leaves as they are, others from the donor; without a list of leaves, all or nothing."""
    gguf = bundle.gguf
    if gguf in damage.sections and not damage.has_leaf_list:
        if donor.length != gguf.length:
            raise _bad_donor(donor, f"its model file has {donor.length} bytes, not {gguf.length}")
        yield from passes.pieces(donor.handle, donor.begin, donor.length)
        return
    leaves = bundle.section(LEAVES)
    listed = bundle.read_section(leaves) if damage.leaves and leaves else b""
    wrong = set(damage.leaves)
    for index, piece in enumerate(passes.pieces(bundle.fileno(), gguf.offset, gguf.length, passes.LEAF_BYTES)):
        if index in wrong:
            _take(donor, index, piece, listed[32 * index : 32 * index + 32])
        yield piece


def _take(donor: _Donor, index: int, piece: memoryview, digest: bytes) -> None:
    """Fill ``piece`` with the donor's leaf, which must be the one that the manifest means."""
    at = index * LEAF_BYTES
    if at + len(piece) > donor.length:
        raise _bad_donor(donor, f"it ends before leaf {index}")
    passes.read_into(donor.handle, piece, donor.begin + at)
    if leaf_digest(index, piece) != digest:
        raise _bad_donor(donor, f"its leaf {index} is not the one that is needed")


def _bad_donor(donor: _Donor, why: str) -> Malformed:
    return Malformed(f"{donor.path} cannot repair this bundle: {why}", name="DONOR")


def _write_small(bundle: Bundle, section: Section, new: NewFile, is_bad: bool) -> None:
    """A section that isn't the model file, copied or made anew from the model file in the new file."""
    if not is_bad:
        new.write_at(b"", section.offset)
        for piece in passes.pieces(bundle.fileno(), section.offset, section.length):
            new.write(piece)
        return
    data = _derived(bundle, section, new)
    if blake3(data).hexdigest() != section.blake3:
        raise bad_section(section)
    new.write_at(data, section.offset)


def _derived(bundle: Bundle, section: Section, new: NewFile) -> bytes:
    gguf = bundle.gguf
    if section.kind == LEAVES:
        return passes.leaves(new.fileno(), gguf.offset, gguf.length, lambda count: None)
    if section.kind in (TOKENIZER, TEMPLATE):
        keys = read_keys(lambda length: passes.read_bytes(new.fileno(), gguf.offset, length), gguf.length)
        return keys.tokenizer() if section.kind == TOKENIZER else keys.template()
    raise Malformed(f"section '{section.name}' is damaged, and nothing here can make it anew", name="NOT_REPAIRABLE")


def _check(new: NewFile, progress: Progress | None) -> None:
    with Bundle(new.path, os.dup(new.fileno())) as bundle:
        slot.check_signatures(bundle.manifest_bytes, bundle.signatures)
        check_content(bundle, sha256=True, progress=progress)
        check_keys(bundle)

"""Opening bundles: everything that is judged before a byte of a section is used (FORMAT.md, steps B1 to B9).

    with open_verified("model.ktc", trust=trust) as bundle:
        bundle.view(bundle.gguf)  # the model file, mapped

One handle serves from the first check to the last use; nothing is opened again by its path.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from ktc import layout, limits, manifest, passes, slot
from ktc.errors import FileProblem, KtcError, Malformed, SignatureProblem, Unverifiable
from ktc.layout import HEADER_BYTES, SLOT_BYTES, Header, Section
from ktc.leaves import LeafChecker
from ktc.manifest import GGUF, KINDS, LEAVES, Manifest
from ktc.maps import release_pages
from ktc.passes import Name

if TYPE_CHECKING:
    from ktc.trust import Standing, Trust

__all__ = ["Bundle", "Check", "LeafChecker", "Progress", "Section", "is_bundle", "open_bundle", "open_verified"]

Check: TypeAlias = Literal["full", "lazy", "none"]
"""What is checked of the sections: all beforehand, each leaf when it is first touched, or nothing."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


class Bundle:
    """An open bundle whose steps B1 to B7 hold. A context manager; views that are in use outlive it.

    ``status`` is fstat's at opening, ``warnings`` what is odd but no fault.
    ``signers`` and ``standing`` are there once ``open_verified`` has judged them,
    ``leaves`` where leaves are checked when touched.
    """

    def __init__(self, path: Name, handle: int = -1, *, mend: bool = False) -> None:
        """Takes over ``handle`` if it is given; ``path`` then only names it. Raises any KtcError.

        ``mend`` passes over a slot that breaks off, for whoever writes it anew; ``is_torn`` says whether it does.
        """
        self.path = os.fspath(path)
        self._map: mmap.mmap | None = None
        self._buffer: memoryview | None = None
        self.signers: list[str] = []
        self.standing: Standing | None = None
        self.leaves: LeafChecker | None = None
        self.checked: Check = "none"
        self.is_torn = False
        self._handle, self.status = (handle, os.fstat(handle)) if handle >= 0 else passes.open_regular(path)
        try:
            with self.steady():
                self._read(mend)
        except BaseException:
            self.close()
            raise

    def _read(self, mend: bool) -> None:
        self.header = self._read_header()  # steps B1, B2
        layout.check_length(self.header, self.status.st_size)  # step B3
        self.manifest_bytes = self.read(self.header.manifest_at, self.header.manifest_length)
        digest = manifest.manifest_digest(self.manifest_bytes)
        self.manifest_digest = digest.hex()
        slot_bytes = self.read(self.header.slot_at, SLOT_BYTES)
        if mend:
            self.signatures, self.is_torn = slot.salvage(slot_bytes, digest)
        else:
            self.signatures = slot.read_slot(slot_bytes, digest)  # step B4
        self.manifest: Manifest = manifest.read(self.manifest_bytes, self.header)  # steps B5, B6
        self.sections = [Section(**entry) for entry in self.manifest["sections"]]
        layout.check_places(self.header, self.sections)  # step B7
        self.warnings = [
            f"section '{section.name}' is of the unknown kind '{section.kind}', and was passed over"
            for section in self.sections
            if section.kind not in KINDS
        ]

    def _read_header(self) -> Header:
        header = layout.unpack_header(self.read(0, min(HEADER_BYTES, self.status.st_size)))
        if header.major != layout.MAJOR:
            self._refuse_version(header)
        layout.check_header(header)
        return header

    def _refuse_version(self, header: Header) -> None:
        """A header that differs from its copy in the manifest is damaged, and not of another version."""
        intact = header.raw[:8] + layout.MAJOR.to_bytes(2, "little") + header.raw[10:]
        room = min(header.manifest_length, limits.MAX_MANIFEST_BYTES, self.status.st_size - HEADER_BYTES)
        if intact in self.read(HEADER_BYTES, max(room, 0)):
            raise Malformed("byte 8 or 9 of the header is not what the manifest says it is", name="HEADER_MISMATCH")
        raise Unverifiable(
            f"the bundle has version {header.major}, and this program knows {layout.MAJOR}: use a newer program",
            name="VERSION",
        )

    # -- what it holds

    def section(self, kind: str) -> Section | None:
        """The one section of a kind, if there is one."""
        return next((section for section in self.sections if section.kind == kind), None)

    @property
    def gguf(self) -> Section:
        """The section that is the model file; each bundle has one."""
        return next(section for section in self.sections if section.kind == GGUF)

    def read(self, at: int, length: int) -> bytes:
        """Bytes of the file, read and not mapped."""
        return passes.read_bytes(self._handle, at, length)

    def read_section(self, section: Section, length: int | None = None) -> bytes:
        """A section, or its first ``length`` bytes."""
        return self.read(section.offset, section.length if length is None else min(length, section.length))

    @property
    def buffer(self) -> memoryview:
        """The whole file, mapped when first asked for, read-only."""
        if self._buffer is None:
            try:
                self._map = mmap.mmap(self._handle, self.status.st_size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                self.check_unchanged()
                raise passes.unreadable(self.path, error) from None
            self._buffer = memoryview(self._map)
        return self._buffer

    def view(self, section: Section) -> memoryview:
        """The mapped bytes of a section."""
        return self.buffer[section.offset : section.end]

    def release(self, offset: int, length: int) -> None:
        """Take whole pages of the map out of memory; whoever reads them again reads them from the file again."""
        if self._map is not None:
            release_pages(self._map, offset, length)

    # -- the file

    def fileno(self) -> int:
        """The one handle; it stays the bundle's."""
        return self._handle

    def check_unchanged(self) -> None:
        """Raises FileProblem FILE_CHANGED if the file was written to since it was opened."""
        passes.check_unchanged(self._handle, self.status, self.path)

    @contextmanager
    def steady(self) -> Iterator[None]:
        """A refusal in the block becomes FILE_CHANGED if the file was written to: it is not known what was read."""
        try:
            yield
        except KtcError:
            self.check_unchanged()
            raise

    def close(self) -> None:
        """Give up the file. Views in use stay what they are; the map goes with the last of them."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        if self._map is not None and self._buffer is not None:
            self.leaves = None
            with suppress(BufferError):  # a view is alive and keeps the map
                self._buffer.release()
                self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def is_bundle(path: Name) -> bool:
    """Whether a file begins as a bundle does, whatever its name; False if it can't be read."""
    try:
        handle, status = passes.open_regular(path)
    except FileProblem:
        return False
    try:
        return passes.read_bytes(handle, 0, min(8, status.st_size)) == layout.MAGIC
    except FileProblem:
        return False
    finally:
        os.close(handle)


def open_bundle(path: Name) -> Bundle:
    """Steps B1 to B7: the bundle agrees with itself about where everything is. Raises any KtcError."""
    return Bundle(path)


def open_verified(
    path: Name,
    *,
    trust: Trust | None = None,
    at: int | None = None,
    min_release: int = 0,
    check: Check = "full",
    progress: Progress | None = None,
) -> Bundle:
    """Steps B1 to B9, and of the sections what ``check`` says. Raises any KtcError.

    ``at`` is the time at which keys are judged, in seconds since 1970, now by
    default. "lazy" sets ``leaves``, whose ``touch`` is then due before bytes are
    used; of a bundle without leaves it checks all beforehand, as "full" does.
    """
    bundle = Bundle(path)
    try:
        with bundle.steady():
            judge(bundle, trust, at, min_release)  # steps B8, B9
        if check == "lazy" and bundle.section(LEAVES):
            bundle.leaves, bundle.checked = LeafChecker(bundle), "lazy"
        elif check != "none":
            from ktc.verify import check_content

            check_content(bundle, progress=progress)  # steps B10, B11
            bundle.checked = "full"
        return bundle
    except BaseException:
        bundle.close()
        raise


def judge(bundle: Bundle, trust: Trust | None, at: int | None, min_release: int) -> None:
    """Steps B8 and B9: sets ``signers`` and ``standing``; raises SignatureProblem."""
    from ktc import trust as trusting

    if at is None:
        import time

        at = int(time.time())
    bundle.signers = slot.check_signatures(bundle.manifest_bytes, bundle.signatures)
    bundle.standing = trusting.judge(trust, "bundle", bundle.signers, at)
    name, release = bundle.manifest["name"], bundle.manifest["release"]
    aged = trusting.judge_release(trust, name, release)
    if release < min_release:
        raise SignatureProblem(
            f"this is release {release} of '{name}', and {min_release} is the least asked for", name="OLD_RELEASE"
        )
    bundle.warnings += [warning for warning in (bundle.standing.warning, aged) if warning]

"""Writing bundles, and adding signatures to one (FORMAT.md, The bundle).

    with ModelFile("model.gguf") as model:
        write_bundle("model.ktc", model, name="smollm2", file="model.gguf")

A new bundle is written beside its target, checked, flushed to the disk and then
renamed: whatever happens before leaves nothing under the target's name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from blake3 import blake3

from ktc import gguf_keys, layout, passes, slot
from ktc.errors import FileProblem, SignatureProblem
from ktc.inputs import ModelStream
from ktc.layout import HEADER_BYTES, SLOT_BYTES
from ktc.manifest import GGUF, LEAVES, TEMPLATE, TOKENIZER, TYPE, VERSION, Manifest, manifest_digest, pack
from ktc.newfile import NewFile
from ktc.passes import Name, Passes, leaf_count
from ktc.reader import Bundle, Progress
from ktc.signature import KeyPair, key_id

_NO_DIGEST = bytes(32).hex()
"""Stands for a digest while it is not known: a manifest's length does not depend on it."""

_SECTOR = 512
"""Bytes that a disk writes whole or not at all."""


class Written(NamedTuple):
    """A bundle that was written: its name in digests, its size, and its manifest."""

    manifest_digest: str
    size: int
    manifest: Manifest


def write_bundle(
    target: Name,
    model: ModelStream,
    *,
    name: str,
    file: str,
    release: int = 0,
    sources: Sequence[Mapping[str, Any]] = (),
    profiles: Sequence[Mapping[str, Any]] = (),
    derivation: Sequence[Mapping[str, Any]] = (),
    ext: Mapping[str, str] | None = None,
    leaves: bool = True,
    sign: Sequence[KeyPair] = (),
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Written:
    """Pack a model file. ``sources``, ``profiles`` and ``derivation`` are tables as in ``ktc.manifest``.

    The model is read once and copied, then hashed as it stands in the new file;
    memory does not grow with it. Raises any KtcError.
    """
    keys = gguf_keys.read_keys(model.head, model.size)
    small = {kind: data for kind, data in ((TOKENIZER, keys.tokenizer()), (TEMPLATE, keys.template())) if data}
    lengths = {GGUF: model.size} | {kind: len(data) for kind, data in small.items()}
    if leaves:
        lengths[LEAVES] = 32 * leaf_count(model.size)
    manifest: Manifest = {
        "type": TYPE,
        "version": VERSION,
        "header": bytes(HEADER_BYTES).hex(),
        "name": name,
        "release": release,
        "architecture": keys.architecture,
        "file": file,
        "sections": [_entry(kind, length) for kind, length in lengths.items()],
        "sources": [dict(table) for table in sources],
        "profiles": [dict(table) for table in profiles],
        "derivation": [dict(table) for table in derivation],
        "ext": dict(ext or {}),
        "crit": [],
    }
    place(manifest)
    with NewFile(target, overwrite=overwrite) as new:
        _write_sections(new, model, manifest, small, _Meter(progress, 2 * model.size))
        written = _write_frame(new, manifest, sign)
        _check_written(new)
        new.keep()
    return written


def _entry(kind: str, length: int) -> dict[str, Any]:
    digests = {"blake3": _NO_DIGEST, "sha256": _NO_DIGEST if kind == GGUF else ""}
    return {"name": kind, "kind": kind, "critical": True, "offset": 0, "length": length, **digests}


def place(manifest: Manifest) -> None:
    """Set offsets and header: where a section begins depends on the manifest's length, and that on the offsets.

    A longer manifest never moves anything forward, so the search ends.
    """
    length, found = -1, 0
    while length != found:
        length = found
        end = HEADER_BYTES + length
        for entry in manifest["sections"]:
            entry["offset"] = layout.boundary(end)
            end = entry["offset"] + entry["length"]
        manifest["header"] = layout.pack_header(layout.boundary(end) + SLOT_BYTES, length).hex()
        found = len(pack(manifest))


class _Meter:
    """Counts bytes for a caller's progress."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def tick(self, count: int) -> None:
        self.done += count
        if self.progress:
            self.progress(self.done, self.total)


def _write_sections(
    new: NewFile, model: ModelStream, manifest: Manifest, small: dict[str, bytes], meter: _Meter
) -> None:
    """All sections at their places, their digests in the manifest. What is skipped between them is zero."""
    entries = {entry["kind"]: entry for entry in manifest["sections"]}
    gguf = entries[GGUF]
    copied = blake3()
    new.write_at(b"", gguf["offset"])
    for piece in model.read():
        new.write(piece)
        copied.update(piece)
        meter.tick(len(piece))
    found = Passes(new.fileno(), gguf["offset"], gguf["length"]).run(meter.tick, leaves=LEAVES in entries, sha256=True)
    if found.blake3 != copied.hexdigest():
        raise FileProblem("what was written is not what was read: the disk or the memory is faulty", name="NOT_WRITTEN")
    gguf["blake3"], gguf["sha256"] = found.blake3, found.sha256
    contents = small | ({LEAVES: found.leaves} if LEAVES in entries else {})
    for kind, data in contents.items():
        new.write_at(data, entries[kind]["offset"])
        entries[kind]["blake3"] = blake3(data).hexdigest()


def _write_frame(new: NewFile, manifest: Manifest, sign: Sequence[KeyPair]) -> Written:
    """Header, manifest and slot, around what is there."""
    data = pack(manifest)
    digest = manifest_digest(data)
    header = layout.unpack_header(bytes.fromhex(manifest["header"]))
    entries = [slot.sign_manifest(data, pair) for pair in sign]
    slot.check_signatures(data, entries)
    new.write_at(slot.pack_slot(digest, entries), header.slot_at)
    new.write_at(header.raw + data, 0)
    return Written(digest.hex(), header.file_length, manifest)


def _check_written(new: NewFile) -> None:
    """Read back all but the model's bytes, which were hashed in the new file already."""
    from ktc.verify import check_keys

    with Bundle(new.path, os.dup(new.fileno())) as bundle:
        slot.check_signatures(bundle.manifest_bytes, bundle.signatures)
        check_keys(bundle)


def sign_bundle(path: Name, pair: KeyPair) -> list[str]:
    """Add a signature by this key; returns the key ids of all signers. Writes to the signature slot alone.

    Signatures already there must hold. What hashing would find is not looked for:
    verify first. If the machine stops while the slot is written, the bundle is
    refused afterwards (SLOT), and signing again mends it: signatures that were
    there before stay. Raises any KtcError; SignatureProblem REPEATED_KEY.
    """
    handle, _ = passes.open_regular(path, flags=os.O_RDWR)
    with Bundle(path, handle, mend=True) as bundle:
        entries = [*bundle.signatures, slot.sign_manifest(bundle.manifest_bytes, pair)]
        signers = slot.check_signatures(bundle.manifest_bytes, bundle.signatures)
        if key_id(pair.public) not in signers:
            signers = slot.check_signatures(bundle.manifest_bytes, entries)
        elif bundle.is_torn:
            entries = entries[:-1]  # only what stands behind them is to be mended
        else:
            raise SignatureProblem("this key has signed the bundle already", name="REPEATED_KEY")
        _write_slot(bundle, slot.pack_slot(bytes.fromhex(bundle.manifest_digest), entries))
    return signers


def _write_slot(bundle: Bundle, whole: bytes) -> None:
    """The end first, then the beginning, which is one sector: up to then the old signatures stand as they were."""
    at, handle = bundle.header.slot_at, bundle.fileno()
    try:
        for begin, data in ((at + _SECTOR, whole[_SECTOR:]), (at, whole[:_SECTOR])):
            os.lseek(handle, begin, os.SEEK_SET)
            if os.write(handle, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
    except OSError as error:
        raise FileProblem(f"cannot write {bundle.path}: {error.strerror}", name="UNWRITABLE") from None
    if bundle.read(at, SLOT_BYTES) != whole:
        raise FileProblem(f"{bundle.path} was changed while it was signed", name="FILE_CHANGED")

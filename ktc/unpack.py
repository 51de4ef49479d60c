"""Taking the model file out of a bundle: the same bytes that went in."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from blake3 import blake3

from ktc.errors import Malformed
from ktc.layout import Section
from ktc.leaves import bad_section
from ktc.newfile import NewFile
from ktc.passes import Name, pieces
from ktc.reader import Bundle, Progress, judge, open_bundle
from ktc.verify import check_content

if TYPE_CHECKING:
    from ktc.trust import Trust


def unpack(
    path: Name,
    target: Name,
    *,
    trust: Trust | None = None,
    at: int | None = None,
    min_release: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Section:
    """Write the model file to ``target``, and return its section: size and digests.

    Steps B1 to B9 come first; B11 and B12 are made for the model file while it is
    copied. Raises any KtcError, FileProblem EXISTS for a target that is there.
    """
    with open_bundle(path) as bundle:
        judge(bundle, trust, at, min_release)
        with NewFile(target, overwrite=overwrite) as new:
            _copy(bundle, new, progress)
            bundle.check_unchanged()
            new.keep()
        return bundle.gguf


def _copy(bundle: Bundle, new: NewFile, progress: Progress | None) -> None:
    gguf, done = bundle.gguf, 0
    fast, standard = blake3(), hashlib.sha256()
    for piece in pieces(bundle.fileno(), gguf.offset, gguf.length):
        new.write(piece)
        fast.update(piece)
        standard.update(piece)
        done += len(piece)
        if progress:
            progress(done, gguf.length)
    if fast.hexdigest() != gguf.blake3:
        check_content(bundle)  # says which leaf it is, if there are leaves
        raise bad_section(gguf)
    if standard.hexdigest() != gguf.sha256:
        raise Malformed(f"section '{gguf.name}' does not have the manifest's SHA-256", name="SECTION_SHA256")

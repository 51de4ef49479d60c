"""Checking a whole bundle: every byte, every signature, and that it tells one truth (FORMAT.md, Checking a bundle).

``python -m ktc verify`` and ``kinetic verify`` are ``verify``. What a check finds
damaged is collected first, so that all of it can be named and repaired; then the
first is raised.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Self, TypeVar, cast

from blake3 import blake3

from ktc import layout
from ktc.canonical import show
from ktc.errors import KtcError, Malformed
from ktc.gguf_keys import Keys, is_template, is_tokenizer, read_keys
from ktc.layout import Gap, Section
from ktc.leaves import bad_leaf, bad_section, leaf_count_fault
from ktc.manifest import GGUF, LEAVES, TEMPLATE, TOKENIZER
from ktc.passes import Name, Passes, pieces
from ktc.reader import Bundle, Progress, judge, open_bundle

if TYPE_CHECKING:
    from ktc.trust import Standing, Trust


T = TypeVar("T")


class Damage(NamedTuple):
    """What of a bundle's content is not what it was: steps B10 to B12, in the order of the file."""

    gaps: list[Gap]
    """Padding that is not zero."""
    sections: list[Section]
    """Sections whose BLAKE3 is wrong."""
    leaves: list[int]
    """Leaves whose digest is wrong; empty where there is no sound list of leaves."""
    has_leaf_list: bool
    sha256: bool
    """Whether the model file's SHA-256 is wrong; False if it was not asked for."""

    def first(self, bundle: Bundle) -> KtcError | None:
        """The refusal of the lowest step, of several the first in the file; None if nothing is damaged."""
        if self.gaps:
            return _bad_gap(bundle, self.gaps[0])
        leaves = bundle.section(LEAVES)
        fault = leaf_count_fault(leaves, bundle.gguf) if leaves else None
        if fault:
            return fault
        section = self.sections[0] if self.sections else bundle.gguf
        if section.kind == GGUF and self.leaves:
            return bad_leaf(section, self.leaves[0])
        if self.sections:
            return bad_section(section)
        if self.sha256:
            return Malformed(f"section '{section.name}' does not have the manifest's SHA-256", name="SECTION_SHA256")
        return None

    def as_json(self) -> dict[str, Any]:
        return {
            "padding": [{"begin": gap.begin, "end": gap.end} for gap in self.gaps],
            "sections": [section.name for section in self.sections],
            "leaves": self.leaves,
        }


class Findings(NamedTuple):
    """All that the check of a sound bundle found."""

    path: str
    size: int
    manifest_digest: str
    manifest: dict[str, Any]
    sections: list[Section]
    leaf_count: int
    """Leaves that were checked; 0: the bundle has none."""
    signers: list[str]
    standing: Standing
    sha256_checked: bool
    warnings: list[str]

    def as_json(self) -> dict[str, Any]:
        """Plain values, what was not checked included."""
        return {
            "manifest_digest": self.manifest_digest,
            "bundle_name": self.manifest["name"],
            "release": self.manifest["release"],
            "architecture": self.manifest["architecture"],
            "size": self.size,
            "sections": [section._asdict() for section in self.sections],
            "leaves_checked": self.leaf_count,
            "sha256_checked": self.sha256_checked,
            "signers": self.signers,
            "signature": self.standing.sentence,
            "trusted": self.standing.is_trusted,
            "warnings": self.warnings,
        }


class Damaged(Malformed):
    """A refusal of step B10 to B12; ``damage`` lists all that is damaged."""

    def __init__(self, cause: KtcError, damage: Damage) -> None:
        super().__init__(str(cause) + _others(damage), name=cause.name)
        self.damage = damage


def verify(
    path: Name,
    *,
    trust: Trust | None = None,
    at: int | None = None,
    min_release: int = 0,
    sha256: bool = False,
    progress: Progress | None = None,
) -> Findings:
    """Steps B1 to B13 (B12 where ``sha256``) on one handle, reading and never mapping. Raises any KtcError."""
    with open_bundle(path) as bundle:
        with bundle.steady():
            judge(bundle, trust, at, min_release)
            with _Aside(lambda: _read_keys(bundle)) as keys:
                check_content(bundle, sha256=sha256, progress=progress)
            _check_keys(bundle, keys.result(), is_content_sound=True)
        bundle.check_unchanged()
        return _findings(bundle, sha256)


def check_content(bundle: Bundle, *, sha256: bool = False, progress: Progress | None = None) -> None:
    """Steps B10 and B11, and B12 where ``sha256``. Raises Damaged, FileProblem."""
    with bundle.steady():
        damage = survey(bundle, sha256=sha256, progress=progress)
    bundle.check_unchanged()  # a file that is being written to is not damaged
    first = damage.first(bundle)
    if first:
        raise Damaged(first, damage)


def survey(bundle: Bundle, *, sha256: bool = False, progress: Progress | None = None) -> Damage:
    """Read everything once, and say what of it is damaged; raises FileProblem alone."""
    gaps = [gap for gap in layout.padding(bundle.header, bundle.sections) if any(_read_gap(bundle, gap))]
    meter = _Meter(progress, sum(section.length for section in bundle.sections))
    bad = [section for section in bundle.sections if section.kind != GGUF and not _is_sound(bundle, section, meter)]
    listed = _leaf_list(bundle, bad)
    gguf = bundle.gguf
    passes = Passes(bundle.fileno(), gguf.offset, gguf.length)
    found = passes.run(meter.tick, leaves=listed is not None, sha256=sha256)
    if found.blake3 != gguf.blake3:
        bad.append(gguf)
    wrong = [] if listed is None else _differing(found.leaves, listed)
    ordered = [section for section in bundle.sections if section in bad]
    return Damage(gaps, ordered, wrong, listed is not None, sha256 and found.sha256 != gguf.sha256)


def check_keys(bundle: Bundle) -> Keys:
    """Step B13: the model file's keys can be read, and the other sections say what they say.

    Where leaves are checked lazily, those that are read here are. Returns the keys.
    """
    keys = _read_keys(bundle)
    _check_keys(bundle, keys)
    return keys


def _read_keys(bundle: Bundle) -> Keys:
    return read_keys(lambda length: _head(bundle, length), bundle.gguf.length)


def _check_keys(bundle: Bundle, keys: Keys, *, is_content_sound: bool = False) -> None:
    named = bundle.manifest["architecture"]
    if keys.architecture != named:
        raise Malformed(
            f"the manifest names the architecture {show(named)}, and the model file {show(keys.architecture)}",
            name="ARCHITECTURE",
        )
    if is_content_sound:
        _compare_digests(bundle, keys)
    else:
        compare_records(bundle, keys.tokenizer(), keys.template())


def _compare_digests(bundle: Bundle, keys: Keys) -> None:
    """As ``compare_records``, of sections that have their digests: then nothing need be read or copied again."""
    head = memoryview(keys.head)
    for kind, wanted, name in (
        (TOKENIZER, is_tokenizer, "TOKENIZER_MISMATCH"),
        (TEMPLATE, is_template, "TEMPLATE_MISMATCH"),
    ):
        places = keys.places(wanted)
        section = bundle.section(kind)
        hasher = blake3()
        for _, begin, end in places:
            hasher.update(head[begin:end])
        if (section is None) != (not places) or (section and hasher.hexdigest() != section.blake3):
            _refuse_records(kind, section, name)


def _refuse_records(kind: str, section: Section | None, name: str) -> NoReturn:
    if section is None:
        raise Malformed(f"the model file has keys for a section of kind '{kind}', and there is none", name=name)
    raise Malformed(f"section '{section.name}' is not what the model file's keys say", name=name)


def compare_records(bundle: Bundle, tokenizer: bytes, template: bytes) -> None:
    """The rest of step B13, for whoever has read the keys: the records that the model file holds of each kind."""
    for kind, held, name in (
        (TOKENIZER, tokenizer, "TOKENIZER_MISMATCH"),
        (TEMPLATE, template, "TEMPLATE_MISMATCH"),
    ):
        section = bundle.section(kind)
        if section is None and held:
            _refuse_records(kind, section, name)
        if section is not None and (section.length != len(held) or bundle.read_section(section) != held):
            _refuse_records(kind, section, name)


def _head(bundle: Bundle, length: int) -> bytes:
    """The first bytes of the model file, from the map where the map is what was checked."""
    if bundle.leaves is None:
        return bundle.read_section(bundle.gguf, length)
    bundle.leaves.touch(0, length)
    return bytes(bundle.view(bundle.gguf)[:length])


def _findings(bundle: Bundle, sha256: bool) -> Findings:
    leaves = bundle.section(LEAVES)
    assert bundle.standing is not None
    return Findings(
        path=bundle.path,
        size=bundle.status.st_size,
        manifest_digest=bundle.manifest_digest,
        manifest=bundle.manifest,
        sections=bundle.sections,
        leaf_count=leaves.length // 32 if leaves else 0,
        signers=bundle.signers,
        standing=bundle.standing,
        sha256_checked=sha256,
        warnings=list(bundle.warnings),
    )


class _Aside(Generic[T]):
    """A call in a thread of its own, beside what the block does; ``result`` is its value, or raises what it raised.

    Walking a vocabulary of 50,000 words in Python takes as long as hashing 30 MB. The hashing threads ask for the
    interpreter once per MiB, and must get it before the walker's usual five milliseconds are over.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: T | None = None
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # raised where the result is asked for
            self._fault = error

    def __enter__(self) -> Self:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def result(self) -> T:
        if self._fault is not None:
            raise self._fault
        return cast(T, self._value)


# Pieces of the survey


class _Meter:
    """Counts bytes for a caller's progress."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def tick(self, count: int) -> None:
        self.done += count
        if self.progress:
            self.progress(self.done, self.total)


def _read_gap(bundle: Bundle, gap: Gap) -> bytes:
    return bundle.read(gap.begin, gap.end - gap.begin)


def _bad_gap(bundle: Bundle, gap: Gap) -> Malformed:
    at = gap.begin + next((i for i, byte in enumerate(_read_gap(bundle, gap)) if byte), 0)
    return Malformed(f"byte {at}, in the padding after {gap.after}, is not zero", name="PADDING")


def _is_sound(bundle: Bundle, section: Section, meter: _Meter) -> bool:
    hasher = blake3()
    for piece in pieces(bundle.fileno(), section.offset, section.length):
        hasher.update(piece)
        meter.tick(len(piece))
    return hasher.hexdigest() == section.blake3


def _leaf_list(bundle: Bundle, bad: list[Section]) -> bytes | None:
    """The leaf digests, if there are any, as many as there must be, and sound."""
    section = bundle.section(LEAVES)
    if section is None or section in bad:
        return None
    if leaf_count_fault(section, bundle.gguf):
        return None
    return bundle.read_section(section)


def _differing(found: bytes, listed: bytes) -> list[int]:
    return [i // 32 for i in range(0, len(found), 32) if found[i : i + 32] != listed[i : i + 32]]


def _others(damage: Damage) -> str:
    """What else is damaged, in a few words."""
    count = len(damage.gaps) + len(set(damage.leaves)) + sum(section.kind != GGUF for section in damage.sections)
    count += any(section.kind == GGUF for section in damage.sections) and not damage.leaves
    return f"; {count - 1} more places are damaged" if count > 2 else "; another place is damaged" if count == 2 else ""

"""Packed weights that were kept change nothing: not those of the last start, nor damaged ones, nor another model's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from conformance.case import Case, Evidence, Skipped, counted, require, require_rows, together
from conformance.kept_packs import KeptPacks
from conformance.setting import Setting, Subject
from kinetic.api.probe import Probe, keeps_packs

PROPERTY = "A cache changes no answer: packed weights of the last start, or poisoned ones, give the same bits."
OF_MODELS = True

ROWS = 33


def cases(setting: Setting) -> Iterator[Case]:
    if setting.device != "cpu":
        return
    for subject in setting.subjects:
        yield Case(f"{subject.name}/warm", partial(_warm, setting, subject))
        for place in ("first-byte", "middle", "last-byte"):
            if subject.recipe or place == "middle":
                yield Case(f"{subject.name}/poisoned-{place}", partial(_poisoned, setting, subject, place))


def _warm(setting: Setting, subject: Subject) -> Evidence:
    with _scratch(setting) as folder:
        packs = KeptPacks(Path(folder) / "packs", subject.path)
        cold = _rows(setting, subject, packs, "packed anew")
        require(len(packs.files) == 1, "no pack was kept, so there is nothing to start warm from")
        packs.age()
        warm = _rows(setting, subject, packs, "of a warm start")
        require(packs.was_used(), "the second start did not use the pack of the first")
    return Evidence(counted(len(cold + warm)), together(cold + warm))


def _poisoned(setting: Setting, subject: Subject, place: str) -> Evidence:
    with _scratch(setting) as folder:
        packs = KeptPacks(Path(folder) / "packs", subject.path)
        _rows(setting, subject, packs, "packed anew")
        require(len(packs.files) == 1, "no pack was kept, so there is none to poison")
        (path,) = packs.files
        good = path.stat().st_size
        at = {"first-byte": 4096 * (1 + _header(path) // 4096), "middle": good // 2, "last-byte": good - 1}[place]
        _flip(path, at)
        packs.age()
        found = _rows(setting, subject, packs, f"read from a pack with a flipped bit at byte {at}")
    return Evidence(counted(len(found)), together(found))


def _header(path: Path) -> int:
    """Bytes of a pack's header, from how many pieces of a MiB its data has; the data begins on the next page."""
    return 64 + 32 * (path.stat().st_size >> 20)


def _flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def _rows(setting: Setting, subject: Subject, packs: KeptPacks, how: str) -> list[bytes]:
    """Through a model opened for this alone; closing it waits until the pack is written."""
    expected = subject.plain.rows
    setting.close()  # room for another
    with Probe(subject.path, threads=setting.threads, packs=packs.cache, progress=setting.news) as probe:
        return require_rows(probe.feed(subject.tokens[:ROWS], [ROWS]), expected, how)


def _scratch(setting: Setting) -> tempfile.TemporaryDirectory[str]:
    if not keeps_packs():
        raise Skipped("no packed weights are kept on this system")
    return tempfile.TemporaryDirectory(dir=setting.folder)

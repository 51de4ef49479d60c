"""How a bundle's weights were made can be tried again, and a single byte that is another is found and named."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from conformance.case import Case, Evidence, require
from conformance.setting import Setting, Subject
from kinetic.api import bundle, derivation

PROPERTY = "Weights that a bundle says were quantised from a file are, byte for byte, what quantising that file gives."
OF_MODELS = False

SETTINGS = {"quick": ("Q8_0",), "normal": ("Q8_0",), "full": ("Q8_0", "Q4_0 --output-tensor-type F16")}


def cases(setting: Setting) -> Iterator[Case]:
    for subject in setting.built_in:
        if subject.recipe and subject.recipe.kind == "F16":
            yield Case(subject.name, partial(_run, setting, subject))


def _run(setting: Setting, subject: Subject) -> Evidence:
    made = [_try(setting, subject, text) for text in SETTINGS[setting.level]]
    count = len(made)
    return Evidence(f"{count} {'recipe' if count == 1 else 'recipes'} made again, a changed byte found", made[0])


def _try(setting: Setting, subject: Subject, text: str) -> str:
    """BLAKE3 of the quantised model, hex."""
    with tempfile.TemporaryDirectory(dir=setting.folder) as name:
        folder = Path(name)
        written = derivation.pack(folder / "a.ktc", subject.path, derivation.read(text), threads=setting.threads)
        found = _verify(setting, folder / "a.ktc", subject)
        require(found["verdict"] == "DERIVED", f"{text}: {found.get('message', '')}")
        (record,) = written.manifest["derivation"]
        bundle.unpack(folder / "a.ktc", folder / "a.gguf")
        for at in (-1, -64):  # In the last tensor: its bytes are a multiple of 32, so that no padding follows.
            _require_found(setting, subject, folder, record, at)
        digest: str = written.manifest["sections"][0]["blake3"]
        return digest


def _require_found(setting: Setting, subject: Subject, folder: Path, record: dict[str, Any], at: int) -> None:
    """A byte of the model, counted from its end, is another in a bundle that is whole and has the same record."""
    data = bytearray((folder / "a.gguf").read_bytes())
    data[at] ^= 0x10
    (folder / "b.gguf").write_bytes(data)
    bundle.pack(folder / "b.gguf", folder / "b.ktc", derivation=record)
    found = _verify(setting, folder / "b.ktc", subject)
    (folder / "b.ktc").unlink()
    where = f"byte {len(data) + at} of the model is another"
    require(found["verdict"] == "DIFFERS", f"{where}, and the bundle is said to be {found['verdict']}")
    require(found["difference"]["tensor"] is not None, f"{where}, and no tensor is named")


def _verify(setting: Setting, path: Path, subject: Subject) -> dict[str, Any]:
    """The bundle itself is whole."""
    whole = bundle.verify(path)
    require(whole["verdict"] == "INTACT", f"{path.name}: {whole.get('message', '')}")
    digest = whole["manifest_digest"]
    return derivation.verify(path, [subject.path], manifest_digest=digest, threads=setting.threads)

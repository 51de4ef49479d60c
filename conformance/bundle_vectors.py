"""Runs one test vector of bundles on ``ktc`` alone: no engine, no model, no network.

    outcome = run_vector(vector, folder)
    assert (outcome.exit_code, outcome.name) == (expect["exit_code"], expect["name"])

``vectors/README.md`` describes the fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from conformance.run_vector import NOW, read_trust_of
from conformance.vector_files import FOLDER as ROOT
from conformance.vector_files import Vector
from ktc.errors import KtcError
from ktc.manifest import KINDS
from ktc.verify import Damaged, Findings, verify

GROUP = "bundles"
FOLDER = ROOT / GROUP
BASES = FOLDER / "base"


class Outcome(NamedTuple):
    """What a verifier says of one vector's file."""

    exit_code: int
    name: str
    sentence: str = ""
    """Why it is refused, or what its signatures are worth."""
    leaf: int = -1
    """The first leaf that is wrong, where one is named."""
    findings: Findings | None = None
    """Of a bundle that passes."""

    @property
    def signature(self) -> str:
        """What the signatures are worth, in words."""
        return self.findings.standing.sentence if self.findings else ""

    @property
    def manifest_digest(self) -> str:
        return self.findings.manifest_digest if self.findings else ""

    @property
    def signers(self) -> list[str]:
        return self.findings.signers if self.findings else []

    @property
    def passed_over(self) -> list[str]:
        """Names of sections of unknown kinds; each must be told in a warning."""
        sections = self.findings.sections if self.findings else []
        warnings = " ".join(self.findings.warnings if self.findings else [])
        return [section.name for section in sections if section.kind not in KINDS and f"'{section.name}'" in warnings]


@cache
def base(name: str) -> bytes:
    """One of the files that others are put together from."""
    return file_bytes(json.loads((BASES / name).read_bytes())["file"])


def file_bytes(recipe: Mapping[str, Any]) -> bytes:
    """The bytes that a recipe describes: its parts, one after the other."""
    source = base(recipe["base"]) if "base" in recipe else b""
    return b"".join(_part(part, source) for part in recipe["parts"])


def _part(part: Mapping[str, Any], source: bytes) -> bytes:
    if "zeros" in part:
        return bytes(part["zeros"])
    if "copy" in part:
        begin, end = part["copy"]
        if not 0 <= begin < end <= len(source):
            raise ValueError(f"bytes {begin} to {end} are not in a base of {len(source)}")
        return source[begin:end]
    return bytes.fromhex(part["hex"]) * int(part.get("times", 1))


def run_vector(vector: Vector, folder: Path) -> Outcome:
    """The verdict on a vector's file under its options, as ``python -m ktc verify`` would give it.

    The file is written to ``folder``, since bundles are judged on a disk.
    """
    path = folder / "bundle.ktc"
    path.write_bytes(file_bytes(vector["file"]))
    return run_file(path, vector.get("options", {}))


def run_file(path: Path, options: Mapping[str, Any]) -> Outcome:
    """The same for a file that is there."""
    from ktc.trust import parse_time

    try:
        findings = verify(
            path,
            trust=trust_of(options),
            at=parse_time(options.get("at", NOW)),
            min_release=options.get("min_release", 0),
            sha256=options.get("sha256", False),
        )
    except KtcError as error:
        leaves = error.damage.leaves if isinstance(error, Damaged) and error.name == "LEAF_DIGEST" else []
        return Outcome(error.exit_code, error.name, str(error), leaves[0] if leaves else -1)
    return Outcome(0, "INTACT", findings.standing.sentence, findings=findings)


def trust_of(options: Mapping[str, Any]) -> Any:
    """Whom the options trust; None: nobody is asked for."""
    from ktc.trust import pinned

    if "keys" in options:
        return pinned({name: bytes.fromhex(key) for name, key in options["keys"].items()}, "bundle")
    return read_trust_of(options["trust"]) if "trust" in options else None

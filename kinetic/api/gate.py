"""What a gate asks of this build beyond a ``Checker``: which engine computes, and which of the named models it is."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kinetic import store
from kinetic._version import __version__
from kinetic.api.audit import _engine_id
from kinetic.api.rerun_models import Claim, claim_of
from kinetic.loader import open_model_file
from receipts.schema import Record


class NamedModels:
    """Models that somebody named by path or name, to be found by the hashes in a receipt.

    Raises FileProblem at once for a name that stands for nothing; files are opened and hashed when
    they are first asked for, and then raise what opening a model raises.
    """

    def __init__(self, names: Iterable[str | os.PathLike[str]]) -> None:
        self._paths = [store.resolve(name) for name in names]
        self._found: dict[Claim, Path] | None = None
        self._used: set[Path] = set()

    def find(self, record: Record) -> Path | None:
        """The named file that the receipt says it is of; None if it isn't among them. Only a hint: hash it again."""
        if self._found is None:
            self._found = {_claim(path): path for path in self._paths}
        path = self._found.get(claim_of(record))
        self._used |= {path} if path else set()
        return path

    def unused(self) -> list[Path]:
        """Those that no receipt asked for so far."""
        return [path for path in self._paths if path not in self._used]


def _claim(path: Path) -> Claim:
    with open_model_file(path, check="none") as loaded:
        return tuple((file.size, file.blake3, file.sha256) for file in loaded.identity().files)


def engine_id(device: str) -> str:
    """Which code computes on a device, as receipts claim it. Raises UsageError for a device that isn't there."""
    return _engine_id(device)


def pull_name(blake3: str) -> str:
    """What ``kinetic pull`` calls a model file with this digest; "" if it knows none."""
    return next((name for name, entry in store.catalog().items() if entry["blake3"] == blake3), "")


def program() -> str:
    """This program and its version."""
    return f"kinetic {__version__}"

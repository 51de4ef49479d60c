"""Which models of the models folder came from a hub, and where there: a small file that ``kinetic pull`` keeps."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

from kinetic.model_names import HubName, choose

FILE = ".sources.json"


class Origin(NamedTuple):
    """``path`` in a repository at a commit; ``revision`` is the name it was asked for by, or ""."""

    repo: str
    path: str
    commit: str
    revision: str


def origins(folder: Path) -> dict[str, Origin]:
    """Of each model from a hub the file name in this folder, and its origin. Empty if that was never kept."""
    try:
        entries = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {
            str(file): Origin(*map(str, entry)) for file, entry in entries.items() if len(entry) == len(Origin._fields)
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def remember(folder: Path, file: str, origin: Origin) -> None:
    """Keep where a model came from. Where that can't be written, the model goes by its own name only."""
    _write(folder, origins(folder) | {file: origin})


def forget(folder: Path, file: str) -> None:
    """The model is gone."""
    known = origins(folder)
    if known.pop(file, None):
        _write(folder, known)


def find(folder: Path, name: HubName) -> Path | None:
    """The file in this folder that was pulled by such a name; None if there is none, or more than one."""
    fitting = {
        origin.path: folder / file
        for file, origin in origins(folder).items()
        if origin.repo.lower() == name.repo.lower() and _is_of(origin, name.revision) and (folder / file).is_file()
    }
    chosen = choose(fitting, name.choice)
    return fitting[chosen[0]] if len(chosen) == 1 else None


def _is_of(origin: Origin, revision: str) -> bool:
    return not revision or revision == origin.revision or (len(revision) >= 7 and origin.commit.startswith(revision))


def _write(folder: Path, known: dict[str, Origin]) -> None:
    from ktc import errors, files  # Not at the top: most commands keep nothing.

    with contextlib.suppress(errors.KtcError):
        files.write_atomic(folder / FILE, json.dumps(known, indent=1, sort_keys=True).encode())

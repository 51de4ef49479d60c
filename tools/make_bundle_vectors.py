"""Vectors of bundles: ``python -m tools.make_bundle_vectors`` writes conformance/vectors/v1/bundles anew.

Each file is one scenario: the bytes of a bundle, the options it is checked
under, and the exit code and name of the reason that any verifier must give.
What is expected is written by hand in ``tools.bundle_vectors``, never taken
from the program. A file that changes means that the format changed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.bundle_vectors import BASES as BASE_FOLDER
from conformance.bundle_vectors import FOLDER
from tools.bundle_vectors import header, layout, manifest, models, signing, sound, steps
from tools.bundle_vectors.build import ABOUT, BASES, Case
from tools.bundle_vectors.rope import Base, recipe
from tools.vector_files import renew

MODULES = (header, layout, manifest, models, signing, sound, steps)


def files() -> Iterator[tuple[Path, str]]:
    """(path, content) of every file, the bases included."""
    for name, data in BASES.items():
        yield BASE_FOLDER / f"{name}.json", dump({"what": ABOUT[name], "file": recipe(data, None)})
    bases = {name: Base(f"{name}.json", data) for name, data in BASES.items()}
    for case in cases():
        yield FOLDER / f"{case.id}.json", dump(vector(case, bases[case.base]))


def cases() -> Iterator[Case]:
    for module in MODULES:
        yield from module.cases()


def vector(case: Case, base: Base) -> dict[str, Any]:
    """A case as its file holds it."""
    code, name, step = case.expect
    file = recipe(case.file, base, case.unit)
    table: dict[str, Any] = {"id": case.id, "attack": list(case.attack), "what": case.what, "file": file}
    table |= {"options": dict(case.options)} if case.options else {}
    return table | {"expect": {"exit_code": code, "name": name, "step": step, **case.more}}


def dump(table: dict[str, Any]) -> str:
    """JSON, each field on a line of its own, and each part of the file."""
    rows = [f" {json.dumps(name)}: {_value(name, value)}" for name, value in table.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _value(name: str, value: Any) -> str:
    if name != "file" or not value["parts"]:
        return json.dumps(value)
    begin = f'"base": {json.dumps(value["base"])}, ' if "base" in value else ""
    return f'{{{begin}"parts": [\n  ' + ",\n  ".join(map(json.dumps, value["parts"])) + "\n ]}"


def main() -> int:
    """Write what changed; 1 if a file that was there did."""
    made = {path: text.encode("ascii") for path, text in files()}
    return renew(made, [path for folder in (BASE_FOLDER, FOLDER) for path in folder.glob("*.*")], FOLDER.parent)


if __name__ == "__main__":
    sys.exit(main())

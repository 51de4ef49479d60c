"""Vectors of receipts and trust: ``python -m tools.make_receipt_vectors`` writes conformance/vectors/v1 anew.

Each file is one scenario: the bytes of a receipt, the options it is checked
under, and the exit code and name of the reason that any verifier must give.
What is expected is written by hand in ``tools.receipt_vectors``, never taken
from the program. A file that changes means that the format changed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.vector_files import BASES as BASE_FOLDER
from conformance.vector_files import FOLDER
from tools.receipt_vectors import answers, binary, challenge, fields, proofs, reading, signing, stops, trust, values
from tools.receipt_vectors.build import FILES, Case
from tools.receipt_vectors.recipe import recipe
from tools.vector_files import renew

GROUPS = {
    "receipts": (reading, binary, fields, values, answers, stops, challenge, proofs, signing),
    "trust": (trust,),
}


def files() -> Iterator[tuple[Path, bytes]]:
    """(path, content) of every file, the bases included."""
    for name, data in FILES.items():
        yield BASE_FOLDER / name, data
    for group, modules in GROUPS.items():
        for module in modules:
            for case in module.cases():
                yield FOLDER / group / f"{case.id}.json", dump(vector(case)).encode("utf-8")


def vector(case: Case) -> dict[str, Any]:
    """A case as its file holds it."""
    code, name, step = case.expect
    file = recipe(case.file) if isinstance(case.file, bytes) else case.file
    table: dict[str, Any] = {"id": case.id, "attack": list(case.attack), "what": case.what, "file": file}
    table |= {key: value for key, value in (("options", case.options), ("engine", case.engine)) if value}
    return table | {"expect": {"exit_code": code, "name": name, "step": step, **case.more}}


def dump(table: dict[str, Any]) -> str:
    return json.dumps(table, indent=1, ensure_ascii=True) + "\n"


def main() -> int:
    """Write what changed; 1 if a file that was there did."""
    made = dict(files())
    there = [path for folder in (BASE_FOLDER, *map(FOLDER.joinpath, GROUPS)) for path in folder.glob("*.*")]
    return renew(made, there, FOLDER)


if __name__ == "__main__":
    sys.exit(main())

"""The freeze of the arithmetic: ``python -m tools.pin_profile`` writes conformance/golden/PROFILE.json.

It holds digests of everything committed that follows from the arithmetic: vectors of operations, logits and answers of
the built-in models, draws, golden receipts and bundles. What is new is added; what is there never changes under one
name. Of a draft nothing is pinned.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blake3 import blake3

from conformance.recipes import DIGESTS
from kinetic.types import PROFILE
from receipts.encode import question_id, read_receipt
from tools import make_golden_bundles, make_golden_receipts, make_vectors

FOLDER = Path(__file__).resolve().parent.parent / "conformance" / "golden"
RULE = "a change of bits needs a new profile name"


def main() -> int:
    """Pin what is new; 1 if something that is pinned has changed, and then nothing is written."""
    if "-draft." in PROFILE:
        print(f"{PROFILE} is a draft: nothing is pinned")
        return 0
    found, pinned = pins(), read()
    if faults := changes(pinned, found):
        print("\n".join(faults))
        return 1
    path(PROFILE).write_text(dump(found), encoding="utf-8")
    print(f"{PROFILE}: {len(found)} digests, {len(found) - len(pinned)} new")
    return 0


def path(profile: str) -> Path:
    return FOLDER / f"{profile}.json"


def read(profile: str = PROFILE) -> dict[str, str]:
    """What is pinned under a profile, hex by name; nothing where there is no file."""
    if not path(profile).is_file():
        return {}
    table: dict[str, str] = json.loads(path(profile).read_text(encoding="utf-8"))["digests"]
    return table


def dump(digests: Mapping[str, str]) -> str:
    return json.dumps({"profile": PROFILE, "digests": dict(digests)}, indent=1, sort_keys=True) + "\n"


def changes(pinned: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """A sentence for each pinned digest that is another now, or gone."""
    return [
        f"{name} {'is another' if name in found else 'is gone'} under {PROFILE}: {RULE} (docs/NUMERICS.md, Versions)"
        for name in sorted(pinned)
        if found.get(name) != pinned[name]
    ]


def pins() -> dict[str, str]:
    """BLAKE3, hex, of each committed result, by name."""
    return {name: blake3(json.dumps(value, sort_keys=True).encode()).hexdigest() for name, value in _results()}


def _results() -> Iterator[tuple[str, Any]]:
    """(name, what follows from the arithmetic)."""
    table = json.loads(DIGESTS.read_text(encoding="utf-8"))
    for part in ("recipes", "functions", "samplers", "vectors"):
        for name, digests in table[part].items():
            yield f"{part}/{name}", digests
    for file in sorted(make_vectors.FOLDER.glob("*.json")):
        vector = json.loads(file.read_text(encoding="utf-8"))
        yield f"ops/{file.stem}", {name: value for name, value in vector.items() if name != "profile"}
    for golden in make_golden_receipts.CASES:
        record = read_receipt(make_golden_receipts.FOLDER / f"{golden.name}.json").record
        yield f"receipts/{golden.name}", [question_id(record), record["output"], record["logit_commit"]]
    for file in sorted(make_golden_bundles.FOLDER.glob("*.ktc")):
        yield f"bundles/{file.stem}", blake3(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())

"""Judges test vectors of one group and says what came of each: ``python -m conformance.attacks.judge GROUP ID...``

One line a vector: its id, the exit code, the name. An exception that is no verdict ends the program. Files
are written to the current folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from conformance import bundle_vectors, run_vector
from conformance.vector_files import FOLDER


def main() -> None:
    group, *names = sys.argv[1:]
    for name in names:
        vector = json.loads((FOLDER / group / f"{name}.json").read_text(encoding="utf-8"))
        of_bundle = group == bundle_vectors.GROUP
        found = bundle_vectors.run_vector(vector, Path()) if of_bundle else run_vector.run_vector(vector)
        print(name, found.exit_code, found.name, flush=True)


if __name__ == "__main__":
    main()

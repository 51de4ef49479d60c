"""The tiny models of the golden receipts: ``python -m tools.write_tiny_models FOLDER``, the same bytes everywhere."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.make_golden_receipts import TINY


def main(arguments: list[str]) -> int:
    """Write each model into the folder, which is made, and print where."""
    if len(arguments) != 1:
        print("usage: python -m tools.write_tiny_models FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in TINY.items():
        print(write(folder / f"{name}.gguf"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

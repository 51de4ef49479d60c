"""The lattices of the IQ formats: ``python -m tools.make_grids ggml-common.h`` makes kinetic/formats/grids.py anew.

Which points of a lattice a format uses is known from llama.cpp's tables alone. Only these numbers are read, from the
header given; FORMS says how they are stored.
"""

from __future__ import annotations

import re
import sys
import textwrap
import zlib
from base64 import b85encode
from pathlib import Path

import numpy as np

from kinetic.formats.grids import FORMS

PLACE = Path(__file__).resolve().parent.parent / "kinetic" / "formats" / "grids.py"
MARK = "POINTS = {\n"


def points(header: str, name: str) -> list[int]:
    """The table's points, each the number whose digits are its coordinates, the first the lowest."""
    table = re.search(rf"\(uint(?:32|64)_t, {name.replace('_', '', 1)}_grid, \w+\)(.*?)GGML_TABLE_END", header, re.S)
    if table is None:
        raise SystemExit(f"the header has no table for {name}")
    width, levels = FORMS[name]
    digits = {level & 255: digit for digit, level in enumerate(levels)}
    numbers = [int(word, 16) for word in re.findall(r"0x[0-9a-f]+", table[1])]
    return [sum(digits[n >> 8 * j & 255] * len(levels) ** j for j in range(width)) for n in numbers]


def stored(numbers: list[int]) -> str:
    """Ascending numbers as text: the gaps between them, 16 bits each, deflated."""
    gaps = np.diff(np.array([0, *numbers]))
    if (gaps < 0).any():
        raise SystemExit("the points are not in ascending order")
    return b85encode(zlib.compress(gaps.astype("<u2").tobytes(), 9)).decode()


def entry(name: str, text: str) -> str:
    lines = "\n".join(f'        "{line}"' for line in textwrap.wrap(text, 108))
    return f'    "{name}": (\n{lines}\n    ),\n'


def main() -> int:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m tools.make_grids ggml-common.h")
    header = Path(sys.argv[1]).read_text(encoding="utf-8")
    before = PLACE.read_text(encoding="utf-8").split(MARK)[0]
    entries = "".join(entry(name, stored(points(header, name))) for name in FORMS)
    PLACE.write_text(before + MARK + entries + "}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

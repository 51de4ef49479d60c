"""The tables of weight formats as C: lattices, signs and levels, from the arrays that the CPU reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np

from kinetic.formats import four_bits, grids

TABLES: dict[str, tuple[str, Callable[[], np.ndarray]]] = {
    "four_bit_levels": ("schar", lambda: np.array(four_bits.LEVELS)),
    "fp4_values": ("schar", lambda: np.array(four_bits.FP4)),
    "even_signs": ("uchar", grids.even_signs),
    **{f"{name}_grid": ("schar", partial(grids.points, name)) for name in grids.FORMS},
}
"""Element type and array by the name in C."""


def tables(code: str) -> str:
    """Definitions of those tables that ``code`` names."""
    used = set(re.findall(r"\w+", code))
    return "".join(_definition(name, kind, array()) for name, (kind, array) in TABLES.items() if name in used)


def _definition(name: str, kind: str, array: np.ndarray) -> str:
    sizes = "".join(f"[{size}]" for size in array.shape)
    values = str(array.tolist()).replace("[", "{").replace("]", "}")
    return f"CONSTANT {kind} {name}{sizes} = {values};\n"

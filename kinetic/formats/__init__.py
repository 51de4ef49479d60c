"""Weight formats, one file each, found by ggml type id.

A float format offers ``decode``. A quantised format also offers ``integers``:
its values as exact small integers with one float32 scale a block, which is
what products are computed from. ``RUNNABLE`` lists what this build can run.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from kinetic.bits import F32
from kinetic.errors import UnsupportedModel

_MODULES = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    29: "iq1_m",
    30: "bf16",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    40: "nvfp4",
    41: "q1_0",
    42: "q2_0",
}

RUNNABLE = frozenset(_MODULES)
"""ggml type ids of the formats that this build can compute with."""


class Integers(NamedTuple):
    """A quantised matrix [N, K] as integers: value = scale * (sub * q) + minimum * sub_minimum, blocks of 32 along K.

    ``q`` int8 [N, K]; ``scale`` float32 [N, K/32], or [N, K/16] where the halves of a block have their own;
    ``minimum`` float32 [N, K/32] or None; ``sub`` and ``sub_minimum`` int8 [N, K/16], integer factors of
    16-element halves, or None.
    """

    q: NDArray[np.int8]
    scale: F32
    minimum: F32 | None = None
    sub: NDArray[np.int8] | None = None
    sub_minimum: NDArray[np.int8] | None = None


class Format(Protocol):
    NAME: str
    TYPE_ID: int
    BLOCK: int
    """Values in a block."""
    BYTES: int
    """Bytes of a block."""
    QUANTISED: bool

    # Quantised formats also say how they are packed for a device. What follows is plain Python that a compiler can
    # take; ``block`` is uint8 [BYTES].
    BITS: int
    """Width of the codes ``unsigned(block, i)``: 1, 2, 3, 4, 5, 6 or 8."""
    TABLE: tuple[int, ...] | None
    """The integers that the codes stand for; None where a code is the integer plus ZERO."""
    ZERO: int
    """What makes the integers unsigned: q + ZERO is in 0..255. A power of two, or 0."""
    SCALES: str
    """'block': a scale d, and m unless ``M_AT`` is -1, for each BLOCK values. 'pairs': a scale for each 16 values.
    'superblock': d, and dmin unless ``M_AT`` is -1, for 256 values, with int8 ``factor(block, b)`` and
    ``minimum(block, b)`` for each 32. 'halves': the same with factor and minimum for each 16."""
    D_AT: int
    """Where the float16 d is; -1 where ``scale_bits`` tells."""
    M_AT: int
    UNIT: float
    """What d is to be multiplied by: a power of two."""
    SCALE_TYPE: str
    """'f16' or 'bf16': how ``scale_bits`` is to be read. bf16 is the upper half of a float32."""
    GPU: str
    """What ``integers`` tells, as functions in the common subset of CUDA C and OpenCL C (backends/gpu/source.py).

    With ``w`` the bytes of a block, ``int NAME_q(w, i)`` is its i-th integer, ``float NAME_scale(w, i)`` and ``float
    NAME_minimum(w, i)`` the scale and minimum of its i-th 32 values (SCALES 'pairs': 16), ``int NAME_sub(w, i)`` and
    ``int NAME_sub_minimum(w, i)`` the factors of its i-th 16. There are those that the format has.
    """

    def scale_bits(self, block: NDArray[np.uint8], i: int) -> int:
        """16 bits of the i-th scale of a block, where ``D_AT`` is -1."""

    def unusable(self, blocks: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which of blocks uint8 [n, BYTES] have a scale that is not finite, where ``D_AT`` is -1."""

    def unsigned(self, block: NDArray[np.uint8], i: int) -> int: ...
    def factor(self, block: NDArray[np.uint8], i: int) -> int: ...
    def minimum(self, block: NDArray[np.uint8], i: int) -> int: ...

    def decode(self, raw: NDArray[np.uint8]) -> F32:
        """raw uint8 [..., n * BYTES] -> float32 [..., n * BLOCK]."""

    def integers(self, raw: NDArray[np.uint8]) -> Integers:
        """raw uint8 [N, n * BYTES] -> the exact integer form. Quantised formats only."""


def by_type(ggml_type: int, tensor: str) -> Format:
    """The format of ``ggml_type``; ``tensor`` names who asks, for the error."""
    if ggml_type not in _MODULES:
        raise UnsupportedModel(
            f"tensor '{tensor}' has weight type {ggml_type}, which this build cannot compute with; "
            "see `kinetic info` for what it can",
            name="UNSUPPORTED_WEIGHT_TYPE",
        )
    return cast(Format, importlib.import_module(f"kinetic.formats.{_MODULES[ggml_type]}"))


def check_scales(fmt: Format, raw: NDArray[np.uint8], tensor: str) -> None:
    """A block scale that is not finite would spread silently: refuse it by the tensor's name."""
    if not fmt.QUANTISED:
        return
    blocks = raw.reshape(-1, fmt.BYTES)
    places = [at for at in (fmt.D_AT, fmt.M_AT) if at >= 0]
    bad = any(((blocks[:, at + 1] & 0x7C) == 0x7C).any() for at in places)
    if bad or (fmt.D_AT < 0 and fmt.unusable(blocks).any()):
        raise UnsupportedModel(
            f"tensor '{tensor}' has a scale that is not a finite number; the file is damaged",
            name="NON_FINITE_SCALE",
        )

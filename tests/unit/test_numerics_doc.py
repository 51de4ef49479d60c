"""docs/NUMERICS.md says what the code computes with: every constant with its bits, every family by name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from kinetic import rng, sampling
from kinetic.backends import rope_tables
from kinetic.backends.reference import functions, quantise
from kinetic.formats.grids import FORMS, points
from kinetic.models import ARCHITECTURES
from kinetic.samplers import cuts

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "NUMERICS.md").read_text(encoding="utf-8")
CONSTANTS = TEXT.split("## Constants\n")[1].split("\n## ")[0]
ROWS = dict(re.findall(r"^\| ([^|]*) \| (`[0-9a-f` ]+`) \|$", CONSTANTS, re.MULTILINE))


def bits(*values, kind="<f4"):
    """Values as the document has them."""
    size = np.dtype(kind).itemsize
    words = np.array(values, kind).view(f"<u{size}")
    return " ".join(f"`{word:0{2 * size}x}`" for word in words)


F = functions
SINGLE = {
    "`log2(e)` of exp32; -0.693359375; 2.12194440e-4": (F.LOG2_E, F.LN2_HIGH, F.LN2_LOW),
    "exp32, p": F.EXP_COEFFICIENTS,
    "exp32: 12582912, which is 1.5 * 2^23; -104; 88.72; -87 of softmax and attention": (
        F.MAGIC,
        F.EXP_MIN,
        F.EXP_MAX,
        F.EXP_ZERO_BELOW,
    ),
    "tanh, p; 0.625": (*F.TANH_COEFFICIENTS, F.TANH_POLYNOMIAL_BELOW),
    "softplus, p": F.LOG1P_COEFFICIENTS,
    "gelu: 1.5957691216; 0.044715": (F.GELU_SLOPE, F.GELU_CUBIC),
    "swiglu_oai: 1.702; 7": (F.SWIGLU_SLOPE, F.SWIGLU_LIMIT),
    "activations: 2^-90; 127": (np.array(quantise.SMALLEST).view(np.float32), np.float32(127)),
    "recurrent state: 2^-100; weights of experts: 2^-14": (F.SMALLEST_STATE, F.SMALLEST_SUM),
    "sampling: 2^-120; 2^40; 2^35; 28": (sampling.SMALLEST, sampling.ONE, cuts.UNIT, sampling.REACH),
}
DOUBLE = {
    "`2 / pi`; 1.5 * 2^52": (rope_tables._TWO_OVER_PI, rope_tables._SHIFT),
    "P1, P2, P3, P4": (*rope_tables._PIO2, rope_tables._PIO2_REST),
    "S": rope_tables._SIN,
    "C": rope_tables._COS,
}


def test_constants():
    wanted = {name: bits(*values) for name, values in SINGLE.items()}
    assert wanted | {name: bits(*values, kind="<f8") for name, values in DOUBLE.items()} == ROWS


def test_there_is_a_row_for_every_lattice():
    lattices = re.findall(r"^\| [A-Z0-9_, ]+ \| [0-9]+ \| `[0-9a-f]{64}` \|$", CONSTANTS, re.MULTILINE)
    assert len(lattices) == len(FORMS)


@pytest.mark.parametrize("name", FORMS)
def test_lattices(name):
    found = points(name)
    assert f"{name.upper()} | {len(found)} | `{blake3(found.tobytes()).hexdigest()}` |" in CONSTANTS.replace(
        ", IQ1_M", ""
    )


def test_two_pi_and_philox():
    assert str(rope_tables._TWO_PI) in CONSTANTS
    for word in (rng._MULTIPLIER_0, rng._MULTIPLIER_1, rng._WEYL_0, rng._WEYL_1):
        assert f"{word:08X}" in TEXT
    assert f"each of the {rng._ROUNDS} rounds" in TEXT


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_family_is_described(name):
    assert f"`{name}`" in TEXT.split("## Families\n")[1].split("\n## ")[0]

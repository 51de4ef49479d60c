"""The lattices of the IQ formats: which points they have, and that only who needs them decodes them."""

from __future__ import annotations

import subprocess
import sys
import zlib

import numpy as np
import pytest
from blake3 import blake3

from kinetic.formats import grids

GROUPS = {
    "iq2_xxs": (256, "6ed1b36b5fd9f37cb71724e9f530ebfac5d4415cdbdae0a675a3fd8a4a70f330"),
    "iq2_xs": (512, "e27aecac0d166dd1f55139e3d79762710fcfe020bb5c68c5669c7d9b14c26b41"),
    "iq2_s": (1024, "7ae18d6c6dcc157971affe13dad5be265bd07c03e385d97699c08836197c96a7"),
    "iq3_xxs": (256, "7fbf74fae062749e6d11022fa4b39f991c28be0ec49d249b1b95cb58560e9da2"),
    "iq3_s": (512, "e1255b4c4cdda9b5d2ed17bf38fe8aebb618c111a58366e4c113fd055f5be37c"),
    "iq1_s": (2048, "dadfe1bb2e23599a17c08f56ddbafb5936cecf6a9998ed761c52c07e85644904"),
}
"""How many groups each has, and the BLAKE3 digest of their bytes: those of llama.cpp b11434."""


@pytest.mark.parametrize("name", grids.FORMS)
def test_points(name):
    count, digest = GROUPS[name]
    points = grids.points(name)
    width, levels = grids.FORMS[name]
    assert points.shape == (count, width) and points.dtype == np.int8
    assert set(points.reshape(-1).tolist()) == set(levels)
    assert len(np.unique(points, axis=0)) == count
    assert blake3(points.tobytes()).hexdigest() == digest


def test_a_damaged_text_is_noticed(monkeypatch):
    text = grids.POINTS["iq3_s"]
    monkeypatch.setitem(grids.POINTS, "iq3_s", text[:99] + ("a" if text[99] != "a" else "b") + text[100:])
    with pytest.raises(zlib.error):
        grids.points("iq3_s")


def test_signs():
    """Seven bits and their parity; a byte's bits from the lowest on."""
    even = grids.even_signs()
    assert [n & 127 for n in even.tolist()] == list(range(128))
    assert {n.bit_count() % 2 for n in even.tolist()} == {0}
    assert grids.plus_minus()[0b10000010].tolist() == [1, -1, 1, 1, 1, 1, 1, -1]


def test_nothing_is_decoded_before_it_is_needed():
    code = "import sys, kinetic.formats; print('kinetic.formats.grids' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"

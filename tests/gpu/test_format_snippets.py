"""The C of every quantised format, through OpenCL, against what the CPU reads of the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.gpu.source import format_source
from kinetic.backends.gpu.tables import TABLES, tables
from tests.support.blocks import FORMATS, QUANTISED, random_rows

KERNEL = """
KERNEL void read_{name}(GLOBAL int *out, GLOBAL const uchar *blocks, int width)
{{
    GLOBAL const uchar *w = blocks + GROUP * {size};
    out += GROUP * width;
{loops}}}
"""
"""One group reads a block: every part of its ``Integers``, floats as their bits."""

LOOP = """    for (int i = LANE; i < {count}; i += LANES)
        out[i + {at}] = {value};
"""


def parts_of(fmt):
    """The parts that a format has, and how many numbers of each a block holds."""
    counts = {"q": fmt.BLOCK, "scale": fmt.BLOCK // (16 if fmt.SCALES == "pairs" else 32)}
    counts |= {"minimum": fmt.BLOCK // 32} if fmt.M_AT >= 0 else {}
    counts |= {"sub": fmt.BLOCK // 16} if fmt.SCALES == "halves" else {}
    return counts | ({"sub_minimum": fmt.BLOCK // 16} if fmt.SCALES == "halves" and fmt.M_AT >= 0 else {})


def kernel(name, fmt):
    loops, at = "", 0
    for part, count in parts_of(fmt).items():
        value = f"{name}_{part}(w, i)"
        loops += LOOP.format(
            count=count, at=at, value=f"(int)BITS_OF_FLOAT({value})" if part in ("scale", "minimum") else value
        )
        at += count
    return KERNEL.format(name=name, size=fmt.BYTES, loops=loops)


def source():
    """All formats at once, so that no two have the same name for something."""
    kernels = [kernel(name.lower(), FORMATS[name]) for name in QUANTISED]
    return format_source(*map(FORMATS.get, QUANTISED)) + "".join(kernels)


@pytest.fixture(scope="session")
def program(device):
    return device.build(source())


@pytest.mark.parametrize("name", QUANTISED)
def test_every_number_of_a_format(device, program, name):
    fmt, (rows, columns) = FORMATS[name], (5, 1536)
    raw = random_rows(fmt, rows, columns, seed=160)
    blocks = rows * columns // fmt.BLOCK
    raw.reshape(blocks, -1)[: blocks // rows] = edges(fmt, blocks // rows)
    counts, expected = parts_of(fmt), fmt.integers(raw)
    assert counts.keys() == {part for part, values in expected._asdict().items() if values is not None}
    width = sum(counts.values())
    found = np.zeros((blocks, width), np.int32)
    device.run(program, f"read_{name.lower()}", blocks, 8, found, raw, np.int32(width))
    at = 0
    for part, count in counts.items():
        values = getattr(expected, part)
        bits = values.view(np.int32) if values.dtype == np.float32 else values.astype(np.int32)
        assert np.array_equal(found[:, at : at + count], bits.reshape(blocks, count)), part
        at += count


def edges(fmt, blocks):
    """Blocks of one byte each, the byte of the first 0 and of the last 255; no scale is NaN on the way."""
    raw = np.broadcast_to(np.linspace(0, 255, blocks).astype(np.uint8)[:, None], (blocks, fmt.BYTES)).copy()
    for at in [at for at in (fmt.D_AT, fmt.M_AT) if at >= 0]:
        raw[:, at + 1] &= 0xBF
    return raw


def test_tables_are_those_of_the_cpu():
    """Only what is named is defined, and every number stands there."""
    assert tables("int fp4_value;") == ""
    text = tables("fp4_values[i] + iq3_s_grid[j][k]")
    assert text.count("CONSTANT") == 2
    assert "CONSTANT schar fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};" in text
    array = TABLES["iq3_s_grid"][1]()
    assert "iq3_s_grid[512][4] = {{" + ", ".join(map(str, array[0])) + "}, {" in text

"""Packed weights byte for byte: the compiled packer against one written here from the words of ``layout.py``."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.cpu import target
from kinetic.backends.cpu.layout import group_bytes, header_bytes
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.cpu.weights import WeightStore
from kinetic.formats import RUNNABLE
from tests.support.blocks import FORMATS, random_weight


def half_bytes(values):
    """float32 that are float16 exactly, as bytes."""
    return values.astype("<f2").view(np.uint8)


def header(fmt, blocks):
    """``blocks``: for each of 16 rows, the file's bytes of the blocks (or superblock) of one chunk."""
    places = [(b, at) for b in range(len(blocks[0])) for at in (fmt.D_AT, fmt.M_AT) if at >= 0]
    halves = [[row[b][at : at + 2] for row in blocks] for b, at in places]
    out = np.concatenate([np.concatenate(line) for line in halves])
    supers = [row[0].astype(np.int64) for row in blocks]
    if fmt.SCALES == "superblock":
        scales = [fmt.factor(block, b) for b in range(8) for block in supers]
        minimums = [fmt.minimum(block, b) for b in range(8) for block in supers]
        out = np.concatenate([out, np.array(scales + minimums, np.uint8)])
    elif fmt.SCALES == "halves":
        out = np.concatenate([out, np.array([fmt.factor(block, h) for h in range(16) for block in supers], np.uint8)])
    return np.concatenate([out, np.zeros(-len(out) % 64, np.uint8)])


def quants(fmt, values):
    """values uint8 [16 rows, 32]: the words of 4 elements x 16 rows of one block."""
    words = values.reshape(16, 8, 4).transpose(1, 0, 2).reshape(8, 64)
    if fmt.BITS == 8:
        return words.reshape(-1)
    low, extra = words & 15, words >> 4
    parts = [(low[j] | low[j + 4] << 4) for j in range(4)]
    if fmt.BITS == 5:
        parts.append(sum((extra[j] << j for j in range(8)), np.zeros(64, np.uint8)))
    if fmt.BITS == 6:
        for plane in range(2):
            parts.append(sum((extra[4 * plane + j] << 2 * j for j in range(4)), np.zeros(64, np.uint8)))
    return np.concatenate(parts).astype(np.uint8)


def packed_quantised(fmt, weight):
    rows, width = weight.shape
    groups = -(-rows // 16)
    data = np.zeros((groups * 16, weight.data.shape[1]), np.uint8)
    data[:rows] = weight.data
    blocks = data.reshape(groups * 16, -1, fmt.BYTES)
    integers = fmt.integers(data).q.astype(np.int64) + fmt.ZERO
    out = []
    for g in range(groups):
        rows_of = slice(16 * g, 16 * g + 16)
        real = np.arange(16 * g, 16 * g + 16) < rows
        for chunk in range(0, width, 256):
            end = min(width, chunk + 256)
            out.append(header(fmt, blocks[rows_of, chunk // fmt.BLOCK : -(-end // fmt.BLOCK)]))
            for start in range(chunk, end, 32):
                # Rows beyond the matrix are zero bytes, whatever zero means to the format.
                out.append(quants(fmt, (integers[rows_of, start : start + 32] * real[:, None]).astype(np.uint8)))
    return np.concatenate(out)


def packed_floats(fmt, weight):
    rows, width = weight.shape
    groups = -(-rows // 16)
    data = np.zeros((groups * 16, width * fmt.BYTES), np.uint8)
    data[:rows] = weight.data
    return data.reshape(groups, 16, width, fmt.BYTES).transpose(0, 2, 1, 3).reshape(-1)


@pytest.fixture(scope="module")
def kernels():
    return Kernels(target.choose(), RUNNABLE)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("name", FORMATS)
def test_packing(kernels, name, rows, threads):
    fmt = FORMATS[name]
    widths = (256, 768) if fmt.BLOCK == 256 else (32, 96, 256, 288) if fmt.QUANTISED else (1, 33, 288)
    for width in widths:
        weight = random_weight(f"w{width}", name, rows, width, seed=140 + rows)
        store = WeightStore(kernels, [weight], threads)
        packed = store.packed(weight)
        expected = (packed_quantised if fmt.QUANTISED else packed_floats)(fmt, weight)
        assert len(packed.data) == packed.groups * packed.group_bytes == len(expected)
        assert np.array_equal(packed.data, expected), f"width {width}"
        store.close()


@pytest.mark.parametrize("name", FORMATS)
def test_sizes(name):
    """Groups are whole lines, so that every group of a matrix starts at one."""
    fmt = FORMATS[name]
    for width in (256, 512, 576 if fmt.BLOCK < 256 else 768):
        assert group_bytes(fmt, width) % 64 == 0
        if fmt.QUANTISED:
            assert header_bytes(fmt, 8) % 64 == 0

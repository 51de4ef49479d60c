"""Packed weights byte for byte: the compiled packer against one written here from the words of ``layout.py``."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends.cpu import target
from kinetic.backends.cpu.layout import chunk_bytes, group_bytes
from kinetic.backends.cpu.native import Kernels
from kinetic.backends.cpu.weights import WeightStore
from kinetic.formats import RUNNABLE
from tests.support.blocks import FORMATS, random_weight


def half_bytes(values):
    """float32 that are float16 exactly, as bytes."""
    return values.astype("<f2").view(np.uint8)


def filled(line):
    """With zeros up to a whole line of 64 bytes."""
    return np.concatenate([line, np.zeros(-len(line) % 64, np.uint8)])


def header(fmt, blocks):
    """What stands once a chunk. ``blocks``: for each of 16 rows, the file's bytes of its blocks or superblock."""
    if fmt.SCALES == "block":
        return np.zeros(0, np.uint8)
    places = [at for at in (fmt.D_AT, fmt.M_AT) if at >= 0]
    return filled(np.concatenate([row[0][at : at + 2] for at in places for row in blocks]))


def scales(fmt, blocks, b):
    """Those of block b of the chunk: 32 or 64 bytes."""
    if fmt.SCALES == "block":
        places = [at for at in (fmt.D_AT, fmt.M_AT) if at >= 0]
        return np.concatenate([row[b][at : at + 2] for at in places for row in blocks])
    supers = [row[0].astype(np.int64) for row in blocks]
    if fmt.SCALES == "superblock":
        values = [fmt.factor(block, b) for block in supers] + [fmt.minimum(block, b) for block in supers]
    else:
        values = [fmt.factor(block, 2 * b + half) for half in range(2) for block in supers]
    return np.array(values, np.int64).astype(np.uint8)


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
            stored = blocks[rows_of, chunk // fmt.BLOCK : -(-end // fmt.BLOCK)]
            out.append(header(fmt, stored))
            count = (end - chunk) // 32
            served = 64 // len(scales(fmt, stored, 0))  # blocks behind one line
            for first in range(0, count, served):
                behind = range(first, min(first + served, count))
                out.append(filled(np.concatenate([scales(fmt, stored, b) for b in behind])))
                for b in behind:
                    # Rows beyond the matrix are zero bytes, whatever zero means to the format.
                    values = integers[rows_of, chunk + 32 * b : chunk + 32 * b + 32] * real[:, None]
                    out.append(quants(fmt, values.astype(np.uint8)))
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
            assert all(chunk_bytes(fmt, blocks) % 64 == 0 for blocks in range(1, 9))

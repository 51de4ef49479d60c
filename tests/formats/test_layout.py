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


def large(fmt, block, inner):
    """The 16-bit scales of the ``inner``-th 32 values of a block: d and m, or those of both halves. A row beyond the
    matrix, None, has zeros."""
    if block is None:
        return [np.zeros(2, np.uint8)] * (2 if fmt.M_AT >= 0 or fmt.SCALES == "pairs" else 1)
    if fmt.D_AT >= 0:
        return [block[at : at + 2] for at in (fmt.D_AT, fmt.M_AT) if at >= 0]
    wanted = (2 * inner, 2 * inner + 1) if fmt.SCALES == "pairs" else (0,)
    return [np.array([fmt.scale_bits(block.astype(np.int64), i)], "<u2").view(np.uint8) for i in wanted]


def large_of_rows(fmt, blocks, inner):
    """One after the other, each of 16 rows. ``blocks``: the file's bytes of a block of each row."""
    return np.concatenate(list(map(np.concatenate, zip(*(large(fmt, row, inner) for row in blocks), strict=True))))


def header(fmt, blocks):
    """What stands once a chunk."""
    if fmt.BLOCK < 256:
        return np.zeros(0, np.uint8)
    return filled(large_of_rows(fmt, blocks, 0))


def small(fmt, blocks, inner):
    """The factors and minimums of 8 bits."""
    supers = [row if row is None else row.astype(np.int64) for row in blocks]
    parts = (inner,) if fmt.SCALES == "superblock" else (2 * inner, 2 * inner + 1)
    values = [0 if block is None else fmt.factor(block, part) for part in parts for block in supers]
    if fmt.M_AT >= 0:
        values += [0 if block is None else fmt.minimum(block, part) for part in parts for block in supers]
    return np.array(values, np.int64).astype(np.uint8)


def lines(fmt, rows, count):
    """The scales in lines of a chunk of ``count`` blocks of 32: each line, and how many blocks it serves.

    ``rows(b)``: the file's bytes of the block that 32 values are in, of each row.
    """
    each = fmt.BLOCK // 32
    if fmt.SCALES in ("superblock", "halves"):
        entries = [(small(fmt, rows(b), b % each), 1) for b in range(count)]
    elif fmt.SCALES == "pairs":
        entries = [(large_of_rows(fmt, rows(b), b % each), 1) for b in range(count)]
    elif fmt.BLOCK == 256:
        yield np.zeros(0, np.uint8), count
        return
    else:
        entries = [(large_of_rows(fmt, rows(b), 0), each) for b in range(0, count, each)]
    together = 64 // len(entries[0][0])
    for first in range(0, len(entries), together):
        part = entries[first : first + together]
        yield filled(np.concatenate([entry for entry, _ in part])), sum(blocks for _, blocks in part)


def plane(codes, width, low):
    """``width`` bits of each of 8 words [8, 64], lowest at ``low``: as many planes of 64 bytes."""
    each = 8 // width
    bits = (codes >> low) & ((1 << width) - 1)
    shifts = (width * np.arange(each))[:, None]
    return [(bits[p * each : (p + 1) * each] << shifts).sum(axis=0) for p in range(width)]


def quants(fmt, codes):
    """codes int64 [16 rows, 32]: the words of 4 elements x 16 rows of one block."""
    words = codes.reshape(16, 8, 4).transpose(1, 0, 2).reshape(8, 64)
    if fmt.BITS == 8:
        return words.reshape(-1).astype(np.uint8)
    parts = [(words[j] & 15) | (words[j + 4] & 15) << 4 for j in range(4)] if fmt.BITS >= 4 else []
    for width, low in {1: [(1, 0)], 2: [(2, 0)], 3: [(2, 0), (1, 2)], 4: [], 5: [(1, 4)], 6: [(2, 4)]}[fmt.BITS]:
        parts += plane(words, width, low)
    return np.concatenate(parts).astype(np.uint8)


def codes_of(fmt, data):
    """int64 [rows, width]: what stands for the integers."""
    values = fmt.integers(data).q.astype(np.int64)
    if fmt.TABLE is None:
        return values + fmt.ZERO
    stored = data.reshape(len(data), -1, fmt.BYTES).astype(np.int64)
    codes = [[fmt.unsigned(block, i) for block in row for i in range(fmt.BLOCK)] for row in stored]
    assert np.array_equal(np.array(fmt.TABLE)[codes], values)
    return np.array(codes, np.int64)


def packed_quantised(fmt, weight):
    rows, width = weight.shape
    groups = -(-rows // 16)
    data = np.zeros((groups * 16, weight.data.shape[1]), np.uint8)
    data[:rows] = weight.data
    blocks = data.reshape(groups * 16, -1, fmt.BYTES)
    codes = np.zeros((groups * 16, width), np.int64)  # rows beyond the matrix are zero bytes, whatever zero means
    codes[:rows] = codes_of(fmt, weight.data)
    out = []
    for g in range(groups):
        rows_of = slice(16 * g, 16 * g + 16)
        for chunk in range(0, width, 256):
            end = min(width, chunk + 256)

            def stored(b, g=g, chunk=chunk):
                at = (chunk + 32 * b) // fmt.BLOCK
                return [blocks[row, at] if row < rows else None for row in range(16 * g, 16 * g + 16)]

            out.append(header(fmt, stored(0)))
            b = 0
            for line, count in lines(fmt, stored, (end - chunk) // 32):
                out.append(line)
                for k in range(chunk + 32 * b, chunk + 32 * (b + count), 32):
                    out.append(quants(fmt, codes[rows_of, k : k + 32]))
                b += count
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
    widths = {1: (1, 33, 288), 32: (32, 96, 256, 288), 64: (64, 192, 256, 320), 128: (128, 384)}.get(
        fmt.BLOCK, (256, 768)
    )
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
    for width in (256, 512, 640 if fmt.BLOCK < 256 else 768):
        assert group_bytes(fmt, width) % 64 == 0
        if fmt.QUANTISED:
            assert all(chunk_bytes(fmt, blocks) % 64 == 0 for blocks in range(fmt.BLOCK // 32, 9))

"""Products with every format, in the packed layout, in tiles and as weights lie in the file: the reference's bits."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import gpu_rates
from kinetic.backends.base import BLOCK, Weight
from kinetic.backends.gpu import products as products_module
from kinetic.backends.gpu import self_test, weights
from kinetic.backends.gpu.launches import Launches
from kinetic.backends.gpu.packed import TILE, cell_bytes, is_packed, macros, pack, packed_bytes
from kinetic.backends.gpu.products import FEW_ROWS, HEADS, OWN, SHARED, Products, Several
from kinetic.backends.gpu.source import kernel_source
from kinetic.backends.gpu.weights import DeviceWeights, matrix_bytes
from kinetic.backends.reference.experts import matrix
from kinetic.backends.reference.linear import linear
from tests.support.backends import assert_same
from tests.support.blocks import FLOATS, FORMATS, QUANTISED, any_floats, integers, normals, random_weight

ROWS = (1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65)
OUTPUTS = (1, 2, 31, 32, 33, 37)

IN_THE_FILE = {"IQ1_S", "IQ1_M"}
"""Formats that the packed layout would make twice as large."""

ALL_KINDS = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "Q2_K", "NVFP4", "IQ4_NL", "IQ1_S", "F16", "F32")
"""Formats with all that a product can be made of."""

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in FORMATS if name not in ALL_KINDS]


class Device:
    """Products of one weight, prepared once."""

    def __init__(self, device, weight: Weight) -> None:
        self.device, self.weight = device, weight
        self.products = Products(Launches(device), DeviceWeights(device))
        self.products.prepare(weight)

    def of(self, x: np.ndarray) -> np.ndarray:
        out = np.full((len(x), self.weight.shape[0]), 7, np.float32)
        memory = self.device.upload(out)
        self.products.product(memory, self.device.upload(np.ascontiguousarray(x)), len(x), self.weight)
        self.device.read(memory, out)
        return out


def activations(rows: int, width: int) -> np.ndarray:
    """Rows of numbers; every seventh has blocks that are not finite, vanish, are huge or tiny."""
    x = normals(rows + width, rows, width)
    x[3::7] *= np.float32(1e-30)
    x[4::7] *= np.float32(3e37)
    x[5::7] = any_floats(width, *x[5::7].shape)
    x[6::7, : min(width, 40)] = 0.0
    for row, value in zip(range(0, rows, 7), (np.nan, np.inf, -np.inf, 1e-45, -0.0), strict=False):
        x[row, row % width] = value
    return x


def check(device, weight: Weight, x: np.ndarray, counts=ROWS) -> None:
    """So many rows at once, and rows alone, are those of the reference."""
    expected, ours = linear(x, weight), Device(device, weight)
    for count in counts:
        assert_same(ours.of(x[:count]), expected[:count], f"with {count} rows")
    for row in (3, 4, len(x) - 1):
        if row < len(x):
            assert_same(ours.of(x[row : row + 1]), expected[row : row + 1], f"row {row} alone")


def first_outputs(weight: Weight, count: int) -> Weight:
    return weight._replace(shape=(count, weight.shape[1]), data=weight.data[:count])


@pytest.mark.parametrize("name", [*ALL_KINDS, *SLOW])
def test_every_format(device, name):
    """Three chunks, the last one not whole where the format allows; from one row to more than fit one tile."""
    block = max(FORMATS[name].BLOCK, BLOCK)
    weight = random_weight("w", name, 37, 512 + block, seed=5)
    check(device, weight, activations(65, weight.shape[1]))


@pytest.mark.parametrize("width", [32, 256, 288, 480, 512, 768, 992, 1280])
def test_every_number_of_chunks(device, width):
    """Of a format with minimums, one without, and floats."""
    for name in ("Q5_1", "Q4_0", "BF16"):
        check(device, random_weight("w", name, 33, width, seed=width), activations(9, width), (1, 9))


def test_many_chunks(device):
    """More than are held at once: of one row, and of eight."""
    for name in ("Q4_0", "F16"):
        check(device, random_weight("w", name, 2, 256 * 66 + 32, seed=1), activations(8, 256 * 66 + 32), (1, 8))


@pytest.mark.parametrize("name", ["Q5_K", "F32"])
def test_every_number_of_outputs(device, name):
    weight, x = random_weight("w", name, max(OUTPUTS), 512, seed=6), activations(FEW_ROWS + 1, 512)
    expected = linear(x, weight)
    for outputs in OUTPUTS:
        ours = Device(device, first_outputs(weight, outputs))
        for count in (1, 9, len(x)):
            assert_same(ours.of(x[:count]), expected[:count, :outputs], f"{outputs} outputs of {count} rows")


@pytest.mark.parametrize("name", ["MXFP4", "Q4_1", "Q6_K", "F16", "BF16"])
def test_scales_of_every_size(device, name):
    """Subnormal, huge, of either sign, so that sums vanish and overflow; float weights that are not finite, too."""
    fmt, weight = FORMATS[name], random_weight("w", name, 33, 512, seed=8)
    if fmt.QUANTISED:
        blocks = weight.data.reshape(-1, fmt.BYTES)
        upper = integers(9, 0, 256, len(blocks), 2).astype(np.uint8)
        for column, at in enumerate(place for place in (fmt.D_AT, fmt.M_AT) if place >= 0):
            blocks[:, at + 1] = np.where((upper[:, column] & 0x7C) == 0x7C, 0x3C, upper[:, column])
        if fmt.D_AT < 0:
            blocks[:, 0] = np.minimum(upper[:, 0], 254)
    else:
        weight = weight._replace(data=integers(9, 0, 256, *weight.data.shape).astype(np.uint8))
    x = activations(65, 512)
    expected = linear(x, weight)
    assert np.isinf(expected).any() or np.isnan(expected).any()
    ours = Device(device, weight)
    for count in (1, 8, 65):
        assert_same(ours.of(x[:count]), expected[:count], f"with {count} rows")


@pytest.mark.parametrize("name", ["Q4_K", "Q5_0", "BF16"])
def test_several_matrices(device, name):
    """Experts that share a row, experts with a row each, heads; a matrix ends within a tile."""
    several, x = random_weight("w", name, 3 * 60, 512, seed=4), activations(9, 512)
    several = several._replace(shape=(3, 60, 512))
    expected = np.stack([linear(x, matrix(several, number)) for number in range(3)])
    numbers = integers(2, 0, 3, 9)
    made = Products(Launches(device), held := DeviceWeights(device))
    made.prepare(several, several=True)
    assert held.packs(several, several=True) and matrix_bytes(several, several=True) == 3 * packed_bytes(
        FORMATS[name], 60, 512
    )
    for used, kind in ((3, SHARED), (1, OWN), (3, HEADS)):
        rows = 9 if kind != SHARED else 27
        routes = np.zeros((rows // used, 2 * used), np.float32)
        chosen = np.resize(numbers, rows) if kind != HEADS else np.arange(rows) % 3
        routes[:, :used] = chosen.reshape(-1, used)
        out = np.full((rows, 60), 7, np.float32)
        memory = device.upload(out)
        made.product(memory, device.upload(x), rows, several, Several(device.upload(routes), used, kind))
        device.read(memory, out)
        places = np.arange(rows) // used if kind == SHARED else np.arange(rows)
        assert_same(out, expected[chosen, places], f"kind {kind}")


def test_which_formats_are_packed():
    assert {name for name in FORMATS if not is_packed(FORMATS[name], 256)} == IN_THE_FILE
    assert not is_packed(FORMATS["F16"], 80)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in IN_THE_FILE])
def test_a_pack_is_as_long_as_it_says(name):
    """And tiles don't depend on each other, so that a matrix can be packed in pieces."""
    fmt, weight = FORMATS[name], random_weight("w", name, 70, 512, seed=3)
    whole = pack(fmt, weight.data)
    assert len(whole) == packed_bytes(fmt, 70, 512) == matrix_bytes(weight) == 3 * 2 * cell_bytes(fmt)
    parts = [pack(fmt, weight.data[first : first + TILE]) for first in range(0, 70, TILE)]
    assert np.array_equal(np.concatenate(parts), whole)
    if fmt.QUANTISED:
        assert int(macros(fmt)["CELL"]) == cell_bytes(fmt)
        assert cell_bytes(fmt) <= TILE * 256 // fmt.BLOCK * fmt.BYTES * 5 / 3


def test_where_packed_codes_lie():
    """By hand: element 4 j + k of a block of Q6_K, of output 33, chunk 1, block 5."""
    fmt, weight = FORMATS["Q6_K"], random_weight("w", "Q6_K", 64, 512, seed=4)
    cell = pack(fmt, weight.data).reshape(2, 2, -1)[1, 1]
    about, q = macros(fmt), fmt.integers(weight.data).q[33, 256 + 160 : 256 + 192]
    nibbles = cell[int(about["NIBBLES_AT"]) :][(5 * TILE + 1) * 16 :][:16]
    upper = cell[int(about["TWO_AT"]) :][(5 * TILE + 1) * 8 :][:8]
    for element in range(32):
        half, j, k = element // 16, element % 16 // 4, element % 4
        code = nibbles[element % 16] >> 4 * half & 15 | (upper[4 * half + k] >> 2 * j & 3) << 4
        assert int(code) - 32 == q[element]
    scales = cell[int(about["SCALES_AT"]) :].reshape(-1, TILE, 4)[:, 1].reshape(-1)
    block = weight.data[33].reshape(2, fmt.BYTES)[1]
    assert np.array_equal(scales[:18], np.concatenate([block[208:], block[192:208]]))


@pytest.mark.parametrize("name", ["Q4_K", "IQ1_S"])
def test_weights_come_in_pieces(device, name, monkeypatch):
    monkeypatch.setattr(weights, "SLICE", 40 * random_weight("w", name, 1, 512, seed=2).data.nbytes)
    weight, x = random_weight("w", name, 100, 512, seed=2), normals(1, 2, 512)
    assert_same(Device(device, weight).of(x), linear(x, weight))


@pytest.mark.parametrize("name", ["Q3_K", "BF16", "IQ1_M"])
def test_where_tiles_begin_changes_no_bit(device, name, monkeypatch):
    weight, x = random_weight("w", name, 33, 512, seed=7), activations(33, 512)
    expected = linear(x, weight)
    for few in (0, 32, 64):
        monkeypatch.setattr(products_module, "FEW_ROWS", few)
        assert_same(Device(device, weight).of(x), expected, f"tiles beyond {few} rows")


def test_self_test_sees_integers_go_wrong(device):
    source = kernel_source("self_test")
    for exact, loose, caught in (
        ("DOT4(x, y, (int)z >> 16)", "DOT4(x, y & 0x7FFFFFFF, (int)z >> 16)", "int8 products"),
        ("BYTE_PERM(x, y, z & 0x7777)", "BYTE_PERM(x, y, z & 0x3777)", "bytes"),
    ):
        assert exact in source
        assert device.failures(source.replace(exact, loose)) == [caught]
    assert self_test.FUNCTIONS[-2:] == ("int8 products", "bytes")


def test_the_benchmark_makes_a_table(device, monkeypatch):
    monkeypatch.setattr(gpu_rates, "ENOUGH", 0)
    sizes = gpu_rates.Sizes(64, 256, 66, 300, 1 << 16, 1)
    known = gpu_rates.limits(device, sizes)
    lines = [*gpu_rates.products_of(device, known, sizes, ["Q4_0", "IQ1_S"]), *gpu_rates.others(device, known, sizes)]
    assert [line.split("|")[1].strip() for line in lines[:3]] == ["Q4_0, 1 row", "Q4_0, 66 rows", "IQ1_S, 1 row"]
    assert len(lines) == 10 and {line.count("|") for line in lines} == {gpu_rates.HEAD.partition("\n")[0].count("|")}


def test_every_format_is_there():
    assert {*ALL_KINDS} <= {*FORMATS} == {*QUANTISED, *FLOATS}

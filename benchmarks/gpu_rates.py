"""What a device reaches, kernel by kernel: bytes and operations a second beside its own copy bandwidth and peaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from kinetic.backends.base import Attention, Weight
from kinetic.backends.gpu import GpuBackend, products
from kinetic.backends.gpu.device import Device, Memory
from kinetic.backends.gpu.launches import Launches
from kinetic.backends.gpu.packed import pack
from kinetic.backends.gpu.products import BLOCKS_OF_A_GROUP, Products
from kinetic.backends.gpu.source import kernel_source
from kinetic.backends.gpu.weights import DeviceWeights, matrix_bytes
from kinetic.formats import by_type
from kinetic.types import Batch
from tests.support.backends import inputs
from tests.support.blocks import FORMATS, normals, random_weight

ENOUGH = 0.2
"""Seconds that something is repeated for."""

PIECE = 256
"""Rows of a weight that differ: no speed depends on what weights are."""

PEAKS = """
KERNEL void int8_peak(GLOBAL int *out, int steps, uint b)
{
    int sums[8];
    for (int i = 0; i < 8; i++)
        sums[i] = LANE + i;
    for (int s = 0; s < steps; s++)
        for (int i = 0; i < 8; i++)
            sums[i] = DOT4((uint)sums[i], b, sums[i] & 0xFFFFFF);
    out[GROUP * LANES + LANE] = sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}

KERNEL void float32_peak(GLOBAL float *out, int steps, float b)
{
    float sums[8];
    for (int i = 0; i < 8; i++)
        sums[i] = (float)(LANE + i);
    for (int s = 0; s < steps; s++)
        for (int i = 0; i < 8; i++)
            sums[i] = FMA(sums[i], b, b);
    for (int i = 1; i < 8; i++)
        sums[0] = sums[0] + sums[i];
    out[GROUP * LANES + LANE] = sums[0];
}
"""

HEAD = (
    "| kernel | time | MB | GB/s | of the copies | Gop | Top/s | of the peak | floor |\n"
    "| --- | --: | --: | --: | --: | --: | --: | --: | --: |"
)


class Limits(NamedTuple):
    """Bytes a second, read and written, and operations a second; a multiply-add is two."""

    copies: float
    int8: float
    float32: float


class Sizes(NamedTuple):
    """What is measured on, smaller where there is no GPU."""

    outputs: int
    width: int
    rows: int
    keys: int
    copied: int
    groups: int


GPU = Sizes(32768, 8192, 512, 4096, 1 << 30, 8192)
PROCESSOR = Sizes(256, 512, 80, 512, 16 << 20, 16)


def seconds(device: Device, step: Callable[[], object]) -> float:
    """Of one step, many being asked for before any is waited for: launching one hides behind those before."""
    step()
    device.finish()
    count = 1
    while True:
        start = time.perf_counter()
        for _ in range(count):
            step()
        device.finish()
        took = time.perf_counter() - start
        if took >= ENOUGH:
            return took / count
        count = count * 2 if took < ENOUGH / 8 else int(count * ENOUGH / took) + 1


def limits(device: Device, sizes: Sizes) -> Limits:
    source, target = device.memory(sizes.copied), device.memory(sizes.copied)
    copies = 2 * sizes.copied / seconds(device, lambda: device.copy(target, source, sizes.copied))
    text, lanes, steps = kernel_source("self_test") + PEAKS, 256, 512
    out = device.memory(4 * sizes.groups * lanes)

    def peak(name: str, operations: int, number: np.generic) -> float:
        kernel = device.kernel(text, name)
        took = seconds(device, lambda: device.launch(kernel, sizes.groups, lanes, out, np.int32(steps), number))
        return sizes.groups * lanes * steps * 8 * operations / took

    return Limits(copies, peak("int8_peak", 8, np.uint32(0x01030507)), peak("float32_peak", 2, np.float32(0.5)))


def line(limits: Limits, name: str, took: float, size: float, operations: float, peak: float) -> str:
    """A line of the table. ``floor`` is the least time that the bytes and the operations allow."""
    floor = max(size / limits.copies, operations / peak)
    return (
        f"| {name} | {took * 1e6:.1f} us | {size / 1e6:.3g} | {size / took / 1e9:.3g} | "
        f"{100 * size / took / limits.copies:.0f} % | {operations / 1e9:.3g} | {operations / took / 1e12:.3g} | "
        f"{100 * operations / took / peak:.0f} % | {floor * 1e6:.1f} us |"
    )


def counted(rows: int) -> str:
    return f"{rows} row" + "s" * (rows != 1)


class Repeated(DeviceWeights):
    """Matrices of ``PIECE`` rows again and again, so that large ones are made in no time."""

    def _filled(self, weight: Weight, packs: bool) -> Memory:
        fmt, whole = by_type(weight.ggml_type, weight.name), matrix_bytes(weight)
        piece = pack(fmt, weight.data) if packs else weight.data.reshape(-1)
        memory = self._device.memory(whole)
        for at in range(0, whole, len(piece)):
            self._device.write(memory, piece[: whole - at], at)
        return memory


def product(device: Device, kind: str, outputs: int, width: int, rows: int) -> tuple[Callable[[], None], int]:
    """A step that computes ``rows`` rows, quantised once before, and the bytes of its weight."""
    weight = random_weight(kind, kind, min(PIECE, outputs), width, seed=3)._replace(shape=(outputs, width))
    made = Products(Launches(device), Repeated(device))
    made.prepare(weight)
    y, x = device.memory(4 * rows * outputs), device.upload(normals(1, rows, width))
    node = object()

    def step() -> None:
        made.product(y, x, rows, weight, node=node)  # type: ignore[arg-type]

    return step, matrix_bytes(weight)


def products_of(device: Device, known: Limits, sizes: Sizes, kinds: list[str]) -> Iterator[str]:
    """One row against the bandwidth, and many against the peak."""
    outputs, width = sizes.outputs, sizes.width
    for kind in kinds:
        fmt = FORMATS[kind]
        peak, each = (known.int8, 1.25) if fmt.QUANTISED else (known.float32, 4)
        for rows in (1, sizes.rows):
            step, size = product(device, kind, outputs, width, rows)
            size += rows * int(width * each + 4 * outputs)
            operations = 2 * rows * outputs * width
            yield line(known, f"{kind}, {counted(rows)}", seconds(device, step), size, operations, peak)


def where_tiles_begin(device: Device, sizes: Sizes, kind: str) -> Iterator[str]:
    """Both ways of computing some rows, of a small matrix: ``products.FEW_ROWS`` should lie where they cross."""
    kept, side = products.FEW_ROWS, max(256, sizes.outputs // 16)
    yield f"{kind} [{side}, {side}], groups of {products.ROWS_OF_A_GROUP} rows and tiles:"
    try:
        for rows in (8, 16, 32, 64, 128, 256):
            took = []
            for few in (rows, 0):
                products.FEW_ROWS = few
                took.append(seconds(device, product(device, kind, side, side, rows)[0]))
            yield f"  {rows} rows: {took[0] * 1e6:.1f} us and {took[1] * 1e6:.1f} us"
    finally:
        products.FEW_ROWS = kept


def others(device: Device, known: Limits, sizes: Sizes) -> Iterator[str]:
    """Kernels that read and write rows, of one row and of many."""
    launches, width = Launches(device), sizes.width
    for rows in (1, sizes.rows):
        count = rows * width
        x, y = device.upload(normals(1, rows, width)), device.memory(4 * count)
        q, d, w = device.memory(count), device.memory(count // 4), device.upload(normals(2, 1, width))
        blocks, one = np.int32(count // 32), (np.int32(width), np.int32(1), np.float32(1e-6))
        groups = -(-int(blocks) // BLOCKS_OF_A_GROUP)
        steps = {
            "quantise": (lambda g=groups, a=(q, d, x, blocks): launches.groups("quantise", "quantise", g, *a), 5.25, 3),
            "rms_norm": (lambda r=rows, a=(y, x, w, *one): launches.groups("norm", "rms_norm", r, *a), 8, 4),
            "add": (lambda c=count, a=(y, x, x): launches.each("elementwise", "add_rows", c, *a), 8, 1),
        }
        for name, (step, size, operations) in steps.items():
            took = seconds(device, step)
            yield line(known, f"{name}, {counted(rows)}", took, count * size, count * operations, known.float32)


def attention(device: Device, known: Limits, sizes: Sizes) -> Iterator[str]:
    """Whole passes: the copies to the device and back are counted in."""
    spec = Attention(0, 32, 8, 128, 0.088)
    for rows, first in ((1, sizes.keys - 1), (sizes.rows, 0)):
        x, kv = normals(1, rows, 32 * 128), normals(2, rows, 8 * 128)

        def forward(ops, x=x, kv=kv):  # type: ignore[no-untyped-def]
            return ops.attend(inputs(ops, x, "q"), inputs(ops, kv, "k"), inputs(ops, kv, "v"), spec)

        program = GpuBackend(device).load(forward, (spec,))
        batch = Batch(tuple(range(rows)), tuple(range(first, first + rows)), (0,) * rows, (rows - 1,))
        took = seconds(device, lambda p=program, b=batch: p.run(b))
        seen = sum(range(first + 1, first + rows + 1))
        size, operations = 2 * 2 * (first + rows) * 8 * 128, 2 * 2 * seen * 32 * 128
        yield line(known, f"attention, {counted(rows)}, {first + rows} keys", took, size, operations, known.float32)
        program.close()

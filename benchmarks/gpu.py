"""A device's bits against the CPU's, and its times against what its memory can copy.

    python -m benchmarks.gpu                      times of the best device: CUDA, else an OpenCL GPU
    python -m benchmarks.gpu --check              the bits first, of products and of small models of every family
    python -m benchmarks.gpu --device opencl:1    of this one
    python -m benchmarks.gpu --model FILE.gguf    and tokens a second of a model

Exits with 1 where a bit differs. Where there is no GPU it runs through PoCL: slowly, and with the same bits. On a GPU
all of it should take a few minutes, most of them for compiling.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kinetic import models
from kinetic.backends import open_backend
from kinetic.backends.base import Attention, Backend
from kinetic.backends.gpu import GpuBackend, choose
from kinetic.backends.gpu.device import Device
from kinetic.backends.reference import ReferenceBackend
from kinetic.errors import UnsupportedModel
from kinetic.loader import open_model_file
from kinetic.types import Batch
from tests.support.backends import inputs, rows_of, same
from tests.support.blocks import FORMATS, normals, random_weight
from tests.support.whole_models import WRITERS

ENOUGH = 0.3
"""Seconds that something is repeated for."""


def seconds(device: Device, step: Callable[[], object]) -> float:
    """Of one step, the first one aside."""
    step()
    device.finish()
    start, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - start < ENOUGH:
        step()
        device.finish()
        count += 1
    return (time.perf_counter() - start) / count


def copy_bandwidth(device: Device, size: int) -> float:
    """Bytes a second, read and written."""
    source, target = device.memory(size), device.memory(size)
    return 2 * size / seconds(device, lambda: device.copy(target, source, size))


# ---- bits


def check_products(device: Device) -> int:
    """Formats whose product has a bit that is not the reference's."""
    wrong = 0
    x = normals(1, 9, 768)
    for name in FORMATS:
        weight = random_weight("w", name, 37, 768, seed=3)
        loaded = [
            backend.load(lambda ops, w=weight: ops.linear(inputs(ops, x), w), ())
            for backend in (GpuBackend(device), ReferenceBackend())
        ]
        found, expected = (program.run(rows_of(9)) for program in loaded)
        wrong += report(f"product {name}", bool(same(found, expected).all()))
    return wrong


def check_models(device: Device, folder: Path) -> int:
    """Models that differ from the CPU: a prompt of 70 rows at once, and 30 rows one by one behind it."""
    wrong = 0
    for name, write in WRITERS.items():
        with open_model_file(write(folder / f"{name}.gguf")) as file:
            family = models.build(file.gguf, file.weights)
            tokens = [number * 7919 % family.vocab_size for number in range(100)]
            found = []
            try:
                for backend in (GpuBackend(device), open_backend("cpu")):
                    program = backend.load(family.forward, family.attention, None, None, family.states)
                    found.append(np.concatenate([program.run(batch) for batch in passes(tokens)]))
                    program.close()
            except UnsupportedModel as reason:
                print(f"  left out {name}: {reason}")
                continue
        wrong += report(f"model {name}", bool(same(*found).all()))
    return wrong


def passes(tokens: list[int]) -> list[Batch]:
    first = Batch(tuple(tokens[:70]), tuple(range(70)), (0,) * 70, tuple(range(70)))
    return [first, *(Batch((tokens[at],), (at,), (0,), (0,)) for at in range(70, len(tokens)))]


def report(what: str, is_right: bool) -> int:
    print(f"  {'same bits' if is_right else 'OTHER BITS'} {what}", flush=True)
    return not is_right


# ---- times


def time_products(device: Device, size: int, copied: float) -> None:
    print(f"\nproducts with a weight [{size}, {size}]: one row against the copy bandwidth; 64 rows")
    for name, fmt in FORMATS.items():
        weight = random_weight("w", name, size, size, seed=3)
        took = {rows: time_one(device, weight, rows, size) for rows in (1, 64)}
        bytes_read = size * size // fmt.BLOCK * fmt.BYTES
        rate, operations = bytes_read / took[1], 2 * 64 * size * size / took[64]
        print(
            f"  {name:8} {took[1] * 1e6:10.1f} us {rate / 1e9:8.2f} GB/s {100 * rate / copied:6.1f} %"
            f"   {took[64] * 1e6:12.1f} us {operations / 1e12:8.3f} T operations/s",
            flush=True,
        )


def time_one(device: Device, weight: object, rows: int, size: int) -> float:
    """Seconds of the product alone: what a program takes beside it is taken off."""
    backend, x = GpuBackend(device), normals(1, rows, size)
    whole = backend.load(lambda ops: ops.linear(inputs(ops, x), weight), ())
    least = backend.load(lambda ops: ops.scale(inputs(ops, x), 1.0), ())
    took = [seconds(device, lambda p=program: p.run(rows_of(rows))) for program in (whole, least)]
    return max(took[0] - took[1], 1e-7)


def time_attention(device: Device, positions: int) -> None:
    spec = Attention(0, 32, 8, 128, 0.088)
    x, kv = normals(1, 1, 32 * 128), normals(2, 1, 8 * 128)

    def forward(ops):  # type: ignore[no-untyped-def]
        return ops.attend(inputs(ops, x, "q"), inputs(ops, kv, "k"), inputs(ops, kv, "v"), spec)

    program = GpuBackend(device).load(forward, (spec,))
    took = seconds(device, lambda: program.run(Batch((0,), (positions - 1,), (0,), (0,))))
    read = 2 * 2 * positions * 8 * 128
    rate = f"{took * 1e6:.1f} us, {read / took / 1e9:.2f} GB/s"
    print(f"\nattention of one row over {positions} keys, 32 heads, 8 of keys: {rate}")


def time_model(backend: Backend, path: Path) -> None:
    with open_model_file(path) as file:
        family = models.build(file.gguf, file.weights)
        start = time.perf_counter()
        program = backend.load(family.forward, family.attention, print, None, family.states)
        print(f"\n{path.name}: loaded in {time.perf_counter() - start:.1f} s")
        for rows, repeats in ((64, 4), (1, 16)):
            program.run(Batch((1,) * rows, tuple(range(rows)), (0,) * rows, ()))
            start = time.perf_counter()
            for number in range(repeats):
                positions = range(rows * (number + 1), rows * (number + 2))
                program.run(Batch((1,) * rows, tuple(positions), (0,) * rows, (rows - 1,)))
            print(f"  {rows} rows at once: {rows * repeats / (time.perf_counter() - start):.1f} tokens/s")
        program.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="", metavar="NAME", help="opencl[:N] or cuda[:N]")
    parser.add_argument("--check", action="store_true", help="compare bits first")
    parser.add_argument("--size", type=int, default=0, metavar="N", help="rows of the weights, a multiple of 256")
    parser.add_argument("--model", type=Path, metavar="FILE", help="time this model too")
    options = parser.parse_args()
    name = options.device or choose.best(print)
    if name == "cpu":
        print("there is no GPU here, so times mean nothing: OpenCL runs the kernels on the processor")
        name = "opencl"
    device = choose.open_named(name)
    print(f"{name}: {device.name}, which passed the self-test")
    if options.check:
        with tempfile.TemporaryDirectory() as folder:
            wrong = check_products(device) + check_models(device, Path(folder))
        if wrong:
            print(f"{wrong} of them are wrong, so no time is worth measuring")
            return 1
    on_processor = name.startswith("opencl") and not choose.is_graphics(name)
    copied = copy_bandwidth(device, (64 if on_processor else 1024) << 20)
    print(f"\ncopies {copied / 1e9:.1f} GB/s, read and written")
    time_products(device, options.size or (1024 if on_processor else 8192), copied)
    time_attention(device, 512 if on_processor else 4096)
    if options.model:
        time_model(GpuBackend(device), options.model)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

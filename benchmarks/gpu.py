"""A device's bits against the CPU's, and its times against its own copy bandwidth and peaks.

    python -m benchmarks.gpu                      times of the best device: CUDA, else an OpenCL GPU
    python -m benchmarks.gpu --check              the bits first, of products and of small models of every family
    python -m benchmarks.gpu --device opencl:1    of this one
    python -m benchmarks.gpu --model FILE.gguf    and tokens a second of a model
    python -m benchmarks.gpu --only-check         the bits alone

Exits with 1 where a bit differs. Where there is no GPU it runs through PoCL: slowly, on small sizes, and with the same
bits. On a GPU all of it should take less than ten minutes, most of them for compiling. The tables are Markdown, as
docs/PERFORMANCE.md has them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import formats, gpu_rates
from conformance.recipes.model import Sizes
from kinetic import models
from kinetic.backends import open_backend
from kinetic.backends.base import Backend
from kinetic.backends.gpu import GpuBackend, choose
from kinetic.backends.gpu.device import Device
from kinetic.backends.gpu.weights import matrix_bytes
from kinetic.backends.graph import trace
from kinetic.backends.reference import ReferenceBackend
from kinetic.errors import UnsupportedModel
from kinetic.loader import open_model_file
from kinetic.types import Batch
from tests.support.backends import inputs, rows_of, same
from tests.support.blocks import FORMATS, normals, random_weight
from tests.support.whole_models import WRITERS

BILLION = Sizes(16, 2048, 32, 8, 64, 8192)
"""0.97 billion weights in the layers, as Llama 3.2 1B has them; nearly none in the vocabulary."""

SMALL = Sizes(2, 256, 4, 2, 64, 512)


# ---- bits


def check_products(device: Device) -> int:
    """Formats whose product has a bit that is not the reference's: of few rows, and of more than one tile."""
    wrong = 0
    for name in FORMATS:
        weight = random_weight("w", name, 37, 768, seed=3)
        for rows in (9, 70):
            x = normals(1, rows, 768)
            loaded = [
                backend.load(lambda ops, x=x, w=weight: ops.linear(inputs(ops, x), w), ())
                for backend in (GpuBackend(device), ReferenceBackend())
            ]
            found, expected = (program.run(rows_of(rows)) for program in loaded)
            wrong += report(f"product {name}, {rows} rows", bool(same(found, expected).all()))
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


def time_kernels(device: Device, sizes: gpu_rates.Sizes) -> gpu_rates.Limits:
    known = gpu_rates.limits(device, sizes)
    print(
        f"\ncopies {known.copies / 1e9:.1f} GB/s, read and written; int8 products {known.int8 / 1e12:.3g} Top/s; "
        f"float32 {known.float32 / 1e12:.3g} Top/s\n\nweights [{sizes.outputs}, {sizes.width}]\n\n{gpu_rates.HEAD}"
    )
    for part in (
        gpu_rates.products_of(device, known, sizes, list(FORMATS)),
        gpu_rates.others(device, known, sizes),
        gpu_rates.attention(device, known, sizes),
    ):
        for line in part:
            print(line, flush=True)
    print()
    for line in gpu_rates.where_tiles_begin(device, sizes, "Q4_K"):
        print(line, flush=True)
    return known


def time_model(backend: Backend, path: Path, copies: float, rows: int) -> None:
    """One prompt and single tokens behind it, beside what reading the weights alone would take."""
    with open_model_file(path) as file:
        family = models.build(file.gguf, file.weights)
        nodes = trace(family.forward)
        weights = {node["weight"].name: node["weight"] for node in nodes if node.op == "linear"}
        floor = sum(map(matrix_bytes, weights.values())) / copies
        start = time.perf_counter()
        program = backend.load(family.forward, family.attention, None, None, family.states)
        print(f"\n{path.name}: loaded in {time.perf_counter() - start:.1f} s")
        took = [time_pass(program, rows), time_pass(program, 1)]
        program.close()
    print(
        f"\n| | time | tokens/s |\n| --- | --: | --: |\n"
        f"| prompt of {rows} | {took[0] * 1e3:.2f} ms | {rows / took[0]:.0f} |\n"
        f"| one token | {took[1] * 1e3:.2f} ms | {1 / took[1]:.1f} |\n"
        f"| its weights at the copy bandwidth | {floor * 1e3:.2f} ms | {100 * floor / took[1]:.0f} % of the time |"
    )


def time_pass(program: object, rows: int) -> float:
    """The shortest of five passes; each continues the sequence of the one before."""
    took, at = [], program.length(0)  # type: ignore[attr-defined]
    for _ in range(6):
        batch = Batch((1,) * rows, tuple(range(at, at + rows)), (0,) * rows, (rows - 1,))
        start = time.perf_counter()
        program.run(batch)  # type: ignore[attr-defined]
        took.append(time.perf_counter() - start)
        at += rows
    return min(took[1:])


def time_random_model(device: Device, copies: float, is_graphics: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kind, sizes = "Q4_K", BILLION if is_graphics else SMALL
        path = formats.write(kind, Path(folder) / f"random-{kind}.gguf", sizes)
        time_model(GpuBackend(device), path, copies, 512 if is_graphics else 70)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="", metavar="NAME", help="opencl[:N] or cuda[:N]")
    parser.add_argument("--check", action="store_true", help="compare bits first")
    parser.add_argument("--only-check", action="store_true", help="and measure nothing")
    parser.add_argument("--model", type=Path, metavar="FILE", help="time this model too")
    options = parser.parse_args()
    name = options.device or choose.best(print)
    if name == "cpu":
        print("there is no GPU here, so times mean nothing: OpenCL runs the kernels on the processor")
        name = "opencl"
    device = choose.open_named(name)
    print(f"{name}: {device.name}, which passed the self-test")
    if options.check or options.only_check:
        with tempfile.TemporaryDirectory() as folder:
            wrong = check_products(device) + check_models(device, Path(folder))
        if wrong:
            print(f"{wrong} of them are wrong, so no time is worth measuring")
            return 1
    if options.only_check:
        return 0
    is_graphics = choose.is_graphics(name)
    known = time_kernels(device, gpu_rates.GPU if is_graphics else gpu_rates.PROCESSOR)
    time_random_model(device, known.copies, is_graphics)
    if options.model:
        time_model(GpuBackend(device), options.model, known.copies, 512 if is_graphics else 70)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

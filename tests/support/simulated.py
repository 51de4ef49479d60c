"""Kernels in Oclgrind, a simulator that reports every access beside memory and every race between lanes of a group.

    python -m tests.support.simulated          all operations; few rows, since each instruction is interpreted
    python -m tests.support.simulated faults   two kernels with a fault, which it must report

It is run by tests/gpu/test_simulated.py, in an environment in which Oclgrind is an OpenCL device: it is none for those
who don't ask for it.
"""

from __future__ import annotations

import sys

import numpy as np

from conformance import op_vectors
from kinetic.api import probe
from kinetic.backends.base import Attention
from kinetic.backends.gpu import GpuBackend, opencl
from kinetic.backends.gpu.source import kernel_source
from kinetic.types import Batch
from tests.support.backends import inputs, rows_of
from tests.support.blocks import float_weight, normals, random_weight

HOSTS = ("draw", "random_bits", "exp32")
"""Operations that the host does on every device."""

LONG = ("attend", "attend_sinks", "attend_softcap", "attend_window", "attend_small")
"""Vectors of 260 rows each; ``attention`` has few."""

FORMATS = ("q8_0", "q4_1", "q4_k", "q2_k", "nvfp4", "bf16", "rows_q8_0", "rows_q4_1", "rows_f16")

FAULTY = """
KERNEL void races(GLOBAL float *y, int n)
{
    LOCAL float shared[64];
    shared[LANE] = y[LANE];
    y[LANE] = shared[LANES - 1 - LANE];
}

KERNEL void writes_beside(GLOBAL float *y, int n)
{
    y[n] = 1.0f;
}
"""


class Simulator(opencl.Device):
    """Oclgrind claims neither fma nor correct rounding, and has both; nothing is asked of it but what it reports."""

    def failures(self, source: str) -> list[str]:
        return []


def device() -> Simulator:
    opencl.missing = lambda single_fp_config: []
    (found,) = [device for device in opencl.devices() if "Oclgrind" in device.version]
    return Simulator(found)


def vectors() -> None:
    """Every operation but long ones, with the committed bits."""
    for name, vector in op_vectors.read():
        if vector["op"] in HOSTS or name in LONG or (vector["op"] == "linear" and name[7:] not in FORMATS):
            continue
        found = op_vectors.run(vector, device="opencl")
        for output, expected in op_vectors.wanted(vector).items():
            assert op_vectors.same(found[output], expected).all(), f"{name}: {output}"


def attention(backend: GpuBackend) -> None:
    """Rows of three chunks, of two sequences, in windows, with sinks."""
    spec = Attention(0, 4, 2, 16, 0.3, window=300, value_dim=8, softcap=3.0)
    q, k, v = (normals(seed, 6, width) for seed, width in ((1, 64), (2, 32), (3, 16)))
    sinks = float_weight("sinks", np.array([0.5, -100.0, 1.0, 9.0], np.float32))
    program = backend.load(
        lambda ops: ops.attend(inputs(ops, q, "q"), inputs(ops, k, "k"), inputs(ops, v, "v"), spec, sinks), (spec,)
    )
    rows = tuple(range(6))
    program.run(Batch(rows, (0, 15, 3, 255, 256, 560), (0, 0, 1, 0, 0, 0), rows))


def many_rows(backend: GpuBackend) -> None:
    """Products of more rows and outputs than any group has, the last group not full."""
    x = normals(4, 67, 288)
    for name in ("Q8_0", "F16"):
        weight = random_weight("w", name, 35, 288, seed=5)
        program = backend.load(lambda ops, w=weight: ops.linear(inputs(ops, x), w), ())
        program.run(rows_of(67))


def main() -> None:
    simulator = device()
    if sys.argv[1:] == ["faults"]:
        for name in ("races", "writes_beside"):
            memory = simulator.upload(np.zeros(64, np.float32))
            simulator.launch(simulator.kernel(kernel_source("norm") + FAULTY, name), 1, 64, memory, np.int32(64))
            simulator.finish()
        return
    backend = GpuBackend(simulator)
    probe.open_backend = lambda *_, **__: backend  # type: ignore[assignment]
    vectors()
    attention(backend)
    many_rows(backend)


if __name__ == "__main__":
    main()

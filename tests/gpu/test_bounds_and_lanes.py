"""Kernels touch nothing but the memory they are given, read nothing before it is written, and have the same bits with
any number of lanes and however PoCL runs the lanes of a group.

The device of all tests of this folder is watched; here are those that show that it sees, and the families that the
others leave out. Launches with other numbers of lanes, and other orders of them, show a race that one order hides.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from conformance import op_vectors
from conformance.cases.operations import QUICK_FORMATS
from kinetic import models
from kinetic.api import probe
from kinetic.backends import open_backend
from kinetic.backends.gpu import GpuBackend
from kinetic.backends.gpu.source import kernel_source
from kinetic.loader import open_model_file
from kinetic.types import Batch
from tests.conftest import ROOT
from tests.gpu.test_gpu_models import FAMILIES, RECURRENT
from tests.support.backends import assert_same, compile_all
from tests.support.whole_models import WRITERS, tokens_of

COPIES = """
KERNEL void copies(GLOBAL float *y, GLOBAL const float *x, int to, int from)
{
    if (GROUP * LANES + LANE == 0)
        y[to] = x[from];
}
"""
"""One element, from anywhere to anywhere."""

FORMATS = ("q4_k", "nvfp4", "rows_q4_1", "rows_f16")

HOSTS = ("draw", "random_bits", "exp32")
"""Operations that the host does on every device."""


@pytest.fixture
def watched(device):
    if type(device).__name__ != "Watched":
        pytest.skip("only PoCL's memory can be watched")
    return device


def copied(device, to: int, start: int) -> float:
    kernel = device.kernel(kernel_source("norm") + COPIES, "copies")
    memory = device.memory(20), device.upload(np.arange(5, dtype=np.float32))
    device.launch(kernel, 1, 8, *memory, np.int32(to), np.int32(start))
    out = np.zeros(5, np.float32)
    device.read(memory[0], out)
    return float(out[to])


@pytest.mark.parametrize("place", [5, -1, 40, -100])
def test_a_write_beside_memory_is_seen(watched, place):
    with pytest.raises(AssertionError, match=r"kernel copies has written (before|behind) memory of 20 bytes"):
        copied(watched, place, 0)


def test_what_nobody_wrote_is_nan(watched):
    assert copied(watched, 4, 3) == 3
    assert np.isnan(copied(watched, 4, 5)) and np.isnan(copied(watched, 0, -1)), "beside memory"
    out = np.zeros(5, np.float32)
    watched.read(watched.memory(20), out)
    assert np.isnan(out).all(), "fresh memory"


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in (*FAMILIES, *RECURRENT)])
def test_every_other_family_stays_within_its_memory(watched, tmp_path, name):
    """Rows of two sequences, then one more of the first."""
    compile_all(open_backend("cpu").isa)
    tokens = tokens_of(7, 12)
    first = Batch(tuple(tokens[:11]), (*range(9), 0, 1), (0,) * 9 + (1,) * 2, (0, 8, 10))
    passes = (first, Batch(tuple(tokens[11:]), (9,), (0,), (0,)))
    with open_model_file(WRITERS[name](tmp_path / "model.gguf")) as file:
        family = models.build(file.gguf, file.weights)
        found = []
        for backend in (GpuBackend(watched), open_backend("cpu", threads=1)):
            program = backend.load(family.forward, family.attention, None, None, family.states)
            found.append([program.run(batch) for batch in passes])
            program.close()
    for ours, theirs in zip(*found, strict=True):
        assert_same(ours, theirs)


def require_vectors(formats=QUICK_FORMATS) -> None:
    """Operations on the device that ``probe`` opens give the committed bits; products those with some formats."""
    for name, vector in op_vectors.read():
        if vector["op"] in HOSTS or (vector["op"] == "linear" and name[7:] not in formats):
            continue
        found = op_vectors.run(vector, device="opencl")
        for output, expected in op_vectors.wanted(vector).items():
            assert op_vectors.same(found[output], expected).all(), f"{name}: {output}"


@pytest.mark.parametrize("lanes", [32, 128])
def test_lanes_change_no_bit(opencl_device, monkeypatch, lanes):
    from tests.support.watched_device import OtherLanes

    device = OtherLanes(opencl_device, lanes)
    monkeypatch.setattr(probe, "open_backend", lambda *_, **__: GpuBackend(device))
    require_vectors()
    names = {name for name, used in device.launched if used == lanes}
    assert len(names) > 14 and {"rms_norm", "attention_chunks", "rope"} <= names


@pytest.mark.parametrize("method", ["cbs", pytest.param("loops", marks=pytest.mark.slow)])
def test_the_order_of_lanes_changes_no_bit(device, method):
    """PoCL vectorises groups by default; these run lanes one after the other, and from barrier to barrier."""
    program = f"from tests.gpu.test_bounds_and_lanes import require_vectors as require; require({FORMATS})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"POCL_WORK_GROUP_METHOD": method, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]

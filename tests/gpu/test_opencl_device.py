"""Which devices are refused, and that the self-test sees what it is there for."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kinetic.backends.gpu import self_test
from kinetic.backends.gpu.source import PRAGMA, kernel_source
from kinetic.errors import UsageError


def test_a_device_without_the_arithmetic_is_refused(opencl):
    everything = sum(opencl.NEEDED)
    assert opencl.missing(everything) == []
    for flag, what in opencl.NEEDED.items():
        fake = SimpleNamespace(name="Toy", single_fp_config=everything & ~flag)
        with pytest.raises(UsageError, match=f"^OpenCL device 'Toy' lacks {what}$"):
            opencl.open_device([fake])


def test_no_device_at_all_is_said(opencl):
    with pytest.raises(UsageError, match="no OpenCL device"):
        opencl.open_device([])


def test_self_test_catches_contraction(device):
    """Built without the pragma, or fused on purpose where the compiler wouldn't: multiply-add has other bits."""
    source = kernel_source("self_test")
    assert device.failures(source) == []
    fused = source.replace("a[i] * b[i] + c[i]", "FMA(a[i], b[i], c[i])")
    assert fused != source
    assert device.failures(fused) == ["multiply-add"]
    without = source.replace(PRAGMA, "")
    assert without != source
    if "PoCL" in device.version:
        assert device.failures(without) == ["multiply-add"]


@pytest.mark.parametrize(
    ("exact", "loose", "caught"),
    [
        ("a[i] / b[i]", "a[i] * (1.0f / b[i])", "division"),
        ("SQRT(a[i])", "a[i] * rsqrt(a[i])", "square root"),
        ("1.6666665459e-1f", "1.6666667e-1f", "exp"),
        ("* 0x1p112f", "* (moved < 0x800000 ? 0.0f : 0x1p112f)", "float16"),
        ("FMA(a[i], b[i], c[i])", "(a[i] * b[i] + c[i])", "fma"),
    ],
)
def test_self_test_catches(device, exact, loose, caught):
    source = kernel_source("self_test").replace(exact, loose)
    assert loose in source
    assert device.failures(source) == [caught]


def test_self_test_catches_flushed_subnormals():
    """A device that flushes: every function of its results and operands goes through 0."""

    def flushed(x):
        return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)

    def run(a, b, c):
        return flushed(self_test.expected(flushed(a), flushed(b), flushed(c)))

    assert {"multiply-add", "fma", "division", "square root", "exp"} <= set(self_test.failures(run))

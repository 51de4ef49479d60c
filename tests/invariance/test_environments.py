"""Instruction sets, what other libraries did to the floating-point environment, what NumPy may use: nothing shows.

Each case runs whole models in a process of its own and prints a digest of every logit
and of an answer. Kernels are compiled once for each instruction set and kept; the slow cases compile
their own and compare with the digests that are committed, which every machine shares.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conformance.recipes import recipes
from kinetic.backends.cpu import target
from tests.support.backends import rows_of
from tests.support.whole_models import WRITERS, digest

ROOT = Path(__file__).resolve().parents[2]

on_x86_linux = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="sets MXCSR through glibc on x86-64"
)

FLUSH_TO_ZERO, DENORMALS_ARE_ZERO, MASKS = 0x8000, 0x0040, 0x1F80
NEAREST, DOWNWARD, UPWARD, TOWARD_ZERO = 0x000, 0x400, 0x800, 0xC00
"""Rounding modes as glibc names them on x86."""

SETTER = """
#include <xmmintrin.h>
void set_control_word(unsigned int word) { _mm_setcsr(word); }
"""


@pytest.fixture(scope="module")
def expected(tiny_folder):
    """The digests of this process."""
    return " ".join(digest(tiny_folder / f"{name}.gguf") for name in WRITERS)


def digests(folder: Path, *arguments: str, **environment: str) -> str:
    """What a new process prints."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.whole_models", str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_the_digest_covers_every_model(expected):
    assert len(set(expected.split())) == len(WRITERS)


@pytest.mark.parametrize("isa", target.available())
def test_instruction_sets(tiny_folder, expected, isa):
    assert digests(tiny_folder, KINETIC_CPU_ISA=isa) == expected


def _dispatched() -> list[str]:
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]


@pytest.mark.parametrize("part", ["all", "half", "last"])
def test_what_numpy_may_use(tiny_folder, expected, part):
    """CASES D26: it picks its kernels by what the processor has, and their last bits differ."""
    found = _dispatched()
    disabled = {"all": found, "half": found[len(found) // 2 :], "last": found[-1:]}[part]
    assert digests(tiny_folder, NPY_DISABLE_CPU_FEATURES=" ".join(disabled)) == expected


# --- what kernels are compiled for ---

# Numba only writes LLVM's text and target.py says what that is compiled for: its own setting should do nothing at all.
# The instruction set furthest from the usual one; the suite itself runs models on each (`make conformance`).
COMPILED_FOR = {
    "Numba's generic": {"NUMBA_CPU_NAME": "generic"},
    **{isa: {target.ENVIRONMENT: isa} for isa in target.available()[1:][-1:]},
}


def outcomes(environment: dict[str, str], threads: int) -> dict[str, str]:
    """Of the suite's quick cases that are about committed digests, by name, in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", "conformance", "--quick", "--only", "digests", "--json", "-t", str(threads)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode in (0, 10), done.stderr[-2000:]
    return {case["id"]: case["outcome"] for case in json.loads(done.stdout)["cases"]}


@pytest.mark.slow
@pytest.mark.parametrize("settings", COMPILED_FOR.values(), ids=COMPILED_FOR)
def test_committed_digests(tmp_path, settings):
    """Kernels are compiled for the occasion: the name of their folder doesn't follow Numba's setting."""
    kernels = tmp_path / "kernels"
    folders = {"KINETIC_HOME": str(tmp_path / "home"), "KINETIC_KERNELS": str(kernels), "PYTHONPATH": str(ROOT)}
    for threads in (1, 2):
        found = outcomes({**os.environ, **folders, **settings}, threads)
        assert len(found) == len(recipes())
        assert set(found.values()) == {"passed"}, found
    assert list(kernels.glob("*/core.o"))


# --- the floating-point environment ---


@on_x86_linux
@pytest.mark.parametrize("mode", [UPWARD, DOWNWARD, TOWARD_ZERO], ids=["upward", "downward", "toward zero"])
def test_another_rounding_mode(tiny_folder, expected, mode):
    """Set before a model is loaded, for every thread that is made later."""
    assert digests(tiny_folder, f"fenv={mode:x}") == expected


@pytest.fixture(scope="module")
def setter(tmp_path_factory):
    """A library built with -ffast-math, which alone may set flush-to-zero when it is loaded."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc to build a library with -ffast-math")
    folder = tmp_path_factory.mktemp("library")
    (folder / "setter.c").write_text(SETTER)
    library = folder / "setter.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-ffast-math", "-o", library, folder / "setter.c"], check=True)
    return library


@on_x86_linux
@pytest.mark.parametrize(
    "word",
    [MASKS | FLUSH_TO_ZERO, MASKS | DENORMALS_ARE_ZERO, MASKS | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO | UPWARD << 3],
    ids=["flush to zero", "denormals are zero", "both and upward"],
)
def test_flush_to_zero(tiny_folder, expected, setter, word):
    assert digests(tiny_folder, f"control={setter}:{word:x}") == expected


@on_x86_linux
def test_flush_to_zero_does_change_numbers(setter):
    """The library does what it is for, so the tests above mean something; and this thread gets its own word back."""
    code = f"""
import ctypes, numpy as np
from tests.support.whole_models import spoil
tiny = np.full(8, 2.0**-130, np.float32)
assert (tiny * np.float32(0.5)).all()
spoil("control={setter}:{MASKS | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO:x}")
assert not (tiny * np.float32(0.5)).any()
from kinetic.backends.control_word import default_rounding
with default_rounding():
    assert (tiny * np.float32(0.5)).all()
assert not (tiny * np.float32(0.5)).any()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


@on_x86_linux
def test_a_pass_leaves_the_callers_control_word_alone():
    """Kernels set their own and put the caller's back, on the caller's thread too."""
    import ctypes

    from tests.support.backends import inputs, loaded

    library = ctypes.CDLL("libm.so.6")
    with loaded(lambda ops: ops.scale(inputs(ops, np.ones((2, 3), np.float32)), 1.1), threads=2) as program:
        library.fesetround(UPWARD)
        try:
            found = program.run(rows_of(2))
            still = library.fegetround()
        finally:
            library.fesetround(NEAREST)
    assert still == UPWARD
    assert (found == np.float32(1.1)).all()

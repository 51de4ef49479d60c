"""What nvcc makes of every kernel: no flushing, no approximation, no fma that wasn't asked for. Needs no GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kinetic.backends import gpu
from kinetic.backends.gpu.source import CUDA_OPTIONS, kernel_source
from tests.gpu import test_format_snippets

KERNELS = sorted(path.stem for path in Path(gpu.__path__[0]).glob("kernels/*.cu"))
EXACT = re.compile(
    r"(?:(?:add|sub|mul|div|sqrt|fma|cvt)\.rn|mov|selp|neg|abs|max|ld\.\w+|st\.\w+|setp\.\w+)\.f32(?:\.[su](?:16|32))?"
)
"""Rounded once to nearest, or not at all. ``max`` is nvcc's for a select against -inf, and drops NaN like it."""

LOOSE = {"=true": "=false", "=false": "=true"}


@pytest.fixture(scope="module")
def nvcc() -> str:
    path = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(path).is_file():
        pytest.skip("there is no nvcc here")
    return path


def float_instructions(nvcc: str, source: str, folder: Path, options: tuple[str, ...] = CUDA_OPTIONS) -> set[str]:
    """Names of all instructions on floats in the PTX of ``source``."""
    (folder / "kernel.cu").write_text(source, encoding="utf-8")
    command = [nvcc, "--ptx", "--gpu-architecture=compute_80", "--Werror=all-warnings", *options, "kernel.cu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ptx = (folder / "kernel.ptx").read_text(encoding="utf-8")
    return set(re.findall(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.]*\.(?:f16|f32|f64|ftz|approx)\b[\w.]*)", ptx, re.MULTILINE))


def unwanted(instructions: set[str]) -> set[str]:
    return {name for name in instructions if not EXACT.fullmatch(name)}


def without_fma(source: str) -> str:
    """``FMA`` as two roundings that no compiler may fuse: an fma that is left was not asked for."""
    changed = source.replace("__fmaf_rn(a, b, c)", "__fadd_rn(__fmul_rn(a, b), c)")
    assert changed != source
    return changed


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_instruction_on_floats_is_rounded_to_nearest(nvcc, kernel, tmp_path):
    instructions = float_instructions(nvcc, kernel_source(kernel), tmp_path)
    assert "fma.rn.f32" in instructions
    assert unwanted(instructions) == set()


def test_formats_are_read_without_rounding(nvcc, tmp_path):
    """Scales are products of few bits, so what multiplies is exact, and nothing is added."""
    instructions = float_instructions(nvcc, test_format_snippets.source(), tmp_path)
    assert "mul.rn.f32" in instructions
    assert unwanted(instructions) == set() == instructions & {"add.rn.f32", "sub.rn.f32", "fma.rn.f32"}


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_fma_that_was_not_asked_for(nvcc, kernel, tmp_path):
    assert "fma.rn.f32" not in float_instructions(nvcc, without_fma(kernel_source(kernel)), tmp_path)


def test_without_the_options_all_of_it_shows(nvcc, tmp_path):
    """So the two tests above can fail, and every option is needed."""
    loose = tuple(re.sub("=.*", lambda value: LOOSE[value[0]], option) for option in CUDA_OPTIONS)
    instructions = float_instructions(nvcc, without_fma(kernel_source("self_test")), tmp_path, loose)
    assert {"fma.rn.ftz.f32", "div.full.ftz.f32", "sqrt.approx.ftz.f32"} <= unwanted(instructions)

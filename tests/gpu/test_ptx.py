"""What NVRTC, which CuPy hands them to, makes of every kernel: no flushing, no approximation, no fma that wasn't asked
for. It needs no GPU, and is installed with the tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from kinetic.backends import gpu
from kinetic.backends.gpu.attention import LANES, attention_source
from kinetic.backends.gpu.source import CUDA_OPTIONS, kernel_source, matmul_source, packed_source, tile_source
from tests.conftest import absent
from tests.gpu import test_format_snippets
from tests.support import nvrtc
from tests.support.blocks import FORMATS

KINDS = ("Q4_K", "Q2_K", "NVFP4", "BF16")
"""Formats with all that a product can be made of; how the others are read is in tests of their own."""

PACKED = ("Q4_0", "Q8_0", "Q5_K", "Q2_K", "Q3_K", "MXFP4", "NVFP4", "F16", "F32")
"""Formats with all that packed weights can be made of."""

SOURCES = {
    path.stem: kernel_source(path.stem)
    for path in sorted(Path(gpu.__path__[0]).glob("kernels/*.cu"))
    if not path.stem.startswith("matmul")
}
SOURCES["attention of few queries"] = attention_source(min(LANES))
SOURCES |= {f"matmul of {name}": matmul_source(FORMATS[name]) for name in KINDS}
SOURCES |= {f"packed {name}": packed_source(FORMATS[name]) for name in PACKED}
SOURCES |= {f"tiles of {name}": tile_source(FORMATS[name]) for name in ("IQ1_M", "IQ1_S")}
SOURCES |= {f"matmul of {name} of experts": matmul_source(FORMATS[name], experts=True) for name in ("Q4_K", "BF16")}

EXACT = re.compile(
    r"(?:(?:add|sub|mul|div|rcp|sqrt|fma|cvt)\.rn|mov|selp|neg|abs|max|(?:ld|st)\.\w+(?:\.v\d)?|setp\.\w+|cvt\.rzi\.s32)"
    r"\.f32(?:\.[su](?:16|32))?|cvt\.f32\.f16"
)
"""Rounded once to nearest, or not at all: every float16 is a float32. ``max`` is nvcc's for a select against -inf, and
drops NaN like it. What is cut to an integer is the number of an expert, a whole one."""

LOOSE = {"=true": "=false", "=false": "=true"}


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    if nvrtc.compiler() is None:
        absent("nvrtc", "there is no NVRTC here: pip install nvidia-cuda-nvrtc")


def float_instructions(source: str, architecture: int = 80, options: Sequence[str] = CUDA_OPTIONS) -> set[str]:
    """Names of all instructions on floats in the PTX of ``source``."""
    return floats_of(nvrtc.ptx_of(source, architecture, options))


def floats_of(ptx: str) -> set[str]:
    return set(re.findall(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.]*\.(?:f16|f32|f64|ftz|approx)\b[\w.]*)", ptx, re.MULTILINE))


def unwanted(instructions: set[str]) -> set[str]:
    return {name for name in instructions if not EXACT.fullmatch(name)}


def without_fma(source: str) -> str:
    """``FMA`` as two roundings that no compiler may fuse: an fma that is left was not asked for."""
    changed = source.replace("__fmaf_rn(a, b, c)", "__fadd_rn(__fmul_rn(a, b), c)")
    assert changed != source
    return changed


def together(sources: dict[str, str]) -> str:
    """All in one text, since starting the compiler takes longest: each in a namespace, with macros of its own."""
    return "".join(_apart(number, text) for number, text in enumerate(sources.values()))


def _apart(number: int, text: str) -> str:
    kernels = re.findall(r"^KERNEL void (\w+)\(", text, re.MULTILINE)
    macros = set(re.findall(r"^#define (\w+)", text, re.MULTILINE)) - COMMON
    renamed = "".join(f"#define {name} {name}_{number}\n" for name in kernels)
    return f"namespace n{number} {{\n{renamed}{text}}}\n" + "".join(f"#undef {name}\n" for name in (*kernels, *macros))


COMMON = set(re.findall(r"^#define (\w+)", kernel_source("norm").partition("#define STRIDES")[0], re.MULTILINE))
"""Macros of the headers, the same in every text."""


@pytest.mark.parametrize("architecture", [75, 80, 90])
def test_every_instruction_on_floats_is_rounded_to_nearest(architecture):
    instructions = float_instructions(together(SOURCES), architecture)
    assert "fma.rn.f32" in instructions
    assert unwanted(instructions) == set()


def test_each_compiles_alone():
    """As it is where it runs: none leans on what stands in another."""
    for source in SOURCES.values():
        nvrtc.ptx_of(source, 75, CUDA_OPTIONS)


def test_formats_are_read_without_rounding():
    """Scales are products of few bits, so what multiplies is exact, and nothing is added."""
    instructions = float_instructions(test_format_snippets.source())
    assert "mul.rn.f32" in instructions
    assert unwanted(instructions) == set() == instructions & {"add.rn.f32", "sub.rn.f32", "fma.rn.f32"}


def test_no_fma_that_was_not_asked_for():
    instructions = float_instructions(without_fma(together(SOURCES)), 75)
    assert "fma.rn.f32" not in instructions


def test_without_the_options_all_of_it_shows():
    """So the tests above can fail, and every option is needed."""
    loose = tuple(re.sub("=.*", lambda value: LOOSE[value[0]], option) for option in CUDA_OPTIONS)
    instructions = float_instructions(without_fma(kernel_source("self_test")), 80, loose)
    assert {"fma.rn.ftz.f32", "div.full.ftz.f32", "sqrt.approx.ftz.f32"} <= unwanted(instructions)

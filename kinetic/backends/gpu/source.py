"""The text of kernels, and the options that keep a compiler from changing their arithmetic."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib.resources import files

import blake3

from kinetic.backends.gpu import packed
from kinetic.backends.gpu.tables import tables
from kinetic.formats import Format

PRAGMA = "#pragma OPENCL FP_CONTRACT OFF"
"""In common.h. Without it OpenCL may turn ``a * b + c`` into one fma."""

OPENCL_OPTIONS = ("-cl-std=CL1.2", "-cl-fp32-correctly-rounded-divide-sqrt")

CUDA_OPTIONS = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")

_INCLUDE = re.compile(r'^#include "(\w+\.h)"\n', re.MULTILINE)


@cache
def kernel_source(name: str) -> str:
    """Text of kernels/``name``.cu with its headers put in place, each where it is first included.

    One string is what every compiler takes, without a search path, and what a digest can name.
    """
    return _whole(_read(f"{name}.cu"))


def format_source(*formats: Format) -> str:
    """The functions of weight formats (``Format.GPU``) with the headers and tables that they need."""
    code = "".join(fmt.GPU for fmt in formats)
    return _whole('#include "formats.h"\n') + tables(code) + code


def matmul_source(fmt: Format, experts: bool = False) -> str:
    """Kernel ``matmul`` for weights of one format: matmul.cu or matmul_float.cu, behind what it reads them by.

    With ``experts`` for weights that are several matrices.
    """
    name, several = fmt.NAME.lower(), {"EXPERTS": ""} if experts else {}
    if not fmt.QUANTISED:
        macros = {"VALUE(row, i)": f"{name}_value(row, i)", "BYTES": str(fmt.BYTES)}
        return _whole('#include "formats.h"\n') + _defined(macros | several) + _read("matmul_float.cu")
    return format_source(fmt) + _reading(fmt) + _defined(several) + _read("matmul.cu")


def packed_source(fmt: Format) -> str:
    """Kernels ``matmul`` and ``matmul_tile`` for packed weights of one format (packed.py): of few rows and of many."""
    if not fmt.QUANTISED:
        number = {} if fmt.BYTES == 4 else {"NUMBER(bits)": NUMBERS[fmt.NAME]}
        macros = _defined({"BYTES": str(fmt.BYTES)} | number)
        code = _read("packed_float.h") + _read("totals.h") + _read("matmul_float_packed.cu")
        return _whole('#include "functions.h"\n') + macros + code
    names = [part.partition("(")[0] for part in _parts(fmt)]
    flags = {name: "" for name in names if name not in ("Q", "SCALE")} | (
        {"PAIRS": ""} if fmt.SCALES == "pairs" else {}
    )
    code = "".join(_read(name) for name in ("blocks.h", "packed.h", "totals.h", "matmul_packed.cu", "matmul_tile.cu"))
    return _whole('#include "functions.h"\n') + _defined(packed.macros(fmt) | flags) + code


NUMBERS = {"F16": "f16_to_f32(bits)", "BF16": "FLOAT_OF_BITS((bits) << 16)"}


def tile_source(fmt: Format) -> str:
    """Kernel ``matmul_tile`` for weights of a quantised format as they lie in the file."""
    return format_source(fmt) + _reading(fmt) + _read("blocks.h") + _read("matmul_tile.cu")


def _reading(fmt: Format) -> str:
    """Macros that read a quantised format as it lies in the file."""
    macros = {"VALUES": str(fmt.BLOCK), "BYTES": str(fmt.BYTES)} | {
        macro: f"{fmt.NAME.lower()}_{macro.partition('(')[0].lower()}(w, i)" for macro in _parts(fmt)
    }
    return _defined(macros | ({"PAIRS": ""} if fmt.SCALES == "pairs" else {}))


def _parts(fmt: Format) -> list[str]:
    """The parts of ``formats.Integers`` that a format has, as macros."""
    halves, minimum = fmt.SCALES == "halves", fmt.M_AT >= 0
    has = {"Q": True, "SCALE": True, "MINIMUM": minimum, "SUB": halves, "SUB_MINIMUM": halves and minimum}
    return [f"{part}(w, i)" for part, there in has.items() if there]


def _defined(macros: dict[str, str]) -> str:
    return "".join(f"#define {macro} {text}\n" for macro, text in macros.items())


@lru_cache(maxsize=1)
def kernel_digest() -> str:
    """BLAKE3 of all text that kernels are made of, but the formats' own (they are counted where engines are named)."""
    folder = files(__package__) / "kernels"
    names = sorted(entry.name for entry in folder.iterdir())
    words = [PRAGMA, *OPENCL_OPTIONS, *CUDA_OPTIONS, *(word for name in names for word in (name, _read(name)))]
    return blake3.blake3("\0".join(words).encode()).hexdigest()


def _whole(text: str) -> str:
    seen: set[str] = set()

    def put_in(include: re.Match[str]) -> str:
        if include[1] in seen:
            return ""
        seen.add(include[1])
        return _INCLUDE.sub(put_in, _read(include[1]))

    return _INCLUDE.sub(put_in, text)


def _read(file: str) -> str:
    return (files(__package__) / "kernels" / file).read_text(encoding="utf-8")

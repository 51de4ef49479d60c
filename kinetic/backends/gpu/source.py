"""The text of kernels, and the options that keep a compiler from changing their arithmetic."""

from __future__ import annotations

import re
from importlib.resources import files

from kinetic.backends.gpu.tables import tables
from kinetic.formats import Format

PRAGMA = "#pragma OPENCL FP_CONTRACT OFF"
"""In common.h. Without it OpenCL may turn ``a * b + c`` into one fma."""

OPENCL_OPTIONS = ("-cl-std=CL1.2", "-cl-fp32-correctly-rounded-divide-sqrt")

CUDA_OPTIONS = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")

_INCLUDE = re.compile(r'^#include "(\w+\.h)"\n', re.MULTILINE)


def kernel_source(name: str) -> str:
    """Text of kernels/``name``.cu with its headers put in place, each where it is first included.

    One string is what every compiler takes, without a search path, and what a digest can name.
    """
    return _whole(_read(f"{name}.cu"))


def format_source(*formats: Format) -> str:
    """The functions of weight formats (``Format.GPU``) with the headers and tables that they need."""
    code = "".join(fmt.GPU for fmt in formats)
    return _whole('#include "formats.h"\n') + tables(code) + code


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

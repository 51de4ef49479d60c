"""The text of kernels, and the options that keep a compiler from changing their arithmetic."""

from __future__ import annotations

import re
from importlib.resources import files

PRAGMA = "#pragma OPENCL FP_CONTRACT OFF"
"""In common.h. Without it OpenCL may turn ``a * b + c`` into one fma."""

OPENCL_OPTIONS = ("-cl-std=CL1.2", "-cl-fp32-correctly-rounded-divide-sqrt")

CUDA_OPTIONS = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")

_INCLUDE = re.compile(r'^#include "(\w+\.h)"\n', re.MULTILINE)


def kernel_source(name: str) -> str:
    """Text of kernels/``name``.cu with its headers put in place, each where it is first included.

    One string is what every compiler takes, without a search path, and what a digest can name.
    """
    seen: set[str] = set()

    def text(file: str) -> str:
        if file in seen:
            return ""
        seen.add(file)
        raw = (files(__package__) / "kernels" / file).read_text(encoding="utf-8")
        return _INCLUDE.sub(lambda include: text(include[1]), raw)

    return text(f"{name}.cu")

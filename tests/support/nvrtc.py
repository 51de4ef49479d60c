"""NVRTC, the compiler that CuPy hands kernels to, by ctypes: it needs no GPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from ctypes.util import find_library
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def compiler() -> ctypes.CDLL | None:
    """Of the toolkit, or of the package nvidia-cuda-nvrtc; None where there is neither."""
    found = [find_library("nvrtc")]
    for folder in sys.path:
        found += sorted(str(path) for path in Path(folder).glob("nvidia/*/lib/libnvrtc.so.*"))
    found += sorted(str(path) for path in Path("/usr/local/cuda").glob("lib64/libnvrtc.so.*"))
    for path in filter(None, found):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def ptx_of(source: str, architecture: int, options: Sequence[str]) -> str:
    """PTX for compute_``architecture``; AssertionError with the compiler's words where it refuses."""
    nvrtc, program = compiler(), ctypes.c_void_p()
    assert nvrtc is not None
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    try:
        words = [f"--gpu-architecture=compute_{architecture}", *options]
        given = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
        failed = nvrtc.nvrtcCompileProgram(program, len(words), given)
        assert not failed, _text(nvrtc, program, "ProgramLog")
        return _text(nvrtc, program, "PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    return text.value.decode()

"""What a quantiser writes is as exact as an answer: the bytes of a model's tensors, for each type of file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blake3 import blake3

from conformance.case import Case, Evidence, require
from conformance.recipes import PLAIN, committed, recipes
from conformance.setting import Setting
from kinetic.api import quantize

PROPERTY = "Quantising a file gives the same bytes on every machine and with any number of threads."
OF_MODELS = False

QUICK = ("Q8_0", "Q4_0", "Q4_K_M")
"""Types tried in any run; the kernels of the others take a while to compile for the first time."""

OTHERS = (
    *("Q1_0", "Q2_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "Q5_K_M", "Q6_K"),
    *("IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4_MOE"),
)
"""All that need no importance matrix."""

THREADS = (1, 2)


def cases(setting: Setting) -> Iterator[Case]:
    for name in QUICK if setting.is_quick else (*QUICK, *OTHERS):
        yield Case(name, partial(_run, setting, name))


def digest(setting: Setting, name: str, threads: int) -> str:
    """BLAKE3 of names, types and bytes of what becomes of a built-in model of F32 weights, hex."""
    source = recipes()[f"{PLAIN}-f32"].write(setting.folder)
    hasher = blake3()
    recipe = quantize.Recipe(quantize.file_type(name))
    for tensor, kind, data in quantize.tensors(source, recipe, threads=threads, news=setting.news):
        hasher.update(f"{tensor} {kind} {len(data)}\n".encode() + data)
    return hasher.hexdigest()


def _run(setting: Setting, name: str) -> Evidence:
    for threads in THREADS:
        found = digest(setting, name, threads)
        require(found == committed("quantised").get(name), f"with {threads} threads the bytes are not those committed")
    return Evidence(f"with {' and '.join(map(str, THREADS))} threads the committed bytes", found)

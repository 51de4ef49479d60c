"""Single operations give the bits of the committed vectors, on the device and on the reference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from blake3 import blake3

from conformance import op_vectors
from conformance.case import Case, Evidence, require
from conformance.setting import Setting

PROPERTY = "Every operation of the arithmetic gives the bits of its vector, on every backend."
OF_MODELS = False

QUICK_FORMATS = ("q8_0", "q4_1", "q4_k", "q2_k", "nvfp4", "bf16", "rows_q8_0", "rows_q4_1", "rows_f16")
"""Those of products in a quick run, on devices beside the one that was asked for: each is a kernel to build."""


def cases(setting: Setting) -> Iterator[Case]:
    for device in dict.fromkeys((setting.device, "reference")):
        for name, vector in op_vectors.read():
            yield Case(f"{name}/{device}", partial(_run, setting, vector, device))
    for device in setting.others:
        for name, vector in op_vectors.read():
            if _runs_on_devices(vector, name, setting.is_quick):
                yield Case(f"{name}/{device}", partial(_run_elsewhere, setting, vector, device))


def _runs_on_devices(vector: op_vectors.Vector, name: str, quick: bool) -> bool:
    """Draws, random bits and the exp of draws are the host's, whatever the device."""
    if vector["op"] in ("draw", "random_bits", "exp32"):
        return False
    return vector["op"] != "linear" or not quick or name.removeprefix("linear_") in QUICK_FORMATS


def _run_elsewhere(setting: Setting, vector: op_vectors.Vector, device: str) -> Evidence:
    setting.require(device)
    return _run(setting, vector, device)


def _run(setting: Setting, vector: op_vectors.Vector, device: str) -> Evidence:
    require(vector["op"] in op_vectors.RUNNERS, f"nothing here runs the operation {vector['op']}")
    found = op_vectors.run(vector, device=device, threads=setting.threads)
    hasher, compared = blake3(), 0
    for name, expected in op_vectors.wanted(vector).items():
        equal = op_vectors.same(found[name], expected)
        if not equal.all():
            first = tuple(int(i) for i in np.argwhere(~equal)[0])
            count = np.count_nonzero(~equal)
            require(False, f"{count} of {equal.size} values of {name} differ, the first at {list(first)}: "
                           f"{found[name][first]!r} where the vector has {expected[first]!r}")  # fmt: skip
        compared += equal.size
        hasher.update(np.ascontiguousarray(expected).tobytes())
    return Evidence(f"{compared:,} values with the bits of the vector", hasher.hexdigest())

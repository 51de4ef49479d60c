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


def cases(setting: Setting) -> Iterator[Case]:
    for device in dict.fromkeys((setting.device, "reference")):
        for name, vector in op_vectors.read():
            yield Case(f"{name}/{device}", partial(_run, setting, vector, device))


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

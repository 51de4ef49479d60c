"""exp and the activations, over a dense grid: a rounding that is wrong shows in one value of hundreds only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from blake3 import blake3

from conformance.case import F32, Case, Evidence, require
from conformance.op_vectors import activate, same
from conformance.recipes import committed, numbers
from conformance.setting import Setting
from kinetic.api import probe

PROPERTY = "exp, SiLU and GELU give the same bits for every number, on every backend."
OF_MODELS = False

SEED, ROWS, WIDTH = 61, 512, 64
LOW, HIGH = -106.0, 90.0
"""Beyond both ends of where exp32 is neither 0 nor infinite."""

FUNCTIONS = ("exp", "silu", "gelu")


def cases(setting: Setting) -> Iterator[Case]:
    for device in dict.fromkeys((setting.device, "reference")):
        for name in FUNCTIONS:
            yield Case(f"{name}/{device}", partial(_run, name, device))
    for device in setting.others:
        for name in FUNCTIONS[1:]:  # exp itself is the host's, for draws
            yield Case(f"{name}/{device}", partial(_run_elsewhere, setting, name, device))


def _run_elsewhere(setting: Setting, name: str, device: str) -> Evidence:
    setting.require(device)
    return _run(name, device)


def grid() -> F32:
    """float32 [ROWS, WIDTH]: half between LOW and HIGH, half near 0, where most numbers of a model are."""
    wide = numbers.uniforms(SEED, 0, ROWS * WIDTH // 2) * np.float32(HIGH - LOW) + np.float32(LOW)
    near = numbers.normals(SEED, 1, ROWS * WIDTH // 2) * np.float32(2)
    return np.concatenate([wide, near]).reshape(ROWS, WIDTH)


def values(name: str, device: str) -> F32:
    x = grid()
    if name == "exp":
        with probe.bare(device, width=x.size) as program:
            return program.exp(x.reshape(-1)).reshape(x.shape)
    return activate(x, name, device=device)


def digest(found: F32) -> str:
    """BLAKE3 of the values, little-endian, hex."""
    return blake3(np.ascontiguousarray(found, "<f4").tobytes()).hexdigest()


def _run(name: str, device: str) -> Evidence:
    found = values(name, device)
    if digest(found) != committed("functions").get(name):
        equal, x = same(found, values(name, "reference")), grid()
        require(bool(equal.all()), f"{np.count_nonzero(~equal)} of {x.size} values are not the reference's")
        require(False, "the values are the reference's, and not those committed")
    return Evidence(f"{found.size:,} values with the committed digest", digest(found))

"""Products in every quantised format: by the words of docs/NUMERICS.md, and beside llama.cpp's own."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kinetic.backends.base import Weight
from kinetic.backends.reference.linear import linear
from kinetic.backends.reference.quantise import quantise
from tests.formats.test_formats import golden_variants, half, signed, stored_scale
from tests.support.blocks import FORMATS, QUANTISED, normals, random_weight
from tests.support.exact import fused

# --- one number at a time ---


@pytest.mark.parametrize("name", QUANTISED)
def test_products_by_the_words(name):
    """From a block's bytes through what kernels use of a format, whole numbers and single roundings, to the bits."""
    width = 768
    weight = random_weight("w", name, 2, width, seed=150)
    x = normals(151, 2, width) * np.float32(3)
    found = linear(x, weight)
    activations = quantise(x)
    for t in range(2):
        for n in range(2):
            q = activations.q[t].astype(int).tolist()
            expected = product(FORMATS[name], weight.data[n], q, activations.d[t])
            assert found[t, n].tobytes() == expected.tobytes()


def product(fmt, raw, q, dx):
    """raw uint8 of one row; q[b] 32 integers and dx[b] float32 of each block of activations."""
    blocks = raw.reshape(-1, fmt.BYTES).astype(np.int64)
    total = partial = np.float32(0)
    for b in range(len(q)):
        block, first = blocks[32 * b // fmt.BLOCK], 32 * b % fmt.BLOCK
        partial = add_block(fmt, block, first, q[b], dx[b], partial)
        if b % 8 == 7 or b == len(q) - 1:
            total, partial = np.float32(total + partial), np.float32(0)
    return total


def add_block(fmt, block, first, q, dx, partial):
    """``partial`` with the 32 values of ``block`` from ``first`` on."""
    codes = [int(fmt.unsigned(block, first + i)) for i in range(32)]
    w = [code - fmt.ZERO if fmt.TABLE is None else fmt.TABLE[code] for code in codes]
    dots = [sum(a * b for a, b in zip(q[h : h + 16], w[h : h + 16], strict=True)) for h in (0, 16)]
    sums = [sum(q[h : h + 16]) for h in (0, 16)]
    if fmt.SCALES == "pairs":
        for h in range(2):
            partial = fused(dots[h], stored_scale(fmt, block, first // 16 + h) * dx, partial)
        return partial
    dw, m = stored_scale(fmt, block, 0) * np.float32(fmt.UNIT), half(block, fmt.M_AT) if fmt.M_AT >= 0 else None
    if fmt.SCALES == "superblock":
        dw = dw * signed(fmt.factor(block, first // 32))
        m = None if m is None else -(m * np.float32(fmt.minimum(block, first // 32)))
    if fmt.SCALES == "halves":
        dots = [int(signed(fmt.factor(block, first // 16 + h))) * dots[h] for h in range(2)]
        if m is not None:
            m, sums = -m, [int(fmt.minimum(block, first // 16 + h)) * sums[h] for h in range(2)]
    partial = fused(sum(dots), dw * dx, partial)
    return partial if m is None else fused(m, dx * np.float32(sum(sums)), partial)


# --- beside llama.cpp ---

SHARING = {"q8_0": 32, "q8_1": 32, "q8_K": 256}
"""llama.cpp's formats for activations, and how many of them share a scale."""


def deviation(x, w, block):
    """float64 [T, N]: how far x w may be off when x is rounded to 127 steps of each block's largest value.

    An error is uniform within a step, so its variance is step^2 / 12, and variances of elements add up.
    """
    steps = np.abs(x.reshape(len(x), -1, block)).max(axis=-1, keepdims=True) / 127
    errors = np.broadcast_to(steps**2 / 12, (*steps.shape[:2], block)).reshape(x.shape)
    return np.sqrt(errors @ (w**2).T)


@pytest.mark.parametrize("name", QUANTISED)
def test_products_are_as_near_to_llama_cpps_as_rounded_activations_allow(golden, name):
    """Both round activations, and that is the whole difference: 1 deviation of both errors together.

    q8_0 and q8_1 have the same integers as our blocks of 32, and only their scales differ, rounded to float16.
    """
    folder, fmt = golden / "formats", FORMATS[name]
    x = np.load(folder / "act" / "x.npy")
    variant = next(v for v in golden_variants(folder / "main", name) if (folder / "act" / f"{v}.mm.npy").exists())
    raw = np.fromfile(folder / "main" / f"{variant}.bin", np.uint8).reshape(16, -1)
    theirs = np.load(folder / "act" / f"{variant}.mm.npy").astype(np.float64)
    ours = linear(x, Weight("w", fmt.TYPE_ID, (16, x.shape[1]), raw)).astype(np.float64)
    exact_x, w = x.astype(np.float64), fmt.decode(raw).astype(np.float64)
    index = json.loads((folder / "act" / "index.json").read_text())
    block = SHARING[index[variant]["vec_dot_type"]]
    own, their = deviation(exact_x, w, 32), deviation(exact_x, w, block)
    check(ours - exact_x @ w.T, own, rms=1.2, largest=4)
    check(ours - theirs, np.hypot(own, their), *((0.2, 1) if block == 32 else (1.1, 4)))


def check(errors, sizes, rms, largest):
    """Errors in units of ``sizes``; where that is 0, so are they."""
    assert not errors[sizes == 0].any()
    relative = errors[sizes > 0] / sizes[sizes > 0]
    assert np.sqrt((relative**2).mean()) < rms
    assert np.abs(relative).max() < largest

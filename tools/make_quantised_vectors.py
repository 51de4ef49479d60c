"""Digests of quantised rows: ``python -m tools.make_quantised_vectors``.

Writes tests/formats/quantised.json anew: BLAKE3 of the bytes that each format's quantiser makes of the same rows,
without and with importance. The bytes are those of llama.cpp b11434, so a digest that changes is a fault.
"""

from __future__ import annotations

import json
from pathlib import Path

import blake3
import numpy as np

from kinetic.backends.cpu.quantise import NEEDS_IMATRIX, QUANTISABLE, Quantisers
from kinetic.bits import F32
from kinetic.gguf_types import type_name
from kinetic.rng import philox4x32

FILE = Path(__file__).parents[1] / "tests" / "formats" / "quantised.json"
COLUMNS = 768


def main() -> int:
    made = digests(Quantisers(QUANTISABLE), sorted(QUANTISABLE))
    FILE.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"quantised vectors: {len(made)} formats")
    return 0


def digests(quantisers: Quantisers, types: list[int]) -> dict[str, dict[str, str]]:
    """By format: the digest without importance, unless it needs one, and with it."""
    source, importance = rows(), weights()
    made: dict[str, dict[str, str]] = {}
    for ggml_type in types:
        found = {"importance": quantisers.rows(ggml_type, source, importance)}
        if ggml_type not in NEEDS_IMATRIX:
            found["plain"] = quantisers.rows(ggml_type, source, None)
        made[type_name(ggml_type)] = {kind: blake3.blake3(raw.tobytes()).hexdigest() for kind, raw in found.items()}
    return made


def rows() -> F32:
    """float32 [9, 768]: what each step below makes of uniform numbers, by exact or once rounded operations."""
    u, v = _uniforms(1), _uniforms(2)
    sparse = np.where(v > 0.5, u, np.float32(0))
    powers = np.ldexp(np.float32(1), np.repeat(np.arange(COLUMNS // 32) - 12, 32))
    return np.stack(
        [
            u,
            u * v * v * np.float32(0.02),
            np.rint(u * 16) / np.float32(8),
            sparse,
            np.full(COLUMNS, -0.37, np.float32),
            u * powers,
            np.float32(5) + v * np.float32(0.001),
            u * np.float32(1e-39),
            np.sign(np.rint(u * 2)) * np.float32(0.37),
        ]
    ).astype(np.float32)


def weights() -> F32:
    """float32 [768]: importance in 0 .. 1, an eighth of it zero."""
    w = np.abs(_uniforms(3))
    return np.where(w < 0.125, np.float32(0), w)


def _uniforms(seed: int) -> F32:
    """float32 [768] in -1 .. 1, multiples of 2^-23, from Philox."""
    words = [philox4x32((i, 0, 0, 0), (seed, 0)) for i in range(COLUMNS // 4)]
    integers = (np.array(words, np.int64) >> 8) - (1 << 23)
    return (integers.reshape(-1) * 2.0**-23).astype(np.float32)


if __name__ == "__main__":
    raise SystemExit(main())

"""Small adapters of any model file: pairs of narrow matrices from a counter, so that a seed names one adapter.

write_adapter(path, model, {"blk.0.attn_q.weight": 8, "token_embd.weight": 4})
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kinetic.gguf import Gguf
from tests.support.blocks import FORMATS, encode_floats, normals
from tests.support.gguf_writer import GgufWriter

TABLE = "token_embd.weight"


def write_adapter(
    path: Path,
    model: Path,
    ranks: Mapping[str, int],
    *,
    seed: int = 1,
    alpha: float = 16.0,
    kind: str = "F32",
    spread: float = 0.3,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A LoRA of these ranks by tensor of ``model``. ``keys`` takes the place of metadata (None: left out), and
    ``tensors`` are written besides."""
    writer = GgufWriter()
    with Gguf.open(model) as gguf:
        metadata = {"general.type": "adapter", "general.architecture": gguf.metadata["general.architecture"]}
        metadata |= {"adapter.type": "lora", "adapter.lora.alpha": alpha} | dict(keys or {})
        for key, value in metadata.items():
            if value is not None:
                writer.key(key, value)
        for number, (name, rank) in enumerate(ranks.items()):
            shape = gguf.tensors[name].shape if name in gguf.tensors else (8, 8)
            for end, values in zip("ab", pair(name, shape, rank, 100 * seed + 2 * number, spread), strict=True):
                raw = encode_floats(FORMATS[kind], values).tobytes() if values.size else b""
                writer.raw_tensor(f"{name}.lora_{end}", values.shape, FORMATS[kind].TYPE_ID, raw)
    for name, values in (tensors or {}).items():
        writer.tensor(name, values)
    return writer.write(path)


def pair(name: str, shape: tuple[int, ...], rank: int, seed: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """A and B float32, as a file has them for a tensor of this shape."""
    *_, rows, width = (1, *shape)
    first, second = ((rows, rank), (width, rank)) if name == TABLE else ((rank, width), (rows, rank))
    a = normals(seed, *first) * np.float32(1 / math.sqrt(width))
    return a, normals(seed + 1, *second) * np.float32(spread)


def merged(name: str, weight: np.ndarray, adapter: Path, scale: float) -> np.ndarray:
    """``weight`` with the whole of an adapter of F32 added, from float64."""
    with Gguf.open(adapter) as gguf:
        a, b = (
            gguf.data(f"{name}.lora_{end}").view(np.float32).reshape(gguf.tensors[f"{name}.lora_{end}"].shape)
            for end in "ab"
        )
        factor = scale * gguf.metadata["adapter.lora.alpha"] / b.shape[1]
        a, b = a.astype(np.float64), b.astype(np.float64)
    change = a @ b.T if name == TABLE else b @ a
    return (weight.astype(np.float64) + factor * change).astype(np.float32)

"""What a recipe is: metadata, and tensors that are made from numbers when the file is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from conformance.recipes import gguf_file, numbers
from kinetic.api.probe import Format, formats

CONTEXT = 2048


class Tensor(NamedTuple):
    """A tensor to be made. One-dimensional ones, and those with a ``centre``, are F32, that added; other matrices, and
    those of experts one after another, are of format ``kind``."""

    name: str
    shape: tuple[int, ...]
    spread: float
    centre: float = 0.0


class Sizes(NamedTuple):
    """Of a small model; letters as in ``kinetic.backends.base``."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int


class Model(NamedTuple):
    """A whole model in the making."""

    metadata: dict[str, Any]
    tensors: list[Tensor]
    kinds: Mapping[str, str]
    """Format by the part of a matrix's name between layer and ``.weight``; "" is for all others."""
    seed: int

    def kind(self, name: str) -> str:
        part = name.removesuffix(".weight").split(".")[-1]
        return self.kinds.get(part, self.kinds.get("", "Q8_0"))


def write(model: Model, path: Path) -> Path:
    """The GGUF file of a model; the same bytes everywhere."""
    known = formats()
    stored = [_stored(model, number, tensor, known) for number, tensor in enumerate(model.tensors)]
    return gguf_file.write(path, gguf_file.to_bytes(model.metadata, stored))


def _stored(model: Model, number: int, tensor: Tensor, known: Mapping[str, Format]) -> gguf_file.Stored:
    stream = 2 * number + 1
    if len(tensor.shape) == 1 or tensor.centre:
        values = numbers.normals(model.seed, stream, 1, math.prod(tensor.shape)) * np.float32(tensor.spread)
        raw = numbers.encode(known["F32"], values + np.float32(tensor.centre))
        return gguf_file.Stored(tensor.name, tensor.shape, known["F32"].TYPE_ID, raw.tobytes())
    fmt = known[model.kind(tensor.name)]
    *rows, columns = tensor.shape
    raw = numbers.matrix(fmt, math.prod(rows), columns, model.seed, stream, tensor.spread)
    return gguf_file.Stored(tensor.name, tensor.shape, fmt.TYPE_ID, raw.tobytes())


# --- what families share ---


def settings(architecture: str, s: Sizes) -> dict[str, Any]:
    """Metadata of every family."""
    values = {
        "block_count": s.layers,
        "embedding_length": s.width,
        "context_length": CONTEXT,
        "feed_forward_length": s.ffn,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": s.head_dim,
    }
    general = {"architecture": architecture, "name": f"conformance {architecture}", "quantization_version": 2}
    return {f"general.{key}": value for key, value in general.items()} | {
        f"{architecture}.{key}": value for key, value in values.items()
    }


def layer(number: int, s: Sizes, norms: Sequence[str], *, normed_heads: bool = False) -> list[Tensor]:
    """The tensors of a layer of attention and gated feed-forward. Spreads keep logits a few units apart."""
    p = f"blk.{number}."
    q, kv, e = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.width
    out = [norm(f"{p}{name}", e, 9.0 if name.startswith("post_") else 1.0) for name in norms]
    matrices = {"attn_q": (q, e), "attn_k": (kv, e), "attn_v": (kv, e), "attn_output": (e, q)}
    matrices |= {"ffn_gate": (s.ffn, e), "ffn_up": (s.ffn, e), "ffn_down": (e, s.ffn)}
    out += [Tensor(f"{p}{name}.weight", shape, 1.5 / math.sqrt(shape[1])) for name, shape in matrices.items()]
    return out + ([norm(f"{p}attn_{name}_norm", s.head_dim) for name in "qk"] if normed_heads else [])


class Mixture(NamedTuple):
    """Of a small model with experts: how many, how many a row uses, and elements inside each and inside a block that
    every row passes (0: there is none)."""

    experts: int
    used: int
    ffn: int
    shared: int = 0


def with_experts(model: Model, architecture: str, width: int, m: Mixture) -> Model:
    """A model of ``layer`` with mixtures for its feed-forward blocks."""
    keys = {"expert_count": m.experts, "expert_used_count": m.used}
    keys |= {"expert_shared_feed_forward_length": m.shared} if m.shared else {}
    shapes: dict[str, tuple[int, ...]] = {"gate_inp": (m.experts, width), "down_exps": (m.experts, width, m.ffn)}
    shapes |= {f"{name}_exps": (m.experts, m.ffn, width) for name in ("gate", "up")}
    if m.shared:
        shapes |= {"gate_shexp": (m.shared, width), "up_shexp": (m.shared, width), "down_shexp": (width, m.shared)}
    tensors = [t for t in model.tensors if ".ffn_" not in t.name or t.name.endswith("ffn_norm.weight")]
    for number in range(model.metadata[f"{architecture}.block_count"]):
        for name, shape in shapes.items():
            tensors.append(Tensor(f"blk.{number}.ffn_{name}.weight", shape, 1.5 / math.sqrt(shape[-1])))
    metadata = model.metadata | {f"{architecture}.{key}": value for key, value in keys.items()}
    return model._replace(metadata=metadata, tensors=tensors)


def norm(name: str, length: int, centre: float = 1.0) -> Tensor:
    return Tensor(f"{name}.weight", (length,), 0.2, centre)


def bias(name: str, length: int) -> Tensor:
    return Tensor(f"{name}.bias", (length,), 0.3)


def matrix(name: str, rows: int, columns: int, spread: float) -> Tensor:
    """A matrix outside the layers, its values ``spread`` wide for sums of ``columns``."""
    return Tensor(f"{name}.weight", (rows, columns), spread / math.sqrt(columns))

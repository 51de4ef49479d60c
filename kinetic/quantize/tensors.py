"""Tensors by what they are for, as far as quantising cares: which stay as they are, and the kinds that have rules.

Source: src/llama-quant.cpp of llama.cpp b11434.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

EMBEDDINGS: Final = ("token_embd.weight", "per_layer_token_embd.weight")
OUTPUT: Final = "output.weight"

_LAYER: Final = re.compile(r"blk\.\s*([+-]?\d+)")


class Kind(StrEnum):
    """What a tensor is for; each value is the part of a name that tells."""

    OUTPUT = OUTPUT
    EMBEDDING = "token_embd.weight"
    QKV = "attn_qkv.weight"
    KV_B = "attn_kv_b.weight"
    VALUE = "attn_v.weight"
    KEY = "attn_k.weight"
    QUERY = "attn_q.weight"
    ATTENTION_OUTPUT = "attn_output.weight"
    UP = "ffn_up"
    GATE = "ffn_gate"
    DOWN = "ffn_down"
    OTHER = ""


_BY_PART: Final = tuple(kind for kind in Kind if kind not in (Kind.OUTPUT, Kind.EMBEDDING))

VALUE_LIKE: Final = frozenset({Kind.QKV, Kind.KV_B, Kind.VALUE})
"""Kinds that suffer most from few bits, and are counted together."""

_NEVER: Final = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    *(f"time_mix_{part}.weight" for part in ("w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2")),
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
)
"""Parts of names of tensors that are small, or decide too much: norms, routers, convolutions, positions."""

_NEVER_WHOLE: Final = ("position_embd.weight", "token_types.weight")

_NEVER_GLM5: Final = (
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    *(f"ssm_{part}.weight" for part in ("f_a", "f_b", "g_a", "g_b", "beta")),
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
)
GLM5: Final = "glm5-next"


def kind_of(name: str) -> Kind:
    if name == OUTPUT:
        return Kind.OUTPUT
    if name in EMBEDDINGS:
        return Kind.EMBEDDING
    return next(kind for kind in _BY_PART if kind in name)


def dimensions(shape: Sequence[int]) -> int:
    """As ggml counts them, outermost ones of size 1 left out: a matrix of one row has 1."""
    return next((len(shape) - at for at, size in enumerate(shape[:-1]) if size > 1), 1)


def may_change(name: str, shape: Sequence[int], architecture: str) -> bool:
    """Whether a tensor's type may be changed at all. ``shape`` is row-major."""
    if dimensions(shape) < 2 or not _is_weight(name) or name in _NEVER_WHOLE:
        return False
    never = _NEVER + _NEVER_GLM5 if architecture == GLM5 else _NEVER
    return not any(part in name for part in never)


def _is_weight(name: str) -> bool:
    """llama-quantize wants the last "weight" at the length less 6; in five bytes that is -1, which means none there."""
    return name.endswith("weight") or len(name.encode()) == 5


def layer_of(name: str) -> int | None:
    """The number in ``blk.N``, or None."""
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def order(name: str) -> tuple[int, bytes]:
    """llama.cpp sorts tensors by this: those outside of layers first, then layer by layer, then by name."""
    layer = layer_of(name)
    return (-1 if layer is None else layer), name.encode()

"""Small models for the choice of tensor types: names, shapes and the keys that decide, with hardly any weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.support.gguf_writer import GgufWriter

Tensors = dict[str, tuple[int, ...]]
"""Name -> row-major shape."""

ROWS = 2
"""A tensor of a single row has one dimension, and stays as it is."""

ODD_NAMES = (
    "position_embd.weight token_types.weight altup_proj.weight per_layer_model_proj.weight blk.0.laurel_l.weight "
    "blk.0.ffn_gate_inp.weight blk.0.ssm_conv1d.weight blk.0.shortconv.conv.weight blk.0.indexer.k_proj.weight "
    "blk.0.time_mix_first.weight blk.0.time_mix_w1.weight blk.0.time_mix_decay_w2.weight blk.0.attn_rel_b.weight "
    "blk.0.attn_q_norm.weight blk.0.attn_q.bias v.blk.0.attn_v.weight v.position_embd.weight v.patch_embd.weight "
    "mm.patch_merger.weight a.rvq.codebook.weight mm.a.code_embd.weight blk.0.ssm_in.weight blk.0.time_mix_key.weight "
    "per_layer_token_embd.weight sam.neck.0.weight blk.0.ffn_gate_tid2eid.weight blk.0.attn_kv_a_mqa.weight"
).split()
"""Of tensors that are left alone, and of some like them that are not."""


def layers(count: int, names: dict[str, tuple[int, ...]]) -> Tensors:
    return {f"blk.{layer}.{name}.weight": shape for layer in range(count) for name, shape in names.items()}


def dense(count: int, row: int = 256, down: int = 512) -> Tensors:
    attention = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (ROWS, row))
    ffn = {"ffn_gate": (ROWS, row), "ffn_up": (ROWS, row), "ffn_down": (ROWS, down)}
    return {"token_embd.weight": (ROWS, row), **layers(count, attention | ffn)}


def experts(count: int, number: int) -> Tensors:
    ffn = {f"ffn_{part}_exps": (number, ROWS, 256) for part in ("gate", "up", "down")}
    attention = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp"), (ROWS, 256))
    return {"token_embd.weight": (ROWS, 256), "output.weight": (ROWS, 256), **layers(count, attention | ffn)}


OUTPUT: Tensors = {"output.weight": (ROWS, 256), "output_norm.weight": (256,)}
EMBEDDING: Tensors = {"token_embd.weight": (ROWS, 256)}
ODD: Tensors = dict.fromkeys(ODD_NAMES, (ROWS, 256))
_FALCON = {"attn_qkv": (ROWS, 256), "attn_output": (ROWS, 256), "ffn_up": (ROWS, 256), "ffn_down": (ROWS, 512)}
_LATENT = {"attn_q": (ROWS, 256), "attn_kv_a_mqa": (ROWS, 256), "attn_kv_b": (ROWS, 256), "attn_output": (ROWS, 256)}

MODELS: dict[str, tuple[str, dict[str, int], Tensors]] = {
    "heads-1": ("llama", {"heads": 4, "kv": 4, "layers": 17}, dense(17)),
    "heads-4": ("llama", {"heads": 8, "kv": 2, "layers": 16}, dense(16) | OUTPUT),
    "70b": ("llama", {"heads": 16, "kv": 2, "layers": 80}, OUTPUT | layers(80, {"attn_v": (ROWS, 256)})),
    "experts-8": ("llama", {"heads": 8, "kv": 2, "layers": 16, "experts": 8}, experts(16, 8)),
    "experts-4": ("llama", {"heads": 4, "kv": 4, "layers": 16, "experts": 4}, experts(16, 4)),
    "falcon": ("falcon", {"heads": 4, "kv": 1, "layers": 16}, layers(16, _FALCON) | OUTPUT | EMBEDDING),
    "latent": ("llama", {"heads": 4, "kv": 4, "layers": 9}, layers(9, _LATENT) | EMBEDDING),
    "rows-of-96": ("llama", {"heads": 4, "kv": 4, "layers": 8}, dense(8, 96, 256) | {"output.weight": (2, 96)}),
    "rows-of-320": ("llama", {"heads": 4, "kv": 4, "layers": 8}, dense(8, 320, 384)),
    "rows-of-100": ("llama", {"heads": 4, "kv": 4, "layers": 8}, dense(8, 100, 200)),
    "odd-names": ("llama", {"heads": 4, "kv": 4, "layers": 2}, dense(2) | OUTPUT | ODD),
}  # fmt: skip
"""Name -> architecture, numbers, tensors."""


def metadata(name: str) -> dict[str, int | float | str]:
    architecture, numbers, _ = MODELS[name]
    keys: dict[str, int | float | str] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": numbers["layers"],
        f"{architecture}.context_length": 64,
        f"{architecture}.embedding_length": 256,
        f"{architecture}.attention.head_count": numbers["heads"],
        f"{architecture}.attention.head_count_kv": numbers["kv"],
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.attention.layer_norm_epsilon": 1e-5,
    }
    if "experts" in numbers:
        keys |= {f"{architecture}.expert_count": numbers["experts"], f"{architecture}.expert_used_count": 2}
    return keys


def write_model(path: Path, name: str) -> Path:
    """Of F16 weights."""
    random = np.random.default_rng(0)
    writer = GgufWriter().keys(metadata(name))
    for tensor, shape in MODELS[name][2].items():
        kind = np.float32 if len(shape) == 1 else np.float16
        writer.tensor(tensor, random.normal(0, 1, shape).astype(kind))
    return writer.write(path)


def runs(chosen: Iterable[tuple[str, str]]) -> str:
    """``Q4_K*3 Q6_K``: types of (name, type), first by what a tensor is, then by layer."""
    words: list[tuple[str, int]] = []
    for _, name in sorted(chosen, key=lambda pair: _by_role(pair[0])):
        if words and words[-1][0] == name:
            words[-1] = name, words[-1][1] + 1
        else:
            words.append((name, 1))
    return " ".join(name if count == 1 else f"{name}*{count}" for name, count in words)


def _by_role(name: str) -> tuple[str, int]:
    layer, dot, role = name.removeprefix("blk.").partition(".")
    return (role, int(layer)) if dot and layer.isdigit() else (name, -1)

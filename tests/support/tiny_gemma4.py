"""A small Gemma 4 with all that sets files of this family apart, each in some layers.

write_tiny_gemma4(path, keys={"gemma4.final_logit_softcapping": 5.0})
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import tiny_models as tiny

LOCAL = (True, True, False, True, True, False)
HEADS, KV_HEADS = (4, 2, 4, 6, 4, 2), (2, 1, 1, 2, 2, 1)
FFN = (96, 64, 96, 96, 128, 96)
WIDTH, WHOLE, NARROW, EXTRA = 64, 48, 32, 32
"""Of the model, of heads without and with a window, and of the embedding of every layer."""

SHARED = 2
"""The last layers, which store no keys and values: they read those of layers 3 and 2."""

WITHOUT_VALUES = (2,)
WITH_EXPERTS, EXPERTS, EXPERT_FFN = (1, 5), 6, 32
TYPES = tiny.GEMMA_MIX | {
    "per_layer_token_embd": "Q5_1",
    "per_layer_model_proj": "BF16",
    "proj": "Q4_0",
    "ffn_gate_inp": "F32",
    "ffn_gate_up_exps": "Q4_1",
    "ffn_down_exps": "F16",
}


def write_tiny_gemma4(
    path: Path, *, seed: int = 6, keys: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None
) -> Path:
    """``keys`` add to the metadata, or replace; ``tensors`` give shapes of further ones, or None to leave one out."""
    tokenizer = tiny.gemma_tokenizer()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    s = tiny.Shape(len(LOCAL), WIDTH, HEADS[0], KV_HEADS[0], WHOLE, FFN[0], count, TYPES, seed)
    metadata = tiny._settings("gemma4", s, 2048) | tokenizer | dict(keys_of_all()) | dict(keys or {})
    made = {name: (shape, spread) for name, shape, spread in _tensors(s)}
    for name, shape in (tensors or {}).items():
        made.pop(name, None)
        if shape is not None:
            made[name] = (shape, 0.1)
    known = {name: value for name, value in metadata.items() if value is not None}
    return tiny._write(path, known, s, [(name, *rest) for name, rest in made.items()])


def keys_of_all() -> dict[str, Any]:
    values = {
        "attention.head_count": list(HEADS),
        "attention.head_count_kv": list(KV_HEADS),
        "attention.key_length_swa": NARROW,
        "attention.value_length_swa": NARROW,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": list(LOCAL),
        "attention.shared_kv_layers": SHARED,
        "embedding_length_per_layer_input": EXTRA,
        "expert_count": EXPERTS,
        "expert_used_count": 2,
        "expert_feed_forward_length": EXPERT_FFN,
        "feed_forward_length": list(FFN),
        "final_logit_softcapping": 12.0,
        "rope.dimension_count": 24,
        "rope.dimension_count_swa": NARROW,
        "rope.freq_base": 1_000_000.0,
        "rope.freq_base_swa": 10_000.0,
    }
    return {f"gemma4.{key}": value for key, value in values.items()}


def _tensors(s: tiny.Shape) -> tiny.Tensors:
    wide = EXTRA * s.layers
    out: tiny.Tensors = [
        ("token_embd.weight", (s.vocab, WIDTH), 1.6 / math.sqrt(WIDTH)),
        ("output_norm.weight", (WIDTH,), 0.2),
        ("rope_freqs.weight", (WHOLE // 2,), 0.2),
        ("per_layer_token_embd.weight", (s.vocab, wide), 1.0 / math.sqrt(EXTRA)),
        ("per_layer_model_proj.weight", (wide, WIDTH), 1.0),
        ("per_layer_proj_norm.weight", (EXTRA,), 0.2),
    ]
    for number in range(s.layers):
        out += _layer(f"blk.{number}.", number)
    return out


def _layer(p: str, number: int) -> tiny.Tensors:
    head = NARROW if LOCAL[number] else WHOLE
    q, kv = HEADS[number] * head, KV_HEADS[number] * head
    norms = dict.fromkeys(("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "post_norm"), WIDTH)
    norms |= {"attn_q_norm": head, "attn_k_norm": head, "layer_output_scale": 1}
    matrices: dict[str, tuple[int, ...]] = {"attn_q": (q, WIDTH), "attn_k": (kv, WIDTH), "attn_output": (WIDTH, q)}
    matrices |= {} if number in WITHOUT_VALUES else {"attn_v": (kv, WIDTH)}
    matrices |= {"ffn_gate": (FFN[number], WIDTH), "ffn_up": (FFN[number], WIDTH), "ffn_down": (WIDTH, FFN[number])}
    matrices |= {"inp_gate": (EXTRA, WIDTH), "proj": (WIDTH, EXTRA)}
    scales = {}
    if number in WITH_EXPERTS:
        norms |= dict.fromkeys(("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"), WIDTH)
        matrices |= {"ffn_gate_inp": (EXPERTS, WIDTH), "ffn_gate_up_exps": (EXPERTS, 2 * EXPERT_FFN, WIDTH)}
        matrices["ffn_down_exps"] = (EXPERTS, WIDTH, EXPERT_FFN)
        scales = {"ffn_gate_inp": WIDTH, "ffn_down_exps": EXPERTS}
    out: tiny.Tensors = [(f"{p}{name}.weight", (width,), 0.2) for name, width in norms.items()]
    out += [(f"{p}{name}.weight", shape, 1.5 / math.sqrt(shape[-1])) for name, shape in matrices.items()]
    return out + [(f"{p}{name}.scale", (width,), 0.3) for name, width in scales.items()]

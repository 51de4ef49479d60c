"""``gemma4``: heads, windows, feed-forward lengths and experts that differ between layers; layers that read the keys
and values of earlier ones; an embedding of every layer; capped logits."""

from __future__ import annotations

import math
from typing import Any

from conformance.recipes.model import Model, Sizes, Tensor, matrix, norm, settings
from conformance.recipes.tokenizers import sentence_piece

MIXED = {
    "": "Q8_0",
    "attn_q": "Q5_0",
    "attn_v": "Q4_1",
    "attn_output": "Q5_1",
    "ffn_gate": "Q4_0",
    "ffn_down": "Q4_1",
    "per_layer_token_embd": "Q5_1",
    "per_layer_model_proj": "BF16",
    "ffn_gate_inp": "F32",
    "ffn_gate_up_exps": "Q4_0",
    "ffn_down_exps": "F16",
}
LOCAL = (True, False, True, True, False)
HEADS, KV_HEADS, FFN = (4, 2, 6, 4, 4), (2, 1, 2, 2, 1), (96, 64, 96, 128, 96)
WHOLE, NARROW, EXTRA = 48, 32, 32
"""Widths of heads without and with a window, and of the embedding of every layer."""

WITHOUT_VALUES, WITH_EXPERTS, EXPERTS, EXPERT_FFN = 1, 2, 6, 32


def mixed() -> Model:
    s = Sizes(len(LOCAL), 64, HEADS[0], KV_HEADS[0], WHOLE, FFN[0])
    tokenizer = sentence_piece()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    metadata = settings("gemma4", s) | tokenizer | {f"gemma4.{key}": value for key, value in _settings().items()}
    tensors = [matrix("token_embd", count, s.width, 1.6), norm("output_norm", s.width), norm("rope_freqs", WHOLE // 2)]
    tensors += [matrix("per_layer_token_embd", count, EXTRA * s.layers, 3.0), norm("per_layer_proj_norm", EXTRA)]
    tensors.append(matrix("per_layer_model_proj", EXTRA * s.layers, s.width, 8.0))
    for number in range(s.layers):
        tensors += _layer(number, s.width)
    return Model(metadata, tensors, MIXED, 61)


def _settings() -> dict[str, Any]:
    return {
        "attention.head_count": list(HEADS),
        "attention.head_count_kv": list(KV_HEADS),
        "attention.key_length_swa": NARROW,
        "attention.value_length_swa": NARROW,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": list(LOCAL),
        "attention.shared_kv_layers": 2,
        "embedding_length_per_layer_input": EXTRA,
        "expert_count": EXPERTS,
        "expert_used_count": 2,
        "expert_feed_forward_length": EXPERT_FFN,
        "feed_forward_length": list(FFN),
        "final_logit_softcapping": 12.0,
        "rope.dimension_count": 24,
        "rope.dimension_count_swa": NARROW,
        "rope.freq_base": 1_000_000.0,
    }


def _layer(number: int, e: int) -> list[Tensor]:
    p, head, f = f"blk.{number}.", NARROW if LOCAL[number] else WHOLE, FFN[number]
    q, kv = HEADS[number] * head, KV_HEADS[number] * head
    widths = dict.fromkeys(("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "post_norm"), e)
    widths |= {"attn_q_norm": head, "attn_k_norm": head, "layer_output_scale": 1}
    matrices: dict[str, tuple[int, ...]] = {"attn_q": (q, e), "attn_k": (kv, e), "attn_output": (e, q)}
    matrices |= {} if number == WITHOUT_VALUES else {"attn_v": (kv, e)}
    matrices |= {"ffn_gate": (f, e), "ffn_up": (f, e), "ffn_down": (e, f), "inp_gate": (EXTRA, e), "proj": (e, EXTRA)}
    scales = []
    if number == WITH_EXPERTS:
        widths |= dict.fromkeys(("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"), e)
        matrices |= {"ffn_gate_inp": (EXPERTS, e), "ffn_gate_up_exps": (EXPERTS, 2 * EXPERT_FFN, e)}
        matrices["ffn_down_exps"] = (EXPERTS, e, EXPERT_FFN)
        scales = [Tensor(f"{p}ffn_gate_inp.scale", (e,), 0.2, 1.0)]
        scales.append(Tensor(f"{p}ffn_down_exps.scale", (EXPERTS,), 0.2, 1.0))
    norms = [norm(f"{p}{name}", width, 9.0 if name.startswith("post_") else 1.0) for name, width in widths.items()]
    made = [Tensor(f"{p}{name}.weight", shape, 1.5 / math.sqrt(shape[-1])) for name, shape in matrices.items()]
    return norms + made + scales

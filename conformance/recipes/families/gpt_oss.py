"""``gpt-oss``: sinks, windows in every other layer, experts with biases and an activation of their own, YaRN."""

from __future__ import annotations

from conformance.recipes.model import Mixture, Model, Sizes, Tensor, bias, layer, matrix, norm, settings, with_experts
from conformance.recipes.tokenizers import byte_level

MIXED = {"": "Q8_0", "bias": "F32", "attn_q": "Q5_0", "ffn_gate_inp": "F32", "ffn_up_exps": "MXFP4"} | {
    "ffn_gate_exps": "MXFP4",
    "ffn_down_exps": "F16",
}
"""Biases of experts are matrices of floats."""

STRETCHED = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64}


def mixed() -> Model:
    s, experts = Sizes(3, 64, 6, 2, 32, 96), 6
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    q, kv, e = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.width
    tensors = [matrix("token_embd", count, e, 3.0), matrix("output", count, e, 3.0), norm("output_norm", e)]
    for number in range(s.layers):
        p = f"blk.{number}."
        tensors += layer(number, s, ("attn_norm",)) + [norm(f"{p}post_attention_norm", e)]
        lengths = {"attn_q": q, "attn_k": kv, "attn_v": kv, "attn_output": e}
        tensors += [bias(f"{p}{name}", length) for name, length in lengths.items()]
        tensors.append(Tensor(f"{p}attn_sinks.weight", (s.heads,), 2.0, 1.0))
    keys = STRETCHED | {"attention.sliding_window": 64, "expert_feed_forward_length": s.ffn}
    metadata = settings("gpt-oss", s) | tokenizer | {f"gpt-oss.{key}": value for key, value in keys.items()}
    model = with_experts(Model(metadata, tensors, MIXED, 71), "gpt-oss", e, Mixture(experts, 2, s.ffn))
    for number in range(s.layers):
        p = f"blk.{number}.ffn_"
        widths = {"gate_exps": s.ffn, "up_exps": s.ffn, "down_exps": e}
        model.tensors.append(bias(f"{p}gate_inp", experts))
        model.tensors.extend(Tensor(f"{p}{name}.bias", (experts, width), 0.3) for name, width in widths.items())
    return model

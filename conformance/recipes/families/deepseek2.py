"""``deepseek2``: latent attention with absorbed matrices, values of another width, a dense layer, then experts in
groups whose choice has a bias, beside a block that every row passes; YaRN."""

from __future__ import annotations

import math

from conformance.recipes.model import Mixture, Model, Sizes, Tensor, bias, layer, matrix, norm, settings, with_experts
from conformance.recipes.tokenizers import byte_level

MIXED = {"": "Q8_0", "attn_q_b": "Q4_0", "attn_k_b": "Q5_0", "attn_v_b": "Q4_1", "ffn_gate_inp": "F32"}

RANK, QUERY_RANK, PLAIN, ROTATED, VALUE = 64, 32, 32, 16, 24
"""Values begin and end within a group of 16 columns."""

KEYS = {
    "leading_dense_block_count": 1,
    "attention.kv_lora_rank": RANK,
    "attention.q_lora_rank": QUERY_RANK,
    "attention.key_length": RANK + ROTATED,
    "attention.value_length": RANK,
    "attention.key_length_mla": PLAIN + ROTATED,
    "attention.value_length_mla": VALUE,
    "rope.dimension_count": ROTATED,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_log_multiplier": 0.1,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "expert_group_count": 3,
    "expert_group_used_count": 2,
}


def mixed() -> Model:
    s, experts = Sizes(2, 64, 4, 1, PLAIN + ROTATED, 64), 6
    tokenizer = byte_level()
    count, e = len(tokenizer["tokenizer.ggml.tokens"]), s.width
    tensors = [matrix("token_embd", count, e, 3.0), norm("output_norm", e)]
    for number in range(s.layers):
        tensors += _attention(f"blk.{number}.", s)
    keys = KEYS | {"expert_feed_forward_length": s.ffn}
    metadata = settings("deepseek2", s) | tokenizer | {f"deepseek2.{key}": value for key, value in keys.items()}
    model = with_experts(Model(metadata, tensors, MIXED, 72), "deepseek2", e, Mixture(experts, 2, s.ffn, s.ffn))
    dense = [t for t in layer(0, s, ()) if ".ffn_" in t.name]
    kept = [t for t in model.tensors if not t.name.startswith("blk.0.ffn_") or t.name.endswith("ffn_norm.weight")]
    metadata = {key: value for key, value in model.metadata.items() if "expert_shared_feed" not in key}
    return model._replace(metadata=metadata, tensors=[*kept, *dense, bias("blk.1.exp_probs_b", experts)])


def _attention(p: str, s: Sizes) -> list[Tensor]:
    h, e = s.heads, s.width
    norms = {"attn_norm": e, "ffn_norm": e, "attn_q_a_norm": QUERY_RANK, "attn_kv_a_norm": RANK}
    shapes: dict[str, tuple[int, ...]] = {"attn_q_a": (QUERY_RANK, e), "attn_q_b": (h * s.head_dim, QUERY_RANK)}
    shapes |= {"attn_kv_a_mqa": (RANK + ROTATED, e), "attn_k_b": (h, RANK, PLAIN), "attn_v_b": (h, VALUE, RANK)}
    shapes["attn_output"] = (e, h * VALUE)
    out = [norm(f"{p}{name}", width) for name, width in norms.items()]
    return out + [Tensor(f"{p}{name}.weight", shape, 1.5 / math.sqrt(shape[-1])) for name, shape in shapes.items()]

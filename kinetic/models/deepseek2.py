"""DeepSeek 2 and 3, and others of their kind: latent attention, and experts beside a block that every row passes.

The first layers have a plain feed-forward block instead.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Rope, Routing, Weights
from kinetic.backends.rope_tables import raised
from kinetic.bits import round_f32
from kinetic.layers.fused import split
from kinetic.layers.head import logits
from kinetic.layers.latent import Latent, latent_attention
from kinetic.layers.mlp import gated_mlp, mixture_mlp
from kinetic.models.deepseek2_tensors import check_tensors
from kinetic.models.experts import Mixture, expert_width, read_mixture
from kinetic.models.family import Family, refuse
from kinetic.models.rope_settings import attention_factor, read_rope, rope_factor
from kinetic.models.settings import MAX_WIDTH, Dense, optional_setting, read_dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

NAME = "deepseek2"

GATINGS = {1: "softmax", 2: "sigmoid"}
"""Numbers of ``expert_gating_func``."""

SIGMOID_LAYERS, SIGMOID_VOCABULARY = (47, 48), 154880
"""Models of this size whose files don't say how experts are weighed use the sigmoid."""


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, NAME, values_apart=True)
    if gguf.get(f"{NAME}.nextn_predict_layers", "int", 0):
        raise refuse("UNSUPPORTED_LAYERS", "layers that predict further tokens are not supported by this build")
    if gguf.get(f"{NAME}.attention.temperature_scale", "float", 0.0):
        message = f"'{NAME}.attention.temperature_scale': scales that grow with the position are not supported"
        raise refuse("UNSUPPORTED_ATTENTION", f"{message} by this build")
    latent, query_rank = _latent(gguf, dense)
    mixture, lead = _mixture(gguf, dense), _whole(gguf, "leading_dense_block_count", 0, 0, dense.layers)
    check_tensors(weights, dense, latent, query_rank, mixture, lead)
    rope, scale = _rotation(gguf, dense, latent)
    parts = dict(weights)
    for i in range(dense.layers):
        rows = {f"blk.{i}.attn_latent.weight": latent.rank, f"blk.{i}.attn_k_rope.weight": latent.rotated}
        parts |= split(weights, f"blk.{i}.attn_kv_a_mqa.weight", rows)
    layers = tuple(latent.attention(i, scale) for i in range(dense.layers))

    def forward(ops: Ops) -> Array:
        x = ops.embed(parts["token_embd.weight"])
        for i, spec in enumerate(layers):
            prefix = f"blk.{i}."
            normed = ops.rms_norm(x, parts[f"{prefix}attn_norm.weight"], dense.eps)
            x = ops.add(x, latent_attention(ops, parts, prefix, normed, spec, rope, latent, dense.eps))
            normed = ops.rms_norm(x, parts[f"{prefix}ffn_norm.weight"], dense.eps)
            if i < lead:
                x = ops.add(x, gated_mlp(ops, parts, prefix, normed, "silu"))
                continue
            mixed = mixture_mlp(ops, parts, prefix, normed, mixture.routing, "silu")
            x = ops.add(x, ops.add(mixed, gated_mlp(ops, parts, prefix, normed, "silu", "_shexp")))
        return logits(ops, parts, x, dense.eps)

    return Family(NAME, dense.vocab_size, dense.context_length, layers, forward)


def _latent(gguf: Gguf, d: Dense) -> tuple[Latent, int]:
    """Widths of attention, and that of the short row of queries (0: they come from the whole row)."""
    rank = _whole(gguf, "attention.kv_lora_rank", None)
    query_rank = optional_setting(gguf, f"{NAME}.attention.q_lora_rank", 0)
    key = optional_setting(gguf, f"{NAME}.attention.key_length_mla", 0)
    value = optional_setting(gguf, f"{NAME}.attention.value_length_mla", 0)
    absorbed = key > 0 and value > 0
    if not absorbed:
        key, value = d.head_dim, optional_setting(gguf, f"{NAME}.attention.value_length", d.head_dim)
    if d.rope_width >= key:
        raise refuse("BAD_ROPE_WIDTH", f"{d.rope_width} rotated elements leave none of a key of {key} as they are")
    return Latent(d.heads, key - d.rope_width, d.rope_width, value, rank, absorbed), query_rank


def _mixture(gguf: Gguf, d: Dense) -> Mixture:
    ffn = expert_width(gguf, NAME, d)
    mixture = read_mixture(gguf, NAME, ffn)
    key = f"{NAME}.expert_weights_scale"
    scale: float = gguf.get(key, "float", 0.0) or 1.0
    if not math.isfinite(scale):
        raise refuse("BAD_SETTING", f"'{key}' is {scale}; it must be a finite number")
    groups = _whole(gguf, "expert_group_count", 1, 1, mixture.count)
    used_groups = _whole(gguf, "expert_group_used_count", 1, 1, groups)
    routing = Routing(
        mixture.routing.used, _gating(gguf, d), gguf.get(f"{NAME}.expert_weights_norm", "bool", False), scale
    )
    if groups > 1:
        size = mixture.count // groups
        if mixture.count % groups or size < 2 or used_groups * size < routing.used:
            message = f"{mixture.count} experts in {groups} groups, {routing.used} used of {used_groups} groups"
            raise refuse("BAD_SETTING", f"{message}: this does not come out even")
        routing = replace(routing, groups=groups, used_groups=used_groups)
    return replace(mixture, shared=ffn * _whole(gguf, "expert_shared_count", None, 1, 1024), routing=routing)


def _gating(gguf: Gguf, d: Dense) -> str:
    key = f"{NAME}.expert_gating_func"
    number = gguf.get(key, "int", 0)
    if number == 0:
        number = 2 if d.layers in SIGMOID_LAYERS and d.vocab_size == SIGMOID_VOCABULARY else 1
    if number not in GATINGS:
        raise refuse("UNSUPPORTED_LAYERS", f"'{key}' is {number}; this build knows 1 (softmax) and 2 (sigmoid)")
    return GATINGS[number]


def _rotation(gguf: Gguf, d: Dense, latent: Latent) -> tuple[Rope, float]:
    """The rotation, and what scores are multiplied by: stretched by YaRN, both depend on how far."""
    rope = read_rope(gguf, NAME, d, interleaved=True)
    magnitude = attention_factor(gguf, NAME)
    kind, factor = gguf.get(f"{NAME}.rope.scaling.type", "str", "linear"), rope_factor(gguf, NAME)
    if kind == "linear" and factor != 1.0:
        raise refuse("UNSUPPORTED_ROPE", f"linear rope scaling (by {factor}) is not supported for '{NAME}'")
    key = f"{NAME}.rope.scaling.yarn_log_multiplier"
    multiplier: float = gguf.get(key, "float", 0.0)
    if not math.isfinite(multiplier):
        raise refuse("BAD_SETTING", f"'{key}' is {multiplier}; it must be a finite number")
    if kind == "yarn" and multiplier:
        rope, magnitude = replace(rope, magnitude=magnitude), raised(factor, multiplier, magnitude)
    elif kind == "yarn":
        magnitude = rope.magnitude
    return rope, float(round_f32(magnitude * magnitude / math.sqrt(latent.plain + latent.rotated)))


def _whole(gguf: Gguf, name: str, default: int | None, least: int = 1, most: int = MAX_WIDTH) -> int:
    key = f"{NAME}.{name}"
    value: int = gguf.get(key, "int") if default is None else gguf.get(key, "int", default)
    if not least <= value <= most:
        raise refuse("BAD_SETTING", f"'{key}' is {value}; it must lie between {least} and {most}")
    return value

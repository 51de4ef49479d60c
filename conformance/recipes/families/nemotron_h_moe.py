"""``nemotron_h_moe``: as ``nemotron_h``, with experts without a gate that are chosen by sigmoids and a bias."""

from __future__ import annotations

import math

from conformance.recipes.mamba import FLOATS, Mixer, one_mixer, varied_settings
from conformance.recipes.model import Model, Sizes, Tensor, bias, matrix, norm
from conformance.recipes.tokenizers import byte_level

MIXED = {"": "Q8_0", "ssm_in": "Q4_0", "ffn_gate_inp": "F32", "ffn_up_exps": "Q5_0", "ffn_down_shexp": "F16"}
KINDS = "mfa"
"""Mamba-2, feed-forward, attention."""

OWN = {
    "expert_count": 6,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 64,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
}


def mixed() -> Model:
    s, m = Sizes(len(KINDS), 64, 4, 2, 32, 96), Mixer(2, 64, 1, 16)
    tokenizer = byte_level()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = [matrix("token_embd", count, s.width, 3.0), norm("output_norm", s.width)]
    for number, kind in enumerate(KINDS):
        tensors += one_mixer(number, kind, s, m)
        tensors += _experts(number, s) if kind == "f" else []
    metadata = varied_settings("nemotron_h_moe", KINDS, s, m) | tokenizer
    metadata |= {f"nemotron_h_moe.{key}": value for key, value in OWN.items()}
    return Model(metadata, tensors, MIXED | FLOATS, 74)


def _experts(number: int, s: Sizes) -> list[Tensor]:
    p, e, x = f"blk.{number}.", s.width, 6
    shapes: dict[str, tuple[int, ...]] = {"gate_inp": (x, e), "up_exps": (x, 32, e), "down_exps": (x, e, 32)}
    shapes |= {"up_shexp": (64, e), "down_shexp": (e, 64)}
    out = [Tensor(f"{p}ffn_{name}.weight", shape, 1.5 / math.sqrt(shape[-1])) for name, shape in shapes.items()]
    return [*out, bias(f"{p}exp_probs_b", x)]

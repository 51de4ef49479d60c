"""``lfm2moe``: the layers of ``lfm2`` with mixtures behind the first two, chosen by sigmoids and a bias."""

from __future__ import annotations

from conformance.recipes.families.lfm2 import SIZES
from conformance.recipes.model import Mixture, Model, bias, with_experts
from conformance.recipes.short_conv import convolved

KINDS = {"": "Q8_0", "attn_q": "Q5_0", "ffn_gate_inp": "F32", "ffn_gate_exps": "Q4_0", "ffn_down_exps": "Q4_1"}
MIXTURE = Mixture(8, 3, 64)
LEADING = 2


def mixed() -> Model:
    model = convolved("lfm2moe", SIZES, (0, 0, 1, 0, 1), 131, KINDS)
    leading = tuple(f"blk.{number}." for number in range(LEADING))
    dense = [t for t in model.tensors if t.name.startswith(leading)]
    model = with_experts(model, "lfm2moe", SIZES.width, MIXTURE)
    tensors = dense + [t for t in model.tensors if not t.name.startswith(leading)]
    tensors += [bias(f"blk.{n}.exp_probs_b", MIXTURE.experts) for n in range(LEADING, SIZES.layers)]
    keys = {"leading_dense_block_count": LEADING, "expert_gating_func": 2, "expert_feed_forward_length": MIXTURE.ffn}
    return model._replace(
        metadata=model.metadata | {f"lfm2moe.{key}": value for key, value in keys.items()}, tensors=tensors
    )

"""EXAONE 4: norms after both halves and none before; with windows, only the layers that have one rotate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic.backends.base import Array, Ops, Weights
from kinetic.layers.block import post_normed
from kinetic.layers.head import logits
from kinetic.models.attention_settings import sliding_windows
from kinetic.models.family import Family, refuse, rope_divisors
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import read_dense
from kinetic.models.shapes import blocks, check, head_norms

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

PATTERN = 4
"""Layer i sees all keys when i + 1 is a multiple of this, in the model that has windows."""

LAYERS_OF_32B = 64
"""The 32B model alone has windows."""


def build(gguf: Gguf, weights: Weights) -> Family:
    dense = read_dense(gguf, "exaone4")
    if gguf.get("exaone4.nextn_predict_layers", "int", 0):
        raise refuse("UNSUPPORTED_LAYERS", "layers that predict further tokens are not supported by this build")
    needed = blocks(dense, ("post_attention_norm", "post_ffw_norm")) | head_norms(dense)
    check(weights, dense, needed, {"rope_freqs.weight": (dense.rope_width // 2,)})
    is_large = dense.layers == LAYERS_OF_32B
    rope = read_rope(gguf, "exaone4", dense, interleaved=False, divisors=rope_divisors(weights))
    windows = sliding_windows(gguf, "exaone4", dense, PATTERN, 4096) if is_large else ()
    layers = dense.attention(windows=windows)

    def forward(ops: Ops) -> Array:
        x = ops.embed(weights["token_embd.weight"])
        for i, spec in enumerate(layers):
            turned = rope if spec.window or not is_large else None
            x = post_normed(ops, weights, f"blk.{i}.", x, spec, turned, dense.eps)
        return logits(ops, weights, x, dense.eps)

    return Family("exaone4", dense.vocab_size, dense.context_length, layers, forward)

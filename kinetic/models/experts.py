"""Settings and tensors of transformers whose feed-forward blocks are mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetic.backends.base import Routing, Weights
from kinetic.models.family import expect_no_others, expect_shapes, optional, refuse
from kinetic.models.settings import MAX_WIDTH, Dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

MAX_EXPERTS = 1024

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Mixture:
    """``count`` experts of ``ffn`` elements inside, and one block of ``shared`` for every row if that is not 0."""

    count: int
    ffn: int
    shared: int
    routing: Routing


def read_mixture(gguf: Gguf, architecture: str, ffn: int, *, shared: bool = False) -> Mixture:
    """The settings under ``architecture.*``, of experts with ``ffn`` elements; softmax, and weights that sum to 1."""
    count = _whole(gguf, f"{architecture}.expert_count", MAX_EXPERTS)
    used = _whole(gguf, f"{architecture}.expert_used_count", count)
    size = f"{architecture}.expert_shared_feed_forward_length"
    given = shared and gguf.get(size, "int", 0) != 0
    return Mixture(count, ffn, _whole(gguf, size, MAX_WIDTH) if given else 0, Routing(used))


def expert_width(gguf: Gguf, architecture: str, dense: Dense) -> int:
    """Elements inside one expert: as the file says, else a share of the feed-forward length."""
    key = f"{architecture}.expert_feed_forward_length"
    if gguf.get(key, "int", 0):
        return _whole(gguf, key, MAX_WIDTH)
    return dense.ffn // _whole(gguf, f"{architecture}.expert_used_count", dense.ffn)


def _whole(gguf: Gguf, key: str, maximum: int) -> int:
    value: int = gguf.get(key, "int")
    if not 1 <= value <= maximum:
        raise refuse("BAD_SETTING", f"'{key}' is {value}; it must lie between 1 and {maximum}")
    return value


def feed_forward_shapes(prefix: str, width: int, mixture: Mixture) -> Shapes:
    """The tensors of one block; ``prefix`` is 'blk.N.'."""
    x, f, s, p = mixture.count, mixture.ffn, mixture.shared, f"{prefix}ffn_"
    out: Shapes = {f"{p}gate_inp.weight": (x, width), f"{p}down_exps.weight": (x, width, f)}
    out |= {f"{p}{name}_exps.weight": (x, f, width) for name in ("gate", "up")}
    if s:
        out |= {f"{p}{name}_shexp.weight": (s, width) for name in ("gate", "up")}
        out[f"{p}down_shexp.weight"] = (width, s)
    return out


def check_mixture(weights: Weights, d: Dense, mixture: Mixture, *, normed_heads: bool = False) -> None:
    """Every tensor of a model whose layers are all attention and a mixture must be there, and no other."""
    e, q, kv = d.width, d.heads * d.head_dim, d.kv_heads * d.head_dim
    needed: Shapes = {"token_embd.weight": (d.vocab_size, e), "output_norm.weight": (e,)}
    for i in range(d.layers):
        p = f"blk.{i}."
        needed |= {f"{p}attn_norm.weight": (e,), f"{p}ffn_norm.weight": (e,), f"{p}attn_output.weight": (e, q)}
        needed |= {f"{p}attn_q.weight": (q, e), f"{p}attn_k.weight": (kv, e), f"{p}attn_v.weight": (kv, e)}
        needed |= {f"{p}attn_{name}_norm.weight": (d.head_dim,) for name in "qk" if normed_heads}
        needed |= feed_forward_shapes(p, e, mixture)
    present = needed | optional(weights, {"output.weight": (d.vocab_size, e)})
    expect_shapes(weights, present)
    expect_no_others(weights, set(present))

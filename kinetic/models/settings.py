"""Settings of a dense transformer as its GGUF metadata gives them, checked for sense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetic.backends.base import Attention
from kinetic.bits import round_f32
from kinetic.models.context_settings import longest_context, rope_base
from kinetic.models.family import refuse
from kinetic.models.limits import MAX_CONTEXT

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

__all__ = ["MAX_CONTEXT", "MAX_LAYERS", "MAX_WIDTH", "Dense", "optional_setting", "read_dense", "uniform"]

MAX_LAYERS = 4096
MAX_WIDTH = 1 << 20
RMS_EPS = "layer_norm_rms_epsilon"


@dataclass(frozen=True)
class Dense:
    """Letters as in ``backends.base``. ``scale`` is 1 / sqrt(D) rounded to float32."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab_size: int
    context_length: int
    eps: float
    rope_base: float
    rope_width: int
    scale: float

    def attention(self, scale: float | None = None, windows: Sequence[int] | None = None) -> tuple[Attention, ...]:
        """The layers that keep keys and values; ``windows`` are those of the layers, 0 for none."""
        shape = (self.heads, self.kv_heads, self.head_dim, self.scale if scale is None else scale)
        return tuple(Attention(i, *shape, windows[i] if windows else 0) for i in range(self.layers))


def read_dense(
    gguf: Gguf, architecture: str, *, eps: str = RMS_EPS,
    gaps: bool = False, values_apart: bool = False, varied: bool = False, ffn: int = 0, vocabulary: int = 0,
) -> Dense:  # fmt: skip
    """The settings under ``architecture.*``; raises UnsupportedModel with the offending key.

    ``eps`` is the setting of its norms. ``gaps``: layers may be without attention, and say so by 0 key/value heads
    (``attending``), or without a feed-forward block of a length above 0. ``values_apart``: value heads may be of
    another width than key heads, which the family looks after. ``varied``: heads, key/value heads and feed-forward
    lengths may differ between layers (``layer_sizes``); what stands here is then the largest. ``ffn`` is the
    feed-forward length where the file has none, and ``vocabulary`` the tokens of another file's embedding table.
    """
    layers = _positive(gguf, f"{architecture}.block_count", MAX_LAYERS)
    width = _positive(gguf, f"{architecture}.embedding_length", MAX_WIDTH)
    key = f"{architecture}.attention.head_count"
    is_listed = not isinstance(gguf.metadata.get(key, 0), (int, float, str))
    heads = uniform(gguf, key, layers, 0, varied=varied) if is_listed else _positive(gguf, key, 1 << 16)
    kv_heads = uniform(gguf, f"{key}_kv", layers, heads, gaps=gaps, varied=varied)
    head_dim = optional_setting(gguf, f"{architecture}.attention.key_length", 0) or _share(width, heads, architecture)
    value_dim = optional_setting(gguf, f"{architecture}.attention.value_length", head_dim)
    if value_dim != head_dim and not values_apart:
        raise refuse("UNSUPPORTED_HEADS", f"value heads of width {value_dim} beside key heads of {head_dim}")
    if not (is_listed and varied) and (kv_heads > heads or heads % kv_heads):
        raise refuse("BAD_HEAD_COUNT", f"{heads} query heads cannot share {kv_heads} key/value heads")
    rope_width = optional_setting(gguf, f"{architecture}.rope.dimension_count", head_dim)
    if rope_width > head_dim or rope_width % 2:
        message = f"{architecture}.rope.dimension_count {rope_width} does not fit heads of {head_dim}"
        raise refuse("BAD_ROPE_WIDTH", message)
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None and not vocabulary:
        raise refuse("MISSING_TENSOR", "tensor 'token_embd.weight' is missing; the file is not a complete model")
    return Dense(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=uniform(gguf, f"{architecture}.feed_forward_length", layers, ffn, gaps=gaps, varied=varied),
        vocab_size=_vocabulary(gguf, embedding.shape[0] if embedding else vocabulary),
        context_length=longest_context(gguf, architecture),
        eps=gguf.get(f"{architecture}.attention.{eps}", "float"),
        rope_base=rope_base(gguf, architecture),
        rope_width=rope_width,
        scale=float(round_f32(1.0 / math.sqrt(head_dim))),
    )


def _share(width: int, heads: int, architecture: str) -> int:
    if width % heads:
        raise refuse("BAD_HEAD_COUNT", f"{architecture}: width {width} does not divide into {heads} heads")
    return width // heads


def _positive(gguf: Gguf, key: str, maximum: int) -> int:
    return _in_range(key, gguf.get(key, "int"), maximum)


def optional_setting(gguf: Gguf, key: str, default: int) -> int:
    """A whole number from 1 on, or ``default`` where the file says that or nothing."""
    value = gguf.get(key, "int", default)
    return value if value == default else _in_range(key, value, MAX_WIDTH)


def _in_range(key: str, value: int, maximum: int) -> int:
    if not 1 <= value <= maximum:
        raise refuse("BAD_SETTING", f"'{key}' is {value}; it must lie between 1 and {maximum}")
    return value


def uniform(gguf: Gguf, key: str, layers: int, default: int, *, gaps: bool = False, varied: bool = False) -> int:
    """A number given once or per layer, equal in every layer but for ``gaps`` of 0; the largest of ``varied`` ones."""
    found = set(per_layer(gguf, key, layers, default))
    found -= {0} if gaps and len(found) > 1 else set()
    if len(found) != 1 and not varied:
        raise refuse("UNSUPPORTED_LAYERS", f"'{key}' differs between layers, which this architecture does not use")
    return _in_range(key, max(found), MAX_WIDTH)


def per_layer(gguf: Gguf, key: str, layers: int, default: int) -> list[int]:
    """A number that may be given once or per layer, for each layer."""
    value = gguf.metadata.get(key, default)
    values = [value] * layers if isinstance(value, (int, float, str)) else list(value)
    values = values * layers if len(values) == 1 else values
    whole = [item for item in values if type(item) is int]  # int() would take "1" and 1.5 as well
    if len(whole) != len(values) or len(values) < layers:
        raise refuse("BAD_SETTING", f"'{key}' must be a whole number, or one for each of the {layers} layers")
    return whole[:layers]


def attending(gguf: Gguf, architecture: str, d: Dense) -> tuple[bool, ...]:
    """Which layers attend: those with heads for keys and values."""
    return tuple(n != 0 for n in per_layer(gguf, f"{architecture}.attention.head_count_kv", d.layers, d.kv_heads))


def _vocabulary(gguf: Gguf, rows: int) -> int:
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and len(tokens) != rows:
        raise refuse(
            "VOCABULARY_SIZE", f"the tokenizer has {len(tokens)} entries but 'token_embd.weight' has {rows} rows"
        )
    return rows

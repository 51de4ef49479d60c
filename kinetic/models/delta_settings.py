"""Settings of transformers in which most layers are gated DeltaNets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kinetic.backends.base import DELTA_COLUMNS, Rope
from kinetic.models.family import refuse
from kinetic.models.rope_settings import read_rope
from kinetic.models.settings import MAX_LAYERS, MAX_WIDTH, Dense

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

MAX_STATE = 1024
"""Known models have 128. What a sequence keeps grows with the square of this, and a file does not."""


@dataclass(frozen=True)
class DeltaSizes:
    """Of the recurrent layers: H heads that share G keys, all of width D, convolutions of K taps."""

    heads: int
    key_heads: int
    width: int
    taps: int

    @property
    def rows(self) -> dict[str, int]:
        """Rows of the parts of 'attn_qkv' and channels of 'ssm_conv1d', from the top."""
        keys = self.key_heads * self.width
        return {"q": keys, "k": keys, "v": self.heads * self.width}


@dataclass(frozen=True)
class Hybrid:
    """``is_recurrent`` says of each of the ``dense.layers`` what it is; layer ``dense.layers`` predicts one token more
    if ``has_nextn``."""

    dense: Dense
    sizes: DeltaSizes
    is_recurrent: tuple[bool, ...]
    has_nextn: bool

    @property
    def nextn(self) -> str:
        """What its tensors' names begin with."""
        return f"blk.{self.dense.layers}."


def read_hybrid(gguf: Gguf, architecture: str, whole: Dense) -> Hybrid:
    """``whole`` is as the file has it: a layer that predicts one token more is counted, even if it was left out."""
    extra: int = gguf.get(f"{architecture}.nextn_predict_layers", "int", 0)
    if not 0 <= extra < whole.layers:
        raise refuse("BAD_SETTING", f"'{architecture}.nextn_predict_layers' is {extra} in a file of {whole.layers}")
    if extra > 1:
        raise refuse("UNSUPPORTED_LAYERS", f"this build knows one layer that predicts tokens ahead, not {extra}")
    dense = replace(whole, layers=whole.layers - extra)
    has_nextn = bool(extra) and any(name.startswith(f"blk.{dense.layers}.") for name in gguf.tensors)
    return Hybrid(dense, _read_sizes(gguf, architecture), _recurrent_layers(gguf, architecture, dense), has_nextn)


def _read_sizes(gguf: Gguf, architecture: str) -> DeltaSizes:
    def whole(name: str, maximum: int) -> int:
        value: int = gguf.get(f"{architecture}.ssm.{name}", "int")
        if not 1 <= value <= maximum:
            raise refuse("BAD_SETTING", f"'{architecture}.ssm.{name}' is {value}; it must lie between 1 and {maximum}")
        return value

    sizes = DeltaSizes(
        heads=whole("time_step_rank", 1 << 16),
        key_heads=whole("group_count", 1 << 16),
        width=whole("state_size", MAX_STATE),
        taps=whole("conv_kernel", 64),
    )
    if sizes.width % DELTA_COLUMNS:
        raise refuse("UNSUPPORTED_HEADS", f"'{architecture}.ssm.state_size' is {sizes.width}, not a multiple of 16")
    inner = whole("inner_size", MAX_WIDTH)
    if inner != sizes.heads * sizes.width or sizes.heads % sizes.key_heads:
        raise refuse(
            "BAD_HEAD_COUNT",
            f"{architecture}.ssm: {sizes.heads} heads of {sizes.width} ({inner} together) and {sizes.key_heads} keys",
        )
    return sizes


def _recurrent_layers(gguf: Gguf, architecture: str, d: Dense) -> tuple[bool, ...]:
    """All but every fourth, or as the file says: how often, or which."""
    key = f"{architecture}.attention.recurrent_layers"
    listed = gguf.metadata.get(key)
    if listed is not None:
        if isinstance(listed, (int, float, str)) or len(listed) < d.layers:
            raise refuse("BAD_SETTING", f"'{key}' must have an entry for each of the {d.layers} layers")
        return tuple(bool(entry) for entry in list(listed)[: d.layers])
    interval: int = gguf.get(f"{architecture}.full_attention_interval", "int", 4)
    if not 1 <= interval <= MAX_LAYERS:
        raise refuse("BAD_SETTING", f"'{architecture}.full_attention_interval' is {interval}; it must be positive")
    return tuple((i + 1) % interval != 0 for i in range(d.layers))


def text_rope(gguf: Gguf, architecture: str, d: Dense) -> Rope:
    """The rotation of text, in which all pairs turn by one position.

    The file divides pairs into sections for time, height and width, in turn, which all are the token's position in
    text. A pair of none of the three would stand still; no known model has one.
    """
    key = f"{architecture}.rope.dimension_sections"
    listed = gguf.metadata.get(key)
    sections = [] if listed is None or isinstance(listed, (int, float, str)) else [*listed, 0, 0, 0, 0][:4]
    if not all(type(size) is int and 0 <= size <= MAX_WIDTH for size in sections) or not any(sections):
        raise refuse("BAD_SETTING", f"'{key}' must be three or four counts of pairs")
    total = sum(sections)  # exact: integers
    for pair in range(d.rope_width // 2):
        place = pair % total
        if place >= 3 * sections[place % 3]:
            raise refuse("UNSUPPORTED_ROPE", f"'{key}' leaves pair {pair} without a position, which text does not have")
    return read_rope(gguf, architecture, d, interleaved=False)

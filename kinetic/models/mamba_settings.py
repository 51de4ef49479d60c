"""Settings and tensors of layers whose mixer is Mamba-2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetic.backends.base import Scan, State, Weight, Weights
from kinetic.layers.fused import split
from kinetic.layers.mamba import Mixer
from kinetic.models.family import refuse
from kinetic.models.settings import MAX_WIDTH
from kinetic.models.shapes import Shapes

if TYPE_CHECKING:
    from kinetic.gguf import Gguf

MAX_TAPS = 16
STATE_STEP = 4
"""Products with a state are four sums, of every fourth element."""

MAX_STATE = 1024
"""Known models have up to 256. What a sequence keeps grows with this times the width, and a file only with both."""


LANES = 16
"""Elements of a head that lie side by side in a state."""


@dataclass(frozen=True)
class Mamba:
    """``width`` elements inside, in ``heads`` heads; ``groups`` of those share what goes into ``size`` elements of
    state; ``taps`` of the convolution."""

    width: int
    heads: int
    groups: int
    size: int
    taps: int

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def channels(self) -> int:
        """Of the convolution: x, B and C."""
        return self.width + 2 * self.groups * self.size

    def states(self, layer: int) -> tuple[State, State]:
        """What a layer carries from token to token: rows that the convolution still needs, and the scan's state."""
        conv = State(layer, "conv", (self.taps - 1, self.channels))
        return conv, State(layer, "scan", (self.heads, -(-self.head_dim // LANES), self.size, LANES))

    def mixer(self, weights: Weights, layer: int) -> Mixer:
        names = (f"blk.{layer}.{name}" for name in ("ssm_a", "ssm_d", "ssm_dt.bias"))
        scan = Scan(self.heads, self.head_dim, self.groups, self.size, *(weights[name] for name in names))
        return Mixer(scan, *self.states(layer))

    def shapes(self, weights: Weights, layer: int, width: int, *, norm: bool = True) -> tuple[Shapes, Shapes]:
        """Tensors that a layer needs, and those that it may have; of the norm any shape of its elements will do."""
        p = f"blk.{layer}.ssm_"
        rows = self.width + self.channels + self.heads
        needed: Shapes = {f"{p}in.weight": (rows, width), f"{p}out.weight": (width, self.width)}
        needed |= {f"{p}conv1d.weight": (self.channels, self.taps), f"{p}dt.bias": (self.heads,)}
        needed |= {f"{p}{name}": (self.heads, 1) for name in ("a", "d")}
        extra: Shapes = {f"{p}conv1d.bias": (self.channels,)}
        share = self.width // self.groups
        given = weights.get(f"{p}norm.weight")
        flat = self.groups == 1 and given is not None and len(given.shape) == 1
        (needed if norm else extra)[f"{p}norm.weight"] = (share,) if flat else (self.groups, share)
        return needed, extra

    def parts(self, weights: Weights, layer: int) -> dict[str, Weight]:
        """``ssm_in`` as the three matrices that it is."""
        rows = {"z": self.width, "x": self.channels, "dt": self.heads}
        p = f"blk.{layer}.ssm_in"
        return split(weights, f"{p}.weight", {f"{p}_{name}.weight": count for name, count in rows.items()})


def read_mamba(gguf: Gguf, architecture: str) -> Mamba:
    """The settings under ``architecture.ssm.*``."""
    width, heads, size = (_whole(gguf, architecture, key) for key in ("inner_size", "time_step_rank", "state_size"))
    groups, taps = _whole(gguf, architecture, "group_count"), _whole(gguf, architecture, "conv_kernel")
    if width % heads or heads % groups:
        message = f"{architecture}.ssm: {width} elements do not divide into {heads} heads in {groups} groups"
        raise refuse("BAD_HEAD_COUNT", message)
    if size > MAX_STATE:
        message = f"'{architecture}.ssm.state_size' is {size}; this build takes {MAX_STATE} at most"
        raise refuse("UNSUPPORTED_STATE", message)
    if size % STATE_STEP:
        message = f"'{architecture}.ssm.state_size' is {size}; this build needs a multiple of {STATE_STEP}"
        raise refuse("UNSUPPORTED_STATE", message)
    if not 2 <= taps <= MAX_TAPS:
        message = f"'{architecture}.ssm.conv_kernel' is {taps}; it must lie between 2 and {MAX_TAPS}"
        raise refuse("BAD_SETTING", message)
    return Mamba(width, heads, groups, size, taps)


def _whole(gguf: Gguf, architecture: str, name: str) -> int:
    key = f"{architecture}.ssm.{name}"
    value: int = gguf.get(key, "int")
    if not 1 <= value <= MAX_WIDTH:
        raise refuse("BAD_SETTING", f"'{key}' is {value}; it must lie between 1 and {MAX_WIDTH}")
    return value

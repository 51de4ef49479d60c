"""The operations a model family is written with, and what a backend offers to run them.

Letters: T rows of the batch, E embedding, H query heads, G key/value heads,
D head width, F feed-forward width, X experts, V vocabulary, K input width, N output width.

The order of every sum is in docs/NUMERICS.md; ``backends/reference`` is its
executable definition. ``Array`` is whatever a backend uses for a float32
activation: a NumPy array in the reference, a graph node on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kinetic.types import Batch, PackCache

CHUNK = 256
"""Sums over weights and over keys are grouped in chunks of this many elements, by absolute index."""

BLOCK = 32
"""Activations are quantised in blocks of this many elements."""

Array = Any


def _nothing(offset: int, length: int) -> None:
    """There is nothing to give back."""


class Weight(NamedTuple):
    """A tensor as it lies in the file: ``data`` is uint8 [rows, row bytes], ``shape`` is (N, K), (K,), or of X experts
    (X, N, K), whose rows follow one another."""

    name: str
    ggml_type: int
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    release: Callable[[int, int], None] = _nothing
    """``release(offset, length)`` gives back the memory behind these bytes of ``data``; read again, they are there
    again."""
    part_of: str = ""
    """The tensor in the file whose rows these are, if they are not a whole one."""

    @property
    def tensor(self) -> str:
        """The name in the file."""
        return self.part_of or self.name


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: ``frequencies`` float64 [rotated width / 2], radians a position.

    ``interleaved``: pairs are (0, 1), (2, 3)...; otherwise (i, i + half).
    """

    frequencies: tuple[float, ...]
    interleaved: bool
    magnitude: float = 1.0


@dataclass(frozen=True)
class Attention:
    """Shape and rule of one attention layer. ``window`` 0 sees every earlier key, else the last ``window`` keys."""

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0


@dataclass(frozen=True)
class Routing:
    """How a row finds its ``used`` experts. ``gating`` is 'softmax' or 'sigmoid'; their weights are divided by their
    sum if ``normalised``, then multiplied by ``scale``."""

    used: int
    gating: str = "softmax"
    normalised: bool = True
    scale: float = 1.0


class Experts(NamedTuple):
    """Gated feed-forward blocks of X experts: ``gate`` and ``up`` [X, F, K], ``down`` [X, N, F]."""

    gate: Weight
    up: Weight
    down: Weight
    activation: str


class Ops(Protocol):
    """Float32 activations are [T, width]; a weight is used as it is stored."""

    def embed(self, table: Weight) -> Array:
        """Row ``tokens[t]`` of ``table`` [V, E], decoded to float32: [T, E]."""

    def scale(self, x: Array, factor: float) -> Array:
        """``x * float32(factor)``."""

    def rms_norm(self, x: Array, weight: Weight, eps: float) -> Array:
        """RMS norm over groups of ``len(weight)`` elements (the whole row, or each head)."""

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        """``x`` [T, K] times ``weight`` [N, K] transposed, plus ``bias`` [N]: [T, N]."""

    def add(self, x: Array, y: Array) -> Array:
        """``x + y``."""

    def gated(self, gate: Array, up: Array, activation: str) -> Array:
        """``act(gate) * up`` with ``activation`` one of 'silu', 'gelu'."""

    def route(self, logits: Array, routing: Routing) -> Array:
        """Of ``logits`` [T, X] the experts chosen, best first, as exact numbers, then their weights: [T, 2 * used]."""

    def experts(self, x: Array, routes: Array, experts: Experts) -> Array:
        """What the experts of ``routes`` make of ``x`` [T, K], times their weights, added in that order: [T, N]."""

    def rope(self, x: Array, rope: Rope, head_dim: int) -> Array:
        """Rotate each head of ``x`` [T, heads * head_dim] by its row's position."""

    def attend(self, q: Array, k: Array, v: Array, spec: Attention) -> Array:
        """Store k, v [T, G * D] at the rows' positions, then attend with q [T, H * D]: [T, H * D]."""

    def outputs(self, x: Array) -> Array:
        """The rows whose logits are wanted: [len(outputs), E]."""

    def tap(self, x: Array, name: str) -> Array:
        """``x`` as it is; ``Program.taps`` has a copy under ``name``. Only for whoever watches (``layers.watched``)."""


Forward = Callable[[Ops], Array]
"""A family bound to its weights and settings: computes logits [len(outputs), V] with an ``Ops``."""


class Program(Protocol):
    """A model loaded on a device, with the state of its sequences."""

    vocab_size: int

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """One forward pass: logits float32 [len(batch.outputs), V]. Reads and extends the sequences' state."""

    can_branch: bool
    """Whether ``fork`` and ``take_over`` are possible."""

    def rows(self, batch: Batch, choice: tuple[int, float] | None = None) -> NDArray[np.float32]:
        """As ``run``, in memory that the next pass may overwrite. ``candidates`` will be asked of each row, most likely
        with (k, floor) ``choice``."""

    def truncate(self, sequence: int, length: int) -> int:
        """Forget the positions of ``sequence`` from ``length`` on, or from an earlier one: the length that is left."""

    def fork(self, source: int, target: int, length: int) -> None:
        """Let the new sequence ``target`` begin with the first ``length`` positions of ``source``, which must not be
        truncated below that while ``target`` is there. ``truncate(target, 0)`` ends it."""

    def take_over(self, source: int, target: int) -> None:
        """``target`` becomes what its fork ``source`` is, which ends."""

    def taps(self) -> dict[str, NDArray[np.float32]]:
        """Of the last ``run``: what each ``Ops.tap`` saw, float32 [rows, width] by name, all rows of the batch."""

    def candidates(self, row: NDArray[np.float32], k: int, floor: float) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """See ``reference.candidates``."""

    def exp(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """``reference.functions.exp32`` of x float32 [n]."""

    def close(self) -> None:
        """Give back threads and memory."""


class Backend(Protocol):
    """A device. ``engine_id`` names the exact kernels; ``device_class`` and ``device_name`` are claims only."""

    engine_id: str
    device_class: str
    device_name: str
    threads: int

    def load(
        self,
        forward: Forward,
        layers: Sequence[Attention],
        progress: Callable[[str], None] | None,
        packs: PackCache | None = None,
    ) -> Program:
        """Prepare ``forward`` to run; ``layers`` describes the key/value cache. ``progress`` gets one-line news.

        ``packs`` is where its weights may be kept for the next time; it never changes a bit.
        """


Weights = Mapping[str, Weight]

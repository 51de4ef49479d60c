"""The operations a model family is written with, and what a backend offers to run them.

Letters: T rows of the batch, E embedding, H query heads, G key/value heads,
D head width, F feed-forward width, X experts, V vocabulary, K input width, N output width.

The order of every sum is in docs/NUMERICS.md; ``backends/reference`` is its
executable definition. ``Array`` is whatever a backend uses for a float32
activation: a NumPy array in the reference, a graph node on the CPU.
"""

from __future__ import annotations

import math
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
    (X, N, K), whose rows follow one another. A part of a tensor may have gaps: [groups, rows, row bytes]."""

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

    ``interleaved``: pairs are (0, 1), (2, 3)...; otherwise (i, i + half). ``first`` elements of each head come before
    the rotated ones.
    """

    frequencies: tuple[float, ...]
    interleaved: bool
    magnitude: float = 1.0
    first: int = 0


@dataclass(frozen=True)
class Attention:
    """Shape and rule of one attention layer. ``window`` 0 sees every earlier key, else the last ``window`` keys.

    ``layer`` is the one whose keys and values these are. ``value_dim`` is the width of a value head where it is not
    that of a query and a key head; 0: it is. With ``softcap`` scores are capped as by ``Ops.softcap``.

    Not ``causal``, a row also sees the keys behind its own: all of its sequence, or with a ``window`` those at most
    ``window // 2`` positions away to either side. All rows of a sequence must then be in one batch (``Batch``); a model
    that is given rows beside its tokens may go on behind them, and those of the next batch see both.
    """

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    value_dim: int = 0
    softcap: float = 0.0
    causal: bool = True

    @property
    def value_width(self) -> int:
        """Elements of a value head."""
        return self.value_dim or self.head_dim


class Scan(NamedTuple):
    """The selective scan of Mamba-2: H heads of width D, G groups of heads that share B and C, and N elements of state
    for each element of a head. ``a``, ``d`` and ``dt_bias`` have H elements."""

    heads: int
    head_dim: int
    groups: int
    size: int
    a: Weight
    d: Weight
    dt_bias: Weight


@dataclass(frozen=True)
class State:
    """What a recurrence of one layer carries from a token to the next: float32 of ``shape`` for each sequence.

    Recurrences of one layer have different names. Before a sequence's first token all elements are +0.
    """

    layer: int
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)  # exact: integers


DELTA_COLUMNS = 16
"""Value elements of a gated DeltaNet's state lie together in groups of this many."""


class Delta(NamedTuple):
    """A gated DeltaNet of H heads of width D, a multiple of 16, that share G ``key_heads``: head h has number h mod G.

    ``state`` is [H, D / 16, D, 16]: of each head by groups of value elements, then by key element, then by value
    element in the group. ``a`` (usually negative) and ``bias`` [H] make its decay.
    """

    state: State
    key_heads: int
    a: Weight
    bias: Weight
    eps: float

    @property
    def heads(self) -> int:
        return self.state.shape[0]

    @property
    def width(self) -> int:
        return self.state.shape[2]


@dataclass(frozen=True)
class Routing:
    """How a row finds its ``used`` experts. ``gating`` is 'softmax', 'sigmoid' or 'softmax_chosen', which is taken
    over the chosen ones only; their weights are divided by their sum if ``normalised``, then multiplied by ``scale``.

    With ``groups`` above 1 experts lie in so many groups of the same size, and only those of the ``used_groups`` best
    are chosen from.
    """

    used: int
    gating: str = "softmax"
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    used_groups: int = 1


class Experts(NamedTuple):
    """Gated feed-forward blocks of X experts: ``gate`` and ``up`` [X, F, K], ``down`` [X, N, F], and biases of their
    rows, [X, F], [X, F] and [X, N], where there are any. Without ``gate`` they are ``down(act(up(x)))``."""

    gate: Weight | None
    up: Weight
    down: Weight
    activation: str
    gate_bias: Weight | None = None
    up_bias: Weight | None = None
    down_bias: Weight | None = None


class Ops(Protocol):
    """Float32 activations are [T, width]; a weight is used as it is stored."""

    def embed(self, table: Weight) -> Array:
        """Row ``tokens[t]`` of ``table`` [V, E], decoded to float32: [T, E]."""

    def positions(self, table: Weight) -> Array:
        """Row ``positions[t]`` of ``table`` [P, E], decoded to float32: [T, E]."""

    def first_row(self, table: Weight) -> Array:
        """Row 0 of ``table``, decoded to float32, for every t: [T, E]."""

    def scale(self, x: Array, factor: float) -> Array:
        """``x * float32(factor)``."""

    def softcap(self, x: Array, cap: float) -> Array:
        """``cap * tanh(x / cap)`` with ``float32(cap)`` > 0; an infinity stays one, so that it is still seen."""

    def rms_norm(self, x: Array, weight: Weight, eps: float) -> Array:
        """RMS norm over groups of ``len(weight)`` elements (the whole row, or each head); a ``weight`` [groups, n] has
        n of its own for each group."""

    def layer_norm(self, x: Array, weight: Weight, bias: Weight | None, eps: float) -> Array:
        """Layer norm of whole rows x [T, E]; ``weight`` and ``bias`` [E], a bias left out is +0."""

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        """``x`` [T, K] times ``weight`` [N, K] transposed, plus ``bias`` [N]: [T, N]."""

    def linear_heads(self, x: Array, weight: Weight) -> Array:
        """Each head of ``x`` [T, H * K] times its own matrix of ``weight`` [H, N, K] transposed: [T, H * N]."""

    def cut(self, x: Array, heads: int, first: int, count: int) -> Array:
        """Elements ``first`` to ``first + count`` of each head of ``x`` [T, heads * width]: [T, heads * count]."""

    def join(self, x: Array, y: Array, heads: int, shared: bool = False) -> Array:
        """Each head of ``x`` [T, heads * A] and, behind it, that of ``y`` [T, heads * B]: [T, heads * (A + B)].

        ``shared``: ``y`` is [T, B], the same for every head.
        """

    def add(self, x: Array, y: Array) -> Array:
        """``x + y``."""

    def mul(self, x: Array, y: Array) -> Array:
        """``x * y``."""

    def activate(self, x: Array, activation: str) -> Array:
        """``act(x)`` with ``activation`` one of ``ACTIVATIONS``."""

    def gated(self, gate: Array, up: Array, activation: str) -> Array:
        """``act(gate) * up`` with ``activation`` one of ``ACTIVATIONS``, or 'swiglu_oai', a rule for both sides.

        With one of ``ACTIVATIONS`` the gate may also be one number for each row, [T, 1].
        """

    def route(
        self, logits: Array, routing: Routing, bias: Weight | None = None, factors: Weight | None = None
    ) -> Array:
        """Of ``logits`` [T, X] the experts chosen, best first, as exact numbers, then their weights: [T, 2 * used].

        ``bias`` [X] is added to what experts are chosen by, not to what they weigh. Weights are multiplied by those of
        ``factors`` [X] which are the experts'.
        """

    def experts(self, x: Array, routes: Array, experts: Experts) -> Array:
        """What the experts of ``routes`` make of ``x`` [T, K], times their weights, added in that order: [T, N]."""

    def rope(self, x: Array, rope: Rope, head_dim: int) -> Array:
        """Rotate each head of ``x`` [T, heads * head_dim] by its row's position."""

    def attend(self, q: Array, k: Array | None, v: Array | None, spec: Attention, sinks: Weight | None = None) -> Array:
        """Store k [T, G * D] and v [T, G * value width] at the rows' positions, then attend with q [T, H * D]:
        [T, H * value width].

        Without k and v, q reads what ``spec.layer`` has stored earlier in this pass and before. ``sinks`` [H] holds for
        each head the score of one key more, which every row sees and which has no value.
        """

    def short_conv(self, x: Array, weight: Weight, bias: Weight | None, state: State, activation: str) -> Array:
        """Causal convolution of each channel over the tokens of its sequence, x [T, C] -> [T, C].

        ``weight`` [C, K] holds the taps of a channel, oldest first; ``bias`` [C] is added, then ``activation`` is
        taken ('' for none). ``state`` [K - 1, C] is what the last K - 1 rows of x were, oldest first.
        """

    def scan(self, x: Array, dt: Array, spec: Scan, state: State) -> Array:
        """The selective scan of Mamba-2, one token of a sequence after the other: [T, H * D].

        Columns of ``x`` are x [H * D], B [G * N] and C [G * N]; ``dt`` [T, H] is how far each head moves on, before
        its bias. ``state`` [H, D / 16 rounded up, N, 16]: element (i, n) of a head is at [i // 16, n, i % 16].
        """

    def delta(self, q: Array, k: Array, v: Array, gate: Array, beta: Array, spec: Delta) -> Array:
        """Gated delta rule over the tokens of a sequence, q and k [T, G * D], v [T, H * D], gate and beta [T, H]:
        [T, H * D].

        Heads of q and k are l2-normed (``spec.eps``), q is multiplied by 1 / sqrt(D). A head's state is multiplied by
        ``exp(a * softplus(gate + bias))``, then learns ``sigmoid(beta)`` of what it does not yet answer of v to k.
        """

    def given(self, width: int) -> Array:
        """The rows that ``Program.run`` was given beside the tokens: [T, width]."""

    def outputs(self, x: Array) -> Array:
        """The rows whose logits are wanted: [len(outputs), E]."""

    def average(self, x: Array) -> Array:
        """For each row that is wanted the mean of x [T, E] over all rows of its sequence: [len(outputs), E].

        All rows of a sequence must be in one batch, side by side.
        """

    def tap(self, x: Array, name: str) -> Array:
        """``x`` as it is; ``Program.taps`` has a copy under ``name``. Only for whoever watches (``layers.watched``)."""


ACTIVATIONS = ("silu", "gelu", "sigmoid", "relu_sqr")
"""SiLU, GELU in its tanh form, the logistic function, and the square of ReLU."""

Forward = Callable[[Ops], Array]
"""A family bound to its weights and settings: computes logits [len(outputs), V] with an ``Ops``."""


@dataclass(frozen=True)
class Snapshot:
    """All that a sequence of ``length`` positions is: plain arrays, whatever device they came from.

    ``keys`` and ``values`` are float16 [length, G, their width] by layer, ``states`` float32 of the state's shape.
    """

    length: int
    keys: Mapping[int, NDArray[np.float16]]
    values: Mapping[int, NDArray[np.float16]]
    states: Mapping[State, NDArray[np.float32]]


class Program(Protocol):
    """A model loaded on a device, with the keys, values and recurrent states of its sequences.

    Keys and values are kept by position, so going back in a sequence forgets the later ones and loses nothing. A
    recurrent state is only what it is now. ``mark`` keeps a copy of it; going back finds the newest copy that is not
    too new, and the tokens from there on have to be computed again, which gives the same bits. With neither states
    nor marks all of this works alike (``engine.token_sequence`` does it for every model).
    """

    vocab_size: int

    def run(self, batch: Batch, given: NDArray[np.float32] | None = None, best: int = 0) -> NDArray[np.float32]:
        """One forward pass: logits float32 [len(batch.outputs), V]. Reads and extends the sequences' state.

        With ``best`` not 0 only the so many largest logits of each row are wanted, equal ones by id: any other may be
        -inf instead. A NaN or +inf among the logits is never hidden so.
        ``given`` float32 [T, width] are the rows that a model asks for beside its tokens (``Ops.given``).
        Position 0 starts a sequence anew. With recurrent states any other row must stand right behind the last
        position of its sequence; raises KineticError otherwise, before anything is computed.
        """

    def length(self, sequence: int) -> int:
        """Positions that ``sequence`` has; 0 if it was never seen, or if a pass over it was broken off."""

    def truncate(self, sequence: int, length: int) -> int:
        """Forget the positions of ``sequence`` from ``length`` on. Returns how many are left, which may be fewer:
        with recurrent states the newest mark at or below ``length``, or 0. Marks behind it are forgotten too."""

    def mark(self, sequence: int) -> None:
        """Keep the recurrent states as they are now, so that ``truncate`` can come back to this position.

        A sequence has at most ``states.MOST_MARKS`` marks: beyond that one of the older is dropped, so that they
        lie the further apart the older they are. Without recurrent states it does nothing.
        """

    def snapshot(self, sequence: int) -> Snapshot:
        """A copy of all that ``sequence`` is."""

    def restore(self, sequence: int, snapshot: Snapshot) -> None:
        """Make ``sequence`` what the snapshot says, whatever it was. It has no marks then but this position.

        Raises KineticError if the snapshot is not of this model's shapes.
        """

    state_bytes: int
    """Of ``read_states``; 0 without recurrent states."""

    def kept_bytes(self, count: int) -> int:
        """Of ``read_kept``."""

    def read_kept(self, sequence: int, start: int, count: int) -> NDArray[np.uint8]:
        """A copy of the keys and values of ``count`` positions from ``start``, a multiple of CHUNK, on: CHUNK at most.
        They are as this backend has them, for ``write_kept`` of a program with the same engine id and layers."""

    def write_kept(self, sequence: int, start: int, count: int, data: NDArray[np.uint8]) -> None:
        """Put back what ``read_kept`` gave, after a ``truncate`` to 0; ``stand`` follows the last piece."""

    def read_states(self, sequence: int) -> NDArray[np.uint8]:
        """A copy of all recurrent states of ``sequence``."""

    def stand(self, sequence: int, length: int, states: NDArray[np.uint8] | None = None) -> None:
        """Say that keys and values of ``length`` positions, at least 1, are there, and what the states are there."""

    can_keep: bool
    """Whether parts of a sequence can be read and put back (``read_kept``, ``write_kept``)."""

    can_branch: bool
    """Whether ``fork`` and ``take_over`` are possible: not with recurrent states."""

    def rows(self, batch: Batch, choice: tuple[int, float] | None = None, best: int = 0) -> NDArray[np.float32]:
        """As ``run``, in memory that the next pass may overwrite. ``candidates`` will be asked of each row, most likely
        with (k, floor) ``choice``. ``best`` is as in ``run``."""

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
        states: Sequence[State] = (),
    ) -> Program:
        """Prepare ``forward`` to run; ``layers`` describes the key/value cache, ``states`` those that it carries
        beside. ``progress`` gets one-line news.

        ``packs`` is where its weights may be kept for the next time; it never changes a bit.
        """


Weights = Mapping[str, Weight]

"""Attention on a device: where a pass stores keys and values, and which queries share a pass over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinetic.backends.base import CHUNK, Attention
from kinetic.backends.checks import runs
from kinetic.backends.gpu.device import Kernel, Memory
from kinetic.backends.gpu.launches import Launches
from kinetic.backends.gpu.pages import Pages
from kinetic.backends.gpu.source import kernel_source
from kinetic.backends.gpu.weights import DeviceWeights
from kinetic.backends.graph import Node
from kinetic.types import Batch, lengths

PARTIAL_BYTES = 64 << 20
"""What the chunks of attention may take; more rows are attended to in several launches."""

LANES = {4: 128, 8: 128, 16: 64}
"""By QUERIES of kernels/attention.cu, what its lanes are made for. Neither ever changes a bit."""

MOST = max(LANES)


class Kind(NamedTuple):
    """What of a layer decides how the rows of a pass are shared out."""

    shared: int
    """Query heads of a key head."""
    window: int
    causal: bool

    @property
    def few(self) -> int:
        """Queries of a tile of one row, as far as they fit into one."""
        return next((queries for queries in LANES if queries >= self.shared), MOST)

    def first_chunk(self, position: int) -> int:
        """Of keys that a row at ``position`` sees."""
        if self.window == 0:
            return 0
        return max(0, position + 1 - self.window if self.causal else position - self.window // 2) // CHUNK


class Plan(NamedTuple):
    """How a pass attends in layers of a kind."""

    name: str
    """Of the array of tiles; it says all of this, so that the names and shapes of arrays do."""
    queries: int
    most: int
    """Rows of a tile."""
    tiles: int
    begin: int
    """Chunks before it are seen by no row."""


class Attentions:
    """Everything that its launches depend on is in the names and shapes of ``arrays``."""

    def __init__(self, launches: Launches, weights: DeviceWeights, pages: Pages) -> None:
        self._launches, self._weights, self._pages = launches, weights, pages
        self._kernels: dict[int, Kernel] = {}
        self._kinds: dict[Kind, int] = {}
        self._plans: dict[Kind, Plan] = {}
        self._width = self._stores = 0

    def prepare(self, spec: Attention) -> None:
        """Build the kernels of one row and of many."""
        kind = _kind(spec)
        self._kinds.setdefault(kind, len(self._kinds))
        for queries in {kind.few, MOST} - self._kernels.keys():
            self._kernels[queries] = self._launches.device.kernel(attention_source(queries), "attention_chunks")

    def arrays(self, batch: Batch) -> dict[str, NDArray[np.int32]]:
        """Makes room for a batch's positions, and gives what kernels read of it. Raises OutOfMemory.

        'rows' [T, 3]: position, number of the sequence in 'tables', and how long that is; 'tables' [sequences, .]:
        pages; 'stores' [., 2]: row, and 256 * page + position in it; of each kind of layer its tiles [., 2].
        """
        ends = lengths(batch)
        self._width = -(-max(ends.values()) // CHUNK)
        tables = np.zeros((len(ends), self._width), np.int32)
        for number, (sequence, end) in enumerate(ends.items()):
            pages = self._pages.table(sequence, end)[: self._width]
            tables[number, : len(pages)] = pages
        numbers = {sequence: number for number, sequence in enumerate(ends)}
        rows, stores = [], []
        for row, (sequence, position) in enumerate(zip(batch.sequences, batch.positions, strict=True)):
            rows.append((position, numbers[sequence], ends[sequence]))
            for branch in (sequence, *(batch.also[row] if batch.also else ())):
                stores.append((row, tables[numbers[branch], position // CHUNK] * CHUNK + position % CHUNK))
        self._stores = len(stores)
        out = {"rows": np.array(rows, np.int32), "tables": tables, "stores": np.array(stores, np.int32)}
        longest = max(count for _, count in runs(batch, MOST))
        for kind, number in self._kinds.items():
            queries = kind.few if kind.shared * longest <= kind.few else MOST
            most = max(1, min(longest, queries // kind.shared))
            begin = kind.first_chunk(min(batch.positions))
            tiles = np.array(runs(batch, most), np.int32)
            name = f"tiles {number}: {most} rows, {queries} queries, from chunk {begin}"
            self._plans[kind] = Plan(name, queries, most, len(tiles), begin)
            out[name] = tiles
        return out

    def attend(
        self, out: Memory, q: Memory, stored: Sequence[Memory], arrays: Mapping[str, Memory], node: Node
    ) -> None:
        """See ``base.Ops.attend``; ``stored`` are k and v, or nothing. ``arrays`` are those of the pass."""
        spec: Attention = node["spec"]
        plan, pages = self._plans[_kind(spec)], self._pages.memory(spec.layer)
        rows, tables, tiles = arrays["rows"], arrays["tables"], arrays[plan.name]
        shape = spec.heads, spec.kv_heads, spec.head_dim, spec.value_width
        if stored:
            count = self._stores * self._pages.pieces(spec.layer)
            numbers = map(np.int32, shape[1:])
            self._launches.each("pages", "store_rows", count, pages, *stored, arrays["stores"], *numbers)
        chunks = self._width - plan.begin
        tile_bytes = 4 * plan.most * spec.heads * chunks * (spec.value_width + 2)
        at_once = min(plan.tiles, max(1, PARTIAL_BYTES // tile_bytes))
        partials = self._launches.scratch("partials", at_once * tile_bytes)
        sinks = None if node["sinks"] is None else self._weights.vector(node["sinks"])
        seen = plan.begin, chunks, spec.window, spec.causal
        parts = spec.kv_heads * -(-spec.heads // spec.kv_heads // plan.queries)
        for first in range(0, plan.tiles, at_once):
            count = min(at_once, plan.tiles - first)
            self._launches.device.launch(
                self._kernels[plan.queries], count * parts * chunks, LANES[plan.queries], partials, q, pages, rows,
                tables, tiles, *map(np.int32, (first, *shape, self._width, *seen)),
                np.float32(spec.scale), np.float32(spec.softcap),
            )  # fmt: skip
            merged = sinks is not None, first, plan.most, spec.heads, spec.value_width
            self._launches.groups(
                "attention_merge", "attention_merge", count * plan.most * spec.heads, out, partials, rows, tiles,
                partials if sinks is None else sinks, *map(np.int32, (*merged, *seen)),
                lanes=64 if spec.value_width <= 64 else 128,
            )  # fmt: skip


def attention_source(queries: int) -> str:
    """kernels/attention.cu for tiles of so many queries, of ``LANES``."""
    return f"#define QUERIES {queries}\n{kernel_source('attention')}"


def _kind(spec: Attention) -> Kind:
    return Kind(spec.heads // spec.kv_heads, spec.window, spec.causal)

"""Importance matrices: how much each column of a weight's input matters, for quantising (llama-imatrix).

For every weight of a matrix product, over all rows of a text: the sum of the squares of what goes into each column.
For weights of experts these are apart for each expert, over the rows that it was chosen for.
Sums are float64, row after row in the order of the text, of products that are exact: they are the same for every
batch size and number of threads. The text is cut, and its perplexity measured, as ``perplexity`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kinetic import softmax
from kinetic.api.imatrix_file import Entry, Matrix
from kinetic.api.perplexity import Cut, Perplexity, Settings, cuts, losses
from kinetic.api.scorer import Progress, Scorer
from kinetic.backends.control_word import default_rounding
from kinetic.bits import F32
from kinetic.errors import NonFinite
from kinetic.lanes import F64
from kinetic.layers.watched import Inputs, Seen

OUTPUT = ("output.weight", "token_embd.weight")
"""The product with the vocabulary, which is left out unless asked for."""


def inputs(process_output: bool) -> Inputs:
    """What the model is to be opened with (``Scorer(watch=...)``)."""
    return Inputs(lambda name: name.startswith("blk.") or (process_output and name in OUTPUT))


class Collector:
    """Sums by tap, and those of experts by tensor. Products that share their inputs share the sums."""

    def __init__(self, watched: Inputs) -> None:
        self._watched = watched
        self._entries: dict[str, Entry] = {}

    def add(self, taps: dict[str, F32]) -> None:
        """The rows of one pass. Raises NonFinite."""
        mixtures = self._watched.mixtures.values()
        apart = {name for seen in mixtures for name in (seen.x, seen.routes, *seen.hidden)}
        apart -= set(self._watched.tap_of.values())
        for name, rows in taps.items():
            if name not in apart:
                _add_rows(self._entry(name, rows, 1), 0, _finite(name, rows))
        for seen in mixtures:
            self._add_mixture(seen, taps)

    def _add_mixture(self, seen: Seen, taps: dict[str, F32]) -> None:
        """Each row counts for the experts that it was sent to."""
        gate, up, down = seen.experts[:3]
        routes, x, count = taps[seen.routes], taps[seen.x], up.shape[0]
        chosen = routes[:, : routes.shape[1] // 2].astype(np.int64)
        into, between = self._entry(up.tensor, x, count), self._entry(down.tensor, taps[seen.hidden[0]], count)
        if gate is not None:
            self._entries[gate.tensor] = into
        for number in range(count):
            rows = (chosen == number).any(axis=1)
            _add_rows(into, number, _finite(up.tensor, x[rows]))
            _add_rows(between, number, _finite(down.tensor, taps[seen.hidden[number]][rows]))

    def _entry(self, name: str, rows: F32, experts: int) -> Entry:
        known = self._entries.get(name)
        if known is None:
            zeros = np.zeros(experts * rows.shape[1])
            known = self._entries[name] = Entry(zeros, zeros.copy(), np.zeros(experts, np.int64))
        return known

    def into(self, matrix: Matrix) -> Matrix:
        """``matrix`` and what was collected so far, as a new one."""
        found = Matrix(matrix.chunk_size)
        found.add(matrix)
        names = {name: self._entries[tap] for name, tap in self._watched.tap_of.items() if tap in self._entries}
        for seen in self._watched.mixtures.values():
            tensors = [weight.tensor for weight in seen.experts[:3] if weight is not None]
            names |= {name: self._entries[name] for name in tensors if name in self._entries}
        found.add(Matrix(matrix.chunk_size, [], names))
        return found


def _finite(name: str, rows: F32) -> F32:
    if not np.isfinite(rows).all():
        raise NonFinite(f"what goes into {name} is not finite")
    return rows


def _add_rows(entry: Entry, expert: int, rows: F32) -> None:
    """Row by row: the order is that of the text, however it was cut."""
    wide: F64 = rows.astype(np.float64)
    squares = entry.squares.reshape(len(entry.counts), -1)[expert]
    sums = None if entry.sums is None else entry.sums.reshape(len(entry.counts), -1)[expert]
    with default_rounding():
        for row, square in zip(wide, wide * wide, strict=True):
            squares += square
            if sums is not None:
                sums += row
    entry.counts[expert] += len(rows)


def collect(
    scorer: Scorer,
    tokens: Sequence[int],
    settings: Settings,
    collector: Collector,
    *,
    process_output: bool = False,
    with_perplexity: bool = True,
    on_chunk: Callable[[Cut, Perplexity], None] | None = None,
    on_progress: Progress | None = None,
) -> Perplexity:
    """The whole text. ``on_chunk`` is told after each chunk; without ``with_perplexity`` no logits are computed."""
    found, wanted = Perplexity(), cuts(tokens, settings)
    for number, cut in enumerate(wanted):
        chunk, parts = scorer.chunk(cut.tokens), []
        scored = len(chunk) - 1 - cut.scored if with_perplexity else len(chunk)
        place = first = 0 if process_output else scored
        for logits in scorer.passes(chunk, first, settings.rows):
            collector.add(scorer.taps())
            rows = logits[max(scored - place, 0) : len(chunk) - 1 - place]
            if len(rows):
                after = max(scored, place) + 1
                parts.append(losses(rows, softmax.log_sums(rows), chunk[after : after + len(rows)]))
            place += len(logits)
        if parts:
            found.add(np.concatenate(parts))
        if on_chunk:
            on_chunk(cut, found)
        if on_progress:
            on_progress(number + 1, len(wanted))
    return found

"""What a pass of many rows costs beside a pass of one. It decides how much is guessed, and never what comes out."""

from __future__ import annotations

from collections.abc import Mapping

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
"""A pass of a number between two of them counts as the larger: kernels work in tiles."""

TYPICAL = (1.0, 1.6, 1.7, 2.2, 2.8, 4.2, 5.2, 7.5, 9.5)
"""Before anything was measured: on two cores with AVX-512, a model of 135 million parameters."""

FASTER, SLOWER, LEAST = 0.3, 0.03, 4
"""Share of a new measurement in the figure kept, and how many there must be before it counts. What is slower was
mostly interrupted by something else."""


class RowCosts:
    """Seconds of passes by their number of rows, as they come. ``known`` is what ``kept`` gave another time."""

    fork = 0.08
    """What a further branch of a tree costs: half a page of keys and values is copied."""

    def __init__(self, known: Mapping[str, float] | None = None) -> None:
        self._seconds: dict[int, float] = {}
        self._count: dict[int, int] = {}
        for size in SIZES:
            seconds = (known or {}).get(str(size))
            if isinstance(seconds, float) and 1e-6 < seconds < 1e3:
                self._seconds[size], self._count[size] = seconds, LEAST

    def note(self, rows: int, seconds: float) -> None:
        size = next((size for size in SIZES if size >= rows), 0)
        if not size or seconds <= 0:
            return
        known = self._seconds.get(size, seconds)
        self._seconds[size] = known + (FASTER if seconds < known else SLOWER) * (min(seconds, 2 * known) - known)
        self._count[size] = self._count.get(size, 0) + 1

    def of(self, rows: int) -> float:
        """In passes of one row. ``rows`` from 1 to 64."""
        index = next((i for i, size in enumerate(SIZES) if size >= rows), len(SIZES) - 1)
        one = self.plain_seconds
        # A larger pass can't be quicker: where it seems so, the smaller one was disturbed.
        known = [self._seconds[size] for size in SIZES[index:] if self._count.get(size, 0) >= LEAST]
        if not one or self._count.get(SIZES[index], 0) < LEAST:
            return TYPICAL[index]
        return max(1.0, min(known) / one)

    def up_to(self, rows: int) -> tuple[int, float]:
        """A number of rows from ``rows`` on up to which a pass costs the same, and what ``of`` says of it."""
        return next((size for size in SIZES if size >= rows), SIZES[-1]), self.of(rows)

    @property
    def plain_seconds(self) -> float:
        """Of a pass of one row; 0 while unknown."""
        return self._seconds[1] if self._count.get(1, 0) >= LEAST else 0.0

    def kept(self) -> dict[str, float]:
        """To be kept for the next time: seconds by number of rows."""
        return {str(size): self._seconds[size] for size in SIZES if self._count.get(size, 0) >= LEAST}

"""Rates of benchmarks, each beside what this machine could do at the same moment, and the table of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pytest_benchmark.fixture import BenchmarkFixture

from kinetic.api.machine import Machine
from kinetic.api.roofline import Meter, Peaks

ROUNDS = 9

LEAST = 0.008
"""Seconds that a round should last, about as long as one of the limit: short kernels run several times in one."""

TRIES = 3
"""Measurements of a limit of which the best counts: others were interrupted, and a limit must not be too low."""

Run = Callable[[], float | None]
"""What is measured. Returns the seconds it took, or None if all of the call counts."""


class Work(NamedTuple):
    """What one run does: ``amount`` of ``unit``, a thousand million of which are written as ``unit`` below."""

    amount: float
    unit: str
    """GB/s, GOPS or GFLOP/s; or tok/s, which is counted in ones."""

    def rate(self, seconds: float) -> float:
        return self.amount / seconds / (1 if self.unit == "tok/s" else 1e9)


class Row(NamedTuple):
    """One line of the table; of several rates the first is compared with ``roof``, in its unit."""

    name: str
    seconds: float
    rates: list[tuple[float, str]]
    best: float
    roof: float | None
    """Median of all rounds, as the first rate is."""
    share: float | None
    """Median of the shares of the roof, round by round."""
    best_share: float | None
    """The best rate's share of the highest roof."""


class Limits:
    """The machine's peaks: those of the start, for the header, and measured again beside each round."""

    def __init__(self, meter: Meter, threads: Sequence[int]) -> None:
        self._meter = meter
        self.peaks: dict[int, Peaks] = {count: meter.peaks(count) for count in threads}

    def read(self, threads: int) -> float:
        return max(self._meter.read(threads, self.peaks[threads].pattern) for _ in range(TRIES))

    def int8(self, threads: int) -> float | None:
        return max(self._meter.int8(threads) or 0.0 for _ in range(TRIES)) or None

    def float32(self, threads: int) -> float:
        return max(self._meter.float32(threads) for _ in range(TRIES))


def measure(
    benchmark: BenchmarkFixture,
    name: str,
    run: Run,
    work: Sequence[Work],
    roof: Callable[[], float | None] | None = None,
    rounds: int = ROUNDS,
) -> Row:
    """Times ``run`` for some rounds, the limit beside it measured before each of them: neighbours hit both alike.

    Rates go into the benchmark's extra_info; its own times are of whole rounds, ``extra_info['runs']`` runs each.
    """
    seconds: list[float] = []
    limits: list[float | None] = []
    runs = _runs(run)

    def set_up() -> None:
        limits.append(roof() if roof else None)

    def timed() -> None:
        seconds.append(_seconds(run, runs))

    benchmark.pedantic(timed, setup=set_up, rounds=rounds)
    row = _row(name, seconds, limits, work)
    benchmark.extra_info |= {"runs": runs, **_extra(row)}
    return row


def _runs(run: Run) -> int:
    """How often to run in a round; the first run is to warm up."""
    _seconds(run, 1)
    return max(1, round(LEAST / _seconds(run, 1)))


def _seconds(run: Run, runs: int) -> float:
    """Mean seconds of one of ``runs`` runs."""
    begin = time.perf_counter()
    own = [run() for _ in range(runs)]
    whole = time.perf_counter() - begin
    told = [seconds for seconds in own if seconds is not None]
    return (sum(told) if told else whole) / runs


def _row(name: str, seconds: list[float], limits: list[float | None], work: Sequence[Work]) -> Row:
    middle = statistics.median(seconds)
    known = [limit for limit in limits if limit]
    shares = [work[0].amount / own / limit for limit, own in zip(limits, seconds, strict=True) if limit]
    return Row(
        name,
        middle,
        [(one.rate(middle), one.unit) for one in work],
        work[0].rate(min(seconds)),
        statistics.median(known) / 1e9 if known else None,
        statistics.median(shares) if shares else None,
        work[0].amount / min(seconds) / max(known) if known else None,
    )


def _extra(row: Row) -> dict[str, float]:
    found = {unit: round(rate, 3) for rate, unit in row.rates}
    found["best"] = round(row.best, 3)
    if row.roof and row.share and row.best_share:
        shares = {"share_of_roof": round(row.share, 4), "best_share_of_roof": round(row.best_share, 4)}
        found |= {"roof": round(row.roof, 3), **shares}
    return found


# --- the table ---


def counted(threads: int) -> str:
    return f"{threads} thread{'' if threads == 1 else 's'}"


HEADER = ("", "median", "rate", "roof", "% of roof", "best rate", "% at best")


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of the table: names to the left, figures to the right."""
    cells = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    for line in cells:
        yield "  ".join(
            [line[0].ljust(widths[0]), *(text.rjust(n) for text, n in zip(line[1:], widths[1:], strict=True))]
        )


def _cells(row: Row) -> tuple[str, ...]:
    rates = ", ".join(f"{_figure(rate)} {unit}" for rate, unit in row.rates)
    roof = _figure(row.roof) if row.roof else "-"
    middle = (row.name, _time(row.seconds), rates, roof, _percent(row.share))
    return (*middle, _figure(row.best), _percent(row.best_share))


def _percent(share: float | None) -> str:
    return f"{share:.0%}" if share else "-"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def header(limits: Limits, isa: str, before: Machine, now: Machine) -> Iterator[str]:
    """What was measured on, and its peaks at the start."""
    yield f"{now.processor}, {isa}; load {before.load} before, {now.load} now"
    for peaks in limits.peaks.values():
        int8 = f"int8 {peaks.int8 / 1e9:,.0f} GOPS" if peaks.int8 else "int8 unknown"
        yield (
            f"{counted(peaks.threads)}: read loop {peaks.read / 1e9:.1f} GB/s ({peaks.pattern.text}), {int8}, "
            f"float32 {peaks.float32 / 1e9:,.0f} GFLOP/s"
        )

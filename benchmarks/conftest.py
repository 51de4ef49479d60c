"""Benchmarks use the real models that the tests use, and print their rates in one table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import rates
from benchmarks.rates import Limits, Row
from kinetic.api import machine
from kinetic.api.roofline import PIECE, Meter
from kinetic.backends.cpu import native, target
from kinetic.formats import RUNNABLE
from tests.conftest import smollm2_path

__all__ = ["smollm2_path"]

THREADS = (1, 2)

ROWS = pytest.StashKey[list[Row]]()
LINES = pytest.StashKey[Callable[[], Iterator[str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture(scope="session")
def isa() -> str:
    """The instruction set, its kernels of all formats compiled by one process."""
    found = target.choose()
    native.Kernels(found, RUNNABLE)
    return found


@pytest.fixture(scope="session")
def limits(isa: str, request: pytest.FixtureRequest) -> Iterator[Limits]:
    before = machine.describe()
    meter = Meter(isa, max(THREADS), beyond_caches(PIECE))
    found = Limits(meter, THREADS)
    request.config.stash[LINES] = lambda: rates.header(found, isa, before, machine.describe())
    yield found
    meter.close()


def beyond_caches(least: int) -> int:
    """Bytes that no cache keeps until they are read again: ``least``, or more where caches are large, but not above
    a gibibyte."""
    largest = max((cache.size for cache in machine.describe().caches), default=0)
    return min(max(least, 4 * largest), 1 << 30)


@pytest.fixture
def measure(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Callable[..., Row]:
    """``rates.measure``, whose rows go into the table."""

    def measured(*arguments: object, **named: object) -> Row:
        row = rates.measure(benchmark, *arguments, **named)  # type: ignore[arg-type]
        request.config.stash[ROWS].append(row)
        return row

    return measured


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(ROWS, [])
    if rows:
        terminalreporter.section("rates")
        for line in (*config.stash[LINES](), "", *rates.table(rows)):
            terminalreporter.write_line(line)

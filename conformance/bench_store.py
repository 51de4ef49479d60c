"""The bench store: every measurement of ``kinetic bench``, and what counts as slower.

One file of JSON lines that only grows. A record is what ``kinetic.api.bench`` returns: plain
values under ``format``. Writers take turns by a lock on the file; a line that a crash cut short
is passed over by readers and ended by the next writer.

**What is compared.** A test with the last record of the same test, model, threads and device on
the same kind of machine (``machine_key``). Program, commit and engine may differ: they are what
is being judged.

**Noise.** A median of n speeds with quartiles q1 and q3 is uncertain by
``1.2533 * (q3 - q1) / 1.349 / sqrt(n)``, one standard error for normal errors. Of fewer than
``FEW`` repetitions quartiles say nothing, and ``UNKNOWN`` of the median is taken. Two runs at
different times also differ because a machine drifts: by the median change between earlier
comparable runs one after the other, once there are ``FEW`` such changes, before that by
``UNKNOWN``. The errors are independent, so their squares add up. In a run that alternates with
another program both drift alike: what counts is the spread of the paired ratios. A test is
slower than allowed only if its ratio is below what is asked by more than ``SURE`` standard errors.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from kinetic.api.bench import FORM
from kinetic.errors import FileProblem

Record: TypeAlias = Mapping[str, Any]
Row: TypeAlias = Mapping[str, Any]
"""One test's part of a record."""

FILE = "bench.jsonl"

MOST_BYTES = 256 << 20
"""A store that is larger is refused rather than read: that is a million tests."""

FEW, UNKNOWN, SURE = 3, 0.05, 2.0

MEDIAN_ERROR, QUARTILES = 1.2533, 1.349
"""Standard error of a median to that of a mean, and width of a normal distribution between its quartiles."""

MACHINE = ("processor", "architecture", "cores", "usable", "quota", "isa")
"""What makes two machines of one kind; names of ``kinetic.api.machine.Machine``, and the instruction set."""

BARS = "▁▂▃▄▅▆▇█"


class Stored(NamedTuple):
    """What a store holds, oldest first, and how many lines were passed over because they are no records."""

    records: list[Record]
    skipped: int


class Judgement(NamedTuple):
    """One test against what it is measured by: an earlier record, or another program."""

    test: str
    threads: int
    ratio: float
    """Speed now to speed then, or ours to theirs."""
    noise: float
    """One standard error of the ratio, relative to it."""
    against: str
    """What it is compared with, in words."""

    def is_below(self, wanted: float) -> bool:
        """Whether the ratio is below ``wanted`` by more than the noise explains."""
        return self.ratio * (1 + SURE * self.noise) < wanted


# --- the file ---


def append(folder: Path, record: Record) -> Path:
    """Add a record, whole and flushed to the disk; the folder and the file are made. FileProblem if they can't be."""
    path = folder / FILE
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            _lock(file.fileno())  # until the file is closed
            file.write((b"\n" if _is_torn(file.fileno()) else b"") + line)
            os.fsync(file.fileno())
    except OSError as error:
        raise FileProblem(f"{path} can't be written: {error.strerror}", name="BENCH_STORE") from error
    return path


def _lock(handle: int) -> None:
    try:
        import fcntl
    except ImportError:  # not a POSIX system: two writers at once are up to the user
        return
    fcntl.flock(handle, fcntl.LOCK_EX)


def _is_torn(handle: int) -> bool:
    """Whether the file ends in the middle of a line."""
    size = os.fstat(handle).st_size
    return size > 0 and os.pread(handle, 1, size - 1) != b"\n"


def read(folder: Path) -> Stored:
    """All records; none if there is no store. FileProblem if there is one that can't be read."""
    path = folder / FILE
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FileProblem(f"{path} is larger than {MOST_BYTES >> 20} MiB: move it away", name="BENCH_STORE")
        return records_of(path.read_bytes())
    except FileNotFoundError:
        return Stored([], 0)
    except OSError as error:
        raise FileProblem(f"{path} can't be read: {error.strerror}", name="BENCH_STORE") from error


def records_of(data: bytes) -> Stored:
    """The records in the bytes of a store, or in those of ``kinetic bench --json``."""
    lines = data.splitlines()
    records = [record for record in map(_record, lines) if record]
    return Stored(records, sum(map(bool, lines)) - len(records))


def _record(line: bytes) -> Record | None:
    """The record in a line, or None if it isn't one of this form."""
    try:
        record = json.loads(line)
        texts = [record["time"], record["kinetic"], record["engine_id"], record["device"], record["model"]["blake3"]]
        rows = record["results"]
        known = record["format"] == FORM and all(map(_is_row, rows)) and isinstance(record["machine"], dict)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return record if known and all(isinstance(text, str) for text in texts) else None


def _is_row(row: Row) -> bool:
    parts = [row, *(row[name] for name in ("peer", "ratio") if name in row)]
    numbers = [part[name] for part in parts for name in ("median", "q1", "q3")] + [*row["speeds"]]
    named = isinstance(row["test"], str) and isinstance(row["threads"], int) and len(row["speeds"]) > 0
    return named and all(isinstance(number, (int, float)) and 0 < number < math.inf for number in numbers)


# --- what is comparable ---


def machine_key(record: Record) -> tuple[str, ...]:
    """What must be the same of two machines for their speeds to be comparable."""
    return tuple(str(record["machine"].get(name)) for name in MACHINE)


def _key(record: Record, row: Row) -> tuple[Any, ...]:
    return record["model"]["blake3"], record["device"], machine_key(record), row["test"], row["threads"]


def earlier(records: Sequence[Record], record: Record, row: Row) -> list[tuple[Record, Row]]:
    """The same test in comparable records, oldest first."""
    wanted = _key(record, row)
    return [(old, found) for old in records for found in old["results"] if _key(old, found) == wanted]


# --- noise ---


def median_error(row: Row) -> float:
    """One standard error of a test's median, relative to it."""
    return _error(row["q1"], row["median"], row["q3"], len(row["speeds"]))


def _error(q1: float, median: float, q3: float, count: int) -> float:
    return MEDIAN_ERROR * (q3 - q1) / QUARTILES / median / math.sqrt(count) if count >= FEW else UNKNOWN


def drift(medians: Sequence[float]) -> float:
    """How much a run differs from the one before it, relative: the median of what was seen."""
    changes = [abs(math.log(new / old)) for old, new in pairwise(medians)]
    return statistics.median(changes) if len(changes) >= FEW else UNKNOWN


# --- judging ---


def against_last(record: Record, records: Sequence[Record]) -> list[Judgement]:
    """Each test against the last comparable of ``records``, all made before; a test without one isn't judged."""
    found = []
    for row in record["results"]:
        past = earlier(records, record, row)
        if past:
            old, last = past[-1]
            errors = median_error(row), median_error(last), drift([then["median"] for _, then in past])
            against = f"{old['kinetic']}, {old['time']}"
            ratio = row["median"] / last["median"]
            found.append(Judgement(row["test"], row["threads"], ratio, math.hypot(*errors), against))
    return found


def against_peer(record: Record) -> list[Judgement]:
    """Each test against the program that ran beside it."""
    found = []
    for row in record["results"]:
        ratio = row.get("ratio")
        if ratio:
            noise = _error(ratio["q1"], ratio["median"], ratio["q3"], len(ratio["ratios"]))
            found.append(Judgement(row["test"], row["threads"], ratio["median"], noise, record["peer"]))
    return found


# --- the trend ---


class Series(NamedTuple):
    """One test over time, oldest first."""

    test: str
    threads: int
    points: list[tuple[Record, Row]]

    @property
    def medians(self) -> list[float]:
        return [row["median"] for _, row in self.points]


def trend(records: Sequence[Record], model: str, like: Record) -> list[Series]:
    """Every test of the model with this BLAKE3 on machines of one kind with ``like``'s, in order of appearance."""
    series: dict[tuple[str, int, str], Series] = {}
    for record in records:
        if record["model"]["blake3"] == model and machine_key(record) == machine_key(like):
            for row in record["results"]:
                name = row["test"] if record["device"] == "cpu" else f"{row['test']} ({record['device']})"
                key = (row["test"], row["threads"], record["device"])
                series.setdefault(key, Series(name, row["threads"], [])).points.append((record, row))
    return list(series.values())


def sparkline(values: Sequence[float]) -> str:
    """One bar a value, from the least to the most; of equal values all are in the middle."""
    low, high = min(values), max(values)
    if low == high:
        return BARS[3] * len(values)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in values)

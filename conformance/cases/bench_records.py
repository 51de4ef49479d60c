"""The bench store keeps what was measured: whole records, in order, whatever a crash left behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from conformance import bench_store
from conformance.case import Case, Evidence, require
from conformance.setting import Setting
from kinetic.api.bench import FORM

PROPERTY = "A bench record is read back as it was written, and a loss of speed beyond the noise is told from none."
OF_MODELS = False

MACHINE = dict.fromkeys(bench_store.MACHINE, "one")


def cases(setting: Setting) -> Iterator[Case]:
    for name, run in {"read-back": _read_back, "torn-line": _torn, "loss": _loss, "other-machine": _other}.items():
        yield Case(name, partial(_in_folder, setting, run))


def _in_folder(setting: Setting, run: Callable[[Path], str]) -> Evidence:
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        return Evidence(run(Path(folder)))


def _record(time: str, median: float, **more: Any) -> dict[str, Any]:
    speeds = [median * (1 + step / 1000) for step in range(-3, 4)]
    row = {"test": "tg128", "threads": 2, "median": median, "q1": speeds[1], "q3": speeds[5], "speeds": speeds}
    about = {"format": FORM, "time": time, "kinetic": "0", "engine_id": "e", "device": "cpu"}
    return about | {"machine": MACHINE, "model": {"blake3": "00"}, "results": [row]} | more


def _read_back(folder: Path) -> str:
    written: list[bench_store.Record] = [_record("2026-01-01", 10.0), _record("2026-01-02", 10.1)]
    for record in written:
        bench_store.append(folder, record)
    require(bench_store.read(folder) == bench_store.Stored(written, 0), "the records read are not those written")
    return "two records, read back whole and in order"


def _torn(folder: Path) -> str:
    path = bench_store.append(folder, _record("2026-01-01", 10.0))
    with open(path, "ab") as file:
        file.write(b'{"format": "kinet')
    bench_store.append(folder, _record("2026-01-02", 10.1))
    stored = bench_store.read(folder)
    require((len(stored.records), stored.skipped) == (2, 1), "a line that a crash cut short hid a record")
    return "two records around a line that a crash cut short"


def _loss(folder: Path) -> str:
    past = [_record(f"2026-01-0{day}", median) for day, median in enumerate((10.0, 10.1, 10.0, 10.1, 10.0), 1)]
    (slower,) = bench_store.against_last(_record("2026-02-01", 7.0), past)
    (same,) = bench_store.against_last(_record("2026-02-01", 9.97), past)
    require(slower.is_below(0.95), "30 % slower counts as no loss")
    require(not same.is_below(0.95), "a third of a percent counts as a loss of five")
    return "30 % slower is a loss, and 0.3 % is none"


def _other(folder: Path) -> str:
    other = _record("2026-01-01", 10.0, machine=MACHINE | {"processor": "another"})
    require(not bench_store.against_last(_record("2026-02-01", 7.0), [other]), "another machine's speed was compared")
    return "a record of another machine is not compared"

"""The speeds that a baseline asks for, and whether a record of ``kinetic bench`` made now keeps them.

A speed is bound to a kind of machine (``bench_store.machine_key``): elsewhere it is skipped, with that as the reason.
Of a test that was measured beside the same version of another program the ratio to it counts, since a busy machine
slows both alike; else the median. Noise is that of ``bench_store``. Nothing is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from conformance import bench_store
from conformance.bench_store import Judgement, Record, Row
from conformance.gate_outcome import BENCH, FAILED, PASSED, SKIPPED, SLOWER, UNJUDGED, Outcome
from ktc.errors import Malformed
from ktc.fields import Hex, Int, Optional, Table, Text
from ktc.files import read_bounded
from receipts.report.shown import visible
from receipts.schema import LABEL

Entry: TypeAlias = dict[str, Any]

NUMBER = Text(32, pattern=r"(?!0+(\.0+)?$)[0-9]{1,12}(\.[0-9]{1,6})?")
"""A number above 0 as text: JSON's own floats have many spellings."""

SPREAD = Table(median=NUMBER, q1=NUMBER, q3=NUMBER)

EXPECTATION = Table(
    model=Hex(),  # BLAKE3 of its first file
    test=LABEL,
    threads=Int(1),
    device=LABEL,
    machine=Table(**dict.fromkeys(bench_store.MACHINE, LABEL)),
    speed=SPREAD,  # tokens a second
    count=Int(1),  # rounds
    peer=LABEL,  # the program that took turns, and its version; "" if none did
    ratio=Optional(SPREAD),  # to the peer
    kinetic=LABEL,
    time=LABEL,
)


# --- writing ---


def read_records(path: str) -> list[Record]:
    """The measurements in a file of ``kinetic bench --json``, or in a bench store. Raises any KtcError, if none too."""
    found = bench_store.records_of(read_bounded(path, bench_store.MOST_BYTES))
    if not found.records:
        raise Malformed(
            f"{path} holds no measurement: `kinetic bench MODEL --json -o {path}` makes one", name="NO_RECORD"
        )
    return found.records


def expectations(records: Sequence[Record]) -> tuple[list[Entry], dict[str, Entry]]:
    """What a baseline says of these measurements, the last of each kind; and of their models, by BLAKE3."""
    found: dict[tuple[Any, ...], Entry] = {}
    models: dict[str, Entry] = {}
    for record in records:
        about = record["model"]
        known = {"name": about.get("file", ""), "size": about.get("size", 0), "pull": ""}
        models[about["blake3"]] = {"blake3": about["blake3"]} | known
        for row in record["results"]:
            entry = _expectation(record, row)
            found[_question(entry), tuple(entry["machine"].values())] = entry
    return [found[key] for key in sorted(found)], models


def _expectation(record: Record, row: Row) -> Entry:
    ratio = row.get("ratio")
    return {
        "model": record["model"]["blake3"],
        "test": row["test"],
        "threads": row["threads"],
        "device": record["device"],
        "machine": _machine_of(record),
        "speed": _spelled(row),
        "count": len(row["speeds"]),
        "peer": record.get("peer", "") if ratio else "",
        "ratio": _spelled(ratio) if ratio else "",
        "kinetic": record["kinetic"],
        "time": record["time"],
    }


def _machine_of(record: Record) -> dict[str, str]:
    return dict(zip(bench_store.MACHINE, bench_store.machine_key(record), strict=True))


def _spelled(spread: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{spread[name]:.6f}".rstrip("0").rstrip(".") for name in SPREAD.fields}


def _question(entry: Entry) -> tuple[str, str, str, int]:
    """What is measured, wherever it is."""
    return entry["model"], entry["device"], entry["test"], entry["threads"]


# --- judging ---


def judge(
    entries: Sequence[Entry], records: Sequence[Record] | None, names: Mapping[str, str], below: float = 1.0
) -> list[Outcome]:
    """An outcome for each speed that is asked for, in the order of the baseline.

    Of one test measured on several machines only that of this one is judged. ``records`` is what was
    measured now, None if nothing was; ``names`` are those of models by BLAKE3; ``below`` the ratio that fails.
    """
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(_question(entry), []).append(entry)
    return [_judge(group, records, names.get(group[0]["model"], ""), below) for group in groups.values()]


def _judge(group: Sequence[Entry], records: Sequence[Record] | None, model: str, below: float) -> Outcome:
    threads = group[0]["threads"]
    subject = f"{model or group[0]['model'][:16]} {group[0]['test']}, {threads} thread{'' if threads == 1 else 's'}"
    measured = _measured(group[0], records or ())
    for now in reversed(measured):
        for then in group:
            if then["machine"] == _machine_of(now):
                return _compare(subject, now, then, below)
    if measured:
        here, there = _machine(_machine_of(measured[-1])), [_machine(entry["machine"]) for entry in group]
        reason = f"measured on {here}, and the baseline is of {'; '.join(there)}"
        return Outcome(subject, BENCH, SKIPPED, "OTHER_MACHINE", reason, UNJUDGED)
    reason = "no measurement was given: `kinetic bench MODEL --json -o FILE` makes one, --bench FILE gives it"
    if records is not None:
        reason = "none of the measurements that --bench gives is of this model, test, threads and device"
    return Outcome(subject, BENCH, SKIPPED, "NOT_MEASURED", reason, UNJUDGED)


def _measured(entry: Entry, records: Sequence[Record]) -> list[Record]:
    """Each record that has this test, with that test alone; oldest first."""
    found: list[Record] = []
    for record in records:
        for row in record["results"]:
            if (record["model"]["blake3"], record["device"], row["test"], row["threads"]) == _question(entry):
                found.append({**record, "results": [row]})
    return found


def _machine(facts: Mapping[str, str]) -> str:
    cores = f"{facts['usable']} of {facts['cores']} cores"
    parts = [facts["processor"], facts["architecture"], cores, facts["isa"]]
    parts += [f"quota {facts['quota']}"] if facts["quota"] not in ("", "None") else []
    return visible(", ".join(filter(None, parts)))


def _compare(subject: str, now: Record, then: Entry, below: float) -> Outcome:
    judged = _judgement(now, then)
    what = f"{judged.ratio:.3f} of {judged.against}"
    if judged.is_below(below):
        sentence = f"{what}, below {below:g} by more than the noise of {judged.noise:.1%}"
        return Outcome(subject, BENCH, FAILED, "SLOWER", sentence, SLOWER, diff=_diff(now, then))
    return Outcome(subject, BENCH, PASSED, "FAST_ENOUGH", f"{what}, noise {judged.noise:.1%}")


def _judgement(now: Record, then: Entry) -> Judgement:
    """By the ratio to the same version of another program, if both have one, or else by the median."""
    row, against = now["results"][0], f"{then['kinetic']}, {then['time']}"
    if then["ratio"] and row.get("ratio") and now.get("peer") == then["peer"]:
        old, new = _row(then["ratio"], then["count"]), row["ratio"] | {"speeds": row["ratio"]["ratios"]}
        noise = math.hypot(bench_store.median_error(old), bench_store.median_error(new))
        ratio = new["median"] / old["median"]
        return Judgement(row["test"], row["threads"], ratio, noise, f"{against}, beside {then['peer']}")
    about = {"test": then["test"], "threads": then["threads"]}
    past = {
        **now,
        "kinetic": then["kinetic"],
        "time": then["time"],
        "results": [about | _row(then["speed"], then["count"])],
    }
    return bench_store.against_last(now, [past])[0]


def _row(spread: Mapping[str, str], count: int) -> dict[str, Any]:
    """A spread as a row of a record; of the single speeds only their number matters."""
    numbers: dict[str, Any] = {name: float(text) for name, text in spread.items()}
    return numbers | {"speeds": [numbers["median"]] * count}


def _diff(now: Record, then: Entry) -> tuple[str, ...]:
    row = now["results"][0]
    old, new = then["speed"], _spelled(row)
    by = f" ({then['kinetic']}, {then['time']})"
    lines = [f"- {old['median']} tokens/s, quartiles {old['q1']} to {old['q3']}{by}"]
    lines += [f"+ {new['median']} tokens/s, quartiles {new['q1']} to {new['q3']}"]
    return tuple(map(visible, lines))

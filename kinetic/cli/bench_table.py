"""What ``kinetic bench`` prints: Markdown, CSV and JSON of one measurement, or of all that were kept."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kinetic.cli.report_options import shown

if TYPE_CHECKING:
    from conformance.bench_store import Judgement, Record, Row, Series

COLUMNS = ("test", "kind", "tokens", "depth", "threads", "median", "q1", "q3", "least", "most")

SHOWN = 20
"""Measurements of a history that get a line of their own."""


def json_text(record: Record, judged: Sequence[Judgement]) -> str:
    """The record as it is kept, and what it was compared with."""
    judgements = [one._asdict() for one in judged]
    return json.dumps({**record, "judgements": judgements}, ensure_ascii=False, allow_nan=False) + "\n"


# --- Markdown ---


def markdown(record: Record, judged: Sequence[Judgement]) -> str:
    return "\n".join([*_about(record), "", *_table(record, judged), ""])


def _about(record: Record) -> Iterator[str]:
    model, machine = record["model"], record["machine"]
    commit = f" ({record['commit'][:7]})" if record["commit"] else ""
    yield f"{shown(model['file'])}, {model['size'] / 1e6:,.1f} MB, BLAKE3 {model['blake3'][:16]}  "
    yield f"kinetic {record['kinetic']}{commit}, engine {record['engine_id'][:20]}, profile {record['profile']}  "
    yield f"{_machine(machine)}  "
    beside = f" beside {record['peer']}" if record["peer"] else ""
    rounds = f"{record['repetitions']} round{'' if record['repetitions'] == 1 else 's'}"
    yield f"{rounds}{beside}, medians; quartiles in brackets"


def _machine(machine: dict[str, Any]) -> str:
    cores = f"{machine['physical'] or machine['cores']} cores"
    cores += f" ({machine['usable']} usable)" if machine["usable"] < machine["cores"] else ""
    parts = [machine["processor"], cores, machine["isa"]]
    parts += [f"quota {machine['quota']:g}"] if machine["quota"] else []
    parts += [f"{machine['memory'] / 1e9:.1f} GB"] if machine["memory"] else []
    parts += [machine["system"]]
    parts += [f"load {machine['load']} before"] if machine["load"] is not None else []
    return shown(", ".join(filter(None, parts)))


def _table(record: Record, judged: Sequence[Judgement]) -> Iterator[str]:
    head = ["test", "threads", "tokens/s", "least"]
    head += ["llama.cpp", "ratio"] if record["peer"] else ["to the last"] if judged else []
    yield _line(head)
    yield _line(["---", *["--:"] * (len(head) - 1)])
    last = {(one.test, one.threads): one for one in judged}
    for row in record["results"]:
        cells = [row["test"], str(row["threads"]), _range(row, 1), f"{row['least']:.1f}"]
        if record["peer"]:
            cells += [_range(row["peer"], 1), _range(row["ratio"], 2)]
        elif judged:
            one = last.get((row["test"], row["threads"]))
            cells.append(f"{one.ratio:.2f} ± {one.noise * one.ratio:.2f}" if one else "")
        yield _line(cells)


def _range(row: Row, digits: int) -> str:
    return f"{row['median']:.{digits}f} ({row['q1']:.{digits}f}-{row['q3']:.{digits}f})"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# --- CSV ---


def csv_text(record: Record, judged: Sequence[Judgement]) -> str:
    return _csv([record])


def _csv(records: Iterable[Record]) -> str:
    out = io.StringIO()
    lines = [line for record in records for line in _csv_lines(record)]
    writer = csv.DictWriter(out, _CSV_NAMES, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


_CSV_NAMES = (
    *("time", "kinetic", "commit", "engine_id", "profile", "device", "file", "blake3", "processor", "cores", "isa"),
    *(*COLUMNS, "peer", "peer_median", "peer_q1", "peer_q3", "ratio_median", "ratio_q1", "ratio_q3"),
)


def _csv_lines(record: Record) -> Iterator[dict[str, Any]]:
    about = {name: record.get(name, "") for name in ("time", "kinetic", "commit", "engine_id", "profile", "device")}
    about |= {name: record["model"].get(name, "") for name in ("file", "blake3")}
    about |= {name: record["machine"].get(name, "") for name in ("processor", "cores", "isa")}
    for row in record["results"]:
        line = about | {name: row.get(name, "") for name in COLUMNS} | {"peer": record.get("peer", "")}
        for part in ("peer", "ratio"):
            line |= {f"{part}_{name}": row[part][name] for name in ("median", "q1", "q3") if part in row}
        yield {name: _harmless(value) for name, value in line.items()}


def _harmless(value: Any) -> Any:
    """No cell is taken for a formula by a program that shows tables."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


# --- history ---


def history(series: Sequence[Series]) -> str:
    """A line for each test, with its trend, then a line for each measurement."""
    from conformance.bench_store import sparkline

    if not series:
        return "There is no measurement of this model on this machine yet: `kinetic bench MODEL` makes one.\n"
    lines = [_line(["test", "threads", "runs", "first", "last", "change", "trend"])]
    lines.append(_line(["---", *["--:"] * 5, "---"]))
    for one in series:
        first, last = one.medians[0], one.medians[-1]
        cells = [one.test, str(one.threads), str(len(one.points)), f"{first:.1f}", f"{last:.1f}"]
        lines.append(_line([*cells, f"{last / first - 1:+.1%}", sparkline(one.medians[-SHOWN:])]))
    return "\n".join([*lines, "", *_measurements(series), ""])


def _measurements(series: Sequence[Series]) -> Iterator[str]:
    """Newest last: who measured when, and each test's median."""
    records = {id(record): record for one in series for record, _ in one.points}
    cells = {(id(record), number): row for number, one in enumerate(series) for record, row in one.points}
    yield _line(["time", "version", "commit", "engine", *(f"{one.test}, {one.threads} t" for one in series)])
    yield _line(["---"] * 4 + ["--:"] * len(series))
    for record in sorted(records.values(), key=lambda record: record["time"])[-SHOWN:]:
        found = [cells.get((id(record), number)) for number in range(len(series))]
        about = [record["time"], record["kinetic"], str(record.get("commit", ""))[:7], record["engine_id"][:12]]
        yield _line([*map(shown, about), *(f"{row['median']:.1f}" if row else "" for row in found)])


def history_csv(series: Sequence[Series]) -> str:
    return _csv(_records(series))


def history_json(series: Sequence[Series]) -> str:
    return json.dumps({"records": _records(series)}, ensure_ascii=False) + "\n"


def _records(series: Sequence[Series]) -> list[Record]:
    """Each measurement once, oldest first."""
    records = {id(record): record for one in series for record, _ in one.points}
    return sorted(records.values(), key=lambda record: record["time"])

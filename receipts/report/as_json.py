"""A report as JSON: every row with everything its verdict says.

    {"type": "kinetic-report", "version": 1, "title": ..., "facts": [{"name": ..., "value": ...}],
     "exit_code": ..., "counts": {"SIGNATURE": 0, ..., "IDENTICAL": 50}, "rows": [...]}

A row that was rerun now has "timing" beside: {"load_seconds", "check_seconds", "tokens_per_second"}.
A number that is not finite is the text "Infinity", "-Infinity" or "NaN", which JSON's
numbers cannot say. Half of a surrogate pair, which a file name may hold and UTF-8
cannot, is written out as six characters. The text is ASCII, one row a line.
"""

from __future__ import annotations

import json
import math
from typing import Any

from receipts.errors import worst
from receipts.report.rows import Report, Row, counts, word
from receipts.report.shown import whole


def json_row(row: Row) -> dict[str, Any]:
    """What ``verify-receipt --json`` prints of a file: plain values, fit for ``json.dumps``."""
    verdict: dict[str, Any] = _plain(row.verdict)
    ids = {"receipt_id": row.receipt_id, "question_id": row.question_id}
    timing = {"timing": {key: round(value, 6) for key, value in row.timing._asdict().items()}} if row.timing else {}
    return {"file": whole(row.file), "verdict": word(row.verdict)} | verdict | ids | timing


def to_json(report: Report) -> str:
    """The report as one JSON object."""
    head = {
        "type": "kinetic-report",
        "version": 1,
        "title": report.title,
        "facts": [{"name": name, "value": value} for name, value in report.facts],
        "exit_code": worst(row.verdict.exit_code for row in report.rows),
        "counts": counts(report.rows),
    }
    lines = [f"{_dumps(key)}: {_dumps(_plain(value))}" for key, value in head.items()]
    rows = ",\n".join("  " + _dumps(_whole_row(row)) for row in report.rows)
    return "{" + ",\n ".join([*lines, f'"rows": [\n{rows}\n ]' if rows else '"rows": []']) + "}\n"


def _whole_row(row: Row) -> dict[str, Any]:
    rest = {
        "model": row.model,
        "seconds": round(row.seconds, 3),
        "is_kept": row.is_kept,
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": row.output_tokens,
    }
    return json_row(row) | {key: _plain(value) for key, value in rest.items()}


def _plain(value: Any) -> Any:
    """Only what JSON has: no NamedTuple, no infinity, no half of a surrogate pair."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _dumps(value: object) -> str:
    return json.dumps(value, allow_nan=False)

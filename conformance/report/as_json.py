"""A report as JSON, one case a line.

{"type": "kinetic-conformance", "version": 1, "facts": {...}, "exit_code": 0,
 "counts": {"passed": 171, "failed": 0, "skipped": 0}, "cases": [{"id": ..., "property": ..., "outcome": ...,
 "text": ..., "digest": ..., "seconds": ...}]}
"""

from __future__ import annotations

import json
from typing import Any

from conformance.report.rows import Report
from conformance.suite import Result, counts
from receipts.report.shown import whole


def to_json(report: Report) -> str:
    head = {
        "type": "kinetic-conformance",
        "version": 1,
        "facts": {name: whole(value) for name, value in report.facts},
        "exit_code": report.exit_code,
        "counts": counts(report.results),
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    cases = ",\n".join("  " + json.dumps(_case(result)) for result in report.results)
    return "{" + ",\n ".join([*lines, f'"cases": [\n{cases}\n ]' if cases else '"cases": []']) + "}\n"


def _case(result: Result) -> dict[str, Any]:
    table = {name: whole(value) if isinstance(value, str) else value for name, value in result._asdict().items()}
    return table | {"seconds": round(result.seconds, 3)}

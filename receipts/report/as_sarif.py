"""A report as SARIF 2.1.0 (OASIS): a result for each receipt that is not identical.

A rule is a verdict and the stable name behind it, such as ``MALFORMED/TEXT``.
Sections in the comments are those of the specification.
"""

from __future__ import annotations

import json
import posixpath
from typing import Any

from receipts.report.meanings import SAYS, advice, brief
from receipts.report.rows import NOT_RERUN, Report, Row, reason, word
from receipts.report.shown import visible, whole

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_WARNINGS = ("UNVERIFIABLE", "LIMIT")


def to_sarif(report: Report) -> str:
    """The report as one JSON object with one run."""
    rows = [row for row in report.rows if word(row.verdict) != "IDENTICAL"]
    rules = {_rule_id(row): _rule(row) for row in rows}
    places = {rule: index for index, rule in enumerate(rules)}
    run = {
        "tool": {"driver": {"name": "Kinetic", "rules": list(rules.values())}},
        "automationDetails": {"id": "kinetic-audit/"},
        "invocations": [{"executionSuccessful": not any(word(row.verdict) == "FAULT" for row in rows)}],
        "columnKind": "unicodeCodePoints",
        "results": [_result(row, places[_rule_id(row)]) for row in rows],
        "properties": {
            "title": whole(report.title),
            "facts": [{"name": whole(name), "value": whole(value)} for name, value in report.facts],
        },
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, allow_nan=False, indent=1) + "\n"


def _rule_id(row: Row) -> str:
    """One name can stand behind two verdicts, so the word is part of it."""
    return "/".join(filter(None, [word(row.verdict), visible(reason(row.verdict))]))


def _rule(row: Row) -> dict[str, Any]:
    kind = word(row.verdict)
    what = brief(kind, row.verdict.name)
    return {
        "id": _rule_id(row),
        "shortDescription": {"text": what},
        "fullDescription": {"text": f"{kind}: {SAYS[kind]}."},
        "help": {"text": f"{what} {advice(kind)}"},
        "defaultConfiguration": {"level": _level(kind)},
    }


def _level(kind: str) -> str:
    if kind == NOT_RERUN:
        return "note"
    return "warning" if kind in _WARNINGS else "error"


def _result(row: Row, rule_index: int) -> dict[str, Any]:
    result = {
        "ruleId": _rule_id(row),
        "ruleIndex": rule_index,
        "level": _level(word(row.verdict)),
        "message": {"text": _message(row.verdict.sentence)},
        "locations": [_location(row.file)],
        "properties": {
            "receipt_id": row.receipt_id,
            "question_id": row.question_id,
            "exit_code": row.verdict.exit_code,
            "is_kept": row.is_kept,
        },
    }
    return result | ({"partialFingerprints": {"receiptId/v1": row.receipt_id}} if row.receipt_id else {})


def _message(text: str) -> str:
    """Plain text: braces are doubled (3.11.5), and a space keeps ``](`` from being a link (3.11.6)."""
    return visible(text).replace("{", "{{").replace("}", "}}").replace("](", "] (") or "no sentence"


def _location(file: str) -> dict[str, Any]:
    """Viewers want a line even of a file that has none."""
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(file)}, "region": {"startLine": 1}}}


def _uri(file: str) -> str:
    """A relative reference (RFC 3986), or a file URI of an absolute path; all but plain characters percent-encoded."""
    from urllib.parse import quote_from_bytes

    try:
        data = file.encode("utf-8", "surrogateescape")  # the file name's own bytes
    except UnicodeEncodeError:
        data = whole(file).encode("utf-8")
    path = posixpath.normpath(quote_from_bytes(data, safe="/"))
    return f"file://{path}" if path.startswith("/") else path

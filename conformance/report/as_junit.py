"""A report as JUnit XML: one suite a property, by the writer that reports of receipts use."""

from __future__ import annotations

from conformance.report.rows import Report
from conformance.suite import DIFFERS, FAILED, PASSED, SKIPPED, UNVERIFIABLE, Result
from receipts.report import Report as Table
from receipts.report import Row
from receipts.report import to_junit as write
from receipts.verify import Verdict

_VERDICTS = {PASSED: (0, ""), FAILED: (DIFFERS, "FAILED"), SKIPPED: (UNVERIFIABLE, "SKIPPED")}


def to_junit(report: Report) -> str:
    return write(Table([_row(result) for result in report.results], "kinetic conformance", report.facts))


def _row(result: Result) -> Row:
    code, name = _VERDICTS[result.outcome]
    verdict = Verdict(code, name, f"{result.text} ({result.property})", method="conformance")
    return Row(result.id, verdict, model=result.id.partition("/")[0], seconds=result.seconds)

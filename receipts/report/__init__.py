"""What verifying found, as a report: plain data in, one text out.

JSON for programs, JUnit XML and SARIF for the systems that run builds, HTML for
people. Nothing here reads a file, a clock or a receipt: the same report is the
same text. Every text that comes from a receipt, a model or a folder is hostile.
"""

from __future__ import annotations

from receipts.report.as_html import to_html
from receipts.report.as_json import json_row, to_json
from receipts.report.as_junit import to_junit
from receipts.report.as_sarif import to_sarif
from receipts.report.rows import NOT_RERUN, WORDS, Report, Row, counts, headline, word

__all__ = [
    "NOT_RERUN",
    "WORDS",
    "Report",
    "Row",
    "counts",
    "headline",
    "json_row",
    "to_html",
    "to_json",
    "to_junit",
    "to_sarif",
    "word",
]

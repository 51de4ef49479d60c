"""What the suite found, as a table for people, JSON, JUnit XML and HTML. Plain data in, one text out."""

from __future__ import annotations

from conformance.report.as_html import to_html
from conformance.report.as_json import to_json
from conformance.report.as_junit import to_junit
from conformance.report.as_markdown import to_markdown
from conformance.report.rows import Report, headline

__all__ = ["Report", "headline", "to_html", "to_json", "to_junit", "to_markdown"]

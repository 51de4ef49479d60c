"""The table of verdicts: one row a receipt, the gravest first."""

from __future__ import annotations

from collections.abc import Container, Sequence

from receipts.report.rows import Row, counts, headline, reason, word
from receipts.report.shown import clip, html

MAX_ROWS = 20_000
"""Rows beyond are left out, the least grave first: a browser lays out more only slowly."""

_GROUP = 100  # rows that a browser lays out together, once they come near the screen

_COLUMNS = ("File", "Verdict", "What it says", "Model", "Tokens", "Signature", "Time", "Run")


def badge(name: str) -> str:
    """A word in a frame; the style sets a sign before it that tells it apart without colour."""
    return f'<b class="badge">{name.replace("_", " ")}</b>'


def verdict_table(rows: Sequence[Row], linked: Container[int]) -> str:
    """The table; row ``i`` has the id ``ri`` and, where ``i`` is in ``linked``, a link to the section ``di``."""
    if not rows:
        return ""
    heads = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    lines = [_row(index, row, index in linked) for index, row in enumerate(rows[:MAX_ROWS])]
    groups = ["\n".join(lines[start : start + _GROUP]) for start in range(0, len(lines), _GROUP)]
    return (
        '<section aria-labelledby="table">\n<h2 id="table">Receipts</h2>\n'
        '<table id="verdicts" class="verdicts">\n'
        "<caption>The gravest verdicts first. Tokens are those of the prompt and of the output.</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n"
        + "\n".join(f"<tbody>\n{group}\n</tbody>" for group in groups)
        + f"\n</table>\n{_left_out(rows[MAX_ROWS:])}</section>"
    )


def _row(index: int, row: Row, has_link: bool) -> str:
    verdict, name = row.verdict, word(row.verdict)
    why = reason(verdict)
    mark = badge(name) + (f"<small>{html(why)}</small>" if why else "")
    if has_link:
        mark = f'<a href="#d{index}">{mark}</a>'
    short = f"<small>{html(row.receipt_id[:16])}</small>" if row.receipt_id else ""
    cells = [
        f'<th scope="row">{html(row.file)}{short}</th>',
        f"<td>{mark}</td>",
        f"<td>{html(clip(verdict.sentence, 600))}</td>",
        f"<td>{html(clip(row.model, 200))}</td>",
        f"<td>{_tokens(row)}</td>",
        f"<td>{html(clip(verdict.signature, 200))}</td>",
        f"<td>{_time(row)}</td>",
        f"<td>{'kept' if row.is_kept else 'fresh'}</td>",
    ]
    return f'<tr id="r{index}" class="v-{name}">{"".join(cells)}</tr>'


def _tokens(row: Row) -> str:
    return f"{row.prompt_tokens:,} + {row.output_tokens:,}" if row.prompt_tokens or row.output_tokens else ""


def _time(row: Row) -> str:
    return f"{row.seconds:,.2f} s" if row.seconds >= 0.005 else "0 s"


def _left_out(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    return f"<p>{len(rows):,} more are not in this table: {html(headline(counts(rows)))} The JSON form lists all.</p>\n"

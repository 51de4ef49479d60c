"""A report as one HTML file that needs nothing else: no request, and no script to read it.

Hostile text is escaped; should that ever fail, the content security policy lets
run and style nothing but what this package wrote, named by its digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from receipts.report.html_style import SCRIPT, STYLE
from receipts.report.html_table import badge, verdict_table
from receipts.report.html_tokens import sections
from receipts.report.meanings import SAYS
from receipts.report.rows import WORDS, Report, Row, counts, headline, word
from receipts.report.shown import html, markup

_PROVES = (
    "IDENTICAL means: this model file, with these prompt tokens and these settings, under this numerics profile, "
    "gives these output tokens. It does not say when, where or on what the answer was made, that it was the only run, "
    "or that it is right. Model and file names are claims. "
    "This page only shows what was found; the evidence is the receipts."
)


def to_html(report: Report) -> str:
    """The report as one HTML document; a few MB at most, whatever the report holds."""
    rows = sorted(report.rows, key=_gravity)
    table = counts(rows)
    parts, linked = sections(rows)
    return "\n".join(
        [
            _head(report.title),
            "<body>",
            f'<header>\n<p class="kind">Kinetic receipts &middot; report</p>\n<h1>{html(report.title)}</h1>',
            f'<p class="headline">{headline(table)}</p>',
            _facts(report.facts),
            "</header>\n<main>",
            _overview(table),
            verdict_table(rows, linked),
            *parts,
            "</main>",
            f"<footer><p>{_PROVES}</p></footer>",
            f"<script>{SCRIPT}</script>\n</body>\n</html>\n",
        ]
    )


def _gravity(row: Row) -> int:
    return WORDS.index(word(row.verdict))


def _head(title: str) -> str:
    sources = f"default-src 'none'; style-src {_digest(STYLE)}; script-src {_digest(SCRIPT)}"
    policy = f"{sources}; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{markup(title)}</title>\n<style>{STYLE}</style>\n</head>"
    )


def _digest(text: str) -> str:
    """The source expression that allows exactly this inline text (CSP level 3, section 6.7.3)."""
    from base64 import b64encode
    from hashlib import sha256

    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    items = [f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd></div>" for name, value in facts]
    return '<dl class="facts">' + "\n".join(items) + "</dl>" if items else ""


def _overview(table: Mapping[str, int]) -> str:
    """Counts as a bar, and as a list that says what each word means."""
    found = [name for name in WORDS[::-1] if table[name]]
    items = [
        f'<li class="v-{name}"><span class="count">{table[name]:,}</span> {badge(name)}'
        f'<span class="says">{SAYS[name]}</span></li>'
        for name in found
    ]
    if not items:
        return ""
    return (
        '<section aria-labelledby="counts">\n<h2 id="counts">Verdicts</h2>\n'
        f'{_bar(table, found)}\n<ul class="tiles">' + "\n".join(items) + "</ul>\n</section>"
    )


def _bar(table: Mapping[str, int], found: Sequence[str]) -> str:
    """Lengths in proportion, but none too short to be seen."""
    total, width, least = sum(table.values()), 1000.0, 8.0
    lengths = [max(least, width * table[name] / total) for name in found]
    scale, at, parts = width / sum(lengths), 0.0, []
    for name, length in zip(found, lengths, strict=True):
        parts.append(f'<rect class="v-{name}" x="{at:.1f}" y="0" width="{length * scale:.1f}" height="20"/>')
        at += length * scale
    says = ", ".join(f"{table[name]:,} {name.replace('_', ' ')}" for name in found)
    return (
        f'<svg class="bar" viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label="{says}">'
        f"<title>{says}</title>{''.join(parts)}</svg>"
    )

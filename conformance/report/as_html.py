"""A report as one HTML file that needs nothing else: no request and no script."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.report.rows import Report, headline, summaries
from conformance.suite import FAILED, PASSED, SKIPPED, Result
from receipts.report.shown import html, markup

TITLE = "Kinetic conformance"

_PROVES = (
    "A case that passed means: on this machine, with this program, bits were compared and were the same. "
    "A case that was skipped has shown nothing."
)
_SIGNS = {PASSED: "&#10003;", FAILED: "&#10007;", SKIPPED: "&ndash;"}
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --failed: #b3261e; --skipped: #8a6d00; --passed: #1b6e3c }
@media (prefers-color-scheme: dark) { :root { --failed: #ff8a80; --skipped: #e6c34a; --passed: #7fd6a0 } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem }
dd { margin: 0; overflow-wrap: anywhere }
code { overflow-wrap: anywhere }
.failed { color: var(--failed) } .skipped { color: var(--skipped) } .passed { color: var(--passed) }
"""


def to_html(report: Report) -> str:
    return "\n".join([_head(), *_body(report), "</body>\n</html>\n"])


def _head() -> str:
    from base64 import b64encode
    from hashlib import sha256

    style = b64encode(sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{TITLE}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    )


def _body(report: Report) -> Iterator[str]:
    yield f"<header><h1>{TITLE}</h1>\n<p>{html(headline(report))}</p>"
    facts = [f"<dt>{html(name)}</dt><dd>{html(value)}</dd>" for name, value in report.facts]
    yield "<dl>" + "\n".join(facts) + "</dl></header>\n<main>"
    yield (
        "<table><thead><tr><th>property</th><th></th>"
        + "".join(f'<th class="n">{name}</th>' for name in (PASSED, FAILED, SKIPPED, "seconds"))
        + "</tr></thead><tbody>"
    )
    for one in summaries(report):
        cells = "".join(f'<td class="n">{value}</td>' for value in (one.passed, one.failed, one.skipped))
        link = f'<a href="#{markup(one.name)}">{html(one.name)}</a>'
        yield f'<tr><td>{link}</td><td>{html(one.property)}</td>{cells}<td class="n">{one.seconds:.1f}</td></tr>'
    yield "</tbody></table>"
    for one in summaries(report):
        yield f'<h2 id="{markup(one.name)}">{html(one.name)}</h2>\n<p>{html(one.property)}</p>\n<table><tbody>'
        yield from (_case(result) for result in report.results if result.id.startswith(f"{one.name}/"))
        yield "</tbody></table>"
    yield f"</main>\n<footer><p>{_PROVES}</p></footer>"


def _case(result: Result) -> str:
    sign = f'<td class="{result.outcome}" title="{result.outcome}">{_SIGNS[result.outcome]} {result.outcome}</td>'
    digest = f"<br><code>{html(result.digest)}</code>" if result.digest else ""
    return f"<tr>{sign}<td><code>{html(result.id)}</code></td><td>{html(result.text)}{digest}</td></tr>"

"""Rows and reports with every verdict, and texts that mean harm."""

from __future__ import annotations

from receipts.report import Report, Row
from receipts.verify import Place, Verdict

MODEL = "tiny.gguf"

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'</td></tr></table></style></script><style>*{display:none}</style>",
    "]]></failure><!--",
    "-->&lt;&amp;&#x3c;",
    "a\x00\x07\x1b[31m\r\n\t\x7f\x85",
    "\u202egpj.exe\u2066\u200b\u200d\ufeff\u2028",
    "\udcff\ud800\ufffe\uffff\U0010ffff",
    "[here](javascript:alert(1)) {0} %s {}",
    "../../etc/passwd?#%00",
    "\u05d0\u05d1\u05d2 \u0627\u0644 \u0301\u0301\u0301",
)


def identical(count: int = 12, signature: str = "unsigned") -> Verdict:
    return Verdict(
        0, "IDENTICAL", f"all {count} tokens are the ones this model draws", count, method="replay", signature=signature
    )


def differs(count: int, positions: set[int], signature: str = "unsigned") -> Verdict:
    """``count`` positions; the receipt's tokens are named r0, r1, ..., the rerun's at ``positions`` g0, g1, ..."""
    trail = tuple(_place(at, at in positions) for at in range(count))
    at = min(positions)
    first = trail[at]
    return Verdict(
        10,
        "DIFFERS",
        f"token {at}: receipt says '{first.expected_text}', rerun gives '{first.got_text}'",
        at + 1,
        position=at,
        expected=first.expected,
        got=first.got,
        expected_text=first.expected_text,
        got_text=first.got_text,
        gap=first.gap,
        method="replay",
        signature=signature,
        trail=trail,
    )


def _place(at: int, differs: bool) -> Place:
    gap = 0.5 + at * 37 % 101 / 7 if not differs else 9.1
    got = (2000 + at, f" g{at}") if differs else (1000 + at, f" r{at}")
    return Place(1000 + at, f" r{at}", *got, gap)


def row_of(verdict: Verdict, file: str = "a.json", **fields: object) -> Row:
    return Row(file, verdict, **{"model": MODEL, "seconds": 1.25, "prompt_tokens": 30, "output_tokens": 12} | fields)  # type: ignore[arg-type]


def only(row: Row) -> Report:
    return Report([row], "One", [])


def sample_report(signature: str = "unsigned") -> Report:
    """Every word, two models, a kept row, hostile names."""
    verdicts = [
        identical(signature=signature),
        Verdict(0, "NOT_RERUN", "not in the sample", signature=signature),
        differs(120, {2, 90}, signature),
        differs(3, {2}, signature),
        Verdict(11, "OUTPUT_DIGEST", "the digest is not that of the output tokens", signature=signature),
        Verdict(12, "BAD_SIGNATURE", "the signature does not hold"),
        Verdict(13, "PROFILE", "the receipt was made under another profile"),
        Verdict(14, "RERUN_COST", "a rerun would take 9,000,000 tokens, and the limit is 2,097,152"),
        Verdict(3, "UNREADABLE", "the file cannot be read"),
        Verdict(1, "FAULT", "internal fault"),
        identical(signature=signature),
    ]
    rows = [row_of(verdict, f"in/{at}.json", receipt_id=f"{at:064x}") for at, verdict in enumerate(verdicts)]
    rows[-1] = rows[-1]._replace(is_kept=True, model="other.gguf")
    rows[-3] = Row("gone.json", rows[-3].verdict)
    rows += [row_of(Verdict(11, "BAD_JSON", text), text, model=text) for text in HOSTILE]
    facts = [("When", "2026-03-14T15:09:26Z"), ("Profile", "kinetic-1"), ("Device", "cpu")]
    return Report(rows, "Audit of in", facts)

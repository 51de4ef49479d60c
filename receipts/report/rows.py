"""The data of a report, and how its verdicts are counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from receipts.errors import IDENTICAL, VERDICTS
from receipts.verify import Verdict

NOT_RERUN = "NOT_RERUN"
"""The word for a receipt in which nothing wrong was found, and whose answer was not rerun."""

WORDS = (
    "SIGNATURE",
    "MALFORMED",
    "DIFFERS",
    "LIMIT",
    "FAULT",
    "UNREADABLE",
    "UNVERIFIABLE",
    NOT_RERUN,
    "IDENTICAL",
)
"""Every word that a row can have, the gravest first, as in ``errors.worst``."""


class Timing(NamedTuple):
    """Wall clock time of a rerun, without what came before it."""

    load_seconds: float
    """To find the model, hash it and open it; next to nothing if it was open already."""
    check_seconds: float
    tokens_per_second: float
    """Output tokens that were compared, by ``check_seconds``."""


class Row(NamedTuple):
    """One receipt file and what was found."""

    file: str
    """As it was named; may hold anything that a file name can."""
    verdict: Verdict
    receipt_id: str = ""
    """Hex; "" if the file could not be read as a receipt. So for the fields below."""
    question_id: str = ""
    model: str = ""
    """Name of the model file, as the receipt claims it."""
    seconds: float = 0.0
    """Wall clock time that the verdict took."""
    is_kept: bool = False
    """The verdict is that of an earlier run."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    timing: Timing | None = None
    """None if it was not rerun now."""


class Report(NamedTuple):
    """Rows in the order in which they were asked for, and what stands above them."""

    rows: list[Row]
    title: str
    facts: list[tuple[str, str]]
    """Shown at the top: when, engine, profile, device, sample, trust file, ..."""


def word(verdict: Verdict) -> str:
    """The one word for a verdict. IDENTICAL is said only of what was rerun."""
    if verdict.exit_code == IDENTICAL and not verdict.method:
        return NOT_RERUN
    return VERDICTS.get(verdict.exit_code, "FAULT")


def reason(verdict: Verdict) -> str:
    """The stable name behind the word, "" where nothing is wrong or it says no more than the word."""
    return "" if verdict.exit_code == IDENTICAL or verdict.name == word(verdict) else verdict.name


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows have each word; all words are there."""
    table = dict.fromkeys(WORDS, 0)
    for row in rows:
        table[word(row.verdict)] += 1
    return table


_FINDINGS = {
    "SIGNATURE": ("{} refused for its signature", "{} refused for their signatures"),
    "MALFORMED": ("{} malformed",) * 2,
    "DIFFERS": ("{} differs", "{} differ"),
    "LIMIT": ("{} over a limit",) * 2,
    "FAULT": ("{} stopped by a fault",) * 2,
    "UNREADABLE": ("{} unreadable",) * 2,
    "UNVERIFIABLE": ("{} cannot be verified here",) * 2,
    NOT_RERUN: ("{} not rerun",) * 2,
}


def headline(table: Mapping[str, int]) -> str:
    """The counts in one sentence."""
    total, same = sum(table.values()), table["IDENTICAL"]
    if total == 0:
        return "No receipts were given."
    if same == total:
        return "The receipt is identical." if total == 1 else f"All {total:,} receipts are identical."
    parts = [forms[table[name] > 1].format(f"{table[name]:,}") for name, forms in _FINDINGS.items() if table[name]]
    if total == 1:
        return f"1 receipt: {parts[0][2:]}."
    return "; ".join([f"{same:,} of {total:,} receipts {'is' if same == 1 else 'are'} identical", *parts]) + "."

"""Files that lie beside receipts and are positively something else: told by what they say of themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from ktc import limits
from ktc.layout import MAGIC

OPENING, REPORT, STATE, DSSE = "an opening", "a report", "the state of an audit", "a DSSE envelope"
SARIF, SIGSTORE, COSE = "a SARIF report", "a sigstore bundle", "a COSE message"
BASELINE = "a baseline of a gate"
BUNDLE = "a bundle"

SENTENCES = {
    OPENING: "this is an opening: give the receipt, and this with --opening",
    DSSE: "this is a DSSE envelope: the receipt itself is what can be checked",
    BUNDLE: "this is a bundle and not a receipt: `kinetic verify` checks bundles",
}
"""What to say to whoever took one for a receipt, where there is more to say than what it is."""

_TYPES = {
    "kinetic-opening": OPENING,
    "kinetic-report": REPORT,
    "kinetic-gate-report": REPORT,
    "kinetic-audit-state": STATE,
}
_COSE_SIGN1 = b"\xd2\x84"
"""CBOR tag 18, of an array of four."""

_HEAD = re.compile(rb'\s*\{\s*"type"\s*:\s*"(kinetic-[a-z-]+)"')
_SARIF_HEAD = re.compile(rb'\s*\{\s*"\$schema"\s*:\s*"[^"]*/sarif-schema-')

_MARKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    DSSE: lambda table: isinstance(table.get("payloadType"), str) and "payload" in table,
    SARIF: lambda table: isinstance(table.get("version"), str) and isinstance(table.get("runs"), list),
    BASELINE: lambda table: str(table.get("format")).startswith("kinetic gate "),
    SIGSTORE: lambda table: str(table.get("mediaType")).startswith("application/vnd.dev.sigstore.bundle"),
}


def other_kind(data: bytes) -> str:
    """What a file is that is surely no receipt, with its article; "" where it can't be told, or may be one.

    What can't be read whole as JSON (a beginning, or a state of several lines) is told by its first field.
    """
    if data.startswith(_COSE_SIGN1):
        return COSE
    if data.count(b"{") + data.count(b"[") > limits.MAX_CONTAINERS:  # not worth the memory
        return _by_head(data)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return _by_head(data)
    return _by_fields(value) if isinstance(value, dict) and "receipt" not in value else ""


def is_bundle(data: bytes) -> bool:
    return data.startswith(MAGIC)


def sentence(kind: str) -> str:
    """What to say of such a file in place of a receipt."""
    return SENTENCES.get(kind, f"this is {kind} and not a receipt")


def _by_head(data: bytes) -> str:
    head = _HEAD.match(data)
    if head:
        return _TYPES.get(head[1].decode("ascii"), "")
    return SARIF if _SARIF_HEAD.match(data) else ""


def _by_fields(table: dict[str, Any]) -> str:
    kind = table.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        return _TYPES[kind]
    return next((name for name, has in _MARKS.items() if has(table)), "")

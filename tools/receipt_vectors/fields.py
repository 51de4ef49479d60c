"""Steps 3 to 5: a table with other fields than it must have, or a value of another type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tools.receipt_vectors.build import (
    BASES,
    END,
    FILE,
    OK,
    OTHER_SEED,
    SEED,
    Case,
    Expect,
    canonical_form,
    changed,
    document,
    draws,
    edit,
    packed,
    plain,
    record,
    signed,
    without,
)

FULL_SETTINGS = {"seed": 7, "temperature": 0.8, "logit_bias": [(2, 1.5), (5, float("-inf"))], "min_p": 0.05}


def unknown(step: int) -> Expect:
    return (11, "UNKNOWN_FIELD", step)


def missing(step: int) -> Expect:
    return (11, "MISSING_FIELD", step)


def bad(name: str) -> Expect:
    return (11, name, 5)


def cases() -> Iterator[Case]:
    yield from _whole()
    yield from _envelope()
    yield from _closed_tables()
    yield from _types()


def full() -> Any:
    """A receipt with something in every place that can hold something beside the others."""
    full = record(
        sampling=FULL_SETTINGS,
        stop_strings=[" yellow", "\n\n"],
        overrides={"rope_freq_base": 10_000.0, "rope_scaling": "yarn", "yarn_ext_factor": 1.0, "context": 64},
        adapters=[FILE._asdict() | {"name": "lora.gguf", "scale": "0.5"}],
        bundle="01" * 32,
        clock="2026-03-14T15:09:26",
        grammar="02" * 32,
        completion_index=3,
        max_tokens=64,
        logit_commit=[f"{n:02x}" * 8 for n in range(4)],
        commitments=[{"name": "system-prompt", "digest": "03" * 32}, {"name": "trace", "digest": "04" * 32}],
        certificate="05" * 32,
        ext={"note": "for a test", "z.y_x-1": "\N{SNOWMAN}"},
    )
    return changed(full, "sampling.dry_sequence_breakers", ["\n", ":"])


def minimal() -> Any:
    """As little as a receipt can say: one prompt token, no output, no claims."""
    return record(prompt=[0], output=[], text="", stop_reason="interrupt", end_tokens=[], sampling={}, claims={})


def _whole() -> Iterator[Case]:
    commits = [entry | {"commit": f"{n:02x}" * 8} for n, entry in enumerate(draws(1, 2, 3, END))]
    for form, make in (("json", plain), ("cbor", packed)):
        for name, made, what in [
            ("minimal", minimal(), "As little as a receipt can say."),
            ("full", full(), "Something in every field that can hold something beside the others."),
        ]:
            more = canonical_form(made)
            yield Case(f"whole-{name}-{form}", [111], what, make(made), OK, engine={"draws": commits}, more=more)
    yield Case("whole-plain", [111], "The base itself.", BASES["plain.json"], OK, more=canonical_form(record()))
    two = signed(full(), SEED, OTHER_SEED)
    yield Case("whole-two-signatures", [111], "The full receipt, signed twice.", two, OK, engine={"draws": commits})


def _envelope() -> Iterator[Case]:
    table = json.loads(BASES["signed.json"])
    receipt, entries = table["receipt"], table["signatures"]
    no_receipt: Expect = (11, "NOT_A_RECEIPT", 4)
    for name, what, value, expect in [
        ("array", "An array in place of the table.", [receipt, entries], (11, "WRONG_TYPE", 3)),
        ("text", "A text in place of the table.", "receipt", (11, "WRONG_TYPE", 3)),
        ("null", "Null in place of the table.", None, (11, "WRONG_TYPE", 2)),
        ("empty", "An empty object.", {}, missing(3)),
        ("bare", "The receipt without the table around it.", receipt, unknown(3)),
        ("no-signatures", "No field for signatures.", {"receipt": receipt}, missing(3)),
        ("no-receipt", "No receipt.", {"signatures": []}, missing(3)),
        ("verified", "A verdict beside the receipt.", table | {"verified": True}, unknown(3)),
        (
            "verdict",
            "An earlier verifier's result beside the receipt.",
            table | {"verdict": {"exit_code": 0}},
            unknown(3),
        ),
        ("claims-outside", "Claims moved out of what is signed.", table | {"claims": receipt["claims"]}, unknown(3)),
        ("other-type", "Another kind of document.", changed(table, "receipt.type", "kinetic-opening"), no_receipt),
        ("type-case", "The type in capitals.", changed(table, "receipt.type", "Kinetic-Receipt"), no_receipt),
        ("no-type", "No type.", without(table, "receipt.type"), no_receipt),
        ("receipt-null", "Null in place of the receipt.", table | {"receipt": None}, (11, "WRONG_TYPE", 2)),
        ("receipt-text", "A text in place of the receipt.", table | {"receipt": ""}, (11, "WRONG_TYPE", 4)),
    ]:
        attack = {"verified": 91, "verdict": 91, "claims-outside": 104}.get(name, 84)
        yield Case(f"envelope-{name}", [attack], what, document(value), expect)
    without_claims = {"receipt": without(receipt, "claims"), "claims": receipt["claims"], "signatures": entries}
    what = "Claims moved out of what is signed, and gone there."
    yield Case("envelope-claims-moved", [104], what, document(without_claims), unknown(3))
    added = edit('"claims": {', '"claims": {\n      "verified_by": "auditor",', of=BASES["signed.json"])
    yield Case("signed-field-added", [104], "A field added inside what is signed.", added, unknown(5))


TABLES = ("", "model", "model.files.0", "overrides", "prompt", "sampling", "stop", "output", "claims", "parent")


def _closed_tables() -> Iterator[Case]:
    base = record()
    for table in TABLES:
        path = f"{table}.verified" if table else "verified"
        what = f"A field that no receipt has, in {table or 'the receipt'}."
        yield Case(f"unknown-in-{slug(table)}", [91], what, plain(changed(base, path, True)), unknown(5))
    fields = [f"{table}.{name}".lstrip(".") for table in TABLES for name in _names(base, table)]
    for path in fields:
        if path not in ("type", "version"):
            what = f"The field {path} is missing."
            yield Case(f"missing-{slug(path)}", [84], what, plain(without(base, path)), missing(5))
    for name, old, new in [
        ("misspelt", '"top_k": 40', '"topk": 40'),
        ("capital", '"seed": "7"', '"Seed": "7"'),
        ("space", '"seed": "7"', '"seed ": "7"'),
        ("other-letter", '"seed": "7"', '"s\N{CYRILLIC SMALL LETTER IE}ed": "7"'),
        ("nul", '"seed": "7"', '"seed\\u0000": "7"'),
    ]:
        yield Case(f"field-{name}", [84], "A field's name is misspelt.", edit(old, new), unknown(5))
    bias = plain(changed(base, "sampling.logit_bias", [{"token": 1, "bias": "1", "why": ""}]))
    yield Case("unknown-in-bias", [91], "A field that no bias has.", bias, unknown(5))
    adapter = FILE._asdict() | {"scale": "1", "path": "/etc/passwd"}
    yield Case(
        "unknown-in-adapter",
        [91],
        "A field that no adapter has.",
        plain(changed(base, "adapters", [adapter])),
        unknown(5),
    )


def _names(value: Any, path: str) -> list[str]:
    for name in filter(None, path.split(".")):
        value = value[int(name) if isinstance(value, list) else name]
    return list(value)


def slug(path: str) -> str:
    return path.replace("_", "-").replace(".", "-") or "receipt"


def _types() -> Iterator[Case]:
    """One wrong type for each field, and the ones that compare equal in some languages."""
    base = record()
    null, five = (11, "WRONG_TYPE", 2), bad("WRONG_TYPE")
    for path, value, expect in [
        ("version", True, (11, "WRONG_TYPE", 4)),
        ("version", "1", (11, "WRONG_TYPE", 4)),
        ("version", None, null),
        ("sampling.top_k", True, five),
        ("sampling.top_k", "40", five),
        ("sampling.top_k", None, null),
        ("sampling.temperature", 0, five),
        ("sampling.temperature", True, five),
        ("sampling.temperature", None, null),
        ("completion_index", False, five),
        ("max_tokens", True, five),
        ("max_tokens", "-1", five),
        ("max_tokens", None, null),
        ("bundle", None, null),
        ("bundle", 0, five),
        ("bundle", False, five),
        ("grammar", [], five),
        ("adapters", "", five),
        ("adapters", None, null),
        ("adapters", {}, five),
        ("crit", {}, five),
        ("ext", [], five),
        ("ext.note", 1, five),
        ("text", None, null),
        ("text", [" red blue green"], five),
        ("prompt.tokens", "3,1,4", five),
        ("prompt.tokens", [3, True, 4], five),
        ("prompt.tokens", ["3", "1", "4"], five),
        ("output.tokens", [[1], 2, 3, 0], five),
        ("output.tokens", {"0": 1}, five),
        ("stop", [], five),
        ("stop.reason", 0, five),
        ("sampling", [], five),
        ("sampling.samplers", "top_k", five),
        ("model.files", {}, five),
        ("parent", "", five),
        ("model.files.0.size", "123456", five),
        ("overrides.context", False, five),
    ]:
        name = f"type-{slug(path)}-{type(value).__name__.lower()}".replace("nonetype", "null")
        name += {"prompt-tokens-list": ""}.get(name[5:], "")
        what = f"{path} is {json.dumps(value)}, a value of another type."
        yield Case(_unique(name, value), [81], what, plain(changed(base, path, value)), expect)


def _unique(name: str, value: Any) -> str:
    if isinstance(value, list) and value:
        return f"{name}-of-{type(value[-2] if len(value) == 3 else value[0]).__name__}"
    return name

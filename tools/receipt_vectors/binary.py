"""Step 2 in CBOR: bytes that decode, but are not the one deterministic encoding of a receipt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ktc import canonical, limits
from tools.receipt_vectors.build import (
    BASES,
    OK,
    SEED,
    Case,
    Expect,
    Pairs,
    Raw,
    canonical_form,
    changed,
    forge,
    forged,
    head,
    packed,
    record,
)

BAD_CBOR: Expect = (11, "BAD_CBOR", 2)
NOT_CANONICAL: Expect = (11, "NOT_CANONICAL", 2)
TAG: Expect = (11, "TAG", 2)
SIMPLE: Expect = (11, "SIMPLE_VALUE", 2)
INDEFINITE: Expect = (11, "INDEFINITE", 2)
TRUNCATED: Expect = (11, "TRUNCATED", 2)
WRONG_TYPE: Expect = (11, "WRONG_TYPE", 5)

TOP_K = "receipt.sampling.top_k"


def cases() -> Iterator[Case]:
    yield Case("cbor-plain", [111], "The base in CBOR.", packed(record()), OK, more=canonical_form(record()))
    yield Case("cbor-signed", [111], "The signed base in CBOR.", packed(record(), SEED), OK)
    yield from _keys()
    yield from _heads()
    yield from _values()
    yield from _kinds()
    yield from _decimals()
    yield from _shapes()
    yield from _large()


def _envelope() -> Any:
    return canonical.decode(BASES["plain.cbor"])


def _pairs(path: str, change: Any) -> bytes:
    """The base with one of its maps as a list of pairs, changed by ``change``."""
    table: Any = _envelope()
    for name in path.split("."):
        table = table[name]
    pairs = sorted(table.items(), key=lambda pair: canonical.encode(pair[0]))
    return forged(path, Pairs(change(pairs)))


def _keys() -> Iterator[Case]:
    def twice(pairs: list[Any]) -> list[Any]:
        return [pair for pair in pairs for _ in range(2 if pair[0] == "seed" else 1)]

    file = _pairs("receipt.sampling", twice)
    yield Case("cbor-key-twice", [78], "A key stands twice in one map.", file, (11, "DUPLICATE_KEY", 2))
    file = _pairs("receipt.sampling", lambda pairs: pairs[::-1])
    yield Case(
        "cbor-key-order", [79], "Keys stand in another order than the one of their encodings.", file, NOT_CANONICAL
    )
    file = _pairs("receipt.sampling", sorted)
    what = "Keys stand in alphabetical order, not in that of their encodings, which begin with the length."
    yield Case("cbor-key-alphabet", [79], what, file, NOT_CANONICAL)
    for name, key in [("integer", 1), ("bytes", b"seed"), ("boolean", True)]:
        file = _pairs("receipt.ext", lambda pairs, key=key: [(key, "")])
        yield Case(f"cbor-key-{name}", [79], "A key is no text.", file, (11, "WRONG_TYPE", 2))


def _heads() -> Iterator[Case]:
    forty = "The integer 40 is written longer than it need be."
    for name, data in [("16", b"\x19\0\x28"), ("32", b"\x1a\0\0\0\x28"), ("64", b"\x1b\0\0\0\0\0\0\0\x28")]:
        yield Case(f"cbor-long-integer-{name}", [79], forty, forged(TOP_K, Raw(data)), NOT_CANONICAL)
    for name, path, data in [
        ("text", "receipt.clock", b"\x78\0"),
        ("array", "receipt.crit", b"\x98\0"),
        ("map", "receipt.ext", b"\xb8\0"),
        ("bytes", "receipt.bundle", b"\x58\x01a"),
    ]:
        what = f"The length of a CBOR {name} is written longer than it need be."
        yield Case(f"cbor-long-{name}", [79], what, forged(path, Raw(data)), NOT_CANONICAL)
    for name, path, data in [
        ("text", "receipt.clock", b"\x7f\xff"),
        ("array", "receipt.crit", b"\x9f\xff"),
        ("map", "receipt.ext", b"\xbf\xff"),
        ("bytes", "receipt.bundle", b"\x5f\xff"),
        ("reserved", TOP_K, b"\x1c"),
    ]:
        yield Case(
            f"cbor-indefinite-{name}", [79], "A length is left open or reserved.", forged(path, Raw(data)), INDEFINITE
        )


def _values() -> Iterator[Case]:
    for name, data, expect in [
        ("half", b"\xf9\x51\0", SIMPLE),
        ("single", b"\xfa\x42\x20\0\0", SIMPLE),
        ("double", b"\xfb\x40\x44\0\0\0\0\0\0", SIMPLE),
        ("nan", b"\xf9\x7e\0", SIMPLE),
        ("infinity", b"\xf9\x7c\0", SIMPLE),
        ("minus-zero", b"\xf9\x80\0", SIMPLE),
    ]:
        yield Case(f"cbor-float-{name}", [79], "An integer is a CBOR float.", forged(TOP_K, Raw(data)), expect)
    for name, data in [("null", b"\xf6"), ("undefined", b"\xf7"), ("simple", b"\xe0"), ("simple-24", b"\xf8\xff")]:
        yield Case(f"cbor-{name}", [81], "A value is null or another simple value.", forged(TOP_K, Raw(data)), SIMPLE)
    yield Case("cbor-break", [79], "A break where nothing is open.", forged(TOP_K, Raw(b"\xff")), SIMPLE)
    for name, data in [
        ("bignum", b"\xc2\x41\x28"),
        ("decimal-fraction", b"\xc4\x82\0\x18\x28"),
        ("date", b"\xc0\x74" + b"2026-03-14T15:09:26Z"),
        ("pattern", b"\xd8\x23\x63(a)"),
        ("self-described", b"\xd9\xd9\xf7\x18\x28"),
        ("shared-reference", b"\xd8\x1d\0"),
    ]:
        yield Case(f"cbor-tag-{name}", [79], "A value bears a tag.", forged(TOP_K, Raw(data)), TAG)
    for name, number in [("2-53", 2**53), ("2-64", 2**64 - 1)]:
        file = forged(TOP_K, Raw(head(0, number)))
        what = "An integer is beyond what every JSON reader holds exactly."
        yield Case(f"cbor-integer-{name}", [80], what, file, (11, "INTEGER_TOO_LARGE", 2))
    file = forged(TOP_K, Raw(head(1, 2**64 - 1)))
    yield Case("cbor-integer-minus-2-64", [80], "The integer -2^64.", file, (11, "INTEGER_TOO_LARGE", 2))


def _kinds() -> Iterator[Case]:
    for name, path, value in [
        ("true-for-integer", TOP_K, True),
        ("false-for-integer", "receipt.completion_index", False),
        ("true-for-version", "receipt.version", True),
        ("text-for-integer", TOP_K, "40"),
        ("integer-for-seed", "receipt.sampling.seed", 7),
        ("bytes-for-text", "receipt.clock", b""),
        ("text-for-digest", "receipt.prompt.digest", "ab" * 32),
        ("bytes-for-empty", "receipt.bundle", b""),
        ("text-for-decimal", "receipt.sampling.top_p", "0.95"),
        ("map-for-array", "receipt.crit", {}),
        ("array-for-map", "receipt.ext", []),
        ("array-for-receipt", "receipt", []),
    ]:
        expect = {"bytes-for-empty": NOT_CANONICAL, "true-for-version": (11, "WRONG_TYPE", 4)}.get(name, WRONG_TYPE)
        expect = (11, "WRONG_TYPE", 4) if name == "array-for-receipt" else expect
        attack = 81 if isinstance(value, bool) or name.startswith("text-for") else 84
        yield Case(f"cbor-{name}", [attack], "A value of another type than its field has.", forged(path, value), expect)
    for name, path, value, reason in [
        ("short-digest", "receipt.prompt.digest", b"\xab" * 31, "BAD_HEX"),
        ("unknown-field", "receipt.verified", True, "UNKNOWN_FIELD"),
        ("unknown-word", "receipt.sampling.rng", "mt19937", "UNKNOWN_WORD"),
    ]:
        attack = 91 if name == "unknown-field" else 84
        yield Case(
            f"cbor-{name}",
            [attack],
            "A field that is wrong in JSON is so in CBOR.",
            forged(path, value),
            (11, reason, 5),
        )


def _decimals() -> Iterator[Case]:
    bits: Expect = (11, "OUT_OF_RANGE", 5)
    for name, path, value, expect in [
        ("minus-zero", "receipt.sampling.frequency_penalty", 0x80000000, NOT_CANONICAL),
        ("nan", "receipt.sampling.min_p", 0x7FC00000, (11, "BAD_DECIMAL", 5)),
        ("infinity", "receipt.sampling.temperature", 0x7F800000, (11, "BAD_DECIMAL", 5)),
        ("minus-infinity", "receipt.sampling.frequency_penalty", 0xFF800000, (11, "BAD_DECIMAL", 5)),
        ("negative", "receipt.sampling.min_p", -1, bits),
        ("2-32", "receipt.sampling.min_p", 2**32, bits),
        ("top-p-zero", "receipt.sampling.top_p", 0, bits),
        ("top-p-above-1", "receipt.sampling.top_p", 0x3F800001, bits),
        ("negative-temperature", "receipt.sampling.temperature", 0xBF800000, bits),
        ("denormal-temperature", "receipt.sampling.temperature", 1, bits),
    ]:
        what = "The bits of a decimal are those of no decimal, or of one out of range."
        yield Case(f"cbor-bits-{name}", [93], what, forged(path, value), expect)


def _shapes() -> Iterator[Case]:
    plain = BASES["plain.cbor"]
    for name, what, data, expect in [
        ("cut", "A file cut in its middle.", plain[:700], TRUNCATED),
        ("cut-by-one", "A file without its last byte.", plain[:-1], TRUNCATED),
        ("byte-behind", "A byte behind the value.", plain + b"\0", (11, "TRAILING_BYTES", 2)),
        ("two-values", "A second receipt behind the first.", plain * 2, (11, "TRAILING_BYTES", 2)),
        ("one-byte", "The first byte of a map of two, alone.", plain[:1], TRUNCATED),
        ("not-utf-8", "A text that is no UTF-8.", forged("receipt.clock", Raw(b"\x61\xe9")), BAD_CBOR),
        ("surrogate", "Half a surrogate pair in a text.", forged("receipt.clock", Raw(b"\x63\xed\xa0\x80")), BAD_CBOR),
        (
            "tagged-file",
            "The file bears the tag that says CBOR: no map comes first.",
            b"\xd9\xd9\xf7" + plain,
            (11, "NOT_UTF8", 2),
        ),
        ("array-file", "An array in place of the table.", forge(list(_envelope().values())), (11, "NOT_UTF8", 2)),
    ]:
        yield Case(f"cbor-{name}", [83] if "cut" in name else [79], what, data, expect)
    json_inside = forge({"receipt": BASES["plain.json"].decode("utf-8"), "signatures": []})
    yield Case("cbor-json-inside", [104], "A receipt as a text inside CBOR.", json_inside, (11, "WRONG_TYPE", 4))


def _large() -> Iterator[Case]:
    for name, path, data in [
        ("array-2-32", "receipt.prompt.tokens", head(4, 2**32)),
        ("array-2-63", "receipt.prompt.tokens", head(4, 2**63)),
        ("map-2-64", "receipt.ext", head(5, 2**64 - 1)),
        ("text-2-63", "receipt.clock", head(3, 2**63)),
        ("bytes-2-64", "receipt.bundle", head(2, 2**64 - 1)),
    ]:
        what = "A length far beyond the end of the file: nothing may be allocated for it."
        yield Case(f"cbor-{name}", [83], what, forged(path, Raw(data)), _LONG[name])
    deep = forged("receipt.crit", Raw(b"\x81" * 100 + b"\x80"))
    yield Case("cbor-deep", [83], "100 arrays inside each other.", deep, (14, "TOO_DEEP", 2))
    deep = forge(changed(_envelope(), "receipt.crit", [[[[[[[]]]]]]]))
    yield Case("cbor-nine-deep", [83], "Nine containers inside each other.", deep, (14, "TOO_DEEP", 2))
    assert limits.MAX_DEPTH == 8


_LONG: dict[str, Expect] = {
    "array-2-32": TRUNCATED,
    "array-2-63": TRUNCATED,
    "map-2-64": TRUNCATED,
    "text-2-63": TRUNCATED,
    "bytes-2-64": TRUNCATED,
}

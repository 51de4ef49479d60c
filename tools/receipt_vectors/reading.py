"""Steps 1 and 2 in JSON: bytes that are no strict JSON, or ask for too much."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator

from ktc import limits
from tools.receipt_vectors.build import BASES, OK, Case, Expect, edit, ids, parts, record

FLOAT: Expect = (11, "FLOAT", 2)
BAD_JSON: Expect = (11, "BAD_JSON", 2)
TOP_K = '"top_k": 40'


def cases() -> Iterator[Case]:
    yield from _repeated_keys()
    yield from _numbers()
    yield from _integers()
    yield from _syntax()
    yield from _deep_and_large()
    yield from _harmless()


def _repeated_keys() -> Iterator[Case]:
    for name, old, new in [
        ("seed", '"seed": "7"', '"seed": "7",\n      "seed": "8"'),
        ("same-value", '"seed": "7"', '"seed": "7",\n      "seed": "7"'),
        ("escaped", '"seed": "7"', '"seed": "7",\n      "s\\u0065ed": "8"'),
        ("signatures", '"signatures": []', '"signatures": [],\n  "signatures": []'),
        ("receipt", '"signatures": []', '"receipt": {},\n  "signatures": []'),
        ("extension", '"ext": {}', '"ext": {"a": "1", "a": "2"}'),
    ]:
        what = "A key stands twice in one object: readers that keep the last see another receipt."
        yield Case(f"key-twice-{name}", [78], what, edit(old, new), (11, "DUPLICATE_KEY", 2))


def _numbers() -> Iterator[Case]:
    spellings: list[tuple[str, str, Expect]] = [
        ("nan", "NaN", FLOAT),
        ("infinity", "Infinity", FLOAT),
        ("minus-infinity", "-Infinity", FLOAT),
        ("huge", "1e999", FLOAT),
        ("point", "40.0", FLOAT),
        ("exponent", "4e1", FLOAT),
        ("minus-zero-point", "-0.0", FLOAT),
        ("minus-zero", "-0", (11, "BAD_INTEGER", 2)),
        ("leading-zero", "040", BAD_JSON),
        ("plus", "+40", BAD_JSON),
        ("hex", "0x28", BAD_JSON),
        ("underscore", "4_0", BAD_JSON),
        ("bare-point", ".5", BAD_JSON),
        ("other-digits", "\N{FULLWIDTH DIGIT FOUR}0", BAD_JSON),
        ("undefined", "undefined", BAD_JSON),
    ]
    for name, number, expect in spellings:
        what = f"An integer is written {number}."
        yield Case(f"number-{name}", [79], what, edit(TOP_K, f'"top_k": {number}'), expect)


def _integers() -> Iterator[Case]:
    too_large: Expect = (11, "INTEGER_TOO_LARGE", 2)
    for name, number in [
        ("2-53", str(2**53)),
        ("minus-2-53", str(-(2**53))),
        ("2-64", str(2**64)),
        ("million-digits", ""),
    ]:
        file = edit(TOP_K, f'"top_k": {number}') if number else parts(*_around("40,", ("9", 1_000_000), (",", 1)))
        what = "An integer is beyond what every JSON reader holds exactly." if number else "An integer of 10^6 digits."
        yield Case(f"integer-{name}", [80], what, file, too_large)
    seed = '"seed": "7"'
    for name, value, expect in [
        ("as-number", "7", (11, "WRONG_TYPE", 5)),
        ("2-64", f'"{2**64}"', (11, "BAD_SEED", 5)),
        ("negative", '"-1"', (11, "BAD_SEED", 5)),
        ("leading-zero", '"07"', (11, "BAD_SEED", 5)),
        ("plus", '"+7"', (11, "BAD_SEED", 5)),
        ("space", '" 7"', (11, "BAD_SEED", 5)),
        ("newline", '"7\\n"', (11, "BAD_SEED", 5)),
        ("other-digits", '"\N{ARABIC-INDIC DIGIT SEVEN}"', (11, "BAD_SEED", 5)),
        ("hex", '"0x7"', (11, "BAD_SEED", 5)),
        ("empty", '""', (11, "BAD_SEED", 5)),
    ]:
        yield Case(f"seed-{name}", [80], f"The seed is written {value}.", edit(seed, f'"seed": {value}'), expect)
    file = edit(seed, f'"seed": "{2**64 - 1}"')
    what = "The largest seed, 2^64-1, is a text and so no loss to any JSON reader."
    yield Case("seed-largest", [80], what, file, OK)


def _syntax() -> Iterator[Case]:
    plain = BASES["plain.json"]
    not_utf8: Expect = (11, "NOT_UTF8", 2)
    texts: list[tuple[str, str, bytes, Expect]] = [
        ("empty", "An empty file.", b"", BAD_JSON),
        ("white-space", "A file of white space.", b" \n\t", BAD_JSON),
        ("cut", "A file cut in its middle.", plain[: len(plain) // 2], BAD_JSON),
        ("byte-order-mark", "A byte order mark in front.", b"\xef\xbb\xbf" + plain, (11, "BYTE_ORDER_MARK", 2)),
        ("utf-16", "The file in UTF-16.", plain.decode().encode("utf-16"), not_utf8),
        ("two-values", "A second receipt behind the first.", plain + plain, BAD_JSON),
        ("text-behind", "A comment behind the value.", plain + b"// verified\n", BAD_JSON),
        ("nul-behind", "A NUL byte behind the value.", plain + b"\0", BAD_JSON),
        ("nul-in-front", "A NUL byte in front.", b"\0" + plain, BAD_JSON),
        ("other-space", "A no-break space, which is no white space of JSON.", b"\xc2\xa0" + plain, BAD_JSON),
        ("form-feed", "A form feed, which is no white space of JSON.", b"\x0c" + plain, BAD_JSON),
        ("trailing-comma", "A comma behind the last field.", edit('"crit": []', '"crit": [],'), BAD_JSON),
        ("single-quotes", "A key in single quotes.", edit('"crit"', "'crit'"), BAD_JSON),
        ("bare-key", "A key without quotes.", edit('"crit"', "crit"), BAD_JSON),
        ("python", "False as Python spells it.", edit('"crit": []', '"crit": False'), BAD_JSON),
        ("bare-newline", "A line break inside a text.", edit('" red blue', '" red\nblue'), BAD_JSON),
        ("bad-escape", "An escape that JSON does not know.", edit('" red', '"\\x20red'), BAD_JSON),
        ("latin-1", "A text in Latin-1.", plain.replace(b" red", b" r\xe9d"), not_utf8),
        ("overlong", "A slash in overlong UTF-8.", plain.replace(b" red", b"\xc0\xafred"), not_utf8),
        ("surrogate-bytes", "Half a surrogate pair as bytes.", plain.replace(b" red", b"\xed\xa0\x80red"), not_utf8),
        ("surrogate", "Half a surrogate pair, escaped.", edit('" red', '"\\ud800 red'), (11, "NOT_UNICODE", 2)),
        (
            "surrogate-key",
            "Half a surrogate in a key.",
            edit('"ext": {}', '"ext": {"\\udc00": ""}'),
            (11, "NOT_UNICODE", 2),
        ),
        ("compressed", "A compressed receipt is not unpacked.", zlib.compress(plain, 9), not_utf8),
    ]
    for name, what, data, expect in texts:
        yield Case(f"json-{name}", [79] if name != "compressed" else [83], what, data, expect)


def _deep_and_large() -> Iterator[Case]:
    deep: Expect = (14, "TOO_DEEP", 2)
    limit = limits.MAX_FILE_BYTES
    yield Case("deep-arrays", [83], "100,000 arrays inside each other.", parts(("[", 100_000), ("]", 100_000)), deep)
    yield Case("deep-objects", [83], "100,000 objects inside each other, unclosed.", parts(('{"a":', 100_000)), deep)
    yield Case(
        "deep-inside", [83], "Nine arrays in the place of a text.", edit('"clock": ""', '"clock": [[[[[[[]]]]]]]'), deep
    )
    file = parts(*_around('"grammar": ""', ('"grammar": ', 1), ("[", 60_000), ("]", 60_000)))
    yield Case("deep-grammar", [55, 83], "A grammar of 60,000 nested groups in place of its digest.", file, deep)
    large = parts(*_around('"text": " red blue green"', ('"text": "', 1), ("a", limit), ('"', 1)))
    yield Case("large-text", [83], "A file of more than 16 MiB.", large, (14, "FILE_TOO_LARGE", 1))
    exact = parts(BASES["plain.json"].decode(), (" ", limit - len(BASES["plain.json"])))
    yield Case("largest-file", [83], "A file of 16 MiB to the byte, most of it white space.", exact, OK)
    spaces = parts(BASES["plain.json"].decode(), (" ", limit - len(BASES["plain.json"]) + 1))
    yield Case("large-by-one", [83], "A file of 16 MiB and one byte.", spaces, (14, "FILE_TOO_LARGE", 1))
    arrays = parts(*_around('"crit": []', ('"crit": [[]', 1), (",[]", limits.MAX_CONTAINERS), ("]", 1)))
    what = "More arrays than a file may hold: three bytes each, and far more in memory."
    yield Case("containers", [83], what, arrays, (14, "TOO_MANY_CONTAINERS", 2))
    yield from _long_lists()
    yield from _long_texts()


def _long_lists() -> Iterator[Case]:
    too_many, entries = (14, "TOO_MANY_ENTRIES", 5), (14, "TOO_MANY_ENTRIES", 8)
    too_many_tokens: Expect = (14, "TOO_MANY_TOKENS", 5)
    name64 = json.dumps("00" * 32)
    for name, old, item, times, expect in [
        ("prompt-tokens", '"tokens": [3, 1, 4]', "1", limits.MAX_TOKENS + 1, too_many_tokens),
        ("output-tokens", '"tokens": [1, 2, 3, 0]', "1", limits.MAX_TOKENS + 1, too_many_tokens),
        ("end-tokens", '"end_tokens": [0]', "1", limits.MAX_TOKENS + 1, too_many_tokens),
        ("10-7-tokens", '"tokens": [3, 1, 4]', "1", 10**7, (14, "FILE_TOO_LARGE", 1)),
        ("stop-strings", '"strings": []', '"a"', limits.MAX_STRINGS + 1, too_many),
        ("breakers", '"dry_sequence_breakers": []', '"a"', limits.MAX_STRINGS + 1, too_many),
        ("biases", '"logit_bias": []', '{"token": 1, "bias": "1"}', limits.MAX_BIASES + 1, too_many),
        ("commitments", '"commitments": []', "{}", limits.MAX_COMMITMENTS + 1, too_many),
        ("adapters", '"adapters": []', "{}", limits.MAX_ADAPTERS + 1, too_many),
        ("proof", '"path": []', name64, limits.MAX_PROOF + 1, too_many),
        ("crit", '"crit": []', '"a"', limits.MAX_EXTENSIONS + 1, too_many),
        ("commits", '"logit_commit": []', '"00"', limits.MAX_TOKENS + 1, too_many),
        ("signatures", '"signatures": []', "{}", limits.MAX_SIGNATURES + 1, entries),
        ("100000-signatures", '"signatures": []', "{}", 100_000, entries),
    ]:
        key = old.partition(":")[0]
        around = _around(old, (f"{key}: [{item}", 1), (f",{item}", times - 1), ("]", 1))
        attack = [100] if "signatures" in name else [83]
        yield Case(f"many-{name}", attack, f"{times:,} entries in {key}.", parts(*around), expect)
    files = parts(*_around('"files": [', ('"files": [{}', 1), (",{}", limits.MAX_FILES), (",", 1)))
    yield Case("many-files", [83], "More files than a model may have.", files, too_many)
    names = ", ".join(f'"a{n}": ""' for n in range(limits.MAX_EXTENSIONS + 1))
    yield Case("many-extensions", [83], "65 extensions.", edit('"ext": {}', f'"ext": {{{names}}}'), too_many)


def _long_texts() -> Iterator[Case]:
    long: Expect = (14, "TOO_LONG", 5)
    for name, old, before, after, most, expect in [
        ("stop-string", '"strings": []', '"strings": ["', '"]', limits.MAX_STRING_BYTES, long),
        ("claim", '"device_class": "cpu"', '"device_class": "', '"', limits.MAX_STRING_BYTES, long),
        ("extension", '"ext": {}', '"ext": {"a": "', '"}', limits.MAX_EXTENSION_BYTES, long),
        ("extension-name", '"ext": {}', '"ext": {"', '": ""}', 64, long),
        ("decimal", '"top_p": "0.95"', '"top_p": "0.', '"', limits.MAX_DECIMAL_CHARS - 2, (11, "BAD_DECIMAL", 5)),
    ]:
        for times, expected in ((most, OK), (most + 1, expect)):
            word = "longest" if expected == OK else "long"
            what = f"A text of {times:,} characters where {most:,} have room."
            yield Case(
                f"{word}-{name}", [83], what, parts(*_around(old, (before, 1), ("1", times), (after, 1))), expected
            )
    grammar = parts(*_around('"grammar": ""', ('"grammar": "', 1), ("(", 60_000), ('"', 1)))
    what = "A grammar with 60,000 nested groups in place of its digest."
    yield Case("long-grammar", [55], what, grammar, (11, "BAD_HEX", 5))


def _around(old: str, *middle: tuple[str, int]) -> list[str | tuple[str, int]]:
    before, found, after = BASES["plain.json"].decode("utf-8").partition(old)
    assert found, old
    return [before, *middle, after]


def _harmless() -> Iterator[Case]:
    plain = BASES["plain.json"].decode("utf-8")
    table = json.loads(plain)
    what_ids = ids(record())
    for name, what, data in [
        ("minified", "The same receipt without white space.", json.dumps(table, separators=(",", ":"))),
        ("crlf", "Lines end as on Windows.", plain.replace("\n", "\r\n")),
        ("sorted", "Keys in another order.", json.dumps(table, sort_keys=True, indent=1)),
        ("escapes", "Letters written as escapes.", plain.replace('" red', '"\\u0020r\\u0065d')),
        (
            "decimal",
            "A decimal in a longer spelling of the same binary32.",
            plain.replace('"0.8"', '"0.800000011920928955078125"'),
        ),
        ("decimal-zero", "A decimal with a zero at its end.", plain.replace('"0.95"', '"0.950"')),
    ]:
        yield Case(f"same-{name}", [111], what + " It has the same id.", data.encode("utf-8"), OK, more=what_ids)

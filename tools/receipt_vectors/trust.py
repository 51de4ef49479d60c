"""Step 9: who signed, and whether that is enough. Every file here is one whose signatures hold."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from ktc import limits, signature
from tools.receipt_vectors.build import (
    BASES,
    OK,
    OTHER_SEED,
    SEED,
    THIRD_SEED,
    Case,
    Expect,
    changed,
    plain,
    record,
    signed,
    with_output,
)

ALICE, BOB, CAROL = (signature.key_pair(seed).public for seed in (SEED, OTHER_SEED, THIRD_SEED))
HEAD = 'format = "kinetic-trust"\nversion = 1\nmode = "enforce"\nrevoked = []\n'
THRESHOLD = "[receipt]\nthreshold = 1\n"
UNKNOWN, TRUSTED, UNSIGNED = ({"signature": word} for word in ("unknown", "trusted", "unsigned"))


def refused(name: str) -> Expect:
    return (12, name, 9)


def cases() -> Iterator[Case]:
    yield from _pinned()
    yield from _scopes_and_thresholds()
    yield from _times()
    yield from _revoked()
    yield from _modes()
    yield from _broken_files()
    yield from _limits()


def pin(*keys: tuple[str, bytes]) -> dict[str, Any]:
    """What ``--key`` gives."""
    return {"keys": {name: public.hex() for name, public in keys}}


def key(name: str, public: bytes, scopes: str = '["receipt"]', *lines: str) -> str:
    """A table of a trust file."""
    text = base64.b64encode(public).decode("ascii")
    rows = ["[[keys]]", f'name = "{name}"', f'public_key = "{text}"', f"scopes = {scopes}", *lines]
    return "\n".join(rows) + "\n"


def trust(*tables: str, head: str = HEAD, asked: str = THRESHOLD) -> dict[str, str]:
    return {"trust": head + asked + "".join(tables)}


def _pinned() -> Iterator[Case]:
    base, good = record(), BASES["signed.json"]
    unsigned = plain(base)
    yield Case("no-key", [99], "A signature by a key that nobody pinned.", good, OK, more=UNKNOWN)
    yield Case("key", [99], "A signature by the pinned key.", good, OK, pin(("alice", ALICE)), more=TRUSTED)
    either = pin(("bob", BOB), ("alice", ALICE))
    yield Case("key-either", [99], "Two keys are pinned, and one of them signed.", good, OK, either, more=TRUSTED)
    other = refused("UNTRUSTED_KEY")
    yield Case("key-other", [99], "Another key is pinned than the one in the file.", good, other, pin(("bob", BOB)))
    asked = refused("UNSIGNED")
    yield Case("key-unsigned", [100], "A key is pinned, and nothing is signed.", unsigned, asked, pin(("alice", ALICE)))
    both = signed(base, SEED, THIRD_SEED)
    what = "A signature by the pinned key and one by a stranger, who does no harm."
    yield Case("key-and-stranger", [99], what, both, OK, pin(("alice", ALICE)), more=TRUSTED)
    forged = with_output(base, [1, 4, 3, 0])
    anew = signed(forged, OTHER_SEED)
    differs: Expect = (10, "DIFFERS", 11)
    yield Case("forged-signed-anew", [89, 99], "Changed, and signed anew with a key of the forger's.", anew, differs)
    yield Case("forged-signed-anew-key", [89, 99], "The same under a pinned key.", anew, other, pin(("alice", ALICE)))
    stripped = plain(changed(base, "claims.device_class", "gpu"))
    what = "A claim is changed and the signature taken off."
    yield Case("stripped-key", [90, 100], what, stripped, asked, pin(("alice", ALICE)))
    yield Case("stripped", [90, 100], what + " Nothing asks for one.", stripped, OK, more=UNSIGNED)


def _scopes_and_thresholds() -> Iterator[Case]:
    good, two = BASES["signed.json"], signed(record(), SEED, OTHER_SEED)
    alice, bob = key("alice", ALICE), key("bob", BOB)
    of_two = "[receipt]\nthreshold = 2\n"
    for name, what, file, expect, options, more in [
        ("file", "The trust file has the signer's key.", good, OK, trust(alice), TRUSTED),
        ("file-other", "The trust file has another key.", good, refused("UNTRUSTED_KEY"), trust(bob), {}),
        (
            "file-unsigned",
            "A trust file, and nothing is signed.",
            plain(record()),
            refused("UNSIGNED"),
            trust(alice),
            {},
        ),
        (
            "scope",
            "A key for bundles on a receipt.",
            good,
            refused("WRONG_SCOPE"),
            trust(key("alice", ALICE, '["bundle"]'), bob),
            {},
        ),
        ("scope-both", "A key for both.", good, OK, trust(key("alice", ALICE, '["receipt", "bundle"]')), TRUSTED),
        (
            "scope-none",
            "A trust file that trusts nobody with a receipt.",
            good,
            refused("WRONG_SCOPE"),
            trust(key("alice", ALICE, '["bundle"]'), asked="[bundle]\nthreshold = 1\n"),
            {},
        ),
        ("two-of-two", "Two of two.", two, OK, trust(alice, bob, asked=of_two), TRUSTED),
        ("one-of-two", "One of two.", good, refused("THRESHOLD"), trust(alice, bob, asked=of_two), {}),
        (
            "one-of-two-and-stranger",
            "One of two, and a stranger.",
            two,
            refused("THRESHOLD"),
            trust(alice, key("carol", CAROL), asked=of_two),
            {},
        ),
        ("two-of-three", "Two of three.", two, OK, trust(alice, bob, key("carol", CAROL), asked=of_two), TRUSTED),
    ]:
        attack = [100] if "two" in name else [108] if "scope" in name else [99]
        yield Case(name, attack, what, file, expect, options, more=more)
    twice = plain(record(), [_entry(), _entry()])
    what = "One key signs twice where two are asked for."
    yield Case("one-key-for-two", [100], what, twice, (12, "REPEATED_KEY", 8), trust(alice, bob, asked=of_two))


def _entry() -> dict[str, str]:
    from receipts.sign import sign_record

    return sign_record(record(), SEED)


def _times() -> Iterator[Case]:
    good, expired = BASES["signed.json"], refused("EXPIRED_KEY")
    year = ("not_before = 2026-01-01T00:00:00Z", "not_after = 2027-01-01T00:00:00Z")
    options = trust(key("alice", ALICE, '["receipt"]', *year))
    for name, what, at, expect in [
        ("before", "A second before the key counts.", "2025-12-31T23:59:59Z", expired),
        ("first", "The first second.", "2026-01-01T00:00:00Z", OK),
        ("last", "The last second.", "2026-12-31T23:59:59Z", OK),
        ("after", "The second in which it counts no more.", "2027-01-01T00:00:00Z", expired),
        ("date", "A date without a time is its beginning.", "2026-01-01", OK),
        ("far", "Long after.", "2099-01-01T00:00:00Z", expired),
    ]:
        more = TRUSTED if expect == OK else {}
        yield Case(f"time-{name}", [108], what, good, expect, options | {"at": at}, more=more)
    other_zone = trust(key("alice", ALICE, '["receipt"]', "not_before = 2026-01-01T01:00:00+01:00"))
    yield Case(
        "time-zone", [108], "An offset is counted.", good, OK, other_zone | {"at": "2026-01-01T00:00:00Z"}, more=TRUSTED
    )
    what = "The time in the receipt is a claim: it makes no expired key good."
    yield Case("time-of-receipt", [90, 108], what, good, expired, options | {"at": "2028-01-01"})
    for name, text in [
        ("local", "2026-01-01T00:00:00"),
        ("month", "2026-13-01"),
        ("words", "yesterday"),
        ("digits", "٢٠٢٦-01-01"),
    ]:
        what = "The time asked for is none."
        yield Case(f"at-{name}", [108], what, good, (11, "BAD_TIME", 9), options | {"at": text})


def _revoked() -> Iterator[Case]:
    good, two = BASES["signed.json"], signed(record(), SEED, OTHER_SEED)
    alice, bob = key("alice", ALICE), key("bob", BOB)
    revoked = HEAD.replace("[]", f'["{signature.key_id(ALICE)}"]')
    refusal = refused("REVOKED_KEY")
    yield Case("revoked", [108], "The key is revoked.", good, refusal, trust(alice, head=revoked))
    yield Case(
        "revoked-not-listed", [108], "A revoked key that stands nowhere else.", good, refusal, trust(bob, head=revoked)
    )
    what = "One of two signers is revoked, and the other is enough."
    yield Case("revoked-and-good", [108], what, two, OK, trust(alice, bob, head=revoked), more=TRUSTED)
    both = trust(alice, bob, head=revoked, asked="[receipt]\nthreshold = 2\n")
    yield Case("revoked-of-two", [108], "One of two signers is revoked, and both are asked for.", two, refusal, both)
    expired = key("alice", ALICE, '["bundle"]', "not_after = 2020-01-01T00:00:00Z")
    what = "A key that is revoked, expired and of another scope: that it is revoked is told."
    yield Case("revoked-gravest", [108], what, good, refusal, trust(expired, bob, head=revoked))


def _modes() -> Iterator[Case]:
    good, unsigned = BASES["signed.json"], plain(record())
    alice, bob = key("alice", ALICE), key("bob", BOB)
    warn, off = HEAD.replace("enforce", "warn"), HEAD.replace("enforce", "off")
    yield Case("warn-other", [99], "Another key, and the mode is warn.", good, OK, trust(bob, head=warn), more=UNKNOWN)
    yield Case(
        "warn-unsigned", [100], "Unsigned, and the mode is warn.", unsigned, OK, trust(bob, head=warn), more=UNSIGNED
    )
    yield Case(
        "warn-trusted", [99], "The right key, and the mode is warn.", good, OK, trust(alice, head=warn), more=TRUSTED
    )
    yield Case(
        "off-trusted", [99], "The mode is off: nobody is trusted.", good, OK, trust(alice, head=off), more=UNKNOWN
    )
    broken = plain(record(), [_entry() | {"public_key": base64.b64encode(BOB).decode("ascii")}])
    bad: Expect = (12, "BAD_SIGNATURE", 8)
    yield Case(
        "off-broken", [99], "The mode is off, and the signature does not hold.", broken, bad, trust(alice, head=off)
    )


def _broken_files() -> Iterator[Case]:
    for name, what, file, expect in BROKEN:
        assert file != TEXT, name
        attack = {"key-weak": 106, "key-zero": 106, "key-base64": 107, "same-key-twice": 100}.get(name, 108)
        yield Case(f"file-{name}", [attack], what, BASES["signed.json"], expect, {"trust": file})


def _limits() -> Iterator[Case]:
    good, text = BASES["signed.json"], trust(key("alice", ALICE))["trust"]
    for name, what, file, expect in [
        (
            "large",
            "A trust file above its limit.",
            {"parts": [{"text": text}, {"text": "#", "times": limits.MAX_TRUST_FILE_BYTES}]},
            (14, "FILE_TOO_LARGE", 9),
        ),
        (
            "deep",
            "10,000 arrays inside each other.",
            {"parts": [{"text": text + "a = "}, {"text": "[", "times": 10_000}]},
            (14, "TOO_DEEP", 9),
        ),
        (
            "dots",
            "10,000 tables inside each other, by dots.",
            {"parts": [{"text": text + "a"}, {"text": ".a", "times": 10_000}, {"text": " = 1\n"}]},
            (14, "TOO_DEEP", 9),
        ),
        (
            "digits",
            "A number of 10,000 digits.",
            {"parts": [{"text": text + "a = 1"}, {"text": "0", "times": 10_000}]},
            (11, "BAD_TOML", 9),
        ),
        (
            "keys",
            "More keys than a trust file may hold.",
            {"parts": [{"text": text}, {"text": "[[keys]]\n", "times": limits.MAX_TRUST_KEYS}]},
            (14, "TOO_MANY_ENTRIES", 9),
        ),
    ]:
        yield Case(f"file-{name}", [83], what, good, expect, {"trust": file})


# Trust files that are none

TEXT = trust(key("alice", ALICE))["trust"]
WRONG: Expect = (11, "WRONG_TYPE", 9)
RANGE: Expect = (11, "OUT_OF_RANGE", 9)
LOCAL: Expect = (11, "LOCAL_TIME", 9)
END_OF = "not_after = 2027-01-01T00:00:00"


def instead(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


def threshold(value: str) -> str:
    return instead("threshold = 1", f"threshold = {value}")


def holding(public: bytes) -> str:
    return str(trust(key("alice", public))["trust"])


BROKEN: list[tuple[str, str, str, Expect]] = [
    ("empty", "An empty file.", "", (11, "NOT_A_TRUST_FILE", 9)),
    ("json", "JSON in place of TOML.", "{}", (11, "BAD_TOML", 9)),
    ("other-format", "Another format.", instead("kinetic-trust", "trust"), (11, "NOT_A_TRUST_FILE", 9)),
    ("version-2", "A later version.", instead("version = 1", "version = 2"), (11, "VERSION", 9)),
    ("version-true", "True as the version.", instead("version = 1", "version = true"), WRONG),
    ("unknown-field", "A field of no trust file.", instead("revoked", "all = true\nrevoked"), (11, "UNKNOWN_FIELD", 9)),
    ("misspelt", "A misspelt field of a key.", instead("scopes", "scope"), (11, "UNKNOWN_FIELD", 9)),
    ("no-revoked", "No list of revoked keys.", instead("revoked = []\n", ""), (11, "MISSING_FIELD", 9)),
    ("key-twice", "A key of TOML twice.", instead("mode =", 'mode = "off"\nmode ='), (11, "BAD_TOML", 9)),
    ("mode", "An unknown mode.", instead("enforce", "strict"), (11, "UNKNOWN_WORD", 9)),
    ("scope-unknown", "An unknown scope.", instead('["receipt"]', '["all"]'), (11, "UNKNOWN_WORD", 9)),
    ("scope-missing", "A key for nothing.", instead('["receipt"]', "[]"), RANGE),
    ("threshold-zero", "A threshold of 0.", threshold("0"), RANGE),
    ("threshold-negative", "A negative threshold.", threshold("-1"), RANGE),
    ("threshold-above", "A threshold that can't be met.", threshold("2"), RANGE),
    ("threshold-float", "A threshold of 1.0.", threshold("1.0"), WRONG),
    ("threshold-true", "A threshold of true.", threshold("true"), WRONG),
    ("name-twice", "Two keys of one name.", TEXT + key("alice", BOB), (11, "REPEATED", 9)),
    ("same-key-twice", "One key by two names: it would count twice.", TEXT + key("bob", ALICE), (11, "REPEATED", 9)),
    ("name-empty", "A key without a name.", instead('"alice"', '""'), (11, "BAD_TEXT", 9)),
    ("name-control", "A name that steers a terminal.", instead('"alice"', '"\\u001b[2Ja"'), (11, "BAD_TEXT", 9)),
    ("local-time", "A time without an offset.", f"{TEXT}{END_OF}\n", LOCAL),
    ("local-date", "A date alone.", f"{TEXT}not_after = 2027-01-01\n", LOCAL),
    ("time-text", "A time in quotes.", f'{TEXT}not_after = "2027-01-01T00:00:00Z"\n', WRONG),
    ("time-fraction", "A fraction of a second.", f"{TEXT}{END_OF}.5Z\n", RANGE),
    ("time-reversed", "It ends as it begins.", f"{TEXT}{END_OF}Z\n{END_OF}Z\n".replace("after", "before", 1), RANGE),
    ("revoked-short", "A revoked key id cut short.", instead("[]", '["98ba"]'), (11, "BAD_HEX", 9)),
    ("revoked-capitals", "A key id in capitals.", instead("[]", f'["{"AB" * 32}"]'), (11, "BAD_HEX", 9)),
    ("key-base64", "A key without padding.", instead('="\nscopes', '"\nscopes'), (11, "BAD_BASE64", 9)),
    ("key-weak", "A key of small order: anybody could sign by it.", holding(b"\1" + bytes(31)), (12, "BAD_KEY", 9)),
    ("key-zero", "A key of zeros.", holding(bytes(32)), (12, "BAD_KEY", 9)),
    ("key-short", "A key of 31 bytes.", holding(ALICE[:31]), (12, "BAD_KEY", 9)),
]

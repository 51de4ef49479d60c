"""Steps B8 and B9: signatures that do not hold, those that are missing, and old releases."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from blake3 import blake3

from tools.bundle_vectors.build import BASES, KEY, OK, PINNED, Case, Expect, cbor, field, malformed, patched
from tools.bundle_vectors.forge import (
    OTHER_SEED,
    SEED,
    SLOT,
    THIRD_SEED,
    forge,
    manifest_of,
    pack_slot,
    packed,
    parts,
    public_key,
    repacked,
    sign,
    sign_plain,
    signature,
    signatures,
)

BAD, BAD_KEY, ALGORITHM, REPEATED = (
    (12, name, "B8") for name in ("BAD_SIGNATURE", "BAD_KEY", "UNKNOWN_ALGORITHM", "REPEATED_KEY")
)
OTHER, THIRD = public_key(OTHER_SEED), public_key(THIRD_SEED)
PLAIN, SIGNED = BASES["plain"], BASES["signed"]
MANIFEST = manifest_of(PLAIN)
DIGEST = malformed("MANIFEST_DIGEST", "B4")
ORDER = 2**252 + 27742317777372353535851937790883648493
NEUTRAL = b"\1" + bytes(31)
SMALL_ORDER = bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f")
NOT_REDUCED = bytes.fromhex("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f")


def cases() -> Iterator[Case]:
    yield from _removed()
    yield from _entries()
    yield from _points()
    yield from _pinned()
    yield from _trust_files()
    yield from _releases()


def refused(name: str) -> Expect:
    return (12, name, "B9")


def _removed() -> Iterator[Case]:
    """68: signatures removed, emptied, or those of another bundle."""
    other = forge(seeds=[SEED], manifest=field(name="tinx"))
    rows: list[tuple[str, str, bytes, Expect]] = [
        ("cut-off", "The slot is cut off.", SIGNED[:-SLOT], malformed("FILE_LENGTH", "B3")),
        ("zeroed", "The slot is zero.", SIGNED[:-SLOT] + bytes(SLOT), DIGEST),
        ("emptied", "The signatures are zero, and their length is not.", patched(SIGNED, 36 - SLOT, bytes(200)),
         malformed("SLOT", "B4")),
        ("of-another", "The slot of another bundle by the same key.", SIGNED[:-SLOT] + other[-SLOT:], DIGEST),
        ("stolen", "The signatures of another bundle, behind the right digest.",
         SIGNED[: 32 - SLOT] + other[32 - SLOT :], BAD),
        ("manifest-of-another", "The manifest of another bundle.", other[:4096] + SIGNED[4096:], DIGEST),
        ("renamed", "A manifest and its digest are changed, and the signature is not.",
         _unsigned_again(other), BAD),
    ]  # fmt: skip
    for name, what, data, expect in rows:
        yield Case(f"signature-{name}", [68], what, data, expect, base="signed")
    unsigned = forge()
    what = "An unsigned bundle where a signature is asked for."
    yield Case("signature-none-pinned", [68], what, unsigned, refused("UNSIGNED"), PINNED)
    yield Case("signature-none", [68], "An unsigned bundle.", unsigned, OK, more={"signature": "unsigned"})


def _unsigned_again(other: bytes) -> bytes:
    """Another manifest with its right digest, under the signatures of the first."""
    tail = pack_slot(manifest_of(other), signatures(MANIFEST, [SEED]))
    return other[:-SLOT] + bytes(tail)


def _with(*entries: dict[str, Any]) -> bytes:
    return forge(slot=cbor(packed(list(entries))))


def _entries() -> Iterator[Case]:
    good = signature(SEED, MANIFEST)
    other = signature(OTHER_SEED, MANIFEST)
    signed = good["signature"]
    receipt = sign(SEED, MANIFEST, "application/vnd.kinetic.receipt+cbor")
    digest = blake3(b"kinetic manifest v1\0" + MANIFEST).digest()
    flipped = bytes([signed[0] ^ 1]) + signed[1:]
    rows: list[tuple[str, str, list[dict[str, Any]], Expect]] = [
        ("as-receipt", "A signature on a receipt of the same bytes.", [good | {"signature": receipt}], BAD),
        ("plain", "A signature on the manifest without the encoding around it.",
         [good | {"signature": sign_plain(SEED, MANIFEST)}], BAD),
        ("of-digest", "A signature on the manifest's digest.", [good | {"signature": sign(SEED, digest)}], BAD),
        ("flipped", "A signature of which a bit was turned over.", [good | {"signature": flipped}], BAD),
        ("zero", "A signature of zeros.", [good | {"signature": bytes(64)}], BAD),
        ("empty", "A signature of no bytes.", [good | {"signature": b""}], BAD),
        ("short", "A signature of 63 bytes.", [good | {"signature": signed[:63]}], BAD),
        ("long", "A signature of 65 bytes.", [good | {"signature": signed + b"\0"}], BAD),
        ("longest", "A signature of 1024 bytes.", [good | {"signature": bytes(1024)}], BAD),
        ("key-other", "A signature under another key.", [good | {"public_key": OTHER}], BAD),
        ("key-short", "A key of 31 bytes.", [good | {"public_key": KEY[:31]}], BAD_KEY),
        ("key-empty", "A key of no bytes.", [good | {"public_key": b""}], BAD_KEY),
        ("algorithm-none", "The algorithm none.", [good | {"algorithm": "none"}], ALGORITHM),
        ("algorithm-empty", "An algorithm without a name.", [good | {"algorithm": ""}], ALGORITHM),
        ("algorithm-upper", "The algorithm in capital letters.", [good | {"algorithm": "Ed25519"}], ALGORITHM),
        ("algorithm-ph", "Ed25519ph.", [good | {"algorithm": "ed25519ph"}], ALGORITHM),
        ("algorithm-rsa", "RSA.", [good | {"algorithm": "rsa"}], ALGORITHM),
        ("second-bad", "A good signature, then a bad one.", [good, other | {"signature": flipped}], BAD),
        ("first-bad", "A bad signature, then a good one.", [good | {"signature": flipped}, other], BAD),
        ("second-algorithm", "A good one, then one of another kind.", [good, other | {"algorithm": "x"}], ALGORITHM),
        ("twice", "One signature twice.", [good, good], REPEATED),
        ("twice-around", "One key twice, another between.", [good, other, good], REPEATED),
        ("twice-bad", "One key twice, the second time badly.", [good, good | {"signature": flipped}], BAD),
    ]  # fmt: skip
    for name, what, entries, expect in rows:
        yield Case(f"entry-{name}", [68], what, _with(*entries), expect, base="signed")


def _points() -> Iterator[Case]:
    """Keys and signatures that some libraries take."""
    good = signature(SEED, MANIFEST)
    first, second = good["signature"][:32], int.from_bytes(good["signature"][32:], "little")
    big = first + (second + ORDER).to_bytes(32, "little")
    for name, what, change, expect in [
        ("s-plus-order", "A signature whose S is larger than it need be.", {"signature": big}, BAD),
        ("r-neutral", "A signature whose R is the neutral point.", {"signature": NEUTRAL + bytes(32)}, BAD),
        ("r-small-order", "A signature whose R is of small order.", {"signature": SMALL_ORDER + bytes(32)}, BAD),
        ("key-neutral", "A key that is the neutral point.", {"public_key": NEUTRAL}, BAD_KEY),
        ("key-zero", "A key of zeros.", {"public_key": bytes(32)}, BAD_KEY),
        ("key-small-order", "A key of small order.", {"public_key": SMALL_ORDER}, BAD_KEY),
        ("key-not-reduced", "A key in a second spelling.", {"public_key": NOT_REDUCED}, BAD_KEY),
        ("key-no-point", "A key that is no point.", {"public_key": b"\2" + bytes(31)}, BAD_KEY),
        ("all-neutral", "The neutral point and zero: it holds for every message with some libraries.",
         {"public_key": NEUTRAL, "signature": NEUTRAL + bytes(32)}, BAD_KEY),
    ]:  # fmt: skip
        yield Case(f"point-{name}", [68], what, _with(good | change), expect, base="signed")


def _pin(**keys: bytes) -> dict[str, Any]:
    return {"keys": {name: key.hex() for name, key in keys.items()}}


def _pinned() -> Iterator[Case]:
    two = forge(seeds=[SEED, OTHER_SEED])
    trusted = {"signature": "trusted"}
    rows: list[tuple[str, str, bytes, dict[str, Any], Expect]] = [
        ("one", "Signed by the key that is pinned.", SIGNED, PINNED, OK),
        ("other", "Signed by another key.", SIGNED, _pin(bob=OTHER), refused("UNTRUSTED_KEY")),
        ("either", "Signed by one of two pinned keys.", SIGNED, _pin(bob=OTHER, alice=KEY), OK),
        ("among-two", "Signed by the key that is pinned, and another.", two, PINNED, OK),
        ("neither", "Signed by two keys, and a third is pinned.", two, _pin(carol=THIRD), refused("UNTRUSTED_KEY")),
        ("re-signed", "Changed, and signed anew with a key of one's own.",
         repacked(SIGNED, field(name="tinx"), [OTHER_SEED]), PINNED, refused("UNTRUSTED_KEY")),
        ("re-signed-bad", "A signature that does not hold, where another key is pinned.",
         _with(signature(SEED, b"")), _pin(bob=OTHER), BAD),
    ]  # fmt: skip
    for name, what, data, options, expect in rows:
        more = trusted if expect is OK else {}
        yield Case(f"pinned-{name}", [68], what, data, expect, options, more, "signed")


ASKED = "[bundle]\nthreshold = 1\n"
HEAD = 'format = "kinetic-trust"\nversion = 1\nmode = "{}"\nrevoked = [{}]\n'


def _trust(*tables: str, mode: str = "enforce", revoked: str = "", asked: str = ASKED) -> dict[str, Any]:
    return {"trust": HEAD.format(mode, revoked) + asked + "".join(tables)}


def _key(name: str, public: bytes, scopes: Sequence[str] = ("bundle",), *lines: str) -> str:
    text = base64.b64encode(public).decode("ascii")
    listed = ", ".join(f'"{scope}"' for scope in scopes)
    return "\n".join(["[[keys]]", f'name = "{name}"', f'public_key = "{text}"', f"scopes = [{listed}]", *lines]) + "\n"


def _trust_files() -> Iterator[Case]:
    """68: whom a trust file trusts with bundles."""
    two = forge(seeds=[SEED, OTHER_SEED])
    alice, bob = _key("alice", KEY), _key("bob", OTHER)
    asked_two = "[bundle]\nthreshold = 2\n"
    receipts = "[receipt]\nthreshold = 1\n"
    ended = _key("alice", KEY, ("bundle",), "not_after = 2026-01-01T00:00:00Z")
    later = _key("alice", KEY, ("bundle",), "not_before = 2027-01-01T00:00:00Z")
    key_id = f'"{blake3(KEY).hexdigest()}"'
    rows: list[tuple[str, str, bytes, dict[str, Any], Expect, str]] = [
        ("one", "A key that is trusted with bundles.", SIGNED, _trust(alice), OK, "trusted"),
        ("unsigned", "An unsigned bundle.", PLAIN, _trust(alice), refused("UNSIGNED"), ""),
        ("other", "A key that nobody lists.", SIGNED, _trust(bob), refused("UNTRUSTED_KEY"), ""),
        ("two", "Two of two.", two, _trust(alice, bob, asked=asked_two), OK, "trusted"),
        ("one-of-two", "One where two are asked for.", SIGNED, _trust(alice, bob, asked=asked_two),
         refused("THRESHOLD"), ""),
        ("scope", "A key that is trusted with receipts alone.", SIGNED,
         _trust(_key("alice", KEY, ["receipt"]), bob, asked=receipts + ASKED),
         refused("WRONG_SCOPE"), ""),
        ("no-table", "A trust file that says nothing of bundles.", SIGNED,
         _trust(_key("alice", KEY, ["receipt"]), asked=receipts), refused("WRONG_SCOPE"), ""),
        ("revoked", "A key that was revoked.", SIGNED, _trust(alice, revoked=key_id), refused("REVOKED_KEY"), ""),
        ("ended", "A key that counts no more.", SIGNED, _trust(ended), refused("EXPIRED_KEY"), ""),
        ("later", "A key that does not count yet.", SIGNED, _trust(later), refused("EXPIRED_KEY"), ""),
        ("warn", "A key that nobody lists, where it is only told.", SIGNED, _trust(bob, mode="warn"), OK, "unknown"),
        ("off", "A trust file that asks for nothing.", SIGNED, _trust(alice, mode="off"), OK, "unknown"),
    ]  # fmt: skip
    for name, what, data, options, expect, word in rows:
        more = {"signature": word} if word else {}
        yield Case(f"trust-{name}", [68], what, data, expect, options, more, "signed")
    early = _trust(ended) | {"at": "2025-12-31T23:59:59Z"}
    what = "A key in its last second."
    yield Case("trust-at", [68], what, SIGNED, OK, early, {"signature": "trusted"}, "signed")


def _releases() -> Iterator[Case]:
    """67: an older bundle in place of the new one."""
    alice = _key("alice", KEY)

    def least(releases: str, mode: str = "enforce") -> dict[str, Any]:
        return _trust(alice, mode=mode, asked=f"[bundle]\nthreshold = 1\nreleases = {{ {releases} }}\n")

    huge = forge(manifest=field(release=2**53 - 1), seeds=[SEED])
    old = refused("OLD_RELEASE")
    rows: list[tuple[str, str, bytes, dict[str, Any], Expect]] = [
        ("least", "The least release that is asked for.", SIGNED, {"min_release": 3}, OK),
        ("below", "A release below the least one.", SIGNED, {"min_release": 4}, old),
        ("below-unsigned", "The same, unsigned.", PLAIN, {"min_release": 4}, old),
        ("below-pinned", "The same, signed by the pinned key.", SIGNED, PINNED | {"min_release": 4}, old),
        ("below-untrusted", "An old release by a stranger: the stranger is told.", SIGNED,
         _pin(bob=OTHER) | {"min_release": 4}, refused("UNTRUSTED_KEY")),
        ("trust-least", "The least release of a trust file.", SIGNED, least("tiny = 3"), OK),
        ("trust-below", "A release below a trust file's.", SIGNED, least("tiny = 4"), old),
        ("trust-other", "A least release of another bundle.", SIGNED, least("other = 9"), OK),
        ("trust-warn", "A release below a trust file's, which is only told.", SIGNED, least("tiny = 4", "warn"), OK),
        ("largest", "The largest release there is, by a pinned key.", huge, PINNED | {"min_release": 4}, OK),
        ("renamed", "A release under another name is another bundle's.",
         forge(manifest=field(name="tinx"), seeds=[SEED]), least("tiny = 4"), OK),
        ("no-leaves", "An older bundle that lacks leaves.", forge(parts()[:3], manifest=field(release=2), seeds=[SEED]),
         PINNED | {"min_release": 3}, old),
    ]  # fmt: skip
    for name, what, data, options, expect in rows:
        is_trusted = expect is OK and options.keys() & {"keys", "trust"}
        more = {"signature": "trusted"} if is_trusted else {}
        yield Case(f"release-{name}", [67], what, data, expect, options, more, "signed")

"""Whom to believe: pinned keys, what each may sign, how many must, and until when.

A signature that holds says which key made it, never whose key that is. That
comes from here: from key files named on the command line, or from a trust
file. A key found in the file being checked is never trusted.
"""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ktc import limits, signature
from ktc.canonical import show
from ktc.errors import KtcError, LimitExceeded, Malformed, SignatureProblem
from ktc.fields import Base64, Enum, Field, Hex, Int, ListOf, Table, Text, exact
from ktc.files import Name, read_guarded

if TYPE_CHECKING:
    from datetime import datetime

SCOPES = ("receipt", "bundle")
MODES = ("off", "warn", "enforce")
FORMAT, VERSION = "kinetic-trust", 1

BUNDLE_NAME = Text(64, pattern=r"[a-z0-9][a-z0-9._-]*")

GRAVITY = ("REVOKED_KEY", "EXPIRED_KEY", "WRONG_SCOPE", "THRESHOLD", "UNTRUSTED_KEY", "UNSIGNED")
"""Why signatures are not enough, the gravest first: of several reasons it is the one that is told."""


class TrustedKey(NamedTuple):
    """A key and what it may sign. Times are seconds since 1970, UTC; it counts while not_before <= at < not_after."""

    name: str
    public: bytes
    scopes: tuple[str, ...]
    not_before: int | None = None
    not_after: int | None = None


class Trust(NamedTuple):
    """A whole trust file. ``thresholds`` gives how many distinct keys must sign; a scope it lacks trusts nobody."""

    mode: str
    keys: tuple[TrustedKey, ...]
    revoked: frozenset[str]
    """Key ids in hex; a key that is revoked never counts, whatever else is said of it."""
    thresholds: dict[str, int]
    releases: Mapping[str, int] = {}
    """The least release of a bundle, by the bundle's name."""


class Standing(NamedTuple):
    """What the signatures of a file are worth, whose form and mathematics already hold."""

    sentence: str
    is_trusted: bool
    warning: str
    """In mode ``warn``: why they are not enough; else ""."""


class Reason(NamedTuple):
    """Why signatures are not enough."""

    name: str
    text: str


def pinned(keys: Mapping[str, bytes], scope: str) -> Trust:
    """What ``--key F --key G`` means: a signature by one of these public keys, by name, is asked for."""
    trusted = tuple(TrustedKey(name, public, (scope,)) for name, public in keys.items())
    return Trust("enforce", trusted, frozenset(), {scope: 1})


def judge(trust: Trust | None, scope: str, signers: Sequence[str], at: int) -> Standing:
    """The standing of a ``scope`` ("receipt", "bundle") that these key ids signed, at a time in seconds since 1970.

    Distinct keys are counted; signers that are not trusted do no harm. Raises
    SignatureProblem, its name one of GRAVITY, in mode ``enforce`` if they are not enough.
    """
    ids = list(dict.fromkeys(signers))
    if trust is None or trust.mode == "off":
        return Standing(_unknown(ids), False, "")
    known = {signature.key_id(key.public): key for key in trust.keys}
    faults = {key: _fault(trust, scope, key, known.get(key), at) for key in ids}
    counting = [key for key in ids if faults[key] is None]
    needed = trust.thresholds.get(scope, 0)
    if needed and len(counting) >= needed:
        return Standing(_valid([(known[key].name, key) for key in counting]), True, "")
    reason = _reason(scope, needed, counting, [fault for fault in faults.values() if fault])
    if trust.mode == "enforce":
        raise SignatureProblem(reason.text, name=reason.name)
    return Standing(_unknown(ids), False, reason.text)


def judge_release(trust: Trust | None, name: str, release: int) -> str:
    """A warning if a bundle is older than the trust file allows, else "". Raises SignatureProblem in mode ``enforce``.

    An old bundle is still signed: without this, whoever kept it can put it in the place of the new one.
    """
    least = trust.releases.get(name, 0) if trust and trust.mode != "off" else 0
    if trust is None or release >= least:
        return ""
    text = f"the bundle is release {release} of {name}, and the trust file asks for {least} or a newer one"
    if trust.mode == "enforce":
        raise SignatureProblem(text, name="OLD_RELEASE")
    return text


def _fault(trust: Trust, scope: str, key_id: str, key: TrustedKey | None, at: int) -> Reason | None:
    """Why a signer does not count, or None if it does."""
    shown = f"key {key_id}" + (f" ({_shown(key.name)})" if key else "")
    if key_id in trust.revoked:
        return Reason("REVOKED_KEY", f"{shown} is revoked")
    if key is None:
        return Reason("UNTRUSTED_KEY", f"{shown} is not one of the pinned keys")
    if scope not in key.scopes:
        return Reason("WRONG_SCOPE", f"{shown} is trusted with a {' and a '.join(key.scopes)}, not with a {scope}")
    if key.not_before is not None and at < key.not_before:
        return Reason("EXPIRED_KEY", f"{shown} counts from {_date(key.not_before)}, and this is judged at {_date(at)}")
    if key.not_after is not None and at >= key.not_after:
        return Reason("EXPIRED_KEY", f"{shown} counted until {_date(key.not_after)}, and this is judged at {_date(at)}")
    return None


def _reason(scope: str, needed: int, counting: Sequence[str], faults: Sequence[Reason]) -> Reason:
    """The gravest of the reasons, in a sentence about the whole file."""
    if not needed:
        return Reason("WRONG_SCOPE", f"nobody is trusted with a {scope}: the trust file has no table [{scope}]")
    if not counting and not faults:
        asked = "a signature by a pinned key is" if needed == 1 else f"signatures by {needed} pinned keys are"
        return Reason("UNSIGNED", f"the {scope} is not signed, and {asked} asked for")
    short = [Reason("THRESHOLD", "the other keys that may sign it have not")] if counting else []
    gravest = min([*faults, *short], key=lambda reason: GRAVITY.index(reason.name))
    if needed == 1:
        return Reason(gravest.name, f"no key that signed the {scope} is trusted: {gravest.text}")
    count = f"the {scope} has {len(counting)} of the {needed} trusted signatures that are asked for"
    return Reason(gravest.name, f"{count}: {gravest.text}")


def _unknown(ids: Sequence[str]) -> str:
    """Never the word that says a signature is good: without a pinned key it would say too much."""
    if not ids:
        return "unsigned"
    if len(ids) == 1:
        return f"signature consistent, signer unknown (key {ids[0]})"
    return f"signatures consistent, signers unknown (keys {', '.join(ids)})"


def _valid(signers: Sequence[tuple[str, str]]) -> str:
    names = " and ".join(f"{_shown(name)} (key {key_id})" for name, key_id in signers)
    return f"valid signature{'s' if len(signers) > 1 else ''} by {names}"


def _shown(name: str) -> str:
    """A name that cannot steer a terminal: that of a key file may be anything."""
    return name if name.isprintable() else show(name, 80)


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)?")


def parse_time(text: str) -> int:
    """Seconds since 1970 of ``2026-03-14T15:09:26Z``, or of a date alone: its beginning, UTC. Raises Malformed."""
    from datetime import datetime

    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        return _seconds(datetime.fromisoformat(text.removesuffix("Z") + ("Z" if "T" in text else "T00:00:00Z")))
    except ValueError:
        raise Malformed(
            f"{show(text)} is no time: write 2026-03-14T15:09:26Z, or 2026-03-14 for its beginning, both in UTC",
            name="BAD_TIME",
        ) from None


def _seconds(moment: datetime) -> int:
    from datetime import UTC, datetime, timedelta

    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)


# The trust file


class _Instant(Field):
    """A TOML date-time that says its offset, in whole seconds."""

    def check(self, value: object, path: str) -> None:
        import datetime

        if isinstance(value, (datetime.date, datetime.time)) and getattr(value, "tzinfo", None) is None:
            raise Malformed(f"{path} must say where its clock stands, as in 2026-01-01T00:00:00Z", name="LOCAL_TIME")
        if not isinstance(value, datetime.datetime):
            raise Malformed(f"{path} must be a date-time without quotes, as in 2026-01-01T00:00:00Z", name="WRONG_TYPE")
        if value.microsecond:
            raise Malformed(f"{path} must be a whole second", name="OUT_OF_RANGE")


class _KeyName(Text):
    """A name that can stand in a sentence: printable, not empty, no space around it."""

    def check(self, value: object, path: str) -> None:
        super().check(value, path)
        name = str(value)
        if not name or not name.isprintable() or name != name.strip():
            raise Malformed(f"{path} cannot be {show(name)}", name="BAD_TEXT")


class _Releases(Field):
    """A table from names of bundles to numbers."""

    def check(self, value: object, path: str) -> None:
        table = exact(value, dict, path)
        if len(table) > limits.MAX_TRUST_KEYS:
            raise LimitExceeded(f"{path} has more than {limits.MAX_TRUST_KEYS:,} entries", name="TOO_MANY_ENTRIES")
        for name, release in table.items():
            BUNDLE_NAME.check(name, f"a name in {path}")
            Int(0).check(release, f"{path}.{name}")


class _Open(Field):
    """A closed table of which some fields may be absent."""

    def __init__(self, required: dict[str, Field], optional: dict[str, Field]) -> None:
        self.required, self.optional = required, optional

    def check(self, value: object, path: str) -> None:
        table = exact(value, dict, path)
        present = {name: field for name, field in self.optional.items() if name in table}
        Table(**self.required, **present).check(table, path)


_THRESHOLD = Int(1, limits.MAX_TRUST_KEYS)
_SCOPES = ListOf(Enum(*SCOPES), len(SCOPES), distinct=True)
_KEY = _Open(
    {"name": _KeyName(limits.MAX_KEY_NAME_BYTES), "public_key": Base64(), "scopes": _SCOPES},
    {"not_before": _Instant(), "not_after": _Instant()},
)
_FILE = _Open(
    {
        "format": Enum(FORMAT),
        "version": Int(VERSION, VERSION),
        "mode": Enum(*MODES),
        "revoked": ListOf(Hex(32), limits.MAX_REVOKED, distinct=True),
        "keys": ListOf(_KEY, limits.MAX_TRUST_KEYS),
    },
    {"receipt": Table(threshold=_THRESHOLD), "bundle": _Open({"threshold": _THRESHOLD}, {"releases": _Releases()})},
)


def read_trust(path: Name) -> Trust:
    """A trust file, as FORMAT.md describes it. Raises FileProblem, LimitExceeded, Malformed, SignatureProblem."""
    data = read_guarded(path, limits.MAX_TRUST_FILE_BYTES)
    try:
        return parse_trust(data)
    except KtcError as error:
        raise type(error)(f"{os.fspath(path)}: {error}", name=error.name) from None


def parse_trust(data: bytes) -> Trust:
    """The same from the file's bytes, at most MAX_TRUST_FILE_BYTES."""
    table = _parse_toml(data)
    _require_ours(table)
    _FILE.check(table, "trust")
    keys = tuple(_trusted_key(entry, f"trust.keys[{index}]") for index, entry in enumerate(table["keys"]))
    _require_distinct([key.name for key in keys], "name")
    _require_distinct([key.public for key in keys], "key")
    thresholds = {scope: table[scope]["threshold"] for scope in SCOPES if scope in table}
    for scope, threshold in thresholds.items():
        able = sum(scope in key.scopes for key in keys)
        if threshold > able:
            raise Malformed(
                f"trust.{scope}.threshold is {threshold}, but the keys with the scope {scope} are {able}",
                name="OUT_OF_RANGE",
            )
    releases = table.get("bundle", {}).get("releases", {})
    return Trust(table["mode"], keys, frozenset(table["revoked"]), thresholds, releases)


_PLACE = re.compile(r"\((at [a-z0-9, ]+)\)$")
"""Where tomllib found a fault; its words for the fault itself are not repeated."""


def _parse_toml(data: bytes) -> dict[str, Any]:
    import tomllib

    if data.count(b".") > limits.MAX_TRUST_DOTS:
        raise LimitExceeded(f"more than {limits.MAX_TRUST_DOTS:,} dots in a trust file", name="TOO_DEEP")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Malformed(f"byte {error.start} is not UTF-8", name="NOT_UTF8") from None
    except ValueError as error:  # tomllib's own, and Python's for numbers of thousands of digits
        place = _PLACE.search(str(error))
        where = f" {place[1]}" if place else ": it holds a value that cannot be read"
        raise Malformed(f"this is no TOML{where}", name="BAD_TOML") from None
    except RecursionError:
        raise LimitExceeded("values are nested too deep for a trust file", name="TOO_DEEP") from None


def _require_ours(table: dict[str, Any]) -> None:
    if table.get("format") != FORMAT:
        raise Malformed(f'this is no trust file: it must begin with format = "{FORMAT}"', name="NOT_A_TRUST_FILE")
    version = table.get("version", VERSION)
    if type(version) is int and version != VERSION:
        raise Malformed(f"trust.version is {show(version)}, and this program knows {VERSION}", name="VERSION")


def _trusted_key(entry: dict[str, Any], path: str) -> TrustedKey:
    public = base64.b64decode(entry["public_key"])
    try:
        signature.require_key(public)
    except SignatureProblem as error:
        raise SignatureProblem(f"{path}.public_key: {error}", name=error.name) from None
    if not entry["scopes"]:
        raise Malformed(f"{path}.scopes names nothing that the key may sign", name="OUT_OF_RANGE")
    start, end = (_seconds(entry[name]) if name in entry else None for name in ("not_before", "not_after"))
    if start is not None and end is not None and start >= end:
        raise Malformed(f"{path}.not_before must be earlier than its not_after", name="OUT_OF_RANGE")
    return TrustedKey(entry["name"], public, tuple(entry["scopes"]), start, end)


def _require_distinct(values: Sequence[object], what: str) -> None:
    if len(set(values)) != len(values):
        first = next(index for index, value in enumerate(values) if value in values[:index])
        raise Malformed(f"trust.keys[{first}] has the {what} of an earlier one", name="REPEATED")

"""Trust files: what one says, and every file that is refused, by its name and with the place."""

import base64
import os
import subprocess
import sys
import time

import pytest

from ktc import limits, signature
from ktc.errors import FileProblem, KtcError, LimitExceeded, Malformed, SignatureProblem
from ktc.trust import MODES, Trust, TrustedKey, judge, judge_release, parse_trust, read_trust

ALICE, BOB, CAROL, EVE = (signature.key_pair(bytes([number]) * 32).public for number in range(4))
A, C, E = map(signature.key_id, (ALICE, CAROL, EVE))
START, END = 1_767_225_600, 1_798_761_600  # 2026-01-01 and 2027-01-01, UTC
NOW = START + 86_400 * 100


def refused(call, *arguments):
    with pytest.raises(KtcError) as caught:
        call(*arguments)
    sentence = str(caught.value)
    assert sentence.isprintable() and "valid" not in sentence
    return type(caught.value), caught.value.name, sentence


def b64(public):
    return base64.b64encode(public).decode()


ENTRY = {"name": '"alice"', "public_key": f'"{b64(ALICE)}"', "scopes": '["receipt"]'}
HEAD = {"format": '"kinetic-trust"', "version": "1", "mode": '"enforce"', "revoked": "[]"}


def entry(**changes):
    return "[[keys]]\n" + lines(ENTRY | changes)


def lines(table):
    return "".join(f"{name} = {value}\n" for name, value in table.items() if value is not None)


def file(*entries, rules="[receipt]\nthreshold = 1\n", **changes):
    return lines(HEAD | changes) + rules + "".join(entries or (entry(),))


def parse(text):
    return parse_trust(text.encode() if isinstance(text, str) else text)


def test_a_whole_file(tmp_path):
    path = tmp_path / "trust.toml"
    path.write_text(
        file(
            entry(not_before="2026-01-01T00:00:00Z", not_after="2027-01-01 01:00:00+01:00"),
            entry(name='"Bob, Ćošak 3"', public_key=f'"{b64(BOB)}"', scopes='["bundle", "receipt"]'),
            mode='"warn"',
            revoked=f'["{C}", "{E}"]',
            rules="[receipt]\nthreshold = 2\n[bundle]\nthreshold = 1\n",
        ),
        encoding="utf-8",
    )
    expected = (
        TrustedKey("alice", ALICE, ("receipt",), START, END),
        TrustedKey("Bob, Ćošak 3", BOB, ("bundle", "receipt"), None, None),
    )
    assert read_trust(path) == Trust("warn", expected, frozenset([C, E]), {"receipt": 2, "bundle": 1})
    path.chmod(0o644)
    assert read_trust(str(path)).mode == "warn"


def test_a_file_that_trusts_nobody():
    told = parse(lines(HEAD) + "keys = []\n")
    assert told == Trust("enforce", (), frozenset(), {})
    assert refused(judge, told, "receipt", [A], NOW)[1] == "WRONG_SCOPE"


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode):
    assert parse(file(mode=f'"{mode}"')).mode == mode


POINT = {
    name: b64(bytes.fromhex(text))
    for name, text in {"y = p + 1": "ee" + "ff" * 30 + "7f", "identity": "01" + "00" * 31}.items()
}
AGAIN = entry(name='"bob"', public_key=f'"{b64(BOB)}"')

WRONG = {
    # the file as a whole
    "empty": ("", "NOT_A_TRUST_FILE", Malformed),
    "no TOML": ("format: kinetic-trust", "BAD_TOML", Malformed),
    "JSON": ('{"format": "kinetic-trust"}', "BAD_TOML", Malformed),
    "not UTF-8": (file().encode() + b"# \xff", "NOT_UTF8", Malformed),
    "byte order mark": (b"\xef\xbb\xbf" + file().encode(), "BAD_TOML", Malformed),
    "NUL": (file() + "\0", "BAD_TOML", Malformed),
    "a field twice": (file(revoked="[]\nrevoked = []"), "BAD_TOML", Malformed),
    "a huge number": (file(version="1" * 5000), "BAD_TOML", Malformed),
    "deep arrays": (file(revoked="[" * 30_000), "TOO_DEEP", LimitExceeded),
    "deep keys": ("a." * 30_000 + "a = 1", "TOO_DEEP", LimitExceeded),
    # its head
    "another format": (file(format='"kinetic-receipt"'), "NOT_A_TRUST_FILE", Malformed),
    "no format": (file(format=None), "NOT_A_TRUST_FILE", Malformed),
    "format 1": (file(format="1"), "NOT_A_TRUST_FILE", Malformed),
    "another version": (file(version="2"), "VERSION", Malformed),
    "version 0": (file(version="0"), "VERSION", Malformed),
    "version true": (file(version="true"), "WRONG_TYPE", Malformed),
    "version 1.0": (file(version="1.0"), "WRONG_TYPE", Malformed),
    "version text": (file(version='"1"'), "WRONG_TYPE", Malformed),
    "no version": (file(version=None), "MISSING_FIELD", Malformed),
    "no mode": (file(mode=None), "MISSING_FIELD", Malformed),
    "another mode": (file(mode='"on"'), "UNKNOWN_WORD", Malformed),
    "mode true": (file(mode="true"), "WRONG_TYPE", Malformed),
    "unknown field": (file(extra="1"), "UNKNOWN_FIELD", Malformed),
    "no revoked": (file(revoked=None), "MISSING_FIELD", Malformed),
    "revoked text": (file(revoked=f'"{A}"'), "WRONG_TYPE", Malformed),
    "revoked short": (file(revoked=f'["{A[:62]}"]'), "BAD_HEX", Malformed),
    "revoked upper": (file(revoked=f'["{A.upper()}"]'), "BAD_HEX", Malformed),
    "revoked twice": (file(revoked=f'["{A}", "{A}"]'), "REPEATED", Malformed),
    # the rules
    "receipt no table": (file(receipt="1", rules=""), "WRONG_TYPE", Malformed),
    "threshold missing": (file(rules="[receipt]\n"), "MISSING_FIELD", Malformed),
    "threshold 0": (file(rules="[receipt]\nthreshold = 0\n"), "OUT_OF_RANGE", Malformed),
    "threshold -1": (file(rules="[receipt]\nthreshold = -1\n"), "OUT_OF_RANGE", Malformed),
    "threshold true": (file(rules="[receipt]\nthreshold = true\n"), "WRONG_TYPE", Malformed),
    "threshold too high": (file(rules="[receipt]\nthreshold = 2\n"), "OUT_OF_RANGE", Malformed),
    "threshold of another scope": (file(entry(), AGAIN, rules="[bundle]\nthreshold = 1\n"), "OUT_OF_RANGE", Malformed),
    "unknown in a rule": (file(rules="[receipt]\nthreshold = 1\nof = 2\n"), "UNKNOWN_FIELD", Malformed),
    "unknown scope table": (
        file(rules="[receipt]\nthreshold = 1\n[model]\nthreshold = 1\n"),
        "UNKNOWN_FIELD",
        Malformed,
    ),
    # the keys
    "no keys": (lines(HEAD), "MISSING_FIELD", Malformed),
    "keys a table": (lines(HEAD) + "[keys]\nname = 1\n", "WRONG_TYPE", Malformed),
    "keys of texts": (lines(HEAD) + 'keys = ["a"]\n', "WRONG_TYPE", Malformed),
    "unknown in a key": (file(entry(algorithm='"ed25519"')), "UNKNOWN_FIELD", Malformed),
    "no name": (file(entry(name=None)), "MISSING_FIELD", Malformed),
    "empty name": (file(entry(name='""')), "BAD_TEXT", Malformed),
    "spaces round a name": (file(entry(name='" alice"')), "BAD_TEXT", Malformed),
    "escape in a name": (file(entry(name='"\\u001b[2J"')), "BAD_TEXT", Malformed),
    "turned name": (file(entry(name='"\\u202eecila"')), "BAD_TEXT", Malformed),
    "long name": (file(entry(name='"' + "a" * 129 + '"')), "TOO_LONG", LimitExceeded),
    "name 1": (file(entry(name="1")), "WRONG_TYPE", Malformed),
    "one name twice": (file(entry(), AGAIN.replace("bob", "alice")), "REPEATED", Malformed),
    "one key twice": (file(entry(), entry(name='"bob"')), "REPEATED", Malformed),
    "no public key": (file(entry(public_key=None)), "MISSING_FIELD", Malformed),
    "key in hex": (file(entry(public_key=f'"{ALICE.hex()}0"')), "BAD_BASE64", Malformed),
    "key without padding": (file(entry(public_key=f'"{b64(ALICE)[:-1]}"')), "BAD_BASE64", Malformed),
    "key too short": (file(entry(public_key=f'"{b64(ALICE[:31])}"')), "BAD_KEY", SignatureProblem),
    "key too long": (file(entry(public_key=f'"{b64(ALICE + ALICE)}"')), "BAD_KEY", SignatureProblem),
    "key not canonical": (file(entry(public_key=f'"{POINT["y = p + 1"]}"')), "BAD_KEY", SignatureProblem),
    "key of small order": (file(entry(public_key=f'"{POINT["identity"]}"')), "BAD_KEY", SignatureProblem),
    "no scopes": (file(entry(), AGAIN.replace('"receipt"', "")), "OUT_OF_RANGE", Malformed),
    "scope a text": (file(entry(scopes='"receipt"')), "WRONG_TYPE", Malformed),
    "scope twice": (file(entry(scopes='["receipt", "receipt"]')), "REPEATED", Malformed),
    "unknown scope": (file(entry(scopes='["model"]')), "UNKNOWN_WORD", Malformed),
    # its times
    "local date-time": (file(entry(not_after="2027-01-01T00:00:00")), "LOCAL_TIME", Malformed),
    "date alone": (file(entry(not_after="2027-01-01")), "LOCAL_TIME", Malformed),
    "time alone": (file(entry(not_before="10:00:00")), "LOCAL_TIME", Malformed),
    "time as text": (file(entry(not_after='"2027-01-01T00:00:00Z"')), "WRONG_TYPE", Malformed),
    "time as number": (file(entry(not_after="1798761600")), "WRONG_TYPE", Malformed),
    "part of a second": (file(entry(not_after="2027-01-01T00:00:00.5Z")), "OUT_OF_RANGE", Malformed),
    "no such day": (file(entry(not_after="2027-02-30T00:00:00Z")), "BAD_TOML", Malformed),
    "no time between": (
        file(entry(not_before="2027-01-01T00:00:00Z", not_after="2027-01-01T01:00:00+01:00")),
        "OUT_OF_RANGE",
        Malformed,
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_that_are_refused(tmp_path, case):
    text, name, kind = WRONG[case]
    path = tmp_path / "trust.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    assert refused(read_trust, path)[:2] == (kind, name)
    sentence = refused(read_trust, path)[2]
    assert sentence.startswith(f"{path}: ") and len(sentence) < len(str(path)) + 240


def test_where_it_is_wrong_is_said():
    assert "trust.keys[1].scopes[0] " in refused(parse, file(entry(), AGAIN.replace("receipt", "model")))[2]
    assert "trust.keys[1].public_key: " in refused(parse, file(entry(), AGAIN.replace(b64(BOB), POINT["identity"])))[2]
    assert (
        "trust.keys[2] has the name of an earlier one"
        in refused(parse, file(entry(), AGAIN, entry(public_key=f'"{b64(CAROL)}"')))[2]
    )
    assert (
        "trust.receipt.threshold is 2, but the keys with the scope receipt are 1"
        in refused(parse, file(rules="[receipt]\nthreshold = 2\n"))[2]
    )


def test_the_earliest_and_the_latest_time():
    told = parse(file(entry(not_before="0001-01-01T00:00:00+23:59", not_after="9999-12-31T23:59:59-23:59")))
    assert told.keys[0].not_before == -62_135_596_800 - 86_340 and told.keys[0].not_after == 253_402_300_799 + 86_340


def many(count):
    publics = (signature.key_pair(number.to_bytes(32, "big")).public for number in range(count))
    entries = [
        f'{{name="{number}",public_key="{b64(public)}",scopes=["receipt"]}}' for number, public in enumerate(publics)
    ]
    return lines(HEAD) + f"keys = [{','.join(entries)}]\n[receipt]\nthreshold = {limits.MAX_TRUST_KEYS}\n"


def test_limits(tmp_path):
    told = parse(many(limits.MAX_TRUST_KEYS))
    assert len(told.keys) == limits.MAX_TRUST_KEYS
    assert judge(told, "receipt", [signature.key_id(key.public) for key in told.keys], NOW).is_trusted
    assert refused(parse, many(limits.MAX_TRUST_KEYS + 1))[:2] == (LimitExceeded, "TOO_MANY_ENTRIES")
    ids = [f'"{number:064x}"' for number in range(limits.MAX_REVOKED + 1)]
    assert len(parse(file(revoked=f"[{','.join(ids[:-1])}]")).revoked) == limits.MAX_REVOKED
    assert refused(parse, file(revoked=f"[{','.join(ids)}]"))[:2] == (LimitExceeded, "TOO_MANY_ENTRIES")
    path = tmp_path / "trust.toml"
    path.write_text(file().ljust(limits.MAX_TRUST_FILE_BYTES, "\n"))
    assert read_trust(path).mode == "enforce"
    path.write_text(file().ljust(limits.MAX_TRUST_FILE_BYTES + 1, "\n"))
    assert refused(read_trust, path)[:2] == (LimitExceeded, "FILE_TOO_LARGE")


def test_no_file_takes_long():
    dots = limits.MAX_TRUST_DOTS
    for text in ("a." * dots + "a = 1", "[" + "a." * dots + "a]\n" + "".join(f"a{n}=1\n" for n in range(4_000))):
        start = time.process_time()
        assert refused(parse, text)[:2] == (Malformed, "NOT_A_TRUST_FILE")
        assert time.process_time() - start < 20
    assert refused(parse, "a." * (dots + 1) + "a = 1")[:2] == (LimitExceeded, "TOO_DEEP")


def test_the_file_itself(tmp_path):
    """Attack 77: swapped for a link; and what is no file at all."""
    (tmp_path / "real").write_text(file())
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "fifo")
    assert refused(read_trust, tmp_path / "link")[:2] == (SignatureProblem, "SYMLINK")
    for path, name in ((tmp_path / "fifo", "NOT_A_FILE"), (tmp_path, "NOT_A_FILE"), (tmp_path / "none", "UNREADABLE")):
        assert refused(read_trust, path)[:2] == (FileProblem, name)


def test_importing_is_cheap():
    program = "import sys, ktc.trust, ktc.keys; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"nacl", "tomllib", "datetime", "dataclasses", "inspect", "asyncio", "tempfile", "kinetic"}


OLD = b"""
format = "kinetic-trust"
version = 1
mode = "%s"
revoked = []
keys = [{ name = "alice", public_key = "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=", scopes = ["bundle"] }]

[bundle]
threshold = 1
releases = { smollm2 = 3 }
"""


@pytest.mark.parametrize(("release", "name"), [(3, "smollm2"), (4, "smollm2"), (0, "another")])
def test_a_release_that_is_new_enough(release, name):
    assert judge_release(parse_trust(OLD % b"enforce"), name, release) == ""


def test_an_old_release_is_refused_warned_of_or_passed():
    with pytest.raises(SignatureProblem) as refused:
        judge_release(parse_trust(OLD % b"enforce"), "smollm2", 2)
    assert refused.value.name == "OLD_RELEASE"
    assert "asks for 3" in judge_release(parse_trust(OLD % b"warn"), "smollm2", 2)
    assert judge_release(parse_trust(OLD % b"off"), "smollm2", 2) == ""
    assert judge_release(None, "smollm2", 2) == ""


@pytest.mark.parametrize("table", [b"{ '../x' = 1 }", b"{ a = -1 }", b"{ a = true }", b"3"])
def test_releases_are_names_and_whole_numbers(table):
    with pytest.raises(Malformed):
        parse_trust((OLD % b"enforce").replace(b"{ smollm2 = 3 }", table))

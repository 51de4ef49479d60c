"""Device certificates: written, signed, checked; and refused after any change."""

from __future__ import annotations

import json

import pytest

from conformance import certificate, command
from conformance.__main__ import main
from conformance.suite import FAILED, PASSED, SKIPPED, Result
from ktc.errors import KtcError, LimitExceeded, Malformed, SignatureProblem
from ktc.keys import write_key_pair

SEED = bytes(range(32))

ABOUT = {
    "time": "2026-03-14T15:09:26Z",
    "program": "kinetic 0",
    "profile": "kinetic-1",
    "engine_id": "cpu:00",
    "device_class": "cpu",
    "device_name": "A processor",
    "level": "quick",
    "only": ["rows"],
    "machine": {"processor": "A processor", "cores": "2"},
    "models": [],
}
RESULTS = [
    Result("rows/b", "Rows are rows.", PASSED, "3 rows", "ab" * 32, 0.1),
    Result("rows/a", "Rows are rows.", SKIPPED, "there is none", "", 0.1),
]


@pytest.fixture
def signed():
    return certificate.to_bytes(certificate.build(ABOUT, RESULTS), SEED)


def test_round_trip(signed):
    checked = certificate.check(signed)
    assert checked.certificate == certificate.build(ABOUT, RESULTS)
    assert [case["id"] for case in checked.certificate["cases"]] == ["rows/a", "rows/b"]
    assert (checked.certificate["passed"], checked.certificate["skipped"]) == (1, 1)
    assert len(checked.signers) == 1
    assert certificate.check(certificate.to_bytes(checked.certificate)).signers == []


def test_the_order_of_results_does_not_matter():
    made = [certificate.build(ABOUT, results) for results in (RESULTS, RESULTS[::-1])]
    assert certificate.signed_bytes(made[0]) == certificate.signed_bytes(made[1])


def changes():
    """Every text and number of a certificate, changed alone."""

    def walk(value, path):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            if isinstance(item, (dict, list)):
                yield from walk(item, (*path, key))
            else:
                yield (*path, key)

    return list(walk(certificate.build(ABOUT, RESULTS), ()))


@pytest.mark.parametrize("path", changes(), ids=lambda path: ".".join(map(str, path)))
def test_every_field_is_signed(signed, path):
    envelope = json.loads(signed)
    place = envelope["certificate"]
    for key in path[:-1]:
        place = place[key]
    old = place[path[-1]]
    place[path[-1]] = old + 1 if isinstance(old, int) else "cd" * 32 if old == "ab" * 32 else f"{old}x"
    with pytest.raises((SignatureProblem, Malformed)):
        certificate.check(json.dumps(envelope).encode())


def test_counts_must_be_those_of_the_cases():
    made = certificate.build(ABOUT, RESULTS) | {"passed": 2}
    with pytest.raises(Malformed, match="passed"):
        certificate.check(certificate.to_bytes(made))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"certificate": {}, "signatures": []}', b"\xff", b"{" * 1000])
def test_what_is_no_certificate(data):
    with pytest.raises((Malformed, LimitExceeded)):
        certificate.check(data)


def test_a_signature_of_another_kind_is_none(signed):
    """The same bytes under a receipt's type."""
    from base64 import b64encode

    from ktc.signature import key_pair, sign
    from receipts.sign import PAYLOAD_TYPE

    envelope = json.loads(signed)
    payload = certificate.signed_bytes(envelope["certificate"])
    envelope["signatures"][0]["signature"] = b64encode(sign(key_pair(SEED), PAYLOAD_TYPE, payload)).decode()
    with pytest.raises(SignatureProblem):
        certificate.check(json.dumps(envelope).encode())


# --- the command ---


@pytest.fixture
def files(tmp_path, signed):
    write_key_pair(tmp_path / "alice", SEED)
    write_key_pair(tmp_path / "bob", bytes(32))
    (tmp_path / "cert.json").write_bytes(signed)
    return tmp_path


def test_check(files, capsys):
    cert = str(files / "cert.json")
    assert main(["--check", cert]) == 0
    assert "unknown" in capsys.readouterr().out
    assert main(["--check", cert, "--key", str(files / "alice.pub")]) == 0
    assert "valid signature by alice" in capsys.readouterr().out
    assert main(["--check", cert, "--key", str(files / "bob.pub")]) == 12
    assert main(["--check", cert, "--strict"]) == 13
    assert main(["--check", str(files / "none.json")]) == 3


def test_check_of_an_unsigned_one(files, capsys):
    path = files / "unsigned.json"
    path.write_bytes(certificate.to_bytes(certificate.build(ABOUT, RESULTS)))
    assert main(["--check", str(path)]) == 0
    assert "unsigned" in capsys.readouterr().out
    assert main(["--check", str(path), "--key", str(files / "alice.pub")]) == 12


def test_check_tells_of_failures(files):
    failed = [*RESULTS, Result("rows/c", "Rows are rows.", FAILED, "row 1", "", 0.1)]
    path = files / "failed.json"
    path.write_bytes(certificate.to_bytes(certificate.build(ABOUT, failed), SEED))
    assert main(["--check", str(path), "--key", str(files / "alice.pub")]) == 10


@pytest.mark.parametrize(
    "words",
    [
        ["--certify"],
        ["-o", "x"],
        ["--sign", "k"],
        ["--key", "k.pub"],
        ["--check", "c", "model"],
        ["--check", "c", "--certify", "-o", "x"],
        ["-t", "-1"],
        ["--device", "abacus"],
        ["--only", "nothing"],
        ["--junit", ""],
    ],
)
def test_senseless_flags(words, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("python -m conformance: ")


def test_command_errors_are_ours(files):
    assert issubclass(KtcError, Exception) and command.execute
    (files / "cert.json").write_bytes(b"{}")
    assert main(["--check", str(files / "cert.json")]) == 11

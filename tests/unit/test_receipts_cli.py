"""``python -m receipts check``: exit codes and words, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from receipts.encode import Receipt, to_cbor, to_json, write_receipt
from receipts.identity import question_id, receipt_id
from receipts.sign import sign_record
from tests.support.sample_receipts import SEED, changed, full_sample, sample

ROOT = Path(__file__).resolve().parents[2]


def check(*arguments):
    """Exit code, standard output, standard error."""
    command = [sys.executable, "-m", "receipts", "check", *map(str, arguments)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in result.stderr
    return result.returncode, result.stdout, result.stderr


@pytest.fixture
def put(tmp_path):
    def write(name, content):
        path = tmp_path / name
        if isinstance(content, dict):
            content = json.dumps({"receipt": content, "signatures": []}).encode()
        path.write_bytes(content)
        return path

    return write


def test_a_receipt_that_holds(tmp_path):
    for name, form in (("a.json", "json"), ("a.cbor", "cbor")):
        write_receipt(tmp_path / name, sample(), form=form)
        code, out, err = check(tmp_path / name)
        assert (code, err) == (0, "")
        assert out == f"{tmp_path / name}: consistent, not rerun; unsigned; receipt {receipt_id(sample())}\n"


def test_a_signed_receipt_is_never_called_valid(tmp_path):
    write_receipt(tmp_path / "a.json", sample(), [sign_record(sample(), SEED)])
    code, out, _ = check(tmp_path / "a.json")
    assert code == 0
    assert "signature consistent, signer unknown" in out
    assert "valid" not in out


@pytest.mark.parametrize(
    ("content", "code", "word", "name"),
    [
        (changed(sample(), "text", 1), 11, "MALFORMED", "WRONG_TYPE"),
        (changed(sample(), "output.digest", "00" * 32), 11, "MALFORMED", "OUTPUT_DIGEST"),
        (changed(sample(), "output.tokens.0", 5), 11, "MALFORMED", "OUTPUT_DIGEST"),
        (changed(sample(), "stop.reason", "stop"), 11, "MALFORMED", "STOP_REASON"),
        (changed(sample(), "verified", True), 11, "MALFORMED", "UNKNOWN_FIELD"),
        (b"", 11, "MALFORMED", "BAD_JSON"),
        (b"not a receipt", 11, "MALFORMED", "BAD_JSON"),
        (b"[]", 11, "MALFORMED", "WRONG_TYPE"),
        (b"\xa0", 11, "MALFORMED", "MISSING_FIELD"),
        (b"\xbf\xff", 11, "MALFORMED", "INDEFINITE"),
        (changed(sample(), "version", 2), 13, "UNVERIFIABLE", "VERSION"),
        (b"[" * 100_000, 14, "LIMIT", "TOO_DEEP"),
        (b" " * (16 * 1024 * 1024 + 1), 14, "LIMIT", "FILE_TOO_LARGE"),
        (
            to_json(Receipt(sample(text="x"), [sign_record(sample(), SEED)])).encode(),
            12,
            "SIGNATURE",
            "BAD_SIGNATURE",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(put, content, code, word, name):
    path = put("a.json", content)
    got, out, err = check(path)
    assert got == code
    assert out.startswith(f"{path}: {word} ({name}): ")
    assert out.count("\n") == 1
    assert err == ""


def test_a_missing_file(tmp_path):
    code, out, _ = check(tmp_path / "absent.json")
    assert code == 3
    assert "UNREADABLE" in out


def test_the_gravest_of_several_counts_and_all_are_named(put):
    files = [put("1", sample()), put("2", changed(sample(), "version", 2)), put("3", b"{}"), put("4", sample())]
    code, out, _ = check(*files)
    assert code == 11
    assert [line.split(": ")[0] for line in out.splitlines()] == [str(file) for file in files]


def test_json(put):
    record = full_sample()
    good = put("good", to_cbor(Receipt(record, [sign_record(record, SEED)])))
    code, out, _ = check("--json", good, put("bad", b"{}"))
    first, second = map(json.loads, out.splitlines())
    assert code == 11
    assert (first["exit_code"], first["name"], len(first["signers"])) == (0, "CONSISTENT", 1)
    assert (first["receipt_id"], first["question_id"]) == (receipt_id(record), question_id(record))
    assert (second["exit_code"], second["name"]) == (11, "MISSING_FIELD")


def test_hostile_names_and_values_stay_on_one_line(put):
    path = put("a.json", changed(sample(), "\x1b[31m\n" + "x" * 10_000, 1))
    code, out, _ = check(path)
    assert code == 11
    assert "\x1b" not in out and out.count("\n") == 1 and len(out) < 400


def test_usage_errors_exit_2():
    for arguments in ([], ["--flag"]):
        assert check(*arguments)[0] == 2
    result = subprocess.run([sys.executable, "-m", "receipts"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2


def test_a_fault_of_our_own_is_no_verdict(monkeypatch, capsys):
    from receipts import __main__ as program

    monkeypatch.setattr(program, "read_receipt", lambda path: 1 / 0)
    assert program.main(["check", "a.json"]) == 1
    assert "internal fault" in capsys.readouterr().out

"""``python -m receipts check``: exit codes and words, in a process of its own."""

import json
import subprocess
import sys
import time
from base64 import b64encode
from pathlib import Path

import pytest

from ktc.keys import read_public_key, write_key_pair
from ktc.layout import MAGIC
from ktc.signature import key_id
from receipts.encode import Receipt, to_cbor, to_json, write_receipt
from receipts.identity import challenge_seed, question_id, receipt_id
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
        (MAGIC, 11, "MALFORMED", "NOT_A_RECEIPT"),
        (MAGIC + bytes(17 << 20), 11, "MALFORMED", "NOT_A_RECEIPT"),
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


# Trust


@pytest.fixture
def keys(tmp_path):
    """Two key pairs: alice's, whose receipt is ``a.json``, and bob's."""
    for name, seed in (("alice", SEED), ("bob", bytes(32))):
        write_key_pair(tmp_path / name, seed)
    write_receipt(tmp_path / "a.json", sample(), [sign_record(sample(), SEED)])
    return tmp_path


def test_a_pinned_key_makes_a_signature_valid(keys):
    code, out, _ = check(keys / "a.json", "--key", keys / "alice.pub")
    assert code == 0 and "; valid signature by alice (key " in out
    code, out, _ = check(keys / "a.json", "--key", keys / "bob.pub", "--key", keys / "alice.pub")
    assert code == 0 and "valid signature by alice" in out


def test_two_keys_of_one_name_both_count(keys):
    (keys / "more").mkdir()
    (keys / "bob.pub").rename(keys / "more" / "alice.pub")
    for order in (("alice.pub", "more/alice.pub"), ("more/alice.pub", "alice.pub")):
        words = [word for name in order for word in ("--key", keys / name)]
        assert check(keys / "a.json", *words)[0] == 0


@pytest.mark.parametrize(
    ("file", "name"), [("a.json", "UNTRUSTED_KEY"), ("plain.json", "UNSIGNED"), ("broken.json", "BAD_SIGNATURE")]
)
def test_where_a_key_is_asked_for_nothing_less_will_do(keys, put, file, name):
    put("plain.json", sample())
    put("broken.json", to_json(Receipt(sample(clock="noon"), [sign_record(sample(), SEED)])).encode())
    code, out, _ = check(keys / file, "--key", keys / "bob.pub")
    assert code == 12 and f": SIGNATURE ({name}): " in out and "valid" not in out


def test_form_comes_before_signatures_and_signatures_before_the_answer(keys, put):
    entries = [sign_record(sample(), SEED)]
    malformed = to_json(Receipt(sample(), entries)).replace('"clock": "",', "").encode()
    forged = to_json(Receipt(changed(sample(), "output.digest", "00" * 32), entries)).encode()
    assert check(put("1", malformed), "--key", keys / "bob.pub")[0] == 11
    code, out, _ = check(put("2", forged), "--key", keys / "bob.pub", "--challenge", "ab" * 16)
    assert code == 12 and "BAD_SIGNATURE" in out
    contradicting = changed(sample(), "output.digest", "00" * 32)
    signed = to_json(Receipt(contradicting, [sign_record(contradicting, SEED)])).encode()
    for words, name in (
        (("--key", keys / "bob.pub"), "UNTRUSTED_KEY"),
        (("--key", keys / "alice.pub", "--challenge", "ab" * 16), "CHALLENGE"),
        (("--key", keys / "alice.pub"), "OUTPUT_DIGEST"),
    ):
        assert f"({name})" in check(put("3", signed), *words)[1]


def test_a_trust_file_and_a_time(keys):
    (keys / "trust.toml").write_text(trust_file(keys / "alice.pub"))
    for at, code in (("2025-12-31", 12), ("2026-01-01", 0), ("2026-12-31T23:59:59Z", 0), ("2027-01-01", 12)):
        got, out, _ = check(keys / "a.json", "--trust", keys / "trust.toml", "--at", at)
        assert got == code and ("valid signature by alice" in out) == (code == 0)


def trust_file(public, mode="enforce"):
    key = b64encode(read_public_key(public)).decode()
    return (
        f'format = "kinetic-trust"\nversion = 1\nmode = "{mode}"\nrevoked = []\n[receipt]\nthreshold = 1\n'
        f'[[keys]]\nname = "alice"\npublic_key = "{key}"\nscopes = ["receipt"]\n'
        "not_before = 2026-01-01T00:00:00Z\nnot_after = 2027-01-01T00:00:00Z\n"
    )


def test_a_warning_is_said_and_changes_no_code(keys, put):
    (keys / "trust.toml").write_text(trust_file(keys / "alice.pub", "warn"))
    code, out, _ = check(put("plain.json", sample()), "--trust", keys / "trust.toml")
    assert code == 0 and "; unsigned; the receipt is not signed, and" in out and "valid" not in out


def test_an_asked_for_challenge(put):
    record = sample(challenge="ab" * 16)
    record["sampling"]["seed"] = challenge_seed(record)
    path = put("a.json", record)
    assert check(path, "--challenge", "AB" * 16)[0] == 0
    code, out, _ = check(path, "--challenge", "cd" * 16)
    assert code == 12 and "(CHALLENGE)" in out and "ab" * 16 in out


def test_json_says_what_signatures_are_worth(keys):
    finding = json.loads(check(keys / "a.json", "--json", "--key", keys / "alice.pub")[1])
    assert finding["is_trusted"] is True and finding["signature"].startswith("valid signature by alice")
    assert finding["signers"] == [key_id(read_public_key(keys / "alice.pub"))] and finding["warning"] == ""
    assert json.loads(check(keys / "a.json", "--json")[1])["is_trusted"] is False


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--key", "absent.pub"], 3),
        (["--key", "alice"], 12),  # a secret key
        (["--key", "a.json"], 12),
        (["--trust", "absent.toml"], 3),
        (["--trust", "a.json"], 11),
        (["--key", "alice.pub", "--trust", "trust.toml"], 2),
        (["--at", "yesterday"], 2),
        (["--challenge", "abc"], 2),
    ],
)
def test_without_what_to_judge_by_nothing_is_judged(keys, words, code):
    words = [keys / word if (keys / word).exists() or "absent" in word else word for word in words]
    got, out, err = check(keys / "a.json", *words)
    assert (got, out) == (code, "") and err


def test_a_hostile_file_name_steers_no_terminal(tmp_path):
    path = tmp_path / "\x1b[31mred\n.json"
    write_receipt(path, sample())
    code, out, _ = check(path)
    assert code == 0 and "\x1b" not in out and out.count("\n") == 1


def test_a_hostile_name_that_is_missing_steers_no_terminal(tmp_path):
    for name in ("\x1b[31mred\n.json", "\u202ecod.json", "\x9b31m"):
        code, out, err = check(tmp_path / name)
        assert (code, err) == (3, "") and "UNREADABLE" in out
        assert out.count("\n") == 1 and out.rstrip("\n").isprintable()
        code, out, err = check(tmp_path / "a.json", "--key", tmp_path / name)
        assert (code, out) == (3, "") and err.count("\n") == 1 and err.rstrip("\n").isprintable()


def test_a_long_signed_receipt_is_checked_in_a_fifth_of_a_second(keys, tmp_path):
    """From a cold start, by the fastest of some runs, so that what else this machine does is not measured."""
    tokens = [1 + index % 7 for index in range(4000)]
    record = sample(output=tokens, text="", stop_reason="interrupt", logit_commit=["ab" * 8] * 4000)
    write_receipt(tmp_path / "long.json", record, [sign_record(record, SEED)])
    times = []
    for _ in range(5):
        started = time.perf_counter()
        assert check(tmp_path / "long.json", "--key", keys / "alice.pub")[0] == 0
        times.append(time.perf_counter() - started)
    assert min(times) < 0.2, times

"""The committed vectors: current, complete, and judged alike by every way of asking.

``python -m pytest conformance`` runs each through the verifier; here is what holds of them together.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.attacks.from_vectors import is_checkable
from conformance.run_vector import run_file, run_vector
from conformance.vector_files import BASES, FOLDER, GROUPS, file_bytes, read_vectors
from ktc import signature
from ktc.errors import KtcError, SignatureProblem
from receipts import __main__ as command
from receipts.encode import read_receipt, to_cbor, to_json
from receipts.errors import VERDICTS
from receipts.identity import canonical_bytes
from receipts.sign import PAYLOAD_TYPE
from tools.make_receipt_vectors import files

ROOT = Path(__file__).resolve().parents[2]
ALL = [vector for group in GROUPS for vector in read_vectors(group)]
BY_ID = {vector["id"]: vector for vector in ALL}

ATTACKS = [55, 77, 78, 79, 80, 81, 83, 84, 85, 86, 87, 89, 90, 91, 92, 93, 95, 96, 97, 99, 100, 101, 102, 104, 105]
ATTACKS += [106, 107, 108, 110, 111, 112]
ELSEWHERE = [77]
"""Files that others can change are no vectors: conformance/attacks/receipts.py has them."""

FORM = "FORMAT.md"


def test_vectors_are_current():
    made = dict(files())
    there = {path for folder in (BASES, *(FOLDER / group for group in GROUPS)) for path in folder.glob("*.*")}
    assert there == set(made)
    changed = [path.name for path, data in made.items() if path.read_bytes() != data]
    assert changed == [], "see make vectors"


def test_every_attack_is_there_and_most_are_rejections():
    numbers = {number for vector in ALL for number in vector["attack"]}
    assert numbers == set(ATTACKS) - set(ELSEWHERE)
    accepted = [vector["id"] for vector in ALL if vector["expect"]["exit_code"] == 0]
    assert len(accepted) * 4 < len(ALL)
    assert len(BY_ID) == len(ALL)


def test_every_step_and_every_verdict_is_there():
    steps = {vector["expect"]["step"] for vector in ALL}
    assert steps == set(range(1, 15))
    assert {vector["expect"]["exit_code"] for vector in ALL} == {0, 10, 11, 12, 13, 14}


def test_steps_are_those_of_the_document():
    """A name that only one step of FORMAT.md gives is that step's here. Steps 4 and 8 look at form, as 5 does."""
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", (ROOT / FORM).read_text(encoding="utf-8"), re.MULTILINE)
    steps: dict[str, set[int]] = {}
    for step, refusals in rows:
        for name in re.findall(r"`([A-Z_0-9]{4,})`", refusals):
            steps.setdefault(name, set()).add(int(step))
    wrong = []
    for vector in ALL:
        name, step = vector["expect"]["name"], vector["expect"]["step"]
        step = 5 if step in (4, 8) and 5 in steps.get(name, ()) else step
        is_of_other_file = {"opening", "trust"} & set(vector.get("options", {}))
        if len(steps.get(name, ())) == 1 and step not in steps[name] and not is_of_other_file:
            wrong.append((vector["id"], name, step))
    assert wrong == []


def test_every_field_of_a_vector_is_described():
    described = set(re.findall(r"`([a-z_]+)`", (FOLDER.parent / "README.md").read_text(encoding="utf-8")))
    used = {name for vector in ALL for name in vector}
    for part in ("options", "engine", "expect", "file"):
        used |= {name for vector in ALL for name in vector.get(part, {})}
    used |= set(json.loads((BASES / "engine.json").read_bytes())) | {"token", "runner_up", "gap", "commit"}
    assert used <= described


@pytest.mark.parametrize("vector", [v for v in ALL if "canonical" in v["expect"]], ids=lambda v: v["id"])
def test_bytes_that_are_hashed(vector):
    receipt = read_receipt(file_bytes(vector["file"]))
    assert canonical_bytes(receipt.record).hex() == vector["expect"]["canonical"]


def test_bytes_that_are_signed():
    vector = BY_ID["signed"]
    receipt = read_receipt(file_bytes(vector["file"]))
    message = signature.pae(PAYLOAD_TYPE, canonical_bytes(receipt.record))
    assert message.hex() == vector["expect"]["signed_bytes"]


def test_the_other_encoding_gets_the_same_verdict():
    compared = 0
    for vector in ALL:
        if "parts" in vector["file"]:  # large, and says nothing that the small ones don't
            continue
        try:
            receipt = read_receipt(file_bytes(vector["file"]))
        except KtcError:
            continue
        verdict = run_vector(vector)
        for other in (to_cbor(receipt), to_json(receipt).encode("utf-8")):
            assert run_file(other, vector)._replace(sentence=verdict.sentence) == verdict, vector["id"]
            compared += 1
    assert compared > 300


def test_plain_decoding_gets_the_same_verdict(monkeypatch):
    import receipts.verify

    verify = receipts.verify.verify
    by_replay = {vector["id"]: run_vector(vector) for vector in ALL if vector["expect"]["step"] >= 10}
    monkeypatch.setattr(receipts.verify, "verify", lambda *a, **options: verify(*a, **options, method="decode"))
    for name, verdict in by_replay.items():
        decoded = run_vector(BY_ID[name])
        assert (decoded.exit_code, decoded.name, decoded.position) == verdict[:2] + (verdict.position,), name


# The command: what it prints, and what the process returns


def checked(files: dict[str, bytes], folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``python -m receipts check`` of some files, in a process of its own."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    line = [sys.executable, "-m", "receipts", "check", *options, *files]
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


PLAIN = [v for v in ALL if is_checkable(v) and not v.get("options") and "parts" not in v["file"]]
"""Without the large files: what they cost on a disk is paid once, in the subset."""


def test_the_command_says_of_each_file_what_the_vector_expects(tmp_path):
    """One process for all that are checked without options."""
    done = checked({vector["id"]: file_bytes(vector["file"]) for vector in PLAIN}, tmp_path, "--json")
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [(v["id"], v["expect"]["exit_code"]) for v in PLAIN]
    assert [(finding["file"], finding["exit_code"]) for finding in findings] == expected
    names = [v["expect"]["name"] if v["expect"]["exit_code"] else "CONSISTENT" for v in PLAIN]
    assert [finding["name"] for finding in findings] == names
    assert (done.returncode, done.stderr) == (12, "")
    assert len(PLAIN) > 600 and '"valid' not in done.stdout


SUBSET = "whole-full-json seed-largest key-twice-seed number-nan json-empty cbor-tag-date deep-arrays version-two "
SUBSET += "crit-unknown signed-as-bundle ed25519-key-order-two many-100000-signatures signatures-one-key-twice signed"


@pytest.mark.parametrize("name", SUBSET.split())
def test_the_process_returns_the_exit_code(name, tmp_path):
    """A program that prints FAIL and returns 0 is the oldest hole of them all."""
    vector = BY_ID[name]
    done = checked({"file": file_bytes(vector["file"])}, tmp_path)
    code = vector["expect"]["exit_code"]
    assert (done.returncode, done.stderr) == (code, "")
    assert len(done.stdout.splitlines()) == 1 and done.stdout.isascii()
    assert VERDICTS[code] in done.stdout if code else "consistent, not rerun" in done.stdout
    assert "valid" not in done.stdout.lower()


def test_a_fault_of_the_program_is_no_verdict(monkeypatch, capsys, tmp_path):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    (tmp_path / "a").write_bytes(file_bytes(BY_ID["signed"]["file"]))
    monkeypatch.setattr(command, "check_signatures", broken)
    assert command.main(["check", str(tmp_path / "a")]) == 1
    assert "FAULT" in capsys.readouterr().out


def test_no_engine_is_needed():
    """The runner itself, in a process of its own: what an auditor has is enough."""
    program = (
        "import sys\n"
        "from conformance.run_vector import run_vector\n"
        "from conformance.vector_files import read_vectors\n"
        "vectors = [*read_vectors('receipts'), *read_vectors('trust')][::7]\n"
        "assert all(run_vector(v).exit_code == v['expect']['exit_code'] for v in vectors)\n"
        "print(*sorted({'numpy', 'numba', 'kinetic', 'pytest'} & set(sys.modules)), len(vectors) > 100)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_signing_with_a_public_key_that_is_not_the_seeds_is_refused():
    """Attack 112: with another public key hashed in, two signatures would give the secret away."""
    own, other = (signature.key_pair(bytes([number]) * 32) for number in (1, 2))
    with pytest.raises(SignatureProblem) as caught:
        signature.sign(signature.KeyPair(own.seed, other.public), PAYLOAD_TYPE, b"payload")
    assert (caught.value.exit_code, caught.value.name) == (12, "KEY_MISMATCH")

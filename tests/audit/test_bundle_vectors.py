"""The committed vectors of bundles: current, complete, and judged alike by every way of asking."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from conformance import bundle_vectors
from conformance.attacks import bundles, run
from conformance.attacks.from_vectors import public_pem
from conformance.bundle_vectors import BASES, FOLDER, base, file_bytes, trust_of
from conformance.run_vector import NOW
from conformance.vector_files import read_vectors
from ktc.__main__ import WORDS
from ktc.errors import KtcError
from ktc.reader import open_verified
from ktc.trust import parse_time
from ktc.unpack import unpack
from tools.make_bundle_vectors import files

ROOT = Path(__file__).resolve().parents[2]
ALL = list(read_vectors(bundle_vectors.GROUP))
BY_ID = {vector["id"]: vector for vector in ALL}

ATTACKS = [56, 57, 58, 59, 60, 62, 63, 64, 66, 67, 68, 69, 70]
"""Of bundles; numbers with gaps are intended."""
OF_MODELS = [1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 13, 14, 32, 54]
"""Of model files, as far as their keys are read here."""
OF_PROCESSES = [57, 62, 64, 66, 67, 68, 71, 72, 73, 75, 76, 77]
"""What needs files and programs: conformance/attacks/bundles.py."""


def test_vectors_are_current():
    made = {path: text.encode("ascii") for path, text in files()}
    there = {path for folder in (BASES, FOLDER) for path in folder.glob("*.*")}
    assert there == set(made)
    changed = [path.name for path, data in made.items() if path.read_bytes() != data]
    assert changed == [], "see make vectors"


def test_every_attack_is_there_and_most_are_rejections():
    numbers = {number for vector in ALL for number in vector["attack"]}
    assert numbers == {*ATTACKS, *OF_MODELS}
    assert {number for attack in bundles.attacks() for number in attack.numbers} >= set(OF_PROCESSES)
    accepted = [vector["id"] for vector in ALL if vector["expect"]["exit_code"] == 0]
    assert 60 < len(accepted) < len(ALL) / 4
    assert len(BY_ID) == len(ALL) > 700


def test_every_step_and_every_verdict_is_there():
    assert {vector["expect"]["step"] for vector in ALL} == {f"B{number}" for number in range(1, 14)}
    assert {vector["expect"]["exit_code"] for vector in ALL} == {0, 11, 12, 13, 14}


def document_steps():
    """Names of refusals, and the steps of FORMAT.md that give them."""
    text = (ROOT / "FORMAT.md").read_text(encoding="utf-8")
    steps: dict[str, set[str]] = {}
    for step, refusals in re.findall(r"^\| (B\d+) \| .* \| (.*) \|$", text, re.MULTILINE):
        for name in re.findall(r"`([A-Z_0-9]{4,})`", refusals):
            steps.setdefault(name, set()).add(step)
    return steps


def test_steps_are_those_of_the_document():
    """A name that only some steps of FORMAT.md give is given by one of them here."""
    steps = document_steps()
    as_receipts = {"B4", "B5", "B8", "B9"}  # these refer to the steps of a receipt for some of their names
    wrong = []
    for vector in ALL:
        name, step = vector["expect"]["name"], vector["expect"]["step"]
        known = steps.get(name, set())
        if vector["expect"]["exit_code"] and step not in known and (known or step not in as_receipts):
            wrong.append((vector["id"], name, step))
    names_of_both = {"TOO_MANY_ENTRIES", "TOO_LONG"}  # B4 names them, B5 has them from a receipt's step 5
    assert [row for row in wrong if row[1] not in names_of_both] == []


def test_every_field_of_a_vector_is_described():
    described = set(re.findall(r"`([a-z_0-9]+)`", (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")))
    used = {name for vector in ALL for name in vector}
    for part in ("options", "expect", "file"):
        used |= {name for vector in ALL for name in vector.get(part, {})}
    used |= {name for vector in ALL for part in vector["file"]["parts"] for name in part}
    assert used <= described


@pytest.mark.parametrize("vector", [v for v in ALL if v["expect"]["exit_code"] == 0], ids=lambda v: v["id"])
def test_what_is_unpacked_is_the_section_byte_for_byte(vector, tmp_path):
    """Attack 73."""
    options, data = vector.get("options", {}), file_bytes(vector["file"])
    (tmp_path / "a.ktc").write_bytes(data)
    at, least = parse_time(options.get("at", NOW)), options.get("min_release", 0)
    if vector["id"] == "digest-wrong-sha256-unasked":  # unpacking makes step B12
        with pytest.raises(KtcError, match="SHA-256"):
            unpack(tmp_path / "a.ktc", tmp_path / "m.gguf")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ktc"]
        return
    section = unpack(tmp_path / "a.ktc", tmp_path / "m.gguf", trust=trust_of(options), at=at, min_release=least)
    assert (tmp_path / "m.gguf").read_bytes() == data[section.offset : section.end]


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_file_that_is_rewritten_after_it_was_verified(where, tmp_path):
    """Attack 75: each leaf is checked in the mapped bytes that are then used."""
    path = tmp_path / "a.ktc"
    path.write_bytes(base("leaves.json"))
    with open_verified(path, check="lazy") as bundle:
        assert bundle.leaves is not None
        bundle.leaves.touch(0, 100)
        with path.open("r+b") as file:
            file.seek(bundle.gguf.offset + (1 << 20) + (5 if where == "before" else 1 << 19))
            file.write(b"\x55")
        bundle.leaves.touch(50, 100)
        with pytest.raises(KtcError) as refused:
            bundle.leaves.touch(1 << 20, 1)
    assert (refused.value.exit_code, refused.value.name) == (11, "LEAF_DIGEST")
    assert "leaf 1 " in str(refused.value)


# The command: what it prints, and what the process returns


def checked(vectors, folder, *options):
    """``python -m ktc verify`` of some vectors' files, in a process of its own."""
    for vector in vectors:
        (folder / vector["id"]).write_bytes(file_bytes(vector["file"]))
    line = [sys.executable, "-m", "ktc", "verify", *options, *(vector["id"] for vector in vectors)]
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("asked", [(), ("sha256",)], ids=["plain", "sha256"])
def test_the_command_says_of_each_file_what_the_vector_expects(asked, tmp_path):
    """One process for all that are checked without options."""
    vectors = [vector for vector in ALL if vector.get("options", {}).keys() == set(asked)]
    done = checked(vectors, tmp_path, "--json", *(f"--{option}" for option in asked))
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    found = [(finding["file"], finding["exit_code"], finding["name"]) for finding in findings]
    assert found == [(v["id"], v["expect"]["exit_code"], v["expect"]["name"]) for v in vectors]
    assert (done.returncode, done.stderr) == (11 if asked else 12, "")
    assert '"valid' not in done.stdout


SUBSET = "sound-signed before-zip manifest-length-largest place-far room-zero leaves-swapped weights-signed "
SUBSET += "template-other signature-zeroed entry-flipped unknown-critical major-2 slot-65 gguf-array-deep"


@pytest.mark.parametrize("name", SUBSET.split())
def test_the_process_returns_the_exit_code(name, tmp_path):
    """A program that prints FAIL and returns 0 is the oldest hole of them all."""
    done = checked([BY_ID[name]], tmp_path)
    code = BY_ID[name]["expect"]["exit_code"]
    assert (done.returncode, done.stderr) == (code, "")
    assert len(done.stdout.splitlines()) == 1 and done.stdout.isascii()
    assert WORDS[code] in done.stdout and "valid" not in done.stdout.lower()


def with_options(vector, folder):
    """The command for a vector with keys, a trust file or a least release; its files are written."""
    options = vector["options"]
    (folder / "a.ktc").write_bytes(file_bytes(vector["file"]))
    words = ["--at", options.get("at", NOW), "--min-release", str(options.get("min_release", 0))]
    for name, public in options.get("keys", {}).items():
        (folder / f"{name}.pub").write_text(public_pem(bytes.fromhex(public)))
        words += ["--key", f"{name}.pub"]
    if "trust" in options:
        (folder / "trust.toml").write_text(options["trust"])
        words += ["--trust", "trust.toml"]
    return words


@pytest.mark.parametrize(
    "vector", [v for v in ALL if {"keys", "trust", "min_release"} & set(v.get("options", {}))], ids=lambda v: v["id"]
)
def test_the_command_with_options(vector, tmp_path, monkeypatch, capsys):
    from ktc.__main__ import main

    words = with_options(vector, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["verify", *words, "a.ktc"]) == vector["expect"]["exit_code"]
    shown = capsys.readouterr()
    assert ("valid signature" in shown.out) == (vector["expect"].get("signature") == "trusted")
    assert shown.err == ""


def test_no_engine_is_needed(tmp_path):
    """The runner itself, in a process of its own: what an auditor has is enough."""
    program = (
        "import sys, pathlib\n"
        "from conformance.bundle_vectors import run_vector\n"
        "from conformance.vector_files import read_vectors\n"
        "vectors = [*read_vectors('bundles')][::7]\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "assert all(run_vector(v, folder).exit_code == v['expect']['exit_code'] for v in vectors)\n"
        "print(*sorted({'numpy', 'numba', 'kinetic', 'pytest'} & set(sys.modules)), len(vectors) > 100)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


# Attacks as processes meet them: the exit code, one sentence, no traceback, and nothing written

ATTACK_LIST = list(bundles.attacks())


def is_quick(number, attack):
    """What starts the engine's command takes three times as long: one of seven of those."""
    return "kinetic" not in attack.arguments or number % 7 == 0


def check(attack, folder):
    if "kinetic" in attack.arguments and find_spec("numpy") is None:
        pytest.skip("there is no engine here")
    if attack.needs_user and os.geteuid() == 0:
        pytest.skip("the superuser may read everything")
    outcome = run(attack, folder)
    assert outcome.exit_code == attack.exit_code, outcome.output
    assert attack.reason in outcome.output
    assert "Traceback" not in outcome.output and "\x1b" not in outcome.output
    assert outcome.written == []


def test_names_of_attacks_are_told_apart():
    assert len({attack.name for attack in ATTACK_LIST}) == len(ATTACK_LIST) > 100


@pytest.mark.parametrize("attack", [a for n, a in enumerate(ATTACK_LIST) if is_quick(n, a)], ids=lambda a: a.name)
def test_attack(attack, tmp_path):
    check(attack, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [a for n, a in enumerate(ATTACK_LIST) if not is_quick(n, a)], ids=lambda a: a.name)
def test_every_attack(attack, tmp_path):
    check(attack, tmp_path)

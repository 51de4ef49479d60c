"""Any engine over JSON lines: Kinetic passes every vector, and engines that are wrong fail."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from conformance import drive
from conformance.case import DoesNotHold, Skipped
from conformance.drive_judge import judge
from conformance.drive_requests import Asked, all_asked
from tests.support import fake_engine
from tests.unit.test_conformance_peer import is_alive

KINETIC = f"{sys.executable} -m conformance.engine"
SIGNATURE = Asked("ed25519/x/0", "ed25519", {}, {"exit_code": 12, "name": "BAD_KEY"})
FEW = ("--only", "ed25519/plain/?", "-q")


def fake(fault: str) -> str:
    return f"{sys.executable} {fake_engine.__file__} {fault}"


def run(capsys, *words: str) -> tuple[int, dict]:
    code = drive.main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_kinetic_passes_every_vector(capsys):
    code, found = run(capsys, "--cmd", KINETIC, "-q", "--strict")
    assert [one for one in found["vectors"] if one["outcome"] != "passed"] == []
    assert code == 0 and found["counts"]["passed"] == len(found["vectors"]) > 2700
    compared = {word for one in found["vectors"] for word in one["text"].split(", ")}
    assert {
        "name",
        "receipt_id",
        "position",
        "signature",
        "manifest_digest",
        "signers",
        "passed_over",
        "leaf",
    } <= compared


def test_kinetic_on_the_reference(capsys):
    code, found = run(capsys, "--cmd", f"{KINETIC} --device reference", "--only", "ops/draw", "--only", "ops/rope")
    assert code == 0 and found["counts"]["passed"] == 2


def test_one_that_accepts_everything_fails(capsys):
    code, found = run(capsys, "--cmd", fake("accepts"), "-q")
    outcomes = {asked.id: asked.expect["exit_code"] for asked in all_asked()}
    right = {name for name, wanted in outcomes.items() if wanted == 0 and not name.startswith("ops/")}
    assert code == 10
    assert {one["id"] for one in found["vectors"] if one["outcome"] == "passed"} == right
    assert found["counts"] == {"passed": len(right), "failed": len(outcomes) - len(right), "skipped": 0}


@pytest.mark.parametrize(
    "fault, code, text",
    [
        ("refuses", 10, "the engine gives 12, and the vector has 0"),
        ("no-code", 10, "no code"),
        ("true", 10, "no whole number"),
        ("trusts", 10, "a signature is called valid that nobody trusts"),
        ("babbles", 10, "no JSON object"),
        ("unsupported", 13, "the engine says it does not support this: nothing is done yet"),
        ("dies", 10, "the engine ended (exit 1): out of luck"),
    ],
)
def test_faults(capsys, fault, code, text):
    found_code, found = run(capsys, "--cmd", fake(fault), *FEW)
    assert (found_code, len(found["vectors"])) == (code, 10)
    assert text in found["vectors"][0]["text"] and found["counts"]["passed"] == 0


def test_one_that_dies_is_started_again_but_not_for_ever(capsys):
    _, found = run(capsys, "--cmd", fake("dies-at-times"), *FEW)
    assert [one["id"] for one in found["vectors"] if one["outcome"] == "failed"] == ["ed25519/plain/1"]
    _, found = run(capsys, "--cmd", fake("dies"), *FEW)
    assert [one["text"].startswith("not asked") for one in found["vectors"]] == [False] * 5 + [True] * 5


def test_one_that_hangs_is_ended(capsys):
    started = time.monotonic()
    _, found = run(capsys, "--cmd", fake("hangs"), *FEW, "--timeout", "0.5")
    assert found["vectors"][0]["text"] == "no answer within 0.5 s" and time.monotonic() - started < 20


def test_what_an_engine_started_ends_with_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_ENGINE_PID", str(tmp_path / "pid"))
    run(capsys, "--cmd", fake("leaves-a-child"), "--only", "ed25519/plain/0")
    until = time.monotonic() + 5
    while is_alive(child := int((tmp_path / "pid").read_text())) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(child)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--cmd", "/nowhere/engine"], "can't be run"),
        (["--cmd", ""], "needs a program"),
        (["--cmd", "'"], "can't be split"),
        (["--cmd", KINETIC, "--only", "nonsense"], "no vector is called 'nonsense'"),
    ],
)
def test_errors_of_use(capsys, words, message):
    assert drive.main(words) == 2
    assert message in capsys.readouterr().err


def test_the_command_line_of_kinetic(capsys):
    from kinetic.cli import main

    assert main(["conformance", "--cmd", KINETIC, "--only", "ed25519/plain/?", "-q"]) == 0
    assert "10 vectors: 10 passed" in capsys.readouterr().out
    for more in (["model.gguf"], ["--junit", "x.xml"], ["--peer", "llama-server"], ["--list"], ["--check", "cert"]):
        assert main(["conformance", "--cmd", KINETIC, *more]) == 2
        assert "go with no other command" in capsys.readouterr().err


def test_a_table(capsys):
    assert drive.main(["--cmd", fake("unsupported"), "--strict", *FEW]) == 13
    out = capsys.readouterr().out
    assert "| ed25519 | 0      | 0      | 10      |" in out
    assert "- 10: the engine says it does not support this: nothing is done yet" in out
    assert out.endswith("This engine was judged in part only. 10 vectors: 0 passed, 0 failed, 10 skipped.\n")


# --- what is sent, and how it is judged ---


def test_nothing_that_is_expected_is_sent(tmp_path):
    """Neither verdicts nor output bits: an engine can't read the answer from the question."""
    for asked in all_asked():
        request = json.loads(asked.line(tmp_path))
        assert not {"expect", "what", "attack", "exit_code"} & {*request, *request["vector"]}
        assert all("hex" not in form for form in request["vector"].get("outputs", {}).values())
        assert all("bits" not in case for case in request["vector"].get("cases", ()))
        assert ("path" in request) == (asked.kind in ("receipt", "bundle"))
        assert Path(request["path"]).read_bytes() == asked.data() if asked.data else True


@pytest.mark.parametrize(
    "answer, text",
    [
        ({"code": 12}, "code"),
        ({"code": 12, "name": "BAD_KEY"}, "code, name"),
        ({"code": 12, "name": "OTHER"}, None),
        ({"code": 11, "name": "BAD_KEY"}, None),
        ({"code": 12.0}, None),
        ({"code": 12, "id": "another"}, None),
        ([], None),
    ],
)
def test_judged(answer, text):
    line = json.dumps({"id": SIGNATURE.id, **answer} if isinstance(answer, dict) else answer).encode()
    if text:
        assert judge(SIGNATURE, line) == text
    else:
        with pytest.raises(DoesNotHold):
            judge(SIGNATURE, line)


def test_no_support_is_no_pass():
    with pytest.raises(Skipped):
        judge(SIGNATURE, json.dumps({"id": SIGNATURE.id, "unsupported": "keys", "code": 12}).encode())


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("hex", "00" * 512, "of y differ, the first at"),
        ("shape", [32, 4], "and the vector has float32"),
        ("dtype", "int32", "y is int32"),
        ("hex", "zz", "no arrays"),
        ("hex", "00", "no arrays"),
    ],
)
def test_operations_are_judged_bit_for_bit(name, value, text):
    (asked,) = [one for one in all_asked() if one.id == "ops/rope"]
    right = asked.expect["outputs"]["outputs"]
    assert judge(asked, answered(asked, right)) == "128 values"
    with pytest.raises(DoesNotHold, match=text):
        judge(asked, answered(asked, {"y": {**right["y"], name: value}}))
    one_bit = bytearray.fromhex(right["y"]["hex"])
    one_bit[0] ^= 1
    with pytest.raises(DoesNotHold, match=r"1 of 128 values of y differ, the first at \[0, 0\]"):
        judge(asked, answered(asked, {"y": {**right["y"], "hex": one_bit.hex()}}))
    with pytest.raises(DoesNotHold, match="y is missing"):
        judge(asked, answered(asked, {}))


def test_blocks_are_judged_by_their_parts_or_by_a_product():
    (asked,) = [one for one in all_asked() if one.id == "ops/quantise"]
    assert judge(asked, answered(asked, asked.expect["outputs"]["outputs"])).endswith(" values")


def answered(asked: Asked, outputs: dict) -> bytes:
    return json.dumps({"id": asked.id, "code": 0, "outputs": outputs}).encode()

"""Golden receipts: answers that every machine of this profile gives again, to the bit."""

from __future__ import annotations

import pytest

from kinetic.api.verify import Checker
from kinetic.types import PROFILE
from ktc.signature import key_pair
from ktc.trust import pinned
from receipts.encode import read_receipt
from receipts.withhold import read_opening
from tools.make_golden_receipts import CASES, FOLDER, REAL, SEED, TINY, files

TRUST = pinned({"golden": key_pair(SEED).public}, "receipt")
RECEIPTS = [f"{golden.name}.json" for golden in CASES]


def verdicts(model, name):
    """Of all receipts of one model: (file, verdict)."""
    for path in sorted(FOLDER.glob(f"{name}-*.json")):
        if not path.name.endswith(".opening.json"):
            opening = path.with_suffix(".opening.json")
            with Checker(model, trust=TRUST, opening=read_opening(opening) if opening.is_file() else None) as checker:
                yield path.name, checker.verify(path)


def check(model, name):
    found = list(verdicts(model, name))
    assert len(found) == sum(golden.model == name for golden in CASES) > 0
    for file, verdict in found:
        assert (verdict.exit_code, verdict.name) == (0, "IDENTICAL"), f"{file}: {verdict.sentence}"
        assert verdict.signature.startswith("valid signature by golden")


def test_they_are_of_this_profile():
    """A new profile leaves its receipts behind."""
    profiles = {read_receipt(FOLDER / name).record["profile"] for name in RECEIPTS}
    assert profiles == {PROFILE}, "the profile is another: run make golden"


def test_there_is_one_for_each_reason_to_stop():
    records = [read_receipt(FOLDER / name).record for name in RECEIPTS]
    assert {record["stop"]["reason"] for record in records} == {"end", "stop", "length", "context"}
    assert any(record["logit_commit"] for record in records)
    assert {file.name for file in FOLDER.iterdir()} == {*RECEIPTS, "key.pub", "tiny-llama-withheld.opening.json"}
    assert {golden.model for golden in CASES} == {*TINY, *REAL}


@pytest.mark.parametrize("name", TINY)
def test_tiny_models(name, tmp_path):
    check(TINY[name](tmp_path / "model.gguf"), name)


def test_tiny_receipts_are_written_again_the_same():
    for name, data in files(tuple(TINY)):
        assert (FOLDER / name).read_bytes() == data, f"{name} is another now: run make golden"


def test_smollm2(smollm2_path):
    check(smollm2_path, "smollm2")


def test_gemma3(gemma3_path):
    check(gemma3_path, "gemma3-270m")


def test_a_tampered_one_is_found(tmp_path):
    """The check itself: a token changed in the middle, unsigned, and then under the pinned key."""
    model = TINY["tiny-llama"](tmp_path / "model.gguf")
    text = (FOLDER / "tiny-llama-sampled.json").read_text(encoding="utf-8")
    first = ", ".join(map(str, read_receipt(FOLDER / "tiny-llama-sampled.json").record["output"]["tokens"][:3]))
    forged = text.replace(f"{first}, ", f"{first.rpartition(', ')[0]}, 1, ", 1).encode("utf-8")
    unsigned = forged.partition(b'"signatures"')[0] + b'"signatures": []}'
    with Checker(model) as checker:
        verdict = checker.verify(unsigned)
    assert (verdict.exit_code, verdict.position) == (10, 2)
    with Checker(model, trust=TRUST) as checker:
        assert checker.verify(forged).exit_code == 12


@pytest.mark.parametrize("options", [{"method": "decode"}, {"device": "reference"}, {"threads": 1}, {"threads": 3}])
def test_every_way_of_rerunning_agrees(options, tmp_path):
    model = TINY["tiny-llama"](tmp_path / "model.gguf")
    with Checker(model, trust=TRUST, **options) as checker:
        for kind in ("greedy", "sampled"):
            assert checker.verify(FOLDER / f"tiny-llama-{kind}.json").exit_code == 0

"""Traces of answers by a small model: the logits that a receipt commits to, and faults that are put in on purpose."""

import json
import struct

import numpy as np
import pytest

from kinetic.api import trace_file
from kinetic.api.model import Model
from kinetic.api.trace import trace
from kinetic.api.trace_file import compare
from kinetic.backends.reference.ops import ReferenceOps
from kinetic.errors import UsageError
from ktc.digest import logits_digest
from ktc.errors import Malformed, Unverifiable
from receipts.identity import receipt_id
from receipts.withhold import Opening, withhold
from tests.support.answers import answered, edit
from tests.support.sample_receipts import SEED
from tests.support.tiny_models import write_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of two layers, and what it answers at temperature 0.8, with digests of its logits."""
    folder = tmp_path_factory.mktemp("trace")
    write_tiny_llama(folder / "m.gguf", layers=2, types={"": "Q8_0"})
    answered(folder / "m.gguf", folder / "a.json", seed=7, temperature=0.8, max_tokens=10, commit_logits=True)
    return folder


def traced(folder, token=6, **options):
    return trace(folder / "a.json", token, model=folder / "m.gguf", pack_cache=False, **options)


def test_the_logits_are_those_that_the_receipt_commits_to(folder):
    record = json.loads((folder / "a.json").read_text())["receipt"]
    for token in (0, 6, 9):
        made = traced(folder, token, threads=1)
        assert made.agrees and made.is_same_unwatched
        assert made.trace.head["position"] == len(record["prompt"]["tokens"]) + token - 1
        assert logits_digest(made.trace.ops[-1].values).hex() == record["logit_commit"][token]
        assert made.trace.head["logits"] == trace_file.digest(made.trace.ops[-1].values).hex()


def test_nothing_depends_on_device_threads_or_rows(folder):
    ways = ({"threads": 1}, {"threads": 2, "rows": 5}, {"rows": 128}, {"device": "reference", "rows": 2})
    made = [traced(folder, **way) for way in ways]
    assert [one.trace.head["rows"] for one in made[:2]] == [1, 5] and made[2].trace.head["rows"] < 128
    for other in made[1:]:
        assert other.is_same_unwatched and other.agrees
        assert compare(made[0].trace, other.trace).exit_code == 0


@pytest.mark.parametrize(("name", "call", "element"), [("rope", 2, 5), ("attend", 1, 0), ("linear", 13, 63)])
def test_a_fault_that_was_put_in_is_found(folder, monkeypatch, name, call, element):
    """One bit of one element of the last row, in one call of a pass."""
    right = getattr(ReferenceOps, name)

    def wrong(self, *inputs):
        out = right(self, *inputs).copy()
        self.count = getattr(self, "count", 0) + 1
        if self.count == call:
            out.view(np.uint32)[-1, element] ^= 1
        return out

    good = traced(folder, device="reference").trace
    monkeypatch.setattr(ReferenceOps, name, wrong)
    found = compare(good, traced(folder, device="reference").trace)
    named = [number for number, op in enumerate(good.ops) if op.op == name]
    assert (found.exit_code, found.op, found.name) == (10, named[call - 1], name)
    assert (found.element, found.different) == (element, 1)
    a, b = (int(bits, 16) for bits in found.bits)
    assert a ^ b == 1 and struct.pack("<I", a) == good.ops[found.op].values[4 * element : 4 * element + 4]
    assert found.layer == good.ops[found.op].layer


def test_a_fault_of_the_pass_that_is_not_watched_is_told(folder, monkeypatch):
    """As of an instruction that stands for several: it is wrong only where nothing is recorded."""
    right = ReferenceOps.gated

    def wrong(self, *inputs):
        out = right(self, *inputs)
        return out if self.taps else out + np.float32(1)

    good = traced(folder, device="reference")
    monkeypatch.setattr(ReferenceOps, "gated", wrong)
    made = traced(folder, device="reference")
    assert (made.is_same_unwatched, made.agrees) == (False, False)
    found = compare(good.trace, made.trace)
    assert found.exit_code == 10 and found.name != "gated", "keys of the tokens before it are wrong as well"


def test_a_withheld_prompt_needs_its_opening(folder, tmp_path):
    record = json.loads((folder / "a.json").read_text())["receipt"]
    shown = withhold(record, SEED)
    with Model(folder / "m.gguf", threads=1) as model:
        shown["logit_commit"] = [step.commit.hex() for step in model.replay(record, salt=SEED)]
    data = json.dumps({"receipt": shown, "signatures": []}).encode()
    with pytest.raises(Unverifiable) as caught:
        trace(data, 3, model=folder / "m.gguf")
    assert caught.value.name == "WITHHELD"
    opening = Opening(receipt_id(shown), SEED, record["prompt"]["tokens"])
    made = trace(data, 3, model=folder / "m.gguf", opening=opening, pack_cache=False)
    assert made.agrees and compare(made.trace, traced(folder, 3).trace).exit_code == 0


def test_what_cannot_be_traced(folder, tmp_path):
    for token in (-1, 10):
        with pytest.raises(UsageError, match=f"the answer has tokens 0 to 9, and --token asks for {token}"):
            traced(folder, token)
    for options in ({"rows": 0}, {"rows": 129}, {"device": "abacus"}):
        with pytest.raises(UsageError):
            traced(folder, **options)
    other = write_tiny_llama(tmp_path / "other.gguf", layers=1)
    with pytest.raises(Unverifiable) as caught:
        trace(folder / "a.json", 1, model=other)
    assert caught.value.name == "MODEL"
    large = tmp_path / "large.json"
    large.write_bytes((folder / "a.json").read_bytes())
    edit(large, lambda record: record["output"].update(tokens=[5, 10**6, 5]))
    with pytest.raises(Malformed):
        trace(large, 2, model=folder / "m.gguf")

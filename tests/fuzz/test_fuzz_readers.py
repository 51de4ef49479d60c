"""The readers under hypothesis: only KtcError comes out, and what is accepted re-encodes to itself.

Quick and the same every time; ``python -m tests.fuzz.fuzz_readers`` goes on for as long as one likes.
"""

from __future__ import annotations

import json
import random
from functools import cache

import pytest

from ktc import canonical, limits
from tests.fuzz import fuzz_readers, targets
from tests.fuzz.corpus import FOUND, corpus

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

INTEGERS = st.integers(-limits.MAX_INTEGER, limits.MAX_INTEGER)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = INTEGERS | TEXTS | st.booleans()
CLOSED = st.recursive(
    SCALARS | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
"""Values of the closed set, byte strings included."""

LOOSE = st.recursive(
    SCALARS | st.none() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
"""What Python's JSON can say and this format can't."""


@pytest.mark.parametrize("name", targets.TARGETS)
@given(data=st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes(name, data):
    targets.run(name, data)


@pytest.mark.parametrize("name", targets.TARGETS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=300)
def test_changed_files(name, seed):
    targets.run(name, fuzz_readers.mutated(random.Random(seed), corpus_of(name)))


@pytest.mark.parametrize("name", targets.TARGETS)
def test_the_corpus_itself(name):
    words = {targets.run(name, data).partition(" ")[0] for data in corpus_of(name)}
    assert "accepted" in words and len(words) > 1


def test_what_was_found_before():
    for path in sorted(FOUND.glob("*-*")):
        targets.run(path.name.partition("-")[0], path.read_bytes())


@given(CLOSED)
def test_cbor_round_trips(value):
    data = canonical.encode(value)
    assert canonical.decode(data) == value
    assert targets.run("cbor", data) == "accepted"


@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)))
def test_json_round_trips(value):
    for ascii_only in (True, False):
        assert canonical.read_json(json.dumps(value, ensure_ascii=ascii_only).encode("utf-8")) == value


@given(LOOSE)
@example(float("nan"))
@example(float("inf"))
@example([-0.0])
@example({"a": 1.0})
@example([None])
@example(2**53)
@example("\ud800")
def test_python_json_is_refused_or_means_the_same(value):
    data = json.dumps(value).encode("ascii")
    word = targets.run("json", data)
    assert word != "accepted" or canonical.read_json(data) == json.loads(data)


@given(left=CLOSED, right=CLOSED)
def test_two_values_have_two_encodings(left, right):
    assert (typed(left) == typed(right)) == (canonical.encode(left) == canonical.encode(right))


@given(CLOSED)
def test_an_encoding_knows_no_order_of_keys(value):
    assert canonical.encode(reordered(value)) == canonical.encode(value)


def typed(value):
    """With its types: ``True == 1`` in Python."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return [typed(item) for item in value] if isinstance(value, list) else (type(value), value)


def reordered(value):
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@cache
def corpus_of(name):
    return corpus(name)


def test_a_finding_is_written_down(tmp_path, monkeypatch):
    """The harness itself: a reader that breaks, and one that takes what it must not."""

    def broken(data: bytes) -> str:
        raise RecursionError

    monkeypatch.setitem(targets.TARGETS, "json", broken)
    findings = fuzz_readers.Findings(tmp_path)
    assert findings.attempt("json", b"[[") == "finding"
    assert findings.count == 1 and (tmp_path / "json-1").read_bytes() == b"[["

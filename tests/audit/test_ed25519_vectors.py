"""Ed25519 outcomes: every kind of key, R and S that verifiers disagree on has one answer here, the strict one."""

import json
from hashlib import sha512
from itertools import product

import pytest
from nacl import bindings
from nacl.exceptions import BadSignatureError

from ktc import signature
from ktc.errors import SignatureProblem
from tools import make_ed25519_vectors as curve
from tools.make_ed25519_vectors import FILES, FLAGS, FOLDER


def vectors(name):
    """(key, message, signature, flags, outcome) of each vector of a file."""
    rows = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["vectors"]
    return [(*map(bytes.fromhex, row[:3]), frozenset(row[3]), row[4]) for row in rows]


ALL = [vector for name in FILES for vector in vectors(name)]
POINTS = vectors("points")


def judged(key, message, signed):
    try:
        signature.verify_bytes(key, message, signed)
    except SignatureProblem as error:
        assert error.exit_code == 12
        return error.name
    return "accept"


def library_alone(key, message, signed):
    """Whether PyNaCl takes it when nothing was checked before."""
    try:
        bindings.crypto_sign_open(signed + message, key)
    except BadSignatureError:
        return False
    return True


def test_vectors_are_current():
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    made = curve.render()
    assert committed.keys() == made.keys()
    assert [name for name in made if made[name] != committed[name]] == [], "run python -m tools.make_ed25519_vectors"


@pytest.mark.parametrize("name", FILES)
def test_outcomes(name):
    rows = vectors(name)
    assert rows
    wrong = [index for index, (*parts, _, outcome) in enumerate(rows) if judged(*parts) != outcome]
    assert wrong == []


def test_refused_before_the_library_is_asked(monkeypatch):
    """Whatever another version of the library may think of them: it never sees these."""

    def never(signed, key):
        raise AssertionError("the library was asked")

    monkeypatch.setattr(bindings, "crypto_sign_open", never)
    rows = [vector for vector in ALL if vector[3] - {"changed"}]
    assert len(rows) > 1000
    for *parts, flags, outcome in rows:
        assert judged(*parts) == outcome, flags


def test_what_has_no_flag_is_accepted_and_nothing_else():
    assert [vector for vector in ALL if (vector[4] == "accept") != (not vector[3])] == []
    assert len(vectors("plain")) == sum(outcome == "accept" for *_, outcome in vectors("plain")) >= 16


def test_every_combination_is_there():
    small = {data for point in curve.TORSION for data in curve.encodings(point)}
    assert len(small) == 14
    keys, rs = {vector[0] for vector in POINTS}, {vector[2][:32] for vector in POINTS}
    assert small < keys and small < rs and len(keys) == len(rs) == 14 + 8
    assert {(key, signed[:32]) for key, _, signed, *_ in POINTS} == set(product(keys, rs))
    assert len({vector[:3] for vector in ALL}) == len(ALL) > 1000
    assert {flag for vector in ALL for flag in vector[3]} == set(FLAGS)


def test_flags_say_what_is_so():
    """The equation holds with the cofactor, and without it unless there is a residue; another k changes that."""
    for key, message, signed, flags, _ in POINTS[::5]:
        with_cofactor = curve.holds(key, message, signed, cofactor=8)
        without = curve.holds(key, message, signed)
        if "reencoded" not in flags:
            assert with_cofactor and without == ("residue" not in flags)
        elif "small_order_key" in flags:
            assert with_cofactor and without == ("residue" in flags)
        else:
            assert not with_cofactor and not without


def test_the_library_alone_takes_what_is_refused_here():
    taken = [vector for vector in ALL if len(vector[0]) == 32 and library_alone(*vector[:3])]
    assert [vector for vector in ALL if vector[4] == "accept" and vector not in taken] == []
    refused = [vector for vector in taken if vector[4] != "accept"]
    assert len(refused) >= 42 and all("mixed_order_key" in vector[3] for vector in refused)


@pytest.mark.parametrize("seed", [bytes(32), bytes(range(32)), b"\xff" * 32])
def test_the_curve_is_the_one_of_rfc_8032(seed):
    scalar = int.from_bytes(sha512(seed).digest()[:32], "little") & (2**254 - 8) | 2**254
    public = curve.encode(curve.times(scalar, curve.BASE))
    assert public == signature.key_pair(seed).public
    signed = signature.sign_bytes(signature.key_pair(seed), b"message")
    assert curve.outcome(public, b"message", signed) == "accept" and curve.holds(public, b"message", signed, cofactor=8)
    assert curve.outcome(public, b"messagf", signed) == "BAD_SIGNATURE"


def test_orders():
    for index, point in enumerate(curve.TORSION):
        order = next(n for n in (1, 2, 4, 8) if curve.is_same(curve.times(n, point), curve.IDENTITY))
        assert order == 8 // max(n for n in (1, 2, 4, 8) if index % n == 0)
        assert not curve.is_strict(curve.encode(point))
        for data in curve.encodings(point):
            again = curve.decode(data)
            assert again is not None and curve.is_same(again, point)
    assert curve.is_same(curve.times(curve.L, curve.BASE), curve.IDENTITY) and curve.is_strict(curve.encode(curve.BASE))

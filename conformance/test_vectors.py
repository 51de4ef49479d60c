"""Every vector through the reference verifier: ``python -m pytest conformance``.

Needs what an auditor has: blake3, cbor2, PyNaCl and pytest.
"""

from __future__ import annotations

from typing import Any

from conformance.run_vector import run_vector
from conformance.vector_files import GROUPS, Vector, read_vectors

SENTENCES = {"unsigned": "unsigned", "unknown": "signature", "trusted": "valid signature"}
"""How the sentence on signatures begins, for each word of ``expect.signature``."""


def pytest_generate_tests(metafunc: Any) -> None:
    vectors = [(group, vector) for group in GROUPS for vector in read_vectors(group)]
    names = [f"{group}/{vector['id']}" for group, vector in vectors]
    metafunc.parametrize("vector", [vector for _, vector in vectors], ids=names)


def test_vector(vector: Vector) -> None:
    found, expect = run_vector(vector), vector["expect"]
    assert (found.exit_code, found.name) == (expect["exit_code"], expect["name"]), found.sentence
    for name in ("receipt_id", "question_id", "position"):
        if name in expect:
            assert getattr(found, name) == expect[name]
    if "signature" in expect:
        assert found.signature.startswith(SENTENCES[expect["signature"]])
    if expect.get("signature") != "trusted":
        assert "valid" not in found.signature

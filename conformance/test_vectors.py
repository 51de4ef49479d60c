"""Every vector through the reference verifiers: ``python -m pytest conformance``.

Needs what an auditor has: blake3, cbor2, PyNaCl and pytest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance import bundle_vectors, run_vector
from conformance.vector_files import GROUPS, Vector, read_vectors

SENTENCES = {"unsigned": "unsigned", "unknown": "signature", "trusted": "valid signature"}
"""How the sentence on signatures begins, for each word of ``expect.signature``."""


def pytest_generate_tests(metafunc: Any) -> None:
    groups = (bundle_vectors.GROUP,) if metafunc.function is test_bundle else GROUPS
    vectors = [(group, vector) for group in groups for vector in read_vectors(group)]
    names = [f"{group}/{vector['id']}" for group, vector in vectors]
    metafunc.parametrize("vector", [vector for _, vector in vectors], ids=names)


def test_vector(vector: Vector) -> None:
    found, expect = run_vector.run_vector(vector), vector["expect"]
    assert (found.exit_code, found.name) == (expect["exit_code"], expect["name"]), found.sentence
    for name in ("receipt_id", "question_id", "position"):
        if name in expect:
            assert getattr(found, name) == expect[name]
    check_sentence(found.signature, expect)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


def test_bundle(vector: Vector, folder: Path) -> None:
    found, expect = bundle_vectors.run_vector(vector, folder), vector["expect"]
    assert (found.exit_code, found.name) == (expect["exit_code"], expect["name"]), found.sentence
    assert found.sentence
    for name in ("manifest_digest", "signers", "passed_over", "leaf"):
        if name in expect:
            assert getattr(found, name) == expect[name]
    check_sentence(found.signature, expect)


def check_sentence(signature: str, expect: dict[str, Any]) -> None:
    """What is said of the signatures is what the vector expects, and never more."""
    if "signature" in expect:
        assert signature.startswith(SENTENCES[expect["signature"]])
    if expect.get("signature") != "trusted":
        assert "valid" not in signature

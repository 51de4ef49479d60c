"""The committed vectors are what the reference computes: whoever changes the arithmetic sees it here."""

from __future__ import annotations

from tools.make_vectors import FOLDER, dump, vectors


def test_vectors_are_current() -> None:
    committed = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    computed = {name: dump(vector) for name, vector in vectors()}
    assert committed.keys() == computed.keys()
    assert [name for name in computed if committed[name] != computed[name]] == [], "see make vectors"

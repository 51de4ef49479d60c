"""All vectors as questions to any engine: what is sent for each, and what must come back.

``vectors/README.md`` describes both. What a vector expects, and what it is about, is not sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from conformance import bundle_vectors, op_vectors, vector_files
from conformance.vector_files import FOLDER, GROUPS, Vector, read_vectors

KEPT_BACK = ("id", "attack", "what", "file", "expect")
"""Fields of a vector that an engine isn't sent."""

BAD_SIGNATURE = 12


class Asked(NamedTuple):
    """``id`` is ``group/name``. ``data`` are the bytes of the file to be judged, where it is about one."""

    id: str
    kind: str
    vector: Vector
    expect: Mapping[str, Any]
    data: Callable[[], bytes] | None = None

    def line(self, folder: Path) -> bytes:
        """The request, one line of JSON. Its file is written to ``folder`` and lies there until the next one's is."""
        request = {"id": self.id, "kind": self.kind, "vector": self.vector}
        if self.data is not None:
            path = folder / ("bundle.ktc" if self.kind == "bundle" else "receipt.json")
            path.write_bytes(self.data())
            request["path"] = str(path)
        return json.dumps(request, separators=(",", ":")).encode() + b"\n"


def all_asked() -> Iterator[Asked]:
    """Every vector, in the order of their names."""
    for group in GROUPS:
        for vector in read_vectors(group):
            yield _of_file(group, "receipt", vector, partial(vector_files.file_bytes, vector["file"]))
    for vector in read_vectors(bundle_vectors.GROUP):
        yield _of_file("bundles", "bundle", vector, partial(bundle_vectors.file_bytes, vector["file"]))
    yield from _of_keys()
    for name, operation in op_vectors.read():
        yield Asked(f"ops/{name}", "operation", _sent(operation), {"exit_code": 0, "outputs": operation})


def _of_file(group: str, kind: str, vector: Vector, data: Callable[[], bytes]) -> Asked:
    sent = _sent(vector)
    trust = sent.get("options", {}).get("trust", "")
    if not isinstance(trust, str):  # a recipe, since it is long
        sent["options"] = {**sent["options"], "trust": vector_files.file_bytes(trust).decode("utf-8")}
    if kind == "receipt":
        sent["engine"] = vector_files.default_engine() | vector.get("engine", {})
    return Asked(f"{group}/{vector['id']}", kind, sent, vector["expect"], data)


def _sent(vector: Mapping[str, Any]) -> Vector:
    sent = {name: value for name, value in vector.items() if name not in KEPT_BACK}
    if "outputs" in sent:
        forms = sent["outputs"].items()
        sent["outputs"] = {name: {part: form[part] for part in ("dtype", "shape")} for name, form in forms}
    if "cases" in sent:
        sent["cases"] = [{name: v for name, v in case.items() if name != "bits"} for case in sent["cases"]]
    return sent


def _of_keys() -> Iterator[Asked]:
    for path in sorted((FOLDER / "ed25519").glob("*.json")):
        for number, row in enumerate(json.loads(path.read_text(encoding="utf-8"))["vectors"]):
            *parts, _, outcome = row
            vector = dict(zip(("public_key", "message", "signature"), parts, strict=True))
            accepted = outcome == "accept"
            expect = {"exit_code": 0} if accepted else {"exit_code": BAD_SIGNATURE, "name": outcome}
            yield Asked(f"ed25519/{path.stem}/{number}", "ed25519", vector, expect)

"""Ed25519 keys and signatures that libraries disagree about have one outcome here: all vectors of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from blake3 import blake3

from conformance.case import Case, Evidence, require
from conformance.setting import Setting
from conformance.vector_files import FOLDER
from ktc.errors import SignatureProblem
from ktc.signature import verify_bytes

PROPERTY = "A signature holds or does not hold by one strict rule, whatever the library below takes."
OF_MODELS = False

ACCEPTED = "accept"


def cases(setting: Setting) -> Iterator[Case]:
    for path in sorted((FOLDER / "ed25519").glob("*.json")):
        yield Case(path.stem, partial(_run, path))


def _run(path: Path) -> Evidence:
    data = path.read_bytes()
    vectors = json.loads(data)["vectors"]
    for number, (key, message, signature, flags, outcome) in enumerate(vectors):
        found = _judged(bytes.fromhex(key), bytes.fromhex(message), bytes.fromhex(signature))
        require(found == outcome, f"vector {number} ({', '.join(flags) or 'good'}) gives {found}, not {outcome}")
    return Evidence(f"{len(vectors)} signatures with the outcomes of their vectors", blake3(data).hexdigest())


def _judged(key: bytes, message: bytes, signature: bytes) -> str:
    try:
        verify_bytes(key, message, signature)
    except SignatureProblem as error:
        return error.name
    return ACCEPTED

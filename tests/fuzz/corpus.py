"""What fuzzing starts from: the files of all vectors, and whatever was found before (tests/fuzz/found)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.vector_files import GROUPS, file_bytes, read_vectors
from kinetic.api.trace_file import encode
from ktc import canonical
from tests.fuzz.targets import TARGETS
from tests.support.sample_traces import sample

FOUND = Path(__file__).resolve().parent / "found"
MOST = 20_000
"""Bytes of a file worth mutating."""

KEYS = [
    b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=\n"
    b"-----END PUBLIC KEY-----\n",
    b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n"
    b"-----END PRIVATE KEY-----\n",
    b"-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\n",
]
DECIMALS = [b"0", b"-1.5", b"0.80", b"3.4028235", b"1e5", b"0.000000000000000000000000000000000000000000001", b"NaN"]
TRACES = [encode(sample()), canonical.encode({"format": "kinetic-trace", "version": 1})]
TIMES = [b"2026-03-14T15:09:26Z", b"2026-03-14", b"1969-12-31T23:59:59Z", b"9999-12-31", b"0000-01-01"]

WORDS = [
    *(b'{ } [ ] , : " \\ null true false NaN -0 0 1 -1 1e9 0.0 -inf \\u0000 \\ud800 // \n \r\n \t'.split(b" ")),
    *(bytes([byte]) for byte in (0x00, 0x18, 0x1B, 0x5F, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC2, 0xF6, 0xF9, 0xFB, 0xFF)),
    b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff", b"\x9b\0\0\0\1\0\0\0\0", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\xaf",
    b"9007199254740992", b"18446744073709551616", b'"seed"', b'"crit"', b"[[keys]]", b"= ", b"'''", b".a", b"#",
]  # fmt: skip
"""Pieces that mean something in one of the formats."""


def corpus(name: str) -> list[bytes]:
    """Inputs for one target."""
    own = {"public_key": KEYS, "secret_key": KEYS, "decimal": DECIMALS, "time": TIMES, "trace": TRACES}.get(name)
    start = own if own is not None else sorted(set(_from_vectors(name)))
    return [*start, *(path.read_bytes() for path in sorted(FOUND.glob(f"{name}-*")))]


def _from_vectors(name: str) -> Iterator[bytes]:
    for group in GROUPS:
        for vector in read_vectors(group):
            for recipe in _recipes(name, vector):
                data = recipe.encode("utf-8") if isinstance(recipe, str) else file_bytes(recipe)
                if len(data) <= MOST and _suits(name, data):
                    yield data


def _suits(name: str, data: bytes) -> bool:
    return name not in ("json", "cbor") or (data[:1] > b"\x9f") == (name == "cbor")


def _recipes(name: str, vector: dict[str, Any]) -> list[Any]:
    if name in ("trust", "opening"):
        option = vector.get("options", {}).get(name)
        return [] if option is None else [option]
    return [vector["file"]] if "times" not in str(vector["file"]) else []


assert {"json", "cbor", "receipt", "trust", "opening", "public_key", "secret_key"} <= TARGETS.keys()

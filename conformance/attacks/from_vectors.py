"""Vectors as files on a disk, checked by ``python -m receipts check`` in a process of its own.

Only those whose verdict needs no rerun, and whose options the command line has.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.attacks.attack import Attack
from conformance.run_vector import NOW
from conformance.vector_files import GROUPS, Vector, file_bytes, read_vectors

TRUST_STEP = 9
"""The last step that needs no model; step 12 needs none either, but a rerun may name a token before it."""

FILE, TRUST = "receipt", "trust.toml"


def attacks() -> Iterator[Attack]:
    for group in GROUPS:
        for vector in read_vectors(group):
            if is_checkable(vector):
                yield attack(vector)


def is_checkable(vector: Vector) -> bool:
    """Whether ``python -m receipts check`` must say the same as a rerun."""
    options, expect = vector.get("options", {}), vector["expect"]
    known = options.keys() <= {"keys", "trust", "at", "challenge"} and expect["name"] != "BAD_TIME"
    return bool(known and (expect["exit_code"] == 0 or expect["step"] <= TRUST_STEP))


def attack(vector: Vector) -> Attack:
    """One vector as an attack."""
    options, expect = vector.get("options", {}), vector["expect"]
    arguments = ["receipts", "check", FILE, "--at", options.get("at", NOW)]
    for name in options.get("keys", {}):
        arguments += ["--key", f"{name}.pub"]
    if "trust" in options:
        arguments += ["--trust", TRUST]
    if "challenge" in options:
        arguments += ["--challenge", options["challenge"]]

    def write(folder: Path) -> None:
        write_files(vector, folder)

    return Attack(vector["id"], vector["attack"], vector["what"], arguments, write, expect["exit_code"])


def write_files(vector: Vector, folder: Path) -> None:
    """The receipt, and the keys and trust file that it is checked under."""
    options: dict[str, Any] = vector.get("options", {})
    (folder / FILE).write_bytes(file_bytes(vector["file"]))
    for name, public in options.get("keys", {}).items():
        (folder / f"{name}.pub").write_text(public_pem(bytes.fromhex(public)))
    if "trust" in options:
        trust = options["trust"]
        (folder / TRUST).write_bytes(trust.encode("utf-8") if isinstance(trust, str) else file_bytes(trust))


def public_pem(public: bytes) -> str:
    """A public key file as openssl writes it."""
    der = bytes.fromhex("302a300506032b6570032100") + public
    return f"-----BEGIN PUBLIC KEY-----\n{base64.b64encode(der).decode('ascii')}\n-----END PUBLIC KEY-----\n"

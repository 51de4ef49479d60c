"""Prompts that are kept back: the receipt holds a commitment, and a file of its own, the opening, shows what to.

A commitment is a digest keyed by 32 random bytes, the salt (``ktc.digest``). An
opening holds the salt and the tokens: whoever has it can read the prompt, and
rerun the receipt.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from ktc import canonical
from ktc.digest import token_digest, withheld_commitment
from ktc.errors import Malformed, Unverifiable
from ktc.fields import Enum, Hex, Int, Table, Tokens, exact
from ktc.files import read_bounded, write_new
from receipts.batch import ALONE
from receipts.identity import receipt_id
from receipts.schema import Record

TYPE, VERSION = "kinetic-opening", 1

OPENING = Table(
    type=Enum(TYPE),
    version=Int(VERSION, VERSION),
    receipt_id=Hex(),
    salt=Hex(),
    tokens=Tokens(),
)


class Opening(NamedTuple):
    """What shows the prompt of one receipt."""

    receipt_id: str
    """In hex, of the receipt as it was before it became part of a batch."""
    salt: bytes
    tokens: list[int]


def withhold(record: Record, salt: bytes) -> Record:
    """The same receipt with a commitment in place of its prompt's tokens and their digest."""
    return record | {"prompt": _shown([], "", withheld_commitment(salt, record["prompt"]["tokens"]))}


def opening_of(record: Record, salt: bytes, tokens: list[int]) -> Opening:
    """The opening of a receipt whose prompt was withheld with this salt. Raises Malformed if it wasn't."""
    opening = Opening(_own_id(record), salt, tokens)
    open_prompt(record, opening)
    return opening


def open_prompt(record: Record, opening: Opening) -> Record:
    """The receipt with its prompt in place, for rerunning only: its ids and its challenge's seed are no longer true.

    Raises Malformed unless the opening is this receipt's.
    """
    if not record["prompt"]["commitment"]:
        raise Malformed("the receipt shows its prompt, so there is nothing to open", name="OPENING")
    if opening.receipt_id != _own_id(record):
        raise Malformed(f"the opening is that of another receipt, {opening.receipt_id}", name="OPENING")
    if not opening.tokens:
        raise Malformed("the opening holds no tokens", name="OPENING")
    if withheld_commitment(opening.salt, opening.tokens) != record["prompt"]["commitment"]:
        raise Malformed("salt and tokens of the opening do not give the receipt's commitment", name="OPENING")
    return record | {"prompt": _shown(opening.tokens, token_digest(opening.tokens), "")}


def read_opening(source: str | os.PathLike[str] | bytes) -> Opening:
    """Read an opening from a path, or from the bytes of a file. Raises any KtcError."""
    data = source if isinstance(source, bytes) else read_bounded(source)
    try:
        value = canonical.read_json(data)
    except Malformed as error:
        raise Malformed(f"this is not an opening: {error}", name=error.name) from None
    table = exact(value, dict, "the opening")
    if table.get("type") != TYPE:
        raise Malformed(f"this is not an opening: its type is not '{TYPE}'", name="NOT_AN_OPENING")
    version = table.get("version")
    if type(version) is int and version > VERSION:
        raise Unverifiable(f"the opening has version {version}, and only {VERSION} is known here", name="VERSION")
    OPENING.check(table, "opening")
    return Opening(table["receipt_id"], bytes.fromhex(table["salt"]), table["tokens"])


def write_opening(path: str | os.PathLike[str], opening: Opening) -> None:
    """Write an opening that only its owner can read. Raises FileProblem, also where there is a file already."""
    table = {
        "type": TYPE,
        "version": VERSION,
        "receipt_id": opening.receipt_id,
        "salt": opening.salt.hex(),
        "tokens": list(opening.tokens),
    }
    text = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in table.items())
    data = f"{{\n{text}\n}}\n".encode("ascii")
    read_opening(data)  # what could not be read back, for its size say, is not written
    write_new(path, data, mode=0o600)


def _shown(tokens: list[int], digest: str, commitment: str) -> dict[str, object]:
    return {"tokens": list(tokens), "digest": digest, "commitment": commitment}


def _own_id(record: Record) -> str:
    """``receipt_id`` without the place in a batch, which is given later and changes it."""
    return receipt_id(record | {"parent": ALONE})

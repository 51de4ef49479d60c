"""A tree of receipts: one root stands for many, and each proves its place.

The tree is that of RFC 9162 section 2.1 with BLAKE3: leaves and inner nodes have
domains of their own, so neither passes for the other, and nothing is ever
duplicated to fill a level. The number of leaves is hashed into the root. A leaf
is the ``receipt_id`` of the receipt with an empty ``parent``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ktc.digest import BATCH_LEAF, BATCH_NODE, digest
from ktc.errors import Malformed
from receipts.identity import receipt_id
from receipts.schema import PLAIN_ATTACHMENTS, Record

ALONE = PLAIN_ATTACHMENTS["parent"]
"""``parent`` of a receipt that stands in no tree."""


def leaf(record: Record) -> bytes:
    """Leaf of a receipt: the digest of its id with ``parent`` emptied."""
    return digest(BATCH_LEAF, bytes.fromhex(receipt_id(record | {"parent": ALONE})))


def with_parents(records: Sequence[Record]) -> list[Record]:
    """The same receipts, each with its place in the tree of them all."""
    leaves = [leaf(record) for record in records]
    top, paths = _tree(leaves)
    root = _root(top, len(leaves)).hex()
    return [
        record | {"parent": {"root": root, "count": len(leaves), "index": index, "path": path}}
        for index, (record, path) in enumerate(zip(records, paths, strict=True))
    ]


def check_parent(record: Record) -> None:
    """Raise Malformed unless ``parent`` is empty or its path leads from this receipt to its root."""
    parent = record["parent"]
    if parent["root"] == "":
        if parent != ALONE:
            raise Malformed("receipt.parent has no root, so its other fields must be empty", name="BATCH_PROOF")
        return
    if not parent["index"] < parent["count"]:
        raise Malformed("receipt.parent.index is not below its count", name="BATCH_PROOF")
    path = [bytes.fromhex(step) for step in parent["path"]]
    top = _climb(leaf(record), parent["index"], parent["count"], path)
    if top is None or _root(top, parent["count"]).hex() != parent["root"]:
        raise Malformed("receipt.parent.path does not lead to its root", name="BATCH_PROOF")


def _root(top: bytes, count: int) -> bytes:
    return digest(BATCH_NODE, count.to_bytes(8, "little"), top)


def _node(left: bytes, right: bytes) -> bytes:
    return digest(BATCH_NODE, left, right)


def _split(count: int) -> int:
    """The largest power of two below ``count``: how many leaves go left."""
    return 1 << (count - 1).bit_length() - 1


def _tree(leaves: Sequence[bytes]) -> tuple[bytes, list[list[str]]]:
    """Top of the tree, and for each leaf its sibling digests from the leaf upwards."""
    if len(leaves) == 1:
        return leaves[0], [[]]
    middle = _split(len(leaves))
    left, left_paths = _tree(leaves[:middle])
    right, right_paths = _tree(leaves[middle:])
    for path in left_paths:
        path.append(right.hex())
    for path in right_paths:
        path.append(left.hex())
    return _node(left, right), [*left_paths, *right_paths]


def _climb(start: bytes, index: int, count: int, path: list[bytes]) -> bytes | None:
    """Top of the tree from one leaf and its siblings; None if there are too many or too few."""
    if count == 1:
        return None if path else start
    if not path:
        return None
    middle, sibling = _split(count), path[-1]
    if index < middle:
        below = _climb(start, index, middle, path[:-1])
        return below and _node(below, sibling)
    below = _climb(start, index - middle, count - middle, path[:-1])
    return below and _node(sibling, below)

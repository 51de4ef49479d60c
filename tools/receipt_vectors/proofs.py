"""Step 6: the place of a receipt in a batch, with a tree of our own that shares no code with ``receipts.batch``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blake3 import blake3

from receipts.identity import receipt_id
from tools.receipt_vectors.build import OK, SEED, Case, Expect, ids, packed, plain, record, signed

LEAF, NODE = b"kinetic batch leaf v1\0", b"kinetic batch node v1\0"
ALONE = {"root": "", "count": 0, "index": 0, "path": []}
BATCH: Expect = (11, "BATCH_PROOF", 6)


def cases() -> Iterator[Case]:
    for count in (1, 2, 3, 5, 8):
        for index in {0, count // 2, count - 1}:
            made = placed(count, index)
            what = f"Receipt {index} of a batch of {count}."
            yield Case(f"batch-{count}-{index}", [97], what, plain(made), OK, more=ids(made))
    yield Case("batch-cbor", [97], "A receipt of a batch in CBOR.", packed(placed(5, 2)), OK)
    yield Case("batch-signed", [97], "A signed receipt of a batch.", signed(placed(5, 2), SEED), OK)
    yield from _moved()
    yield from _forged_trees()
    yield from _without_root()


def leaf(index: int) -> bytes:
    """Leaf of the receipt number ``index`` of a batch: the base with other completions."""
    return _hash(LEAF, bytes.fromhex(receipt_id(_member(index))))


def _member(index: int) -> Any:
    return record(completion_index=index)


def _hash(*parts: bytes) -> bytes:
    return blake3(b"".join(parts)).digest()


def node(left: bytes, right: bytes) -> bytes:
    return _hash(NODE, left, right)


def root(count: int, top: bytes) -> str:
    return _hash(NODE, count.to_bytes(8, "little"), top).hex()


def tree(leaves: list[bytes]) -> bytes:
    """Top of the tree of RFC 9162, section 2.1."""
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while left * 2 < len(leaves):
        left *= 2
    return node(tree(leaves[:left]), tree(leaves[left:]))


def path(leaves: list[bytes], index: int) -> list[str]:
    """Siblings from the leaf upwards."""
    if len(leaves) == 1:
        return []
    left = 1
    while left * 2 < len(leaves):
        left *= 2
    if index < left:
        return [*path(leaves[:left], index), tree(leaves[left:]).hex()]
    return [*path(leaves[left:], index - left), tree(leaves[:left]).hex()]


def placed(count: int, index: int) -> Any:
    """A receipt with its place in a batch."""
    leaves = [leaf(number) for number in range(count)]
    place = {"root": root(count, tree(leaves)), "count": count, "index": index, "path": path(leaves, index)}
    return _member(index) | {"parent": place}


def _moved() -> Iterator[Case]:
    good = placed(5, 2)
    place = good["parent"]
    steps = place["path"]
    for name, what, change in [
        ("root", "Another root.", {"root": "00" * 32}),
        ("count-more", "A leaf more than there are.", {"count": 6}),
        ("count-less", "A leaf less than there are.", {"count": 4}),
        ("count-zero", "A batch of none.", {"count": 0}),
        ("count-huge", "A batch of 2^53-1.", {"count": 2**53 - 1}),
        ("index", "Another place in the batch.", {"index": 3}),
        ("index-count", "A place past the last.", {"index": 5}),
        ("path-short", "A sibling is missing.", {"path": steps[:-1]}),
        ("path-long", "A sibling too many.", {"path": [*steps, "00" * 32]}),
        ("path-empty", "No siblings.", {"path": []}),
        ("path-order", "Two siblings have changed places.", {"path": [steps[1], steps[0], *steps[2:]]}),
        ("path-changed", "Another sibling.", {"path": ["00" * 32, *steps[1:]]}),
    ]:
        yield Case(f"batch-{name}", [97], what, plain(good | {"parent": place | change}), BATCH)
    last = placed(2, 1)
    past = last | {"parent": last["parent"] | {"index": 2}}
    what = "A place past the last, from which the path still leads to the root."
    yield Case("batch-index-past", [97], what, plain(past), BATCH)
    other = good | {"text": " red"}
    yield Case("batch-other-receipt", [97], "The proof stands on another receipt.", plain(other), BATCH)
    stranger = record(completion_index=9) | {"parent": place}
    yield Case("batch-stranger", [97], "The proof stands on a receipt of no batch.", plain(stranger), BATCH)


def _forged_trees() -> Iterator[Case]:
    """Trees that other rules build."""
    leaves = [leaf(number) for number in range(3)]
    doubled = [*leaves, leaves[2]]
    place = {"root": root(3, tree(doubled)), "count": 3, "index": 2, "path": path(doubled, 2)}
    what = "A tree of three whose last leaf is doubled to fill its level."
    yield Case("batch-doubled", [97], what, plain(_member(2) | {"parent": place}), BATCH)
    honest = place | {"root": root(3, tree(leaves))}
    what = "The path through a doubled leaf, to the root of the tree without one."
    yield Case("batch-doubled-path", [97], what, plain(_member(2) | {"parent": honest}), BATCH)
    four = honest | {"count": 4, "index": 3, "path": path(doubled, 3)}
    what = "The last of three passed off as a fourth."
    yield Case("batch-doubled-as-fourth", [97], what, plain(_member(2) | {"parent": four}), BATCH)
    stated = place | {"root": root(4, tree(doubled)), "count": 4}
    what = "A batch of four in which one receipt stands twice: that is what its issuer says, and its root is another."
    yield Case("batch-twice-in-four", [97], what, plain(_member(2) | {"parent": stated}), OK)
    inner = node(leaves[0], leaves[1])
    place = {"root": root(2, node(inner, leaves[2])), "count": 2, "index": 1, "path": [inner.hex()]}
    what = "A batch of two, said to hold an inner node of a batch of three beside this receipt: another root."
    yield Case("batch-node-beside", [97], what, plain(_member(2) | {"parent": place}), OK)
    short = place | {"root": root(3, tree(leaves))}
    what = "The root of three with a path that takes an inner node for a leaf."
    yield Case("batch-node-as-leaf", [97], what, plain(_member(2) | {"parent": short}), BATCH)
    plain_root = tree(leaves).hex()
    place = {"root": plain_root, "count": 3, "index": 2, "path": path(leaves, 2)}
    what = "The top node as the root: the number of leaves is not bound in."
    yield Case("batch-count-not-bound", [97], what, plain(_member(2) | {"parent": place}), BATCH)
    single = _member(0)
    bare = {"root": root(1, bytes.fromhex(receipt_id(single))), "count": 1, "index": 0, "path": []}
    what = "The receipt's id itself as the leaf, without the leaves' domain: a leaf could pass for a node."
    yield Case("batch-leaf-as-node", [97], what, plain(single | {"parent": bare}), BATCH)
    no_domain = blake3(leaves[0] + leaves[1]).digest()
    bare = {"root": root(2, no_domain), "count": 2, "index": 0, "path": [leaves[1].hex()]}
    yield Case("batch-no-domain", [97], "Nodes hashed without their domain.", plain(single | {"parent": bare}), BATCH)
    swapped = {"root": root(2, node(leaves[1], leaves[0])), "count": 2, "index": 0, "path": [leaves[1].hex()]}
    yield Case("batch-sides", [97], "Left and right have changed places.", plain(single | {"parent": swapped}), BATCH)


def _without_root() -> Iterator[Case]:
    change: Any
    for name, change in [("count", {"count": 1}), ("index", {"index": 1}), ("path", {"path": ["00" * 32]})]:
        what = f"{name} without a root."
        yield Case(f"batch-no-root-{name}", [97], what, plain(record() | {"parent": ALONE | change}), BATCH)

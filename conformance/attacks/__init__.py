"""Attacks as programs meet them: each writes hostile files, and names the exit code that must come of them.

    for attack in attacks():
        outcome = run(attack, folder)
        assert outcome.exit_code == attack.exit_code

``receipts`` has what a receipt's bytes can't say by themselves: files that are
no files, keys and trust files that others can change; ``bundles`` the same for
bundles, and files that change while they are read. The bytes themselves are
vectors (conformance/vectors), which ``from_vectors`` turns into attacks too.
A module here for each kind of file has a function ``attacks`` of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.attacks import bundles, from_vectors, receipts
from conformance.attacks.attack import Attack, Outcome, run

__all__ = ["Attack", "Outcome", "attacks", "run"]

MODULES = (receipts, bundles, from_vectors)


def attacks() -> Iterator[Attack]:
    """Every attack."""
    for module in MODULES:
        yield from module.attacks()

"""Attacks as programs meet them: each writes hostile files, and names the exit code that must come of them.

    report = suite.run_suite()      # or: kinetic doctor --attack-self
    for result in report.failed:
        print(result.name, result.problem)

``receipts`` has what a receipt's bytes can't say by themselves: files that are
no files, keys and trust files that others can change; ``bundles`` the same for
bundles, and files that change while they are read. The bytes themselves are
vectors (conformance/vectors), which ``from_vectors`` turns into attacks too.
``gguf`` has model files whose structure lies, ``models`` those that make no sense,
``templates`` chat templates, ``names`` names that lead elsewhere.

To add an attack, yield one more ``Attack`` from the function ``attacks`` of the module for its
kind of file; a new module goes into ``MODULES``. Its files are made by our own writers
(``gguf_writer``, ``tiny_model``), never taken from elsewhere. Say what is attacked in one sentence, give the exit
code, and as ``reason`` the name of the refusal where the program prints it (``use`` does). Where memory or
time is what is attacked, say how much of it a refusal may take. ``attack.fault`` is what is
asked of every program: that exit code, one sentence, no traceback, nothing written.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.attacks import bundles, from_vectors, gguf, models, names, receipts, templates
from conformance.attacks.attack import Attack, Outcome, fault, run

__all__ = ["Attack", "Outcome", "attacks", "fault", "run"]

MODULES = (templates, receipts, bundles, models, gguf, names)


def attacks(*, vectors: bool = True) -> Iterator[Attack]:
    """Every attack; ``vectors`` says whether those that are test vectors come along, a program for each."""
    for module in MODULES:
        yield from module.attacks()
    if vectors:
        yield from from_vectors.attacks()

"""The built-in models give the logits and tokens whose digests are committed: one model a family and weight format."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from blake3 import blake3

from conformance.answers import SETTINGS, request, tokens_digest
from conformance.case import Case, Evidence, require, together
from conformance.recipes import MIXED, Expected, expected
from conformance.setting import Setting, Subject

PROPERTY = "Every family and weight format gives the bits that were committed, on every machine."
OF_MODELS = False

QUICK_FAMILY = "llama"


def cases(setting: Setting) -> Iterator[Case]:
    for subject in setting.built_in:
        recipe = subject.recipe
        assert recipe is not None
        if not setting.is_quick or recipe.kind == MIXED or recipe.family == QUICK_FAMILY:
            yield Case(subject.name, partial(_run, setting, subject, recipe.rows))


def _run(setting: Setting, subject: Subject, rows: int) -> Evidence:
    committed = expected().get(subject.name)
    require(committed is not None, "no digest of this model is committed: `make vectors` computes them")
    found = measure(subject, setting.threads)
    for name, digest in found._asdict().items():
        # The reference reads fewer rows of the long ones, as long as nobody asks for all.
        if name != "logits" or subject.rows == rows:
            require(digest == getattr(committed, name), f"{WHAT[name]} not what was committed")
    logits = f"{rows} rows of logits and " if subject.rows == rows else ""
    return Evidence(f"{logits}two answers have the committed digests", _all(found))


WHAT = {
    "file": "the bytes of the model that the recipe makes are",
    "logits": "the logits are",
    "greedy": "the greedy answer is",
    "drawn": "the drawn answer is",
}


def measure(subject: Subject, threads: int = 1) -> Expected:
    """What a built-in model gives here."""
    plain = subject.plain.logits
    probe = subject.probe(threads=threads)
    answers = (probe.answer(request(subject, SETTINGS[name])) for name in ("greedy", "drawn"))
    greedy, drawn = (tokens_digest([step.token for step in steps]) for steps in answers)
    return Expected(blake3(subject.path.read_bytes()).hexdigest(), plain, greedy, drawn)


def _all(found: Expected) -> str:
    return together(bytes.fromhex(digest) for digest in found)

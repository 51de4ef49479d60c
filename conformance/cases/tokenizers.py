"""Texts become the tokens whose digests are committed, and tokens become the texts again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conformance.answers import tokens_digest
from conformance.case import Case, Evidence, require
from conformance.recipes import MIXED, committed
from conformance.setting import Setting, Subject
from kinetic.api.probe import tokenizer_of

PROPERTY = "A text has the same tokens on every machine, and its tokens give the text again."
OF_MODELS = False

TEXTS = (
    "the quick brown fox jumps over the lazy dog",
    "  two spaces,\ttab\nand\n\nlines \n",
    "na\u00efve caf\u00e9 \u2014 \u4f60\u597d \U0001f600\u200d\U0001f680 e\u0301",
    "it's 12,345.67 and I'LL say \"no\"!",
    "<|im_start|>user</s><start_of_turn>",
    "\u0000\u0007\ufeff\u00a0\u3000",
    "",
)
"""Words, spaces, characters of one to four bytes, numbers, spellings of control tokens, controls, nothing."""


def cases(setting: Setting) -> Iterator[Case]:
    for subject in setting.built_in:
        if subject.recipe is not None and subject.recipe.kind == MIXED:
            yield Case(subject.recipe.family, partial(_run, subject))


def measure(subject: Subject) -> list[int]:
    """The tokens of all texts; spellings of control tokens are text, and then control tokens."""
    tokenizer = tokenizer_of(subject.path)
    ids: list[int] = []
    for special in (False, True):
        for text in TEXTS:
            ids += tokenizer.encode(text, add_special=special, parse_special=special)
    return ids


def digest(subject: Subject) -> str:
    """What is committed of them."""
    return tokens_digest(measure(subject))


def _run(subject: Subject) -> Evidence:
    assert subject.recipe is not None
    tokenizer = tokenizer_of(subject.path)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        found = b"".join(tokenizer.piece(token) for token in ids)
        require(found == text.encode(), f"{text!r} comes back as {found!r}")
    ids = measure(subject)
    found_digest = tokens_digest(ids)
    same = found_digest == committed("texts").get(subject.recipe.family)
    require(same, "the tokens of the texts are not those committed")
    return Evidence(f"{len(TEXTS)} texts, {len(ids)} tokens with the committed digest", found_digest)

"""Whether drafters that read hidden rows change nothing, and know the same however the answer came about."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.engine import Engine
from kinetic.engine.drafts import Drafter
from kinetic.engine.drafts.hidden import HiddenSource
from kinetic.types import Request
from tests.invariance.test_drafts import KINDS, SETTINGS, Free, Guesses, digest

ANSWER = 26


def check_hidden_drafts(engine: Engine, plain: Engine, prompt: Sequence[int]) -> None:
    """``engine`` has such a drafter, ``plain`` is the same model without. Steps at temperatures 0 and 0.8 are those of
    plain decoding, with its guesses alone and as part of a tree of others that are partly right."""
    assert engine._seeing is not None
    for settings in SETTINGS.values():
        request = Request(tuple(prompt), settings, ANSWER)
        expected = list(plain.generate(request, digest=digest))
        answer = [step.token for step in expected]
        for others in ([], [Guesses(answer, KINDS["tree"])]):
            source = fresh(engine)
            engine.drafter = Drafter([*others, source], Free(), can_branch=engine._program.can_branch)
            assert list(engine.generate(request, digest=digest)) == expected
            tally = engine.drafter.tally
            assert tally.drafted > tally.accepted
            assert not others or tally.accepted > 0
            found = guessed(source, [*prompt, *answer])
            source = fresh(engine)
            engine.drafter = Drafter([source], Free())
            for _ in engine.generate(Request((*prompt, *answer[:-1]), settings, 1)):
                pass
            assert found == guessed(source, [*prompt, *answer]), "it knows other rows than one that saw all at once"


def fresh(engine: Engine) -> HiddenSource:
    source = engine._seeing.source(None)
    source.rates.of = lambda kind: 0.9
    return source


def guessed(source: HiddenSource, history: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    (branch,) = source.propose(history, 8)
    assert len(branch.tokens) > 5
    return branch.tokens, branch.kinds

"""Whatever was computed before and is taken up again, steps are those of a cold run."""

from __future__ import annotations

import pytest

from kinetic.engine.warm import blocks, warm
from kinetic.types import Request
from tests.support.warm import PROMPTS, SETTINGS, STATEFUL, A, B, ask, cache, cold, digest, engine_of

KNOWN = [0, 0, 600, 300, 339, 600, 499, 0]
KNOWN_LATER = [599, 499, 639, 339, 339, 699, 499, 500]
STATES = [0, 0, 592, 0, 320, 592, 480, 0]
STATES_LATER = [592, 480, 624, 320, 320, 688, 480, 480]
"""Of each prompt, what was known: in one go, and after a restart. Recurrent states are there at multiples of 512, and
at the last one of 16 so much before the end that it is likely to stay."""

only = pytest.mark.parametrize("tiny", ["llama", "gemma3", "lfm2", "granitehybrid"], indirect=True)
one = pytest.mark.parametrize("tiny", ["llama"], indirect=True)
two = pytest.mark.parametrize("tiny", ["llama", "lfm2"], indirect=True)


@only
@pytest.mark.parametrize("settings", SETTINGS, ids=["greedy", "drawn"])
def test_steps_are_those_of_a_cold_run(tiny, tmp_path, settings):
    """CASES D20: windows and recurrent states too find after a restart what was kept, and say how much."""
    expected = cold(tiny, PROMPTS, settings)
    for start, off in enumerate(((), ("drafts",))):
        engine = engine_of(tiny, cache(tmp_path / "kept"), off=off)
        known = []
        for prompt, steps in zip(PROMPTS, expected, strict=True):
            assert ask(engine, prompt, settings) == steps, (start, len(prompt))
            known.append(engine.reused)
        engine.close()
        assert engine._warm.disk.dropped == 0
        kinds = ([KNOWN, KNOWN_LATER], [STATES, STATES_LATER])[tiny.name in STATEFUL]
        assert known == kinds[start]


@pytest.mark.parametrize("tiny", ["lfm2", "qwen3"], indirect=True)
def test_the_reference_takes_up_too(tiny, tmp_path):
    prompt = A[:270]
    expected = cold(tiny, [prompt, prompt[:262] + B[:9]], count=2)
    for known in (0, 256):
        engine = engine_of(tiny, cache(tmp_path / "kept"), backend="reference")
        assert ask(engine, prompt, count=2) == expected[0]
        assert engine.reused >= known
        assert ask(engine, prompt[:262] + B[:9], count=2) == expected[1]
        assert engine.reused == (262, 256)[tiny.name in STATEFUL]
        engine.close()


@two
def test_one_token_too_far(tiny, monkeypatch):
    """What the test above would say if a prefix were believed beyond its end."""
    expected = cold(tiny, PROMPTS[:4])
    sound = blocks.common
    for place in (blocks, warm):
        monkeypatch.setattr(place, "common", lambda a, b: min(sound(a, b) + 1, len(a), len(b)))
    engine = engine_of(tiny)
    assert [ask(engine, prompt) for prompt in PROMPTS[:4]] != expected or tiny.name in STATEFUL
    engine.close()


# --- the live sequence ---


@only
def test_prefill(tiny):
    """A draft that grows, is edited in the middle, and is asked at last; then computed ahead once more."""
    drafts = [A[:40], A[:70], A[:60] + B[:30], A[:60] + B[:33], A[:64], A[:100]]
    expected = cold(tiny, [A[:101], A[:50] + B[:4]])
    engine, cut = engine_of(tiny), tiny.name in STATEFUL
    known = []
    for draft in drafts:
        assert engine.prefill(draft) == len(draft)
        known.append(engine.reused)
    assert known == ([0, 40, 48, 90, 48, 64] if cut else [0, 40, 60, 90, 60, 64])
    assert engine.prefill(A[:100]) == 100 == engine.reused
    assert ask(engine, A[:101]) == expected[0] and engine.reused == 100
    assert engine.prefill(A[:50]) == 50
    assert ask(engine, A[:50] + B[:4]) == expected[1] and engine.reused == 50
    plain = engine_of(tiny, off=("warm",))
    assert plain.prefill(A[:100]) == 0
    engine.close()
    plain.close()


@two
def test_a_run_that_is_broken_off(tiny, monkeypatch):
    """Stopped while the prompt is read, closed between two tokens, failed in a pass: the next answer is as ever."""
    expected = cold(tiny, [A, A[:650]])
    engine = engine_of(tiny)
    engine.prompt_rows = 100
    asked = iter([False, False, True])
    request = Request(tuple(A), SETTINGS[1], 12)
    assert list(engine.generate(request, should_stop=lambda: next(asked))) == []
    assert ask(engine, A) == expected[0] and engine.reused in (300, 0)
    steps = engine.generate(request, digest=digest)
    assert [next(steps), next(steps)] == expected[0][:2]
    steps.close()
    assert ask(engine, A[:650]) == expected[1] and engine.reused > 500
    run, calls = engine._program._workers.run, []

    def fails():
        run()
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt

    for prompt in (B, A[:650] + B[:300]):
        calls.clear()
        monkeypatch.setattr(engine._program._workers, "run", fails)
        with pytest.raises(KeyboardInterrupt):
            ask(engine, prompt)
        monkeypatch.undo()
        assert ask(engine, A) == expected[0]
    engine.close()


@one
def test_checks_take_nothing_up(tiny, monkeypatch):
    """Replays and rows of logits begin anew, and what they leave in the sequence is nobody's."""
    expected = cold(tiny, [A[:300], B[:300]])
    engine = engine_of(tiny)
    answer = ask(engine, A[:300])
    request = Request(tuple(A[:300]), SETTINGS[1], 12)
    monkeypatch.setattr(engine._warm, "begin", lambda tokens: pytest.fail("taken up"))
    assert list(engine.replay(request, [step.token for step in answer], digest=digest)) == expected[0]
    engine.logits(B[:300])
    monkeypatch.undo()
    assert ask(engine, B[:300]) == expected[1] and engine.reused == 0
    engine.close()

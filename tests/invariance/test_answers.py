"""Answers of the engine: replayed token for token, ended by a number that is not finite, the same on every backend."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.engine import Engine
from kinetic.errors import NonFinite
from kinetic.loader import open_model_file
from kinetic.types import Request, Sampling
from tests.support.backends import assert_same
from tests.support.blocks import normals
from tests.support.tiny_models import write_tiny_llama
from tests.support.whole_models import feed, program_of, tokens_of

SETTINGS = {
    "greedy": Sampling(temperature=0),
    "drawn": Sampling(temperature=0.8, seed=7),
    "hot": Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=2**64 - 1),
    "penalised": Sampling(temperature=0.8, seed=1, repeat_penalty=1.3, presence_penalty=0.2, repeat_last_n=-1),
}


def engine_of(tiny, **options):
    return Engine(tiny.file.gguf, tiny.file.weights, **options)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_replay_is_generation(tiny, settings):
    """One by one when generated, many rows at once when replayed, on other threads: the same steps to the last gap."""
    request = Request(tuple(tiny.tokens[:250]), settings, 30)
    first, second = engine_of(tiny, threads=2), engine_of(tiny, threads=1)
    steps = list(first.generate(request))
    output = [step.token for step in steps]
    assert len(output) == 30
    assert [step.position for step in steps] == list(range(250, 280))
    assert list(second.replay(request, output)) == steps
    assert list(first.generate(request)) == steps  # nothing is left over from the replay
    first.close()
    second.close()
    assert settings.temperature == 0 or len(set(output)) > 3


def test_replay_finds_the_first_token_that_differs(tiny):
    request = Request(tuple(tiny.tokens[:40]), SETTINGS["drawn"], 20)
    engine = engine_of(tiny, threads=2)
    output = [step.token for step in engine.generate(request)]
    forged = output.copy()
    forged[8] = (forged[8] + 1) % 300
    replayed = [step.token for step in engine.replay(request, forged)]
    engine.close()
    assert next(i for i in range(20) if replayed[i] != forged[i]) == 8
    assert replayed[:9] == output[:9]


def test_seeds_and_completions_differ(tiny):
    prompt = tuple(tiny.tokens[:30])
    engine = engine_of(tiny, threads=1)
    hot = Sampling(temperature=1.2, top_k=0, top_p=1.0, min_p=0.0)
    requests = [Request(prompt, hot, 12), Request(prompt, hot, 12, completion_index=1)]
    requests += [Request(prompt, Sampling(temperature=1.2, top_k=0, top_p=1.0, min_p=0.0, seed=1), 12)]
    answers = [tuple(step.token for step in engine.generate(request)) for request in requests]
    engine.close()
    assert len(set(answers)) == 3


def test_the_reference_draws_the_same(tiny):
    request = Request(tuple(tiny.tokens[:12]), SETTINGS["drawn"], 4)
    steps = []
    for backend in ("cpu", "reference"):
        engine = engine_of(tiny, backend=backend)
        steps.append(list(engine.generate(request)))
        engine.close()
    assert steps[0] == steps[1]


def test_logits_of_the_engine(tiny):
    """Rows of several passes put together, from any first row on."""
    engine = engine_of(tiny, threads=2)
    tokens = tiny.tokens[:290]
    assert_same(engine.logits(tokens), tiny.expected[:290])
    assert_same(engine.logits(tokens, 133), tiny.expected[133:290])
    engine.close()


# --- numbers that are not finite ---

BAD = 299
"""A token whose row of the table is spoiled."""

WIDTH = 64


def spoiled_model(path, row):
    table = normals(110, 309, WIDTH)
    table[BAD] = row
    replace = {"token_embd.weight": table}
    return write_tiny_llama(path, width=WIDTH, heads=4, head_dim=16, ffn=64, types={"": "Q8_0"}, replace=replace)


def with_a_bad_token(place):
    tokens = [token for token in tokens_of(111) if token != BAD][:40]
    tokens[place] = BAD
    return tokens


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1, 17, 39])
def test_a_token_that_is_not_finite(tmp_path, value, place):
    """Rows before it are what they are without it, alone and in its batch; from it on everything is NaN."""
    clean = open_model_file(spoiled_model(tmp_path / "clean.gguf", normals(112, WIDTH)))
    spoiled = open_model_file(spoiled_model(tmp_path / "spoiled.gguf", np.where(np.arange(WIDTH) == 5, value, 1)))
    tokens = with_a_bad_token(place)
    with program_of(clean) as program:
        expected = feed(program, tokens[:place], [1]) if place else np.zeros((0, 309), np.float32)
    for threads, sizes in ((2, [40]), (1, [1]), (3, [16])):
        with program_of(spoiled, threads=threads) as program:
            found = feed(program, tokens, sizes)
        assert_same(found[:place], expected)
        assert np.isnan(found[place:]).all()
    with program_of(spoiled, "reference") as program:
        assert_same(feed(program, tokens, [40]), found)
    clean.close()
    spoiled.close()


def test_values_beyond_float16(tmp_path):
    """A value vector past 65504 is held there: every row is finite, and rows before it are untouched."""
    path = tmp_path / "large.gguf"
    huge = normals(113, 32, WIDTH)
    huge[3, 5] = 1e7  # column 5 of the normed row is large only for the bad token
    table = normals(114, 309, WIDTH)
    table[:, 5] = 0
    table[BAD] = 0
    table[BAD, 5] = 1
    replace = {"token_embd.weight": table, "blk.0.attn_v.weight": huge}
    write_tiny_llama(path, width=WIDTH, heads=4, head_dim=16, ffn=64, types={"": "Q8_0"}, layers=1, replace=replace)
    tokens = with_a_bad_token(20)
    with open_model_file(path) as file:
        with program_of(file) as program:
            before = feed(program, tokens[:20], [1])
        with program_of(file, threads=2) as program:
            batched = feed(program, tokens, [40])
        with program_of(file, "reference") as program:
            assert_same(feed(program, tokens, [40]), batched)
    assert_same(batched[:20], before)
    assert np.isfinite(batched).all()


@pytest.mark.parametrize("settings", [SETTINGS["greedy"], SETTINGS["drawn"]])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_answer_ends_where_a_logit_is_not_finite(tmp_path, backend, settings):
    path = spoiled_model(tmp_path / "spoiled.gguf", np.full(WIDTH, np.nan))
    with open_model_file(path) as file:
        engine = Engine(file.gguf, file.weights, backend=backend, threads=2)
        assert len(list(engine.generate(Request((5, 6, 7), settings, 2)))) == 2
        with pytest.raises(NonFinite, match=r"logit of token \d+ is"):
            list(engine.generate(Request((5, BAD, 7), settings, 2)))
        with pytest.raises(NonFinite):
            list(engine.replay(Request((5, BAD, 7), settings, 2), [1, 2]))
        engine.close()


# --- a real model ---


def test_smollm2(smollm2_path):
    """Forty rows alone and together, on one thread and two; the first three against the reference."""
    tokens = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365] * 4
    with open_model_file(smollm2_path) as file:
        with program_of(file, threads=1) as program:
            one_by_one = feed(program, tokens, [1])
        for threads, sizes in ((2, [40]), (1, [40]), (2, [7]), (3, [16])):
            with program_of(file, threads=threads) as program:
                assert_same(feed(program, tokens, sizes), one_by_one, f"with {threads} threads in {sizes}")
        with program_of(file, "reference") as program:
            assert_same(feed(program, tokens[:3], [3]), one_by_one[:3])

"""Answers that other programs are known to change: by what was asked before, by neighbours, threads, batches, seeds.

The names are those of the public reports (CASES). Whatever speeds an answer up is on here, as it is by default.
"""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from kinetic.api.model import Model
from kinetic.loader import open_model_file
from kinetic.types import Batch
from tests.support.backends import assert_same
from tests.support.whole_models import feed, program_of, tokens_of

FAMILIES = ["llama", "gemma3", "qwen3moe", "lfm2", "qwen35"]
"""Keys alone, windows, experts, and two kinds of recurrent state."""

RIVERS = "Name the rivers of Europe, from the longest to the shortest, and say where each of them ends. " * 2
OTHER = "zum zim zam "
TONY = "When was born Tony Yoka? - Tony Yoka was born the 28 April 199"

HOT = {"raw": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1, "commit_logits": True}
COUNT = 16


@pytest.fixture(params=FAMILIES)
def path(request, tiny_folder):
    return tiny_folder / f"{request.param}.gguf"


@contextmanager
def opened(path, **options):
    with Model(path, pack_cache=False, **{"threads": 2} | options) as model:
        yield model


def said(model, prompt, **options):
    """Tokens, and digests of the logits that each was drawn from."""
    done = model.generate(prompt, **HOT | {"max_tokens": COUNT} | options)
    return done.tokens, done.commits


def fresh(path, prompt, **options):
    """The same of a model that was asked nothing before."""
    with opened(path) as model:
        return said(model, prompt, **options)


def test_an_answer_does_not_depend_on_what_was_asked_before(path):
    """D1, D2, D3, D14, D17, D18, D22: again, after others, after half an answer, after one that a stop string ended."""
    longer, edited = RIVERS + "And of Asia", RIVERS[:90] + "lakes" + RIVERS[95:]
    expected = {prompt: fresh(path, prompt) for prompt in (RIVERS, longer, edited, OTHER)}
    greedy = fresh(path, RIVERS, temperature=0)
    with opened(path) as model:
        for prompt in (RIVERS, RIVERS, RIVERS, OTHER, RIVERS, longer, edited, longer, OTHER, RIVERS):
            assert said(model, prompt) == expected[prompt], prompt
        with model.stream(RIVERS, **HOT) as stream:
            next(stream)
        assert said(model, longer) == expected[longer], "after half an answer"
        whole = model.generate(RIVERS, max_tokens=COUNT, **HOT).text
        ended = model.generate(RIVERS, max_tokens=COUNT, stop=[whole[4:6]], **HOT)
        assert ended.stop_reason == "stop" and said(model, longer) == expected[longer], "after a stop string"
        for _ in range(3):
            assert said(model, RIVERS, temperature=0) == greedy
    assert len({tokens for tokens, _ in expected.values()}) == 4


def test_threads_and_rows_at_once_change_no_logit(path):
    """D5: -t 1, 2, 3, 7. D6: the prompt one token at a time, 8 at once, or all."""
    expected = fresh(path, TONY, max_tokens=50)
    for threads, rows in ((1, 0), (2, 1), (3, 8), (7, 512)):
        with opened(path, threads=threads) as model:
            model._engine.prompt_rows = rows
            assert said(model, TONY, max_tokens=50) == expected, (threads, rows)
    assert len(expected[1]) == len(expected[0]) > 4


def test_a_seed_is_used_reported_and_used_again(path):
    """D7, D8, D23, D25: 42, 42 and 43; none, and then the one that was reported; beside any temperature."""
    hot = {name: value for name, value in HOT.items() if name != "seed"}
    with opened(path) as model:
        answers = [model.generate(OTHER, max_tokens=COUNT, **hot, seed=seed) for seed in (42, 42, 43, 42)]
        assert [answer.seed for answer in answers] == [42, 42, 43, 42]
        assert answers[0].tokens == answers[1].tokens == answers[3].tokens != answers[2].tokens
        drawn = [model.generate(OTHER, max_tokens=COUNT, **hot) for _ in range(3)]
        assert len({answer.seed for answer in drawn}) == len({answer.tokens for answer in drawn}) == 3
        for answer in drawn:
            assert model.generate(OTHER, max_tokens=COUNT, **hot, seed=answer.seed).tokens == answer.tokens
        assert answers[0].sampling.temperature == 1.0, "a seed asks for no temperature"


def test_many_sequences_side_by_side(path):
    """D12, D15: 8, 44 and 128 of them, each as if alone."""
    prompts = [tokens_of(200 + number, 2 + number % 5) for number in range(128)]
    with open_model_file(path) as file, program_of(file, threads=2) as program:
        alone = []
        for tokens in prompts:
            program.truncate(0, 0)
            alone.append(feed(program, tokens, [1])[-2:])
        for count in (8, 44, 128, 44):
            for number in range(count):
                program.truncate(number, 0)
            first = [(t, at, n) for n, tokens in enumerate(prompts[:count]) for at, t in enumerate(tokens[:-1])]
            last = [(tokens[-1], len(tokens) - 1, n) for n, tokens in enumerate(prompts[:count])]
            ends = np.cumsum([len(tokens) - 1 for tokens in prompts[:count]]) - 1
            found = program.run(Batch(*zip(*first, strict=True), tuple(ends.tolist())))
            assert_same(found, np.stack([rows[0] for rows in alone[:count]]), f"of {count} prompts")
            found = program.run(Batch(*zip(*last, strict=True), tuple(range(count))))
            assert_same(found, np.stack([rows[1] for rows in alone[:count]]), f"of one token more of {count}")


def test_the_context_that_is_asked_for_changes_no_answer(tiny_folder):
    """D21: factors of LongRoPE are not chosen by the memory that somebody set aside."""
    path = tiny_folder / "phi3.gguf"
    expected = fresh(path, TONY)
    for context in (128, 256, 400):
        with opened(path, context=context) as model:
            assert said(model, TONY) == expected, context


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_banned_token_is_never_said(path, temperature):
    """S5: each token of an answer in turn, with those banned before; -100 is as good as a ban here."""
    with opened(path) as model:
        settings = HOT | {"temperature": temperature, "max_tokens": COUNT}
        banned: dict[int, float] = {}
        for bias in (float("-inf"), -100.0, float("-inf"), -100.0):
            answer = model.generate(OTHER, **settings, logit_bias=banned)
            assert not banned.keys() & set(answer.tokens)
            banned |= dict.fromkeys(answer.tokens[:3], bias)
        assert len(banned) >= 4

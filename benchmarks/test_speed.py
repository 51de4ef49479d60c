"""Tokens per second of SmolLM2 at one and two threads: ``make bench``.

Compare only runs made on one quiet machine, one right after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import kinetic

PROMPT_WORDS, ANSWER_TOKENS = 512, 128
WORDS = "river stone light under morning seven quiet bridge".split()


@pytest.fixture(scope="module", params=[1, 2], ids=lambda threads: f"{threads}-threads")
def model(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[kinetic.Model]:
    with kinetic.Model(smollm2_path, threads=request.param) as model:
        model.generate("Warm", raw=True, max_tokens=1)
        yield model


def test_prompt(benchmark: BenchmarkFixture, model: kinetic.Model) -> None:
    """A prompt that nothing was computed for before: another first word each time."""
    rounds = iter(range(100))

    def ask() -> None:
        words = [WORDS[i % len(WORDS)] for i in range(next(rounds), PROMPT_WORDS)]
        answer = model.generate(" ".join(words), raw=True, temperature=0, max_tokens=1)
        benchmark.extra_info.setdefault("tokens_per_second", []).append(answer.stats.prompt_speed)

    benchmark.pedantic(ask, rounds=5, warmup_rounds=1)


def test_decode(benchmark: BenchmarkFixture, model: kinetic.Model) -> None:
    def ask() -> None:
        answer = model.generate("Once upon a time", raw=True, temperature=0, max_tokens=ANSWER_TOKENS)
        benchmark.extra_info.setdefault("tokens_per_second", []).append(answer.stats.decode_speed)

    benchmark.pedantic(ask, rounds=5, warmup_rounds=1)


@pytest.fixture(autouse=True)
def shown(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Iterator[None]:
    """Print the median speed: pytest-benchmark's own table shows seconds."""
    yield
    speeds = sorted(benchmark.extra_info["tokens_per_second"])
    print(f"\n{request.node.name}: median {speeds[len(speeds) // 2]:.1f} tokens/s")

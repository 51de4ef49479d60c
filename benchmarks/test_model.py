"""Prompt and decoding speed of the real SmolLM2, beside the limits of this machine: ``make bench``.

Decoding reads every weight once a token: GB/s of packed weights beside the read loop. A prompt is
products of int8: operations are twice the weights that its rows pass through, of the output
layer those of the one row whose logits are wanted. Attention isn't counted, and takes its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kinetic
from benchmarks import work
from benchmarks.conftest import THREADS
from benchmarks.rates import Limits, Row, Work, counted
from benchmarks.work import Product
from kinetic.api.bench import Runner, Trial

PROMPT, DECODE, DEEP = Trial("pp", 512), Trial("tg", 128), Trial("tg", 64, 2048)

ROUNDS = 5


@pytest.fixture(scope="module")
def products(smollm2_path: Path) -> list[Product]:
    return work.products_of(smollm2_path)


@pytest.fixture(scope="module", params=THREADS, ids=counted)
def running(request: pytest.FixtureRequest, smollm2_path: Path, isa: str) -> Iterator[tuple[Runner, int]]:
    with kinetic.Model(smollm2_path, threads=request.param) as model, model._held() as engine:
        yield Runner(engine), request.param


@pytest.mark.parametrize("test", [PROMPT, DECODE, DEEP], ids=lambda test: test.name)
def test_model(
    measure: Callable[..., Row],
    limits: Limits,
    running: tuple[Runner, int],
    products: list[Product],
    test: Trial,
) -> None:
    runner, threads = running
    if test.kind == "pp":
        done = Work(work.product_operations(products, test.tokens, 1), "GOPS")
    else:
        done = Work(test.tokens * work.weight_bytes(products), "GB/s")
    row = measure(
        f"SmolLM2 {test.name}, {counted(threads)}",
        lambda: runner.seconds(test),
        [done, Work(test.tokens, "tok/s")],
        lambda: limits.int8(threads) if test.kind == "pp" else limits.read(threads),
        rounds=ROUNDS,
    )
    assert row.seconds > 0

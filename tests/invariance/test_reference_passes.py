"""The reference reads a prompt in several passes, of which only the last has wanted rows."""

from __future__ import annotations

import pytest

from kinetic.engine import Engine
from kinetic.types import Request, Sampling


@pytest.mark.parametrize("rows", [1, 5])
def test_a_pass_without_wanted_rows(tiny, rows):
    request = Request(tuple(tiny.tokens[:11]), Sampling(temperature=0), 2)
    steps = []
    for backend, prompt_rows in (("cpu", 0), ("reference", rows)):
        engine = Engine(tiny.file.gguf, tiny.file.weights, backend=backend, threads=1)
        engine.prompt_rows = prompt_rows
        steps.append(list(engine.generate(request)))
        engine.close()
    assert steps[0] == steps[1]

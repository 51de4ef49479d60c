"""Every operation of every family, recorded: the CPU gives the bits of the reference, and recording changes none."""

from __future__ import annotations

import numpy as np

from kinetic.engine import Engine
from kinetic.layers.traced import Trace
from tests.support.backends import assert_same

PROMPT, ROWS = 70, 3
"""Past a window of 64 keys. The rows are computed in one pass."""


def traced(tiny, backend, saved, threads=1):
    """Operations and what they gave, and the logits of the rows behind what was saved."""
    watch = Trace()
    engine = Engine(tiny.file.gguf, tiny.file.weights, backend=backend, threads=threads, watch=watch)
    sequence = engine.sequence()
    sequence.restore(saved)
    logits = sequence.feed(tiny.tokens[PROMPT : PROMPT + ROWS], range(ROWS))
    found = [(tapped, rows.copy()) for tapped, rows in watch.rows(engine.taps())]
    engine.close()
    return found, logits


def test_every_operation_has_the_bits_of_the_reference(tiny):
    engine = Engine(tiny.file.gguf, tiny.file.weights, threads=2)
    sequence = engine.sequence()
    sequence.feed(tiny.tokens[:PROMPT])
    saved = sequence.save()
    engine.close()
    expected, logits = traced(tiny, "reference", saved)
    found, same = traced(tiny, "cpu", saved, threads=2)
    assert [tapped for tapped, _ in found] == [tapped for tapped, _ in expected]
    for (tapped, rows), (_, right) in zip(found, expected, strict=True):
        assert_same(rows, right, str(tapped))
    assert_same(same, logits)
    assert_same(same, tiny.expected[PROMPT : PROMPT + ROWS], "what an engine without taps gives")
    assert_same(found[-1][1], same)


def test_operations_are_named_by_layer(tiny):
    watch = Trace()
    engine = Engine(tiny.file.gguf, tiny.file.weights, backend="reference", watch=watch)
    engine.logits(tiny.tokens[:1])
    layers = [tapped.layer for tapped in watch.tapped]
    engine.close()
    inner = [layer for layer in layers if layer >= 0]  # weights that all layers share belong to none
    assert layers[0] == layers[-1] == -1
    assert inner == sorted(inner) and set(inner) == set(range(max(layers) + 1)) and len(inner) > len(layers) / 2
    assert watch.tapped[0].op == "embed" and all(np.isfinite(rows).all() for rows in engine.taps().values())

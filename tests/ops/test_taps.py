"""Taps show an activation as it is, change no bit of anything else, and cost nothing where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from kinetic.backends import open_backend
from kinetic.backends.base import Attention, Experts, Rope, Routing
from kinetic.backends.cpu import program
from kinetic.backends.cpu.program import TAPPED, CpuProgram
from kinetic.backends.graph import GraphOps
from kinetic.backends.rope_tables import frequencies
from kinetic.layers.watched import NUDGE, Inputs, nudged
from kinetic.types import Batch
from tests.support.blocks import float_weight, normals, random_weight

WIDTH, HEADS, HEAD = 64, 4, 16
ROPE = Rope(tuple(frequencies(1e4, HEAD)), interleaved=False)
SPEC = Attention(0, HEADS, HEADS, HEAD, 0.25)


TABLE = float_weight("table", normals(1, 300, WIDTH))
NORM = float_weight("norm", normals(2, WIDTH))
Q, K, V, OUT, GATE, UP, DOWN, HEAD_WEIGHT = (
    random_weight(name, "Q8_0" if n % 2 else "Q4_0", WIDTH, WIDTH, n, 0.1)
    for n, name in enumerate("q k v o gate up down head".split(), 10)
)


def forward(ops, tap=lambda x, name: x):
    """A layer, with a tap at every place that the planner would fuse, reuse or overwrite."""
    x = tap(ops.embed(TABLE), "embedded")
    normed = tap(ops.rms_norm(x, NORM, 1e-5), "normed")
    q = tap(ops.linear(normed, Q), "q before rope")
    q, k = tap(ops.rope(q, ROPE, HEAD), "q"), ops.rope(ops.linear(normed, K), ROPE, HEAD)
    attended = tap(ops.attend(q, k, ops.linear(normed, V), SPEC), "attended")
    x = tap(ops.add(x, tap(ops.linear(attended, OUT), "o")), "x")
    normed = ops.rms_norm(x, NORM, 1e-5)
    gated = tap(ops.gated(ops.linear(normed, GATE), ops.linear(normed, UP), "silu"), "gated")
    x = ops.add(x, ops.linear(gated, DOWN))
    return tap(ops.linear(tap(ops.rms_norm(ops.outputs(x), NORM, 1e-5), "last"), HEAD_WEIGHT), "logits")


def batch(rows: int) -> Batch:
    return Batch(tuple(range(rows)), tuple(range(rows)), (0,) * rows, tuple(range(1, rows, 2)))


def run(device, forward, rows, threads=2):
    model = open_backend(device, threads=threads).load(forward, (SPEC,), None)
    try:
        return model.run(batch(rows)), model.taps()
    finally:
        model.close()


@pytest.mark.parametrize("rows", [2, 9, 2 * TAPPED + 1])
def test_taps_have_the_bits_of_the_reference(rows, monkeypatch):
    """Of a pass that is cut, as that of a model with many taps is."""
    monkeypatch.setattr(program, "TAP_BYTES", 4)
    logits, expected = run("reference", lambda ops: forward(ops, ops.tap), rows)
    found, taps = run("cpu", lambda ops: forward(ops, ops.tap), rows)
    assert taps.keys() == expected.keys() and len(taps) == 10
    for name, values in expected.items():
        assert taps[name].shape == values.shape, name
        assert taps[name].tobytes() == values.tobytes(), name
    assert found.tobytes() == logits.tobytes() == taps["logits"].tobytes()
    assert len(taps["last"]) == rows // 2


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_logits_are_those_without_taps(device):
    plain, none = run(device, forward, 40)
    assert none == {}
    assert run(device, lambda ops: forward(ops, ops.tap), 40)[0].tobytes() == plain.tobytes()


def test_taps_are_of_the_last_run_alone():
    program = open_backend("cpu", threads=1).load(lambda ops: forward(ops, ops.tap), (SPEC,), None)
    program.run(batch(9))
    program.truncate(0, 0)
    program.run(batch(3))
    assert len(program.taps()["q"]) == 3
    program.close()


def test_a_program_without_taps_has_no_instruction_more():
    def code(forward):
        program: CpuProgram = open_backend("cpu", threads=1).load(forward, (SPEC,), None)
        ops = [int(row[0]) for row in program._tape.code]
        program.close()
        return ops

    watched = Inputs(lambda name: False)
    assert code(lambda ops: forward(watched(ops))) == code(forward)
    assert len(code(lambda ops: forward(ops, ops.tap))) > len(code(forward))


def test_inputs_of_products():
    watched = Inputs(lambda name: name != "head")
    _, taps = run("cpu", lambda ops: forward(watched(ops)), 9)
    _, known = run("cpu", lambda ops: forward(ops, ops.tap), 9)
    assert watched.tap_of == {"q": "q", "k": "q", "v": "q", "o": "o", "gate": "gate", "up": "gate", "down": "down"}
    assert taps.keys() == {"q", "o", "gate", "down"}
    for name, other in (("q", "normed"), ("o", "attended"), ("down", "gated")):
        assert taps[name].tobytes() == known[other].tobytes()


def test_nudged_inputs_are_a_unit_or_two_away():
    seen = GraphOps()
    nudged(seen).linear(seen.embed(TABLE), Q)
    assert [node.op for node in seen.nodes] == ["embed", "scale", "linear"]
    x = np.array([1.0, 1.75, -3.1, 1e-3], np.float32)
    away = np.abs((x * np.float32(NUDGE) - x) / np.spacing(x))
    assert ((away >= 1) & (away <= 2)).all()


def test_nudged_inputs_of_experts():
    seen = GraphOps()
    x = seen.embed(TABLE)
    stacked = [weight._replace(shape=(4, WIDTH // 4, WIDTH)) for weight in (GATE, UP)]
    experts = Experts(*stacked, DOWN._replace(shape=(4, WIDTH, WIDTH // 4)), "silu")
    nudged(seen).experts(x, seen.route(x, Routing(2)), experts)
    assert [node.op for node in seen.nodes] == ["embed", "route", "scale", "experts"]
    assert seen.nodes[-1].inputs[0] is seen.nodes[2]

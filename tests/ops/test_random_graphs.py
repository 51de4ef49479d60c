"""Passes put together at random: whatever the planner fuses, reorders or reuses, the bits are the reference's.

The planner's choices depend on who reads what and in which order. Fixed models
show it few shapes; these show it many, with three threads that would trip over
a missing barrier.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinetic.backends.base import Attention, Delta, Experts, Rope, Routing, State
from kinetic.backends.graph import GraphOps
from kinetic.backends.rope_tables import frequencies
from tests.support.backends import assert_same, inputs, loaded, rows_of
from tests.support.blocks import FORMATS, float_weight, normals, random_weight, words

WIDTH = 64
HEAD = 16
STEPS = 12
ROWS = 21
WIDE = 128
"""A second width: records of one width then take as much memory as rows of the other."""

# Half of the formats take a width of 64; the others are tried elsewhere.
KINDS = [name for name, fmt in FORMATS.items() if fmt.BLOCK <= 32]


class Builder:
    """Makes one forward pass from a stream of choices. ``live`` are (activation, width) that may be read again."""

    def __init__(self, ops, seed):
        self.ops, self.seed = ops, seed
        self.choices = words(seed, 10_000).tolist()
        self.count = 0
        self.live = [(inputs(ops, normals(seed, ROWS, WIDTH)), WIDTH)]
        self.layers, self.states = [], []

    def choose(self, n):
        return (self.choices.pop() >> 20) % n

    def take(self, width=None):
        found = [x for x, w in self.live if width in (None, w)]
        return found[self.choose(len(found))]

    def name(self):
        self.count += 1
        return f"w{self.count}"

    def keep(self, x, width=WIDTH):
        self.live.append((x, width))
        if len(self.live) > 4:  # forget one, so that its memory is used again
            self.live.pop(self.choose(len(self.live) - 1))

    def matrix(self, rows, columns):
        kind = KINDS[self.choose(len(KINDS))]
        return random_weight(self.name(), kind, rows, columns, self.seed + self.count, 0.15)

    def linear(self, x, rows=WIDTH, columns=WIDTH):
        bias = float_weight(self.name(), normals(self.seed + self.count, rows)) if self.choose(3) == 0 else None
        return self.ops.linear(x, self.matrix(rows, columns), bias)

    # --- steps

    def step_linear(self):
        self.keep(self.linear(self.take(WIDTH)))

    def step_widen(self):
        wide = self.linear(self.take(WIDTH), WIDE, WIDTH)
        self.keep(self.linear(wide, WIDTH, WIDE))
        self.keep(wide, WIDE)

    def step_norm(self):
        width = (WIDTH, HEAD)[self.choose(2)]
        x = self.take(WIDTH)
        self.keep(self.ops.rms_norm(x, float_weight(self.name(), normals(self.seed + self.count, width)), 1e-5))

    def step_layer_norm(self):
        weight, bias = (float_weight(self.name(), normals(self.seed + self.count, WIDTH)) for _ in range(2))
        self.keep(self.ops.layer_norm(self.take(WIDTH), weight, bias if self.choose(2) else None, 1e-5))

    def step_add(self):
        self.keep(self.ops.add(self.take(WIDTH), self.take(WIDTH)))

    def step_add_to_product(self):
        x = self.take(WIDTH)
        self.keep(self.ops.add(x, self.linear(self.take(WIDTH))))

    def step_add_norm(self):
        x = self.take(WIDTH)
        norm = float_weight(self.name(), normals(self.seed + self.count, WIDTH))
        self.keep(self.ops.add(x, self.ops.rms_norm(self.linear(self.take(WIDTH)), norm, 1e-6)))

    def step_scale(self):
        self.keep(self.ops.scale(self.take(WIDTH), (0.5, -1.25)[self.choose(2)]))

    def step_softcap(self):
        self.keep(self.ops.softcap(self.take(WIDTH), (0.5, 15.0)[self.choose(2)]))

    def step_second_table(self):
        """Read row by row as the first, and cut into parts."""
        wide = inputs(self.ops, normals(self.seed + self.choose(3), ROWS, WIDE), self.name())
        self.keep(self.ops.cut(wide, *((1, 3, WIDTH), (2, 20, WIDTH // 2), (16, 1, 4))[self.choose(3)]))
        self.keep(wide, WIDE)

    def step_attend_as_before(self):
        """With the keys and values of an earlier layer, if there is one."""
        if self.layers:
            spec = self.layers[self.choose(len(self.layers))]
            heads, cap = spec.kv_heads * (4 + 4 * self.choose(2)), (0.0, 3.0)[self.choose(2)]
            q = self.linear(self.take(WIDTH), heads * HEAD)
            y = self.ops.attend(q, None, None, replace(spec, heads=heads, softcap=cap))
            self.keep(self.linear(y, WIDTH, heads * spec.value_width))

    def step_feed_forward(self):
        x = self.take(WIDTH)
        gate, up = self.linear(x, WIDE), self.linear(x, WIDE)
        hidden = self.ops.gated(gate, up, ("silu", "gelu", "swiglu_oai")[self.choose(3)])
        self.keep(self.linear(hidden, WIDTH, WIDE))

    def step_experts(self):
        x, count = self.take(WIDTH), 5
        shapes = [(WIDE, WIDTH), (WIDE, WIDTH), (WIDTH, WIDE)]
        stacked = [self.matrix(count * rows, columns) for rows, columns in shapes]
        split = [w._replace(shape=(count, *shape)) for w, shape in zip(stacked, shapes, strict=True)]
        gating = ("softmax", "sigmoid")[self.choose(2)]
        factors = float_weight(self.name(), normals(self.seed, count)) if self.choose(2) else None
        routing = Routing(1 + self.choose(3), gating, bool(self.choose(2)))
        routes = self.ops.route(self.linear(x, count), routing, factors=factors)
        self.keep(self.ops.experts(self.take(WIDTH), routes, Experts(*split, ("silu", "gelu")[self.choose(2)])))

    def step_gated_column(self):
        gate = self.linear(self.take(WIDTH), 1)
        self.keep(self.ops.gated(gate, self.take(WIDTH), ("silu", "sigmoid")[self.choose(2)]))

    def step_delta(self):
        """Of activations that nothing else reads, or some that others read too; one may be both queries and keys."""
        heads, key_heads = WIDTH // HEAD, (1, 2, 4)[self.choose(3)]
        state = State(len(self.states), "delta", (heads, 1, HEAD, HEAD))
        self.states.append(state)
        a, bias = (float_weight(self.name(), -np.abs(normals(self.seed + self.count, heads))) for _ in range(2))
        x = self.take(WIDTH)
        k, gate, beta = (self.linear(x, n) for n in (key_heads * HEAD, heads, heads))
        q = k if self.choose(3) == 0 else self.linear(self.take(WIDTH), key_heads * HEAD)
        v = self.take(WIDTH) if self.choose(2) else self.linear(x)
        self.keep(self.ops.delta(q, k, v, gate, beta, Delta(state, key_heads, a, bias, 1e-6)))

    def step_attend(self):
        heads = WIDTH // HEAD
        window = (0, 5)[self.choose(2)]
        value_dim = (HEAD, 8, 24)[self.choose(3)]  # products bring them back to the width
        spec = Attention(len(self.layers), heads, (1, 2, 4)[self.choose(3)], HEAD, 0.25, window, value_dim)
        sinks = float_weight(self.name(), normals(self.seed + self.count, heads)) if self.choose(2) else None
        self.layers.append(spec)
        rope = Rope(frequencies(10000.0, HEAD), bool(self.choose(2)))
        x = self.take(WIDTH)
        q, k, v = self.linear(x), self.linear(x, spec.kv_heads * HEAD), self.linear(x, spec.kv_heads * value_dim)
        if self.choose(2):
            q = self.ops.rms_norm(q, float_weight(self.name(), normals(self.seed + self.count, HEAD)), 1e-5)
        y = self.ops.attend(self.ops.rope(q, rope, HEAD), self.ops.rope(k, rope, HEAD), v, spec, sinks)
        self.keep(y if value_dim == HEAD else self.linear(y, WIDTH, heads * value_dim))

    def step_heads(self):
        """Parts of heads in another order, some of them the same for all."""
        x, heads = self.take(WIDTH), WIDTH // HEAD
        left, right = self.ops.cut(x, heads, 0, 5), self.ops.cut(x, heads, 5, HEAD - 5)
        shared = self.ops.cut(x, 1, 7, 16)
        joined = self.ops.join(self.ops.join(right, left, heads), shared, heads, shared=True)
        weight = self.matrix(heads * HEAD, HEAD + 16)._replace(shape=(heads, HEAD, HEAD + 16))
        self.keep(self.ops.linear_heads(joined, weight))

    def step_mul(self):
        self.keep(self.ops.mul(self.take(WIDTH), self.ops.activate(self.take(WIDTH), "sigmoid")))

    def step_activate(self):
        """In place, where nothing else reads it."""
        self.keep(self.ops.activate(self.linear(self.take(WIDTH)), ("silu", "gelu", "sigmoid")[self.choose(3)]))

    def step_short_conv(self):
        taps = 2 + self.choose(3)
        state = State(len(self.states), "conv", (taps - 1, WIDTH))
        self.states.append(state)
        weight = float_weight(self.name(), normals(self.seed + self.count, WIDTH, taps) * np.float32(0.6))
        bias = float_weight(self.name(), normals(self.seed + self.count, WIDTH)) if self.choose(2) else None
        self.keep(self.ops.short_conv(self.take(WIDTH), weight, bias, state, ("", "silu")[self.choose(2)]))


def build(seed, layers, states):
    steps = [getattr(Builder, name) for name in sorted(vars(Builder)) if name.startswith("step_")]

    def forward(ops):
        builder = Builder(ops, seed)
        for _ in range(STEPS):
            steps[builder.choose(len(steps))](builder)
        layers[:], states[:] = builder.layers, builder.states
        total = builder.live[0][0] if builder.live[0][1] == WIDTH else builder.take(WIDTH)
        for x, width in builder.live[1:]:
            if width == WIDTH and x is not total:
                total = ops.add(total, x)
        norm = float_weight("last", normals(seed + 999, WIDTH))
        return ops.linear(ops.rms_norm(ops.outputs(total), norm, 1e-5), builder.matrix(50, WIDTH))

    return forward


@pytest.mark.parametrize("seed", range(40))
def test_random_pass(seed):
    layers, states = [], []
    forward = build(1000 + 17 * seed, layers, states)
    forward(GraphOps())  # which tells the two
    with loaded(forward, layers, "reference", states=states) as program:
        expected = program.run(rows_of(ROWS))
    assert len(np.unique(expected)) > 200
    with loaded(forward, layers, threads=3, states=states) as program:
        for _ in range(2):
            assert_same(program.run(rows_of(ROWS)), expected)
        for t in range(ROWS):
            one = rows_of(ROWS)
            row = type(one)((t,), (t,), (0,), (0,))
            assert_same(program.run(row), expected[t : t + 1], f"at row {t} alone")

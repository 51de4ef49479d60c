"""Recurrences of the tape, and what goes with them, in Numba. Imported only by the build process.

A unit is some channels (or heads) of one sequence of the batch: one thread computes all of its rows, in order, and
leaves the state behind. Which thread that is, and which other sequences are in the batch, can't matter.
"""

from __future__ import annotations

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.compiled import inline, kernel, rows_of, share
from kinetic.backends.cpu.emitted import extern, field, read_i64

activate_row_silu = extern("activate_row_silu", "aaa")
activate_row_gelu = extern("activate_row_gelu", "aaa")
activate_row_sigmoid = extern("activate_row_sigmoid", "aaa")
activate_row_relu_sqr = extern("activate_row_relu_sqr", "aaa")
add_rows = extern("add_rows", "aaaa")
mul_rows = extern("mul_rows", "aaaa")
tap_row = extern("tap_row", "aaaaa")
move_row = extern("move_row", "aaa")

CHANNELS = 256
"""Channels of one unit: a multiple of 16."""


# ---- the sequences of a batch


@inline
def sequence_count(p):
    return field(p, tape.SEQUENCE_COUNT)


@inline
def sequence_rows(p, s):
    """How many rows of the batch sequence s has."""
    return read_i64(field(p, tape.SEQUENCES) + 24 * s + 8)


@inline
def row_of(p, s, n):
    """The n-th row of sequence s, as a row of the batch."""
    return read_i64(field(p, tape.ORDER) + 8 * (read_i64(field(p, tape.SEQUENCES) + 24 * s) + n))


@inline
def state_of(p, s, offset):
    """Address of a state of sequence s, by its offset (StateStore.offset)."""
    return read_i64(field(p, tape.SEQUENCES) + 24 * s + 16) + offset


# ---- elementwise


@kernel
def mul(p, i, thread, threads):
    """2 x, 3 y, 4 out, 5 row bytes, 6 width."""
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        at = t * field(i, 5)
        mul_rows(field(i, 2) + at, field(i, 3) + at, field(i, 4) + at, field(i, 6))


@kernel
def activate_elements(x, out, width, code):
    """``code`` is one of plan.ACTIVATION_CODES."""
    if code == 0:
        activate_row_silu(x, out, width)
    elif code == 1:
        activate_row_gelu(x, out, width)
    elif code == 2:
        activate_row_sigmoid(x, out, width)
    else:
        activate_row_relu_sqr(x, out, width)


@kernel
def activate(p, i, thread, threads):
    """2 x, 3 out, 4 row bytes, 5 width, 6 activation."""
    low, high = share(rows_of(p, i), thread, threads)
    for t in range(low, high):
        at = t * field(i, 4)
        activate_elements(field(i, 2) + at, field(i, 3) + at, field(i, 5), field(i, 6))


# ---- short_conv


@inline
def source_of(p, i, s, n, state):
    """Row n of sequence s, counted from its first in the batch; those before it are in the state."""
    if n < 0:
        return state + (n + field(i, 7) - 1) * field(i, 6) * 4
    return field(i, 2) + row_of(p, s, n) * field(i, 4)


@kernel
def conv_unit(p, i, s, first, width):
    """Channels ``first`` to ``first + width`` of sequence s."""
    taps, channels, at = field(i, 7), field(i, 6), first * 4
    state, weight_bytes = state_of(p, s, field(i, 11)), field(i, 9)
    rows = sequence_rows(p, s)
    for n in range(rows):
        out = field(i, 3) + row_of(p, s, n) * field(i, 5) + at
        for k in range(taps):
            x = source_of(p, i, s, n + k - (taps - 1), state) + at
            tap_row(x, field(i, 8) + k * weight_bytes + at, out, width, 1 if k == 0 else 0)
        if field(i, 10) != 0:
            add_rows(out, field(i, 10) + at, out, width)
        if field(i, 12) >= 0:
            activate_elements(out, out, width, field(i, 12))
    for k in range(taps - 1):  # a row moves down before the one above it is overwritten
        move_row(source_of(p, i, s, rows + k - (taps - 1), state) + at, state + k * channels * 4 + at, width)


@kernel
def short_conv(p, i, thread, threads):
    """2 x, 3 out, 4 row bytes of x, 5 of out, 6 channels, 7 taps K, 8 weights [K] [channels, padded], 9 bytes of one
    of these rows, 10 bias or 0, 11 offset of the state, 12 activation or -1."""
    channels = field(i, 6)
    parts = (channels + CHANNELS - 1) // CHANNELS
    low, high = share(sequence_count(p) * parts, thread, threads)
    for unit in range(low, high):
        first = unit % parts * CHANNELS
        conv_unit(p, i, unit // parts, first, min(CHANNELS, channels - first))

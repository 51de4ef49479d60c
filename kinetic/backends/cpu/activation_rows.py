"""Kernels of activations on rows of float32, and on tiles of them that are quantised next."""

from __future__ import annotations

from llvmlite import ir

from kinetic.backends.cpu.functions import ACTIVATIONS, IN_TILES, UNGATED, gated, quantise_block
from kinetic.backends.cpu.ir import (
    function,
    load,
    loop,
    shuffle,
    store,
)
from kinetic.backends.cpu.rows import LINE, at, lines
from kinetic.backends.reference.functions import GATES


def emit(module: ir.Module) -> None:
    for activation in ACTIVATIONS:
        activate_row(module, activation)
    for activation in GATES:
        gated_row(module, activation)
    for activation in IN_TILES:
        gated_tile(module, activation)
    for activation in UNGATED:
        ungated_row(module, activation)
        ungated_tile(module, activation)


def activate_row(module: ir.Module, activation: str) -> None:
    """activate_row_ACT(x, out, n)."""
    b, (x, out, n) = function(module, f"activate_row_{activation}", "aaa")
    with loop(b, lines(b, n)) as i:
        store(b, ACTIVATIONS[activation](b, load(b, at(b, x, i, 64), 0, LINE)), at(b, out, i, 64))
    b.ret_void()


def gated_row(module: ir.Module, activation: str) -> None:
    """gated_row_ACT(gate, up, out, n)."""
    b, (gate, up, out, n) = function(module, f"gated_row_{activation}", "aaaa")
    with loop(b, lines(b, n)) as i:
        sides = (load(b, at(b, side, i, 64), 0, LINE) for side in (gate, up))
        store(b, gated(b, activation, *sides), at(b, out, i, 64))
    b.ret_void()


def gated_tile(module: ir.Module, activation: str) -> None:
    """gated_tile_ACT(tiles, rows, records): one record a row from four tiles [rows, 16], 1 KiB apart.

    The tiles are gate, gate, up, up.
    """
    b, (tiles, rows, records) = function(module, f"gated_tile_{activation}", "aaa")
    with loop(b, rows) as t:
        row = at(b, tiles, t, 64)
        parts = [load(b, row, 1024 * k, LINE) for k in range(4)]
        gate, up = (shuffle(b, parts[k], range(32), parts[k + 1]) for k in (0, 2))
        quantise_block(b, gated(b, activation, gate, up), at(b, records, t, 64))
    b.ret_void()


def ungated_row(module: ir.Module, activation: str) -> None:
    """ungated_row_ACT(unused, up, out, n): as ``gated_row``, without a gate."""
    b, (_, up, out, n) = function(module, f"ungated_row_{activation}", "aaaa")
    with loop(b, lines(b, n)) as i:
        store(b, ACTIVATIONS[activation](b, load(b, at(b, up, i, 64), 0, LINE)), at(b, out, i, 64))
    b.ret_void()


def ungated_tile(module: ir.Module, activation: str) -> None:
    """ungated_tile_ACT(tiles, rows, records): as ``gated_tile``, of the two tiles of up alone."""
    b, (tiles, rows, records) = function(module, f"ungated_tile_{activation}", "aaa")
    with loop(b, rows) as t:
        low, high = (load(b, at(b, tiles, t, 64), 1024 * k, LINE) for k in (2, 3))
        quantise_block(b, ACTIVATIONS[activation](b, shuffle(b, low, range(32), high)), at(b, records, t, 64))
    b.ret_void()

"""The compiled interpreter of the tape and its worker loop, in Numba. Imported only by the build process.

Every thread runs ``run_tape`` over the same instructions; work is divided by
output units, so which thread computes a value, and beside what, cannot matter.
"""

from __future__ import annotations

from kinetic.backends.cpu import tape
from kinetic.backends.cpu.compiled import kernel
from kinetic.backends.cpu.core_ops import (
    add,
    average,
    columns,
    gated,
    gated_float,
    gather,
    layer_norm,
    matmul,
    matmul_heads,
    norm,
    norm_quantise,
    piece,
    rope,
    scale,
    softcap,
)
from kinetic.backends.cpu.emitted import atomic_add, atomic_read, atomic_write, extern, field, read_i64, write_i64

# Compiled beside this unit, and found when the object files are loaded.
attend = extern("attend", "aaaaa")
attend_merge = extern("attend_merge", "aaaaa")
store = extern("store", "aaaa")
route = extern("route", "aaaaa")
assign = extern("assign", "aaaa")
expert_input = extern("expert_input", "aaaa")
expert_hidden = extern("expert_hidden", "aaaaa")
expert_down = extern("expert_down", "aaaaa")
expert_sum = extern("expert_sum", "aaaa")
mul = extern("mul", "aaaa")
activate = extern("activate", "aaaa")
short_conv = extern("short_conv", "aaaa")
scan = extern("scan", "aaaaa")
gated_column = extern("gated_column", "aaaaa")
l2_norm = extern("l2_norm", "aaaa")
decay = extern("decay", "aaaa")
delta = extern("delta", "aaaa")
choose = extern("choose", "aaa")
output = extern("output", "aaaaa")
exact = extern("exact", "aaaaa")
pause = extern("pause", "")
yield_processor = extern("yield_processor", "a")
set_control_word = extern("set_control_word", "", "a")
restore_control_word = extern("restore_control_word", "a")

SPINS_BEFORE_YIELD = 256


@kernel
def barrier(sync, threads):
    """Wait for all threads. A long wait gives the processor away, so more threads than cores still move."""
    if threads == 1:
        return
    generation = atomic_read(sync + tape.GENERATION)
    if atomic_add(sync + tape.ARRIVED, 1) == threads - 1:
        atomic_write(sync + tape.ARRIVED, 0)
        atomic_write(sync + tape.GENERATION, generation + 1)
        return
    spins = 0
    while atomic_read(sync + tape.GENERATION) == generation:
        spins += 1
        if spins % SPINS_BEFORE_YIELD == 0:
            yield_processor(sync)
        else:
            pause()


@kernel
def execute_recurrent(p, i, thread, threads, scratch):
    op = field(i, 0)
    if op == tape.MUL:
        mul(p, i, thread, threads)
    elif op == tape.ACTIVATE:
        activate(p, i, thread, threads)
    elif op == tape.SOFTCAP:
        softcap(p, i, thread, threads)
    elif op == tape.SHORT_CONV:
        short_conv(p, i, thread, threads)
    elif op == tape.SCAN:
        scan(p, i, thread, threads, scratch)
    elif op == tape.GATED_COLUMN:
        gated_column(p, i, thread, threads, scratch)
    elif op == tape.L2_NORM:
        l2_norm(p, i, thread, threads)
    elif op == tape.DECAY:
        decay(p, i, thread, threads)
    elif op == tape.DELTA:
        delta(p, i, thread, threads)
    elif op == tape.LAYER_NORM:
        layer_norm(p, i, thread, threads)
    elif op == tape.AVERAGE:
        average(p, i, thread, threads)
    elif op == tape.OUTPUT:
        output(p, i, thread, threads, scratch)
    elif op == tape.EXACT:
        exact(p, i, thread, threads, scratch)


@kernel
def execute(p, i, thread, threads, scratch):
    op = field(i, 0)
    if op == tape.BARRIER:
        if field(i, 2) >> field(p, tape.MODE) & 1 != 0:
            barrier(field(p, tape.SYNC), threads)
    elif op == tape.NORM_QUANTISE:
        norm_quantise(p, i, thread, threads, scratch)
    elif op == tape.NORM:
        norm(p, i, thread, threads, scratch)
    elif op == tape.MATMUL:
        matmul(p, i, thread, threads, scratch)
    elif op == tape.GATED:
        gated(p, i, thread, threads, scratch)
    elif op == tape.GATED_FLOAT:
        gated_float(p, i, thread, threads)
    elif op == tape.ROPE:
        rope(p, i, thread, threads)
    elif op == tape.STORE:
        store(p, i, thread, threads)
    elif op == tape.ATTEND:
        attend(p, i, thread, threads, scratch)
    elif op == tape.ATTEND_MERGE:
        attend_merge(p, i, thread, threads, scratch)
    elif op == tape.ADD:
        add(p, i, thread, threads)
    elif op == tape.SCALE:
        scale(p, i, thread, threads)
    elif op == tape.GATHER:
        gather(p, i, thread, threads)
    elif op == tape.COLUMNS:
        columns(p, i, thread, threads)
    elif op == tape.ROUTE:
        route(p, i, thread, threads, scratch)
    elif op == tape.ASSIGN:
        assign(p, i, thread, threads)
    elif op == tape.EXPERT_INPUT:
        expert_input(p, i, thread, threads)
    elif op == tape.EXPERT_HIDDEN:
        expert_hidden(p, i, thread, threads, scratch)
    elif op == tape.EXPERT_DOWN:
        expert_down(p, i, thread, threads, scratch)
    elif op == tape.EXPERT_SUM:
        expert_sum(p, i, thread, threads)
    elif op == tape.PIECE:
        piece(p, i, thread, threads)
    elif op == tape.MATMUL_HEADS:
        matmul_heads(p, i, thread, threads, scratch)
    else:
        execute_recurrent(p, i, thread, threads, scratch)


@kernel
def run_tape(p, thread, threads):
    """One forward pass as seen by one thread."""
    control = set_control_word()
    scratch = field(p, tape.SCRATCH) + thread * field(p, tape.SCRATCH_BYTES)
    code = field(p, tape.CODE)
    chooses = field(p, tape.CHOOSE) != 0  # not behind the last barrier: the table may be that of the next pass there
    for n in range(field(p, tape.LENGTH)):
        execute(p, code + n * tape.INSTRUCTION, thread, threads, scratch)
    barrier(field(p, tape.SYNC), threads)
    if chooses:
        choose(p, thread, threads)
        barrier(field(p, tape.SYNC), threads)
    restore_control_word(control)


@kernel
def start(p):
    """Lets the workers that spin begin; sleeping ones are woken in Python by their mark in SYNC."""
    atomic_add(field(p, tape.SYNC) + tape.START, 1)


@kernel
def work(p, thread, threads, spins):
    """A worker: runs every pass that is started; returns when told to stop, or after ``spins`` idle turns
    (the caller then waits in Python). The number of passes seen stands in the worker's own line of SYNC."""
    sync = field(p, tape.SYNC)
    mine = sync + tape.SLEEPING + 64 * thread
    atomic_write(mine, 0)
    idle = 0
    while atomic_read(sync + tape.STOP) == 0:
        if atomic_read(sync + tape.START) != read_i64(mine + 8):
            write_i64(mine + 8, read_i64(mine + 8) + 1)
            run_tape(p, thread, threads)
            idle = 0
            continue
        idle += 1
        if idle % SPINS_BEFORE_YIELD == 0:
            yield_processor(sync)
        else:
            pause()
        if idle >= spins:
            atomic_write(mine, 1)
            # A pass started between the last look and the mark would not wake us: look once more.
            if atomic_read(sync + tape.START) == read_i64(mine + 8) and atomic_read(sync + tape.STOP) == 0:
                return
            atomic_write(mine, 0)
            idle = 0

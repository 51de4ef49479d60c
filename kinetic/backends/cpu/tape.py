"""The tape: a forward pass as a table of instructions that every thread walks through.

A table of int64 ("program") describes one run; an instruction is 20 int64.
Addresses, counts and float32 bit patterns all travel as int64. ``core`` (the
compiled side) and ``plan`` (the Python side) share these names.
"""

# Slots of the program table.
CODE, LENGTH, ROWS, OUTPUT_ROWS, SYNC, SCRATCH, SCRATCH_BYTES = range(7)
POSITIONS, PAGES, CHUNKS, PARTS, WORK, PASS, MODE = range(7, 14)
SEQUENCES, SEQUENCE_COUNT, ORDER, ENDS, ALSO, CHOOSE, BEST = range(14, 21)
FIRST_FREE = 24
"""From here on: one slot for each rotation table and each list of attention blocks."""

UNIT_BITS = 22
MOST_UNITS = (1 << UNIT_BITS) - 1
"""Units of one instruction, of 16 output rows each: WORK has no room for more."""

ONE_ROW, SPLIT, MODES = 1, 2, 4
"""Kinds of passes: MODE is ONE_ROW if there is one row, plus SPLIT if CHUNKS is set. A barrier names the modes
that need it."""

# POSITIONS: int64 [rows]. PAGES: int64 [rows], address of the page table of the row's sequence.
# ENDS: int64 [rows], positions that the row's sequence has, for attention that is not causal.
# ALSO: int64 [rows], 0 or the address of more page tables, closed by a 0, that get the row's keys and values.
# CHOOSE: 0 or the address of what to do with the rows of logits (core_candidates.choose).
# CHUNKS: chunks of 256 keys that the longest row sees, if each is to be computed by itself, else 0. PARTS: memory for
# them, [units of attention][CHUNKS].
# WORK: what is left of each instruction, a line of memory for each thread (core_work). PASS: a number that
# no earlier pass had.
# SEQUENCES: int64 [SEQUENCE_COUNT, 3], of each sequence of the batch: the first of its rows in ORDER, how many there
# are, and the address of its recurrent states. ORDER: int64 [rows], the rows of each sequence together, in order.
# Attention blocks: int64 [n, 2], first row and number of rows that follow one another in one sequence.

# BEST: how many of the largest logits are wanted of the one output row, 0 for all logits (core_shortlist).

# Offsets in SYNC (bytes): a cache line each. From SLEEPING on, one line for each thread.
ARRIVED, GENERATION, START, STOP, YIELD, SLEEPING = 0, 64, 128, 192, 256, 320

WORDS = 20
INSTRUCTION = 8 * WORDS

# Operations. The numbers are positions in core.execute's dispatch.
BARRIER, NORM_QUANTISE, NORM, MATMUL, GATED, GATED_FLOAT, ROPE, STORE, ATTEND, ADD, SCALE, GATHER = range(12)
COLUMNS, ATTEND_MERGE = 12, 13
ROUTE, ASSIGN, EXPERT_INPUT, EXPERT_HIDDEN, EXPERT_DOWN, EXPERT_SUM = range(14, 20)
MUL, ACTIVATE, SHORT_CONV = range(20, 23)
PIECE, MATMUL_HEADS = 23, 24
SCAN, SOFTCAP, GATED_COLUMN, L2_NORM, DECAY, DELTA, LAYER_NORM, AVERAGE = range(25, 33)
OUTPUT, EXACT = 33, 34

NAMES = (
    "barrier norm+quantise norm matmul gated gated-float rope store attend add scale gather columns attend-merge "
    "route assign expert-input expert-hidden expert-down expert-sum "
    "mul activate short-conv piece matmul-heads scan softcap gated-column l2-norm decay delta layer-norm average "
    "output exact"
).split()

"""The tape: a forward pass as a table of instructions that every thread walks through.

A table of int64 ("program") describes one run; an instruction is 16 int64.
Addresses, counts and float32 bit patterns all travel as int64. ``core`` (the
compiled side) and ``plan`` (the Python side) share these names.
"""

# Slots of the program table.
CODE, LENGTH, ROWS, OUTPUT_ROWS, SYNC, SCRATCH, SCRATCH_BYTES = range(7)
POSITIONS, PAGES, CHUNKS, PARTS = range(7, 11)
FIRST_FREE = 16
"""From here on: one slot for each rotation table and each list of attention blocks."""

# POSITIONS: int64 [rows]. PAGES: int64 [rows], address of the page table of the row's sequence.
# CHUNKS: chunks of 256 keys that the longest row sees, if each is to be computed by itself, else 0. PARTS: memory for
# them, [units of attention][CHUNKS].
# Attention blocks: int64 [n, 2], first row and number of rows that follow one another in one sequence.

# Offsets in SYNC (bytes): a cache line each. From SLEEPING on, one line for each thread.
ARRIVED, GENERATION, START, STOP, YIELD, SLEEPING = 0, 64, 128, 192, 256, 320

WORDS = 16
INSTRUCTION = 8 * WORDS

# Operations. The numbers are positions in core.execute's dispatch.
BARRIER, NORM_QUANTISE, NORM, MATMUL, GATED, GATED_FLOAT, ROPE, STORE, ATTEND, ADD, SCALE, GATHER = range(12)
COLUMNS, ATTEND_MERGE = 12, 13

NAMES = (
    "barrier norm+quantise norm matmul gated gated-float rope store attend add scale gather columns attend-merge"
).split()

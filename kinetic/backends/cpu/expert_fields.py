"""Words of the table that describes one mixture of experts: ``plan_experts`` writes it, ``core_experts`` reads it.

All addresses are of bytes. "One", "many" and "two" are kinds of tile kernels (``tiles``).
"""

EXPERTS, USED, ROUTES, ROUTE_BYTES, TABLE = range(5)
"""How many there are and how many a row uses; chosen experts and weights, and bytes of a row of these; memory of
``assign``: int64 count of experts in use, [X] cursors, [X, 3] number, first and last + 1 position of those in use,
[rows * used] slots by position, [rows * used] positions by slot. A slot is row * used + rank."""

INPUT, INPUT_BYTES, WIDTH, RECORDS, COLUMNS = range(5, 10)
"""Rows of x, bytes of one, and elements; what is made of them in order of positions, 0 where no weight needs it."""

GATE_ONE, GATE_MANY, GATE, GATE_GROUP, GATE_MATRIX, GATE_SIZE, GATE_IS_FLOAT = range(10, 17)
UP_ONE, UP_MANY, UP, UP_GROUP, UP_MATRIX, UP_SIZE, UP_IS_FLOAT = range(17, 24)
DOWN_ONE, DOWN_MANY, DOWN, DOWN_GROUP, DOWN_MATRIX, DOWN_SIZE, DOWN_IS_FLOAT = range(24, 31)
"""Kernels; packed weights, bytes of a group and of an expert; blocks (or columns) of one row of inputs."""

GATE_AND_UP, DOWN_TWO = 31, 32
"""Kernels of two groups of weights; the first is 0 if gate and up are of different formats."""

HIDDEN_WIDTH, HIDDEN, GATED_ROW, GATED_TILE = range(33, 37)
"""Elements between the products; records or columns of them in order of positions; kernels of the activation."""

MADE, MADE_BYTES, OUT, OUT_BYTES, OUT_WIDTH = range(37, 42)
"""Rows in order of positions, and their weighted sums."""

GATE_BIAS, UP_BIAS, DOWN_BIAS = 42, 44, 46
"""Biases of each expert, or 0; the word behind each is the bytes from one expert's to the next one's."""

WORDS = 48

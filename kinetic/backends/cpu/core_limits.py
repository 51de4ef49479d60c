"""How much scratch memory a thread needs. Mirrors the offsets in ``core_attention``, without importing the compiler."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic.backends.base import Attention
from kinetic.backends.cpu.memory import round_up
from kinetic.backends.graph import Node

FIXED = 32 * 1024
"""Four tiles, or the scores and sums of 16 query rows (core_attention.ROWS_AT and below)."""


def scratch_bytes(layers: Sequence[Attention], nodes: Sequence[Node]) -> int:
    attention = max((16 * 4 * _row_width(spec) for spec in layers), default=0)
    row = max(4 * round_up(node.width, 16) for node in nodes if node.op != "linear" or node.uses)
    return round_up(FIXED + max(attention, row) + 4096, 4096)


def attention_units(spec: Attention) -> int:
    """Units of attention for one run of rows (core_attention.units_of): a key head with up to 16 query heads."""
    return spec.kv_heads * ((spec.heads // spec.kv_heads + 15) // 16)


def part_bytes(spec: Attention) -> int:
    """Bytes of one chunk that is computed by itself (core_attention.part_bytes)."""
    return 128 + 16 * round_up(spec.value_width, 16) * 4


def _row_width(spec: Attention) -> int:
    """Elements of a scaled query, and of values of a chunk and of all chunks."""
    return round_up(spec.head_dim, 16) + 2 * round_up(spec.value_width, 16)

"""Traces made up for tests."""

from __future__ import annotations

import struct
from typing import Any

from kinetic.api.trace_file import Op, Traced, header

FILE = {"name": "m.gguf", "size": 9, "blake3": "ab", "sha256": "cd"}


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def sample(**changes: Any) -> Traced:
    """Of four operations; ``changes`` are of what stands before them."""
    facts: dict[str, Any] = {
        "engine_id": "cpu:1",
        "device_class": "cpu",
        "threads": 1,
        "rows": 1,
        "receipt": "00",
        "token": 3,
    }
    facts |= {"model": {"architecture": "llama", "files": [FILE]}, "adapters": [], "overrides": {"context": 0}}
    facts |= {"position": 8, "input": "11", "logits": "22"}
    ops = [
        Op("embed", "token_embd.weight", -1, floats(1, 2)),
        Op("linear", "blk.0.attn_q.weight", 0, floats(1, 0, float("nan"))),
        Op("rope", "", 0, floats(3, 4, 5)),
        Op("linear", "output.weight", -1, floats(6)),
    ]
    return Traced(header(**facts | changes), ops)

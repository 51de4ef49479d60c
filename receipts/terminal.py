"""Text of others on a terminal: what would steer it is written out."""

from __future__ import annotations

import re

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor, or that reorder or break a line."""


def printable(text: str) -> str:
    """The text on one line, what steers a terminal escaped as in ``\\x1b``."""
    return _STEERING.sub(lambda match: ascii(match[0])[1:-1], text)

"""Just enough of PNG (ISO/IEC 15948) to look at a screenshot: eight bits, RGB or RGBA, not interlaced."""

from __future__ import annotations

import struct
import zlib
from collections import Counter


def colours(data: bytes) -> tuple[int, int, Counter[bytes]]:
    """Width, height, and how many pixels have each colour (three bytes)."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    head, packed, at = b"", b"", 8
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + size]
        head, packed = (body, packed) if kind == b"IHDR" else (head, packed + body if kind == b"IDAT" else packed)
        at += size + 12
    width, height, depth, kind, _, _, interlace = struct.unpack(">IIBBBBB", head)
    assert (depth, interlace) == (8, 0)
    step = {2: 3, 6: 4}[kind]
    found: Counter[bytes] = Counter()
    for row in _rows(zlib.decompress(packed), width * step, step):
        found.update(row[at : at + 3] for at in range(0, len(row), step))
    return width, height, found


def _rows(raw: bytes, size: int, step: int) -> list[bytes]:
    """Undo the filter of each row (section 9)."""
    rows, above = [], bytes(size)
    for start in range(0, len(raw), size + 1):
        row = bytearray(raw[start + 1 : start + 1 + size])
        _undo(raw[start], row, above, step)
        above = bytes(row)
        rows.append(above)
    return rows


def _undo(kind: int, row: bytearray, above: bytes, step: int) -> None:
    for at in range(len(row)):
        left = row[at - step] if at >= step else 0
        if kind == 1:
            row[at] = (row[at] + left) & 255
        elif kind == 2:
            row[at] = (row[at] + above[at]) & 255
        elif kind == 3:
            row[at] = (row[at] + (left + above[at]) // 2) & 255
        elif kind == 4:
            corner = above[at - step] if at >= step else 0
            row[at] = (row[at] + _paeth(left, above[at], corner)) & 255


def _paeth(left: int, above: int, corner: int) -> int:
    estimate = left + above - corner
    return min((left, above, corner), key=lambda value: abs(estimate - value))

"""The shortest way to say what bytes a file has: as changes of a base, as lines, or as hex."""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from typing import Any

from tools.receipt_vectors.build import BASES

Recipe = dict[str, Any]


def recipe(data: bytes) -> Recipe:
    """Whatever ``conformance.vector_files.file_bytes`` turns into ``data``, as short as we can say it."""
    found = [_whole(data)]
    for name, base in BASES.items():
        if (pairs := _pairs(base, data)) is not None:
            is_text = name.endswith(".json")
            found.append({"base": name} | ({"replace" if is_text else "replace_hex": pairs} if pairs else {}))
    return min(found, key=lambda way: len(json.dumps(way)))


def _whole(data: bytes) -> Recipe:
    try:
        return {"lines": data.decode("utf-8").split("\n")}
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def _pairs(base: bytes, data: bytes) -> list[list[str]] | None:
    """What to replace by what; None if that can't be said as text, or no replacement stands alone."""
    if base[:1] != data[:1]:
        return None
    if base[:1] != b"{":
        return _byte_pair(base, data)
    try:
        return _line_pairs(base.decode("utf-8"), data.decode("utf-8"))
    except UnicodeDecodeError:
        return None


def _byte_pair(base: bytes, data: bytes) -> list[list[str]] | None:
    """One replacement, with as many bytes in front as make it unique."""
    most = min(len(base), len(data))
    start = next((at for at in range(most) if base[at] != data[at]), most)
    same = next((at for at in range(most - start) if base[-1 - at] != data[-1 - at]), most - start)
    while start and base.count(base[start : len(base) - same]) != 1:
        start -= 1
    old, new = base[start : len(base) - same], data[start : len(data) - same]
    return [[old.hex(), new.hex()]] if old != new else []


def _line_pairs(base: str, data: str) -> list[list[str]] | None:
    """Changed lines, each with as many lines in front as make them unique, and nothing else."""
    old, new = base.splitlines(keepends=True), data.splitlines(keepends=True)
    pairs: list[list[str]] = []
    for kind, start, end, first, last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        lead = 0
        while base.count("".join(old[start - lead : end])) != 1 and lead < start:
            lead += 1
        before, after = "".join(old[start - lead : end]), "".join(old[start - lead : start] + new[first:last])
        pairs.append([before, after])
    return [_trimmed(old, new, base) for old, new in pairs] if _apply(base, pairs) == data else None


def _trimmed(old: str, new: str, base: str) -> list[str]:
    """The same replacement without the white space around it, where it still stands alone."""
    start = len(old) - len(old.lstrip())
    end = len(old) - len(old.rstrip())
    same = old[:start] == new[:start] and old[len(old) - end :] == new[len(new) - end :]
    inner = old[start : len(old) - end]
    if same and len(new) >= start + end and base.count(inner) == 1:
        return [inner, new[start : len(new) - end]]
    return [old, new]


def _apply(base: str, pairs: list[list[str]]) -> str:
    for old, new in pairs:
        if base.count(old) != 1:
            return ""
        base = base.replace(old, new)
    return base

"""Scales and windows of attention as a file's metadata gives them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kinetic.models.family import refuse
from kinetic.models.settings import Dense, optional_setting

if TYPE_CHECKING:
    from kinetic.gguf import Gguf


def attention_scale(gguf: Gguf, architecture: str, d: Dense) -> float:
    """What scores are multiplied by, as the file says; ``d.scale`` where it says nothing, or 0."""
    key = f"{architecture}.attention.scale"
    value: float = gguf.get(key, "float", 0.0)
    if not math.isfinite(value):
        raise refuse("BAD_SETTING", f"'{key}' is {value}; it must be a finite number")
    return value or d.scale


def sliding_windows(gguf: Gguf, architecture: str, d: Dense, pattern: int, window: int = 0) -> tuple[int, ...]:
    """Each layer's window, 0 for none; empty if the model has none at all.

    ``pattern`` and ``window`` are what holds if the file says nothing: layer i sees all keys when i + 1 is a multiple
    of ``pattern``. A file may also list which layers have a window.
    """
    window = optional_setting(gguf, f"{architecture}.attention.sliding_window", window)
    if not window:
        return ()
    key = f"{architecture}.attention.sliding_window_pattern"
    listed = gguf.metadata.get(key)
    if listed is not None and not isinstance(listed, (int, float, str)):
        if len(listed) < d.layers:
            raise refuse("BAD_SETTING", f"'{key}' has {len(listed)} entries for {d.layers} layers")
        return tuple(window if is_local else 0 for is_local in list(listed)[: d.layers])
    every = optional_setting(gguf, key, pattern)
    return tuple(0 if (i + 1) % every == 0 else window for i in range(d.layers))

"""What was computed of earlier prompts, taken up again: in the live sequence, in memory, and in files.

    the longest beginning of a prompt that is known -> its keys, values and states -> the rest is computed as ever

A row depends on the tokens before it and on nothing else, so keys and values of a beginning are the bits that a fresh
run reaches. Nothing is kept that another model, adapter, setting or engine made: in memory all is of one engine, and
files are named and authenticated by what they are of.
"""

from kinetic.engine.warm.disk import DiskStore
from kinetic.engine.warm.memory import MemoryStore
from kinetic.engine.warm.warm import Warm

__all__ = ["DiskStore", "MemoryStore", "Warm"]

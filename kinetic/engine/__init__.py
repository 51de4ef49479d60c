"""Generates tokens. Knows token ids only: no text, no files' formats, no receipts."""

from kinetic.engine.engine import Engine, EngineIdentity

__all__ = ["Engine", "EngineIdentity"]

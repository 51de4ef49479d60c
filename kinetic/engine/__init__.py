"""Generates tokens and vectors. Knows token ids only: no text, no files' formats, no receipts."""

from kinetic.engine.embedder import EmbeddingEngine
from kinetic.engine.engine import Engine, EngineIdentity

__all__ = ["EmbeddingEngine", "Engine", "EngineIdentity"]

"""Blocks that families share, written only with ``backends.base.Ops``."""

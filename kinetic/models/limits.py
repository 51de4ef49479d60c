"""Limits of settings, which nothing else needs to be imported for."""

MAX_CONTEXT = 1 << 20
"""Angles of rotary positions are reduced exactly below 2^20 (rope_tables.sin_cos)."""

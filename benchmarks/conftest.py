"""Benchmarks use the real models that the tests use."""

from tests.conftest import smollm2_path

__all__ = ["smollm2_path"]

"""Model families, one file each, named by ``general.architecture``."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.backends.control_word import default_rounding
from kinetic.errors import UnsupportedModel

if TYPE_CHECKING:
    from kinetic.backends.base import Weights
    from kinetic.gguf import Gguf
    from kinetic.models.family import Family

ARCHITECTURES = (
    "bert",
    "deepseek2",
    "ernie4_5",
    "exaone4",
    "gemma-embedding",
    "gemma3",
    "gpt-oss",
    "granite",
    "granitemoe",
    "hunyuan-dense",
    "lfm2",
    "lfm2moe",
    "llama",
    "nomic-bert",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "smollm3",
)

EMBEDDING_ARCHITECTURES = ("bert", "gemma-embedding", "nomic-bert")
"""Those that make vectors of texts and write none."""


def build(gguf: Gguf, weights: Weights) -> Family:
    """The family of ``gguf``, bound to its weights and settings. Checks shapes before anything runs."""
    architecture = gguf.get("general.architecture", "str")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"architecture '{architecture}' is not one this build can run ({', '.join(ARCHITECTURES)})",
            name="UNKNOWN_ARCHITECTURE",
        )
    from kinetic.models.pooling import read_embedding  # Not at the top: naming the architectures needs no NumPy.

    with default_rounding():
        module = importlib.import_module(f"kinetic.models.{architecture.replace('-', '_')}")
        family: Family = module.build(gguf, weights)
        return replace(family, embedding=read_embedding(gguf, architecture, family.embedding))

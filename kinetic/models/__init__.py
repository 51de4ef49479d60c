"""Model families, one file each, named by ``general.architecture``."""

from __future__ import annotations

import copy
import importlib
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.backends.control_word import default_rounding
from kinetic.errors import UnsupportedModel
from kinetic.models.limits import MAX_CONTEXT
from kinetic.types import RopeOverrides

if TYPE_CHECKING:
    from kinetic.backends.base import Weights
    from kinetic.gguf import Gguf
    from kinetic.models.family import Family, HiddenDrafter

__all__ = ["ARCHITECTURES", "DRAFTERS", "MAX_CONTEXT", "asked", "build", "build_drafter", "require_model"]

ARCHITECTURES = (
    "bert",
    "deepseek2",
    "ernie4_5",
    "exaone4",
    "falcon-h1",
    "gemma-embedding",
    "gemma3",
    "gemma4",
    "gpt-oss",
    "granite",
    "granitehybrid",
    "granitemoe",
    "hunyuan-dense",
    "lfm2",
    "lfm2moe",
    "llama",
    "nemotron_h",
    "nemotron_h_moe",
    "nomic-bert",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "smollm3",
)

DRAFTERS = ("dflash", "eagle3")
"""Those that guess for another model: see ``build_drafter``."""

EMBEDDING_ARCHITECTURES = ("bert", "gemma-embedding", "nomic-bert")
"""Those that make vectors of texts and write none."""


def asked(gguf: Gguf, rope: RopeOverrides) -> Gguf:
    """The same open files with other settings of rotary positions. Close one of the two."""
    other = copy.copy(gguf)
    other.rope = rope
    return other


def require_model(gguf: Gguf) -> None:
    """Raises UnsupportedModel for what is no model but belongs to one."""
    if gguf.metadata.get("general.type") == "adapter":
        message = "this file is an adapter: name the model that it was made for, and give the adapter with --lora"
        raise UnsupportedModel(message, name="IS_ADAPTER")
    if gguf.metadata.get("general.architecture") in DRAFTERS:
        message = "this file guesses for another model: name that one, and give this file with -md"
        raise UnsupportedModel(message, name="IS_DRAFTER")


def build(gguf: Gguf, weights: Weights) -> Family:
    """The family of ``gguf``, bound to its weights and settings. Checks shapes before anything runs."""
    require_model(gguf)
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
        embedding = read_embedding(gguf, architecture, family.embedding)
    if gguf.rope != RopeOverrides() and not gguf.rope_is_read:
        raise UnsupportedModel(
            f"the architecture '{architecture}' has no rotary positions that could be given other settings",
            name="NO_ROPE",
        )
    return replace(family, embedding=embedding)


def build_drafter(gguf: Gguf, weights: Weights, target: Weights) -> HiddenDrafter:
    """The drafter of ``gguf``, one of ``DRAFTERS``, for a model with the weights ``target``, of which it uses those
    that it lacks. Checks shapes before anything runs."""
    with default_rounding():
        module = importlib.import_module(f"kinetic.models.{gguf.get('general.architecture', 'str')}")
        drafter: HiddenDrafter = module.build(gguf, weights, target)
    return drafter

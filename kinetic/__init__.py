"""Kinetic runs GGUF language models so that no speed-up changes the answer, and so that an answer can be proved later.

    import kinetic

    with kinetic.Model("smollm2") as model:
        answer = model.chat([{"role": "user", "content": "Name three rivers."}], seed=7)
        print(answer.text)
        answer.save_receipt("answer.json")

Importing this package loads nothing until one of its names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic import errors
from kinetic._version import __version__
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic.api import Completion, Model, Stats, Stream
    from kinetic.types import ModelIdentity, Sampling

__all__ = [
    "Completion",
    "KineticError",
    "Model",
    "ModelIdentity",
    "Sampling",
    "Stats",
    "Stream",
    "__version__",
    "errors",
]


def __getattr__(name: str) -> object:
    """Names of the public interface, loaded when first used (PEP 562)."""
    if name in ("Completion", "Model", "Stats", "Stream"):
        import kinetic.api

        return getattr(kinetic.api, name)
    if name in ("ModelIdentity", "Sampling"):
        import kinetic.types

        return getattr(kinetic.types, name)
    raise AttributeError(f"module 'kinetic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

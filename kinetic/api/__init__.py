"""The narrow interface: text in, text and a receipt out. The only place that joins text, engine and attest.

    with Model("smollm2") as model:
        for piece in model.stream("Name three rivers.", seed=7):
            print(piece, end="")

Everything that can change an answer is an argument here, and a receipt names all of it.
``describe`` and ``verify`` are modules of their own; names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetic.api.answer import Completion, Stats, Stream
    from kinetic.api.model import Model, open_model
    from kinetic.api.options import Message, Options

__all__ = ["Completion", "Message", "Model", "Options", "Stats", "Stream", "open_model"]


def __getattr__(name: str) -> object:
    if name in ("Completion", "Stats", "Stream"):
        from kinetic.api import answer

        return getattr(answer, name)
    if name in ("Model", "open_model"):
        from kinetic.api import model

        return getattr(model, name)
    if name in ("Message", "Options"):
        from kinetic.api import options

        return getattr(options, name)
    raise AttributeError(f"module 'kinetic.api' has no attribute {name!r}")

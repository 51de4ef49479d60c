"""The narrow interface: text in, text and a receipt out. The only place that joins text, engine and attest.

    with Model("smollm2") as model:
        for piece in model.stream("Name three rivers.", seed=7):
            print(piece, end="")

Everything that can change an answer is an argument here, and a receipt names all of it.
"""

from kinetic.api.answer import Completion, Stats, Stream
from kinetic.api.model import Model, open_model
from kinetic.api.options import Message, Options

__all__ = ["Completion", "Message", "Model", "Options", "Stats", "Stream", "open_model"]

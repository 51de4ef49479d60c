"""Text to token ids and back, with a model file's own tokenizer and nothing else of the model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kinetic import store
from kinetic.loader import open_model_file
from kinetic.text import load_tokenizer

if TYPE_CHECKING:
    from kinetic.text.tokenizer import Tokenizer


class Token(NamedTuple):
    """An id of the vocabulary and the bytes it stands for; of a control token those of its spelling."""

    id: int
    piece: bytes


@contextlib.contextmanager
def open_tokenizer(model: str | os.PathLike[str]) -> Iterator[Tokenizer]:
    """The tokenizer of a file, bundle or name; no weight is read. Raises FileProblem or what a file is refused for."""
    with open_model_file(store.resolve(model), check="none") as loaded:
        yield load_tokenizer(loaded.gguf.metadata, store.writable("tokenizers"))


def tokenize(tokenizer: Tokenizer, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[Token]:
    """Tokens of a text as ``Tokenizer.encode`` gives them, each with its bytes."""
    ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
    return [Token(token, tokenizer.piece(token, special=True)) for token in ids]


def detokenize(tokenizer: Tokenizer, ids: Iterable[int], *, special: bool = False) -> bytes:
    """The bytes of these tokens, none added or removed. ``special`` spells control tokens out.

    Raises UsageError for an id outside the vocabulary.
    """
    return tokenizer.decode(ids, special=special)

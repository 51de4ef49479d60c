"""SentencePiece-style encoding ("llama" files): neighbours are joined in the order of their scores.

Spaces are written as U+2581. Characters without a token become ``<0xNN>`` byte tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from kinetic.text.merging import WordMemory, merge
from kinetic.text.vocabulary import Vocabulary, bad

ESCAPED_SPACE = "\u2581"
_SEPARATOR = "\ud800"
"""A lone surrogate: text decoded from bytes never holds it."""
_NOT_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates that stand for no byte."""


class SentencePieceEncoder:
    """Text -> ids, without special tokens. Safe to share between threads."""

    add_bos = True

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        if vocabulary.scores is None:
            raise bad("MISSING_SCORES", "tokenizer.ggml.scores is missing")
        self._vocabulary = vocabulary
        self._scores = vocabulary.scores
        prefix = metadata.get("tokenizer.ggml.add_space_prefix")
        self.add_space_prefix = True if prefix is None else bool(prefix)
        self._memory = WordMemory(self._encode_chunk)

    def encode(self, text: str) -> list[int]:
        """Tokens of a run of ordinary text, at the beginning or after a special token.

        It gets the space prefix if the model has one. Surrogates of ``surrogateescape`` become the byte they
        stand for, others U+FFFD.
        """
        text = _NOT_BYTES.sub("\ufffd", text)
        text = " " + text if self.add_space_prefix else text
        return self._memory.encode(self._chunks(text.replace(" ", ESCAPED_SPACE)))

    def _encode_chunk(self, chunk: str) -> list[int]:
        lookup = self._vocabulary.plain.get
        scores = self._scores

        def priority(left: str, right: str) -> float | None:
            token = lookup(left + right)
            return None if token is None else -scores[token]

        ids: list[int] = []
        for symbol in merge(list(chunk), priority):
            token = lookup(symbol)
            ids += [token] if token is not None else self._fallback(symbol)
        return ids

    def _fallback(self, symbol: str) -> list[int]:
        """Byte tokens of one character, or the unknown token where the vocabulary lacks a byte."""
        data = symbol.encode("utf-8", "surrogateescape")
        table = self._vocabulary.bytes_to_id
        if all(byte in table for byte in data):
            return [table[byte] for byte in data]
        return [self._vocabulary.ids["unk"]] if "unk" in self._vocabulary.ids else []

    @cached_property
    def _chunks(self) -> Callable[[str], list[str]]:
        return chunk_splitter(self._vocabulary.tokens)


def chunk_splitter(tokens: Iterable[str]) -> Callable[[str], list[str]]:
    """A function that cuts text before U+2581 wherever no token could reach across.

    Almost no vocabulary has tokens that hold U+2581 after another character
    (Gemma has one, after '>'). Merges therefore never cross such a place, and
    the pieces can be tokenised, and remembered, on their own with the same result.
    """
    joined = _SEPARATOR.join(tokens)
    crossing = set(re.findall(f"{ESCAPED_SPACE}(?<=([^{ESCAPED_SPACE}{_SEPARATOR}]){ESCAPED_SPACE})", joined))
    words = f"{ESCAPED_SPACE}*[^{ESCAPED_SPACE}]+|{ESCAPED_SPACE}+"
    if crossing:
        kept = "".join(map(re.escape, sorted(crossing)))
        words = f"(?:{ESCAPED_SPACE}*[^{ESCAPED_SPACE}]*[{kept}](?={ESCAPED_SPACE}))*(?:{words})"
    return re.compile(words).findall

"""WordPiece ("bert" files): words are looked up from the left, longest piece first.

In these files a piece that starts a word carries a leading U+2581 and one that continues it has none.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from kinetic.text.spm import ESCAPED_SPACE
from kinetic.text.vocabulary import Vocabulary

IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
"""Each of these is a word of its own. The odd start of the sixth range is that of the models' own tokenizers."""


class WordPieceEncoder:
    """Text -> ids, without special tokens. Safe to share between threads."""

    add_bos = True

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._vocabulary = vocabulary
        self._lowercase = bool(metadata.get("tokenizer.ggml.normalizer.lowercase", True))
        self._strip_accents = bool(metadata.get("tokenizer.ggml.normalizer.strip_accents", self._lowercase))
        self._longest = max(map(len, vocabulary.tokens))

    def encode(self, text: str) -> list[int]:
        """Tokens of a run of ordinary text."""
        return [token for word in self.words(text) for token in self._pieces(ESCAPED_SPACE + word)]

    def words(self, text: str) -> list[str]:
        """Normalised words: split at white space, around punctuation and around ideographs."""
        spaced = []
        for character in text:
            character = self._normalise(character)
            spaced.append(f" {character} " if _stands_alone(character) else character)
        return "".join(spaced).split(" ")

    def _normalise(self, character: str) -> str:
        """A space for white space, nothing for what is dropped, else the character without case and accents."""
        if character.isspace() and character not in "\x1c\x1d\x1e\x1f":
            return " "
        if self._strip_accents:
            character = unicodedata.normalize("NFD", character)[0]
        category = unicodedata.category(character)
        if category in ("Cc", "Cf", "Co", "Cs") or character == "\ufffd":
            return ""
        if self._strip_accents and category[0] == "M":
            return ""
        lowered = character.lower() if self._lowercase else character
        return lowered if len(lowered) == 1 else character

    def _pieces(self, word: str) -> list[int]:
        """Longest pieces from the left, or the unknown token where the word cannot be covered."""
        plain, ids, start = self._vocabulary.plain, [], 0
        if word == ESCAPED_SPACE:
            return []
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                token = plain.get(word[start:end])
                if token is not None:
                    ids.append(token)
                    start = end
                    break
            else:
                return [self._vocabulary.ids["unk"]] if "unk" in self._vocabulary.ids else []
        return ids


def _stands_alone(character: str) -> bool:
    if not character:
        return False
    code = ord(character)
    category = unicodedata.category(character)
    symbol = code < 0x7F and category[0] == "S"
    return category[0] == "P" or symbol or any(first <= code <= last for first, last in IDEOGRAPHS)

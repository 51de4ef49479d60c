"""Unigram encoding ("t5" files, which XLM-RoBERTa's descendants have too): of all ways to cut a text into tokens that
with the highest sum of scores.

A text is normalised first, by the replacements that the file brings (charsmap.py), and its spaces become U+2581.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

from kinetic.text.charsmap import Charsmap
from kinetic.text.spm import ESCAPED_SPACE
from kinetic.text.vocabulary import NORMAL, UNUSED, USER_DEFINED, Vocabulary, as_list, bad

UNKNOWN_PENALTY = 10.0
"""How much worse a character without a token is than the worst token."""

LONGEST = 512
"""Characters of a token. Every length is tried at every place of a text, so a file must not have too many of them."""

SURROGATES = re.compile("[\ud800-\udfff]")


class UnigramEncoder:
    """Text -> ids, without special tokens. Safe to share between threads."""

    add_bos = False

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        if vocabulary.scores is None:
            raise bad("MISSING_SCORES", "tokenizer.ggml.scores is missing")
        if "unk" not in vocabulary.ids:
            raise bad("MISSING_UNKNOWN", "the tokenizer has no unknown token, which a Unigram model needs")
        self._unknown = vocabulary.ids["unk"]
        normal = [vocabulary.scores[token] for token in vocabulary.of_kind(NORMAL)]
        self._unknown_score = _float32(min(normal, default=0.0) - UNKNOWN_PENALTY)
        self._tokens = _scored(vocabulary, vocabulary.scores)
        self._lengths = sorted(set(map(len, self._tokens)))
        if self._lengths and self._lengths[-1] > LONGEST:
            length = self._lengths[-1]
            raise bad("LONG_TOKEN", f"the tokenizer has a token of {length} characters, {LONGEST} are allowed")
        prefix = metadata.get("tokenizer.ggml.add_space_prefix")
        self.add_space_prefix = True if prefix is None else bool(prefix)
        self._joins_spaces = bool(metadata.get("tokenizer.ggml.remove_extra_whitespaces", False))
        blob = metadata.get("tokenizer.ggml.precompiled_charsmap")
        self._charsmap = None if blob is None else Charsmap(bytes(value & 0xFF for value in as_list(blob)))

    def encode(self, text: str) -> list[int]:
        """Tokens of a run of ordinary text, at the beginning or after a special token."""
        text = self.normalise(text)
        best = self._best(text)
        ids: list[int] = []
        end = len(text)
        while end > 0:
            token, end, _ = best[end]
            if not (token == self._unknown and ids and ids[-1] == self._unknown):  # one for a run of them
                ids.append(token)
        return ids[::-1]

    def normalise(self, text: str) -> str:
        """The text as tokens spell it. What is no UTF-8 becomes U+FFFD."""
        text = SURROGATES.sub("\ufffd", text)
        if self._charsmap is not None:
            text = self._charsmap.replace(text)
        if self._joins_spaces:
            return "".join(ESCAPED_SPACE + word for word in text.split(" ") if word)
        body = text.lstrip(" ")
        prefix = ESCAPED_SPACE if self.add_space_prefix and body else ""
        return (text[: len(text) - len(body)] + prefix + body).replace(" ", ESCAPED_SPACE)

    def _best(self, text: str) -> list[tuple[int, int, float]]:
        """Of each end of a beginning of ``text`` the last token, where it starts, and the highest sum of scores.

        Of equal sums that of the longer last token counts.
        """
        best: list[tuple[int, int, float]] = [(self._unknown, 0, -float("inf"))] * (len(text) + 1)
        best[0] = self._unknown, 0, 0.0
        for start in range(len(text)):
            before = best[start][2]
            for length in self._lengths:
                end = start + length
                if end > len(text):
                    break
                found = self._tokens.get(text[start:end])
                if found is not None and before + found[1] > best[end][2]:
                    best[end] = found[0], start, before + found[1]
            if text[start] not in self._tokens and before + self._unknown_score > best[start + 1][2]:
                best[start + 1] = self._unknown, start, before + self._unknown_score
        return best


def _scored(vocabulary: Vocabulary, scores: list[float]) -> dict[str, tuple[int, float]]:
    """Id and score by text; of two tokens with one text the later, and 0 for those that are user-defined."""
    kinds = vocabulary.kinds
    found = {
        vocabulary.tokens[token]: (token, 0.0 if kinds[token] == USER_DEFINED else float(scores[token]))
        for token in vocabulary.of_kind(NORMAL, USER_DEFINED, UNUSED)
    }
    found.pop("", None)
    return found


def _float32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded

"""The tokenizer of a model file: text to ids and ids to bytes, the same ids as llama.cpp gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from kinetic.errors import UsageError
from kinetic.text.bpe import BytePairEncoder, piece_bytes
from kinetic.text.specials import SpecialTokens
from kinetic.text.spm import ESCAPED_SPACE, SentencePieceEncoder
from kinetic.text.unigram import UnigramEncoder
from kinetic.text.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary
from kinetic.text.wpm import WordPieceEncoder


class Encoder(Protocol):
    """What differs between tokenizer models: how ordinary text becomes ids."""

    @property
    def add_bos(self) -> bool:
        """Whether a text starts with BOS where the file does not say."""

    def encode(self, text: str) -> list[int]: ...


class Tokenizer:
    """Built by ``load_tokenizer``; immutable to its users and safe to share between threads.

    ``bos``, ``eos``: id or None. ``end_tokens``: every id that ends an answer.
    ``warnings``: what is odd in the file, for the user; the first ``encode`` may add to it.
    """

    def __init__(self, metadata: Mapping[str, Any], folder: Path | None = None) -> None:
        self._vocabulary = vocabulary = Vocabulary(metadata)
        self._encoder = encoder = _encoder(vocabulary, metadata, folder)
        self._raw = isinstance(encoder, BytePairEncoder) and encoder.raw
        self._byte_level = isinstance(encoder, BytePairEncoder) and not encoder.raw
        self._strip_left, self._strip_right = _strip_rules(vocabulary, metadata)
        self._pieces: dict[int, bytes] = {}
        self.vocab_size = len(vocabulary)
        self.bos = vocabulary.ids.get("bos")
        self.eos = vocabulary.ids.get("eos")
        self.end_tokens = vocabulary.end_tokens
        self.warnings = vocabulary.warnings
        self.add_bos = self._flag(metadata, "add_bos_token", self._encoder.add_bos) and self.bos is not None
        self.add_eos = self._flag(metadata, "add_eos_token", vocabulary.model == "t5") and self.eos is not None
        self._closing = self.eos if self.add_eos else None
        if vocabulary.model == "bert":
            self._closing = vocabulary.ids.get("sep")
        add_sep = self._flag(metadata, "add_sep_token", vocabulary.model == "bert")
        self._separator = vocabulary.ids.get("sep") if add_sep else None

    def encode(self, text: str, *, add_special: bool, parse_special: bool, guard: str = "") -> list[int]:
        """Token ids of ``text``.

        ``add_special`` adds BOS (and EOS, for BERT [SEP]) if the model wants them and the text does not bring them
        itself, so that neither ever comes twice. ``parse_special`` lets the spelling of a control
        token stand for that token; otherwise it is ordinary text. User-defined tokens always match.
        ``guard`` is a character to be dropped after control tokens were found: a spelling with a
        guard inside stays text (see guard.py).
        """
        ids: list[int] = []
        for part in self._parts(text, parse_special, guard):
            ids += [part] if isinstance(part, int) else self._encoder.encode(part)
        if add_special and self.add_bos and self.bos is not None and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        if add_special and self._closing is not None and ids[-1:] != [self._closing]:
            ids.append(self._closing)
        return ids

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Bytes of one token. Control and unknown tokens are empty unless ``special`` asks for their spelling."""
        if not 0 <= token < self.vocab_size:
            raise UsageError(f"token {token} is not in the vocabulary of {self.vocab_size}", name="BAD_TOKEN_ID")
        if not special and self._vocabulary.kinds[token] in (CONTROL, UNKNOWN):
            return b""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._spell(token)
        return found

    def decode(self, ids: Iterable[int], *, special: bool = False) -> bytes:
        """The pieces joined, byte for byte: no space is cleaned up, none is removed.

        A SentencePiece model with a space prefix therefore gives back " Hello" for "Hello". Answers
        need it so: the first token of a continuation may well start with a space that belongs to it.
        """
        return b"".join([self.piece(token, special=special) for token in ids])

    @property
    def closing(self) -> list[int]:
        """What ends a text to which special tokens are added."""
        return [] if self._closing is None else [self._closing]

    @property
    def between(self) -> list[int]:
        """What stands between two texts that are read as a pair."""
        ends = self.closing if self.add_eos else []
        return ends if self._separator is None else [*ends, self._separator]

    def text(self, name: str) -> str:
        """Spelling of a special token by its name (bos, eos, unk, pad, ...), or "" if the model has none."""
        return self._vocabulary.text(name)

    @cached_property
    def control_texts(self) -> list[str]:
        """Spellings of the control tokens that text must not smuggle in, sorted; those of one character cannot be."""
        tokens = self._vocabulary.tokens
        return sorted({tokens[token] for token in self._vocabulary.declared_control if len(tokens[token]) > 1})

    @cached_property
    def _user_defined(self) -> SpecialTokens:
        return self._specials(USER_DEFINED)

    @cached_property
    def _all_special(self) -> SpecialTokens:
        return self._specials(USER_DEFINED, CONTROL, UNKNOWN)

    def _specials(self, *kinds: int) -> SpecialTokens:
        tokens = self._vocabulary.tokens
        # Of two tokens with one text the lower id counts, so it comes last.
        entries = ((tokens[token], token) for token in reversed(self._vocabulary.of_kind(*kinds)))
        return SpecialTokens(entries, self._strip_left, self._strip_right)

    def _parts(self, text: str, parse_special: bool, guard: str) -> list[str | int]:
        if not parse_special:
            return self._user_defined.split(text.replace(guard, "") if guard else text)
        parts = self._all_special.split(text)
        if not guard:
            return parts
        cleaned: list[str | int] = []
        for part in parts:
            cleaned += [part] if isinstance(part, int) else self._user_defined.split(part.replace(guard, ""))
        return cleaned

    def _spell(self, token: int) -> bytes:
        text, kind = self._vocabulary.tokens[token], self._vocabulary.kinds[token]
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            return text.encode("utf-8", "surrogateescape")
        if kind == BYTE:
            return bytes([int(text[3:5], 16)])
        if kind != NORMAL:
            return b""
        if self._byte_level:
            return piece_bytes(text)
        return text.replace(ESCAPED_SPACE, " ").encode("utf-8", "surrogateescape")

    def _flag(self, metadata: Mapping[str, Any], key: str, default: bool) -> bool:
        value = metadata.get(f"tokenizer.ggml.{key}")
        if key == "add_bos_token" and value is False and self._raw:
            self.warnings.append("the file says add_bos_token false, but Gemma 4 needs BOS, so it is added")
            return True
        return default if value is None else bool(value)


def _encoder(vocabulary: Vocabulary, metadata: Mapping[str, Any], folder: Path | None) -> Encoder:
    if vocabulary.model == "llama":
        return SentencePieceEncoder(vocabulary, metadata)
    if vocabulary.model == "bert":
        return WordPieceEncoder(vocabulary, metadata)
    if vocabulary.model == "t5":
        return UnigramEncoder(vocabulary, metadata)
    return BytePairEncoder(vocabulary, metadata, folder)


def _strip_rules(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> tuple[frozenset[int], frozenset[int]]:
    """Ids that swallow white space before and after them. No file says so, llama.cpp goes by names and so do we."""
    name = str(metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset(), frozenset()
    kept = ("<unk>", "<s>", "<|endoftext|>")
    special = vocabulary.of_kind(CONTROL, USER_DEFINED, UNKNOWN)
    return frozenset(), frozenset(token for token in special if vocabulary.tokens[token] not in kept)

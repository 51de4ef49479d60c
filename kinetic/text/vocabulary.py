"""The vocabulary of a model: token texts, kinds and special ids, checked before anything uses them.

Everything comes from the ``tokenizer.ggml.*`` keys of the model file. What a
file leaves out gets llama.cpp's default; what a file gets wrong is refused,
because a wrong id silently changes every answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from kinetic.errors import MalformedGguf, UnsupportedModel
from kinetic.text.endings import KNOWN_TEXTS, end_tokens

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
KINDS = range(7)
"""Values of ``tokenizer.ggml.token_type``; 0 stands for anything else, such tokens decode to nothing."""

MODELS = ("llama", "gpt2", "gemma4", "bert", "t5")
MAX_TOKEN_CHARS = 65_536
"""The longest token seen in a real file has 512 characters."""

SPECIAL_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",
    "pad": "padding_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
    "fim_pad": "fim_pad_token_id",
    "fim_rep": "fim_rep_token_id",
    "fim_sep": "fim_sep_token_id",
    "fim_pre": "fim_pre_token_id",
    "fim_suf": "fim_suf_token_id",
    "fim_mid": "fim_mid_token_id",
}
"""Our name -> key below ``tokenizer.ggml.`` ("seperator" is spelt so in real files)."""

DEFAULT_IDS = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
}
"""Ids that hold when the file is silent, as in llama.cpp. Byte-level models have none here."""

_BYTE_TEXT = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def bad(name: str, message: str) -> MalformedGguf:
    return MalformedGguf(message, name=name)


class Vocabulary:
    """Token id -> text and kind, with the ids that mean something special.

    ``tokens``  list of text; bytes that are not UTF-8 are kept by surrogateescape
    ``kinds``   bytearray, one of the constants above per token
    ``scores``  list of float, or None where the file has none
    ``ids``     special name -> id, only those that are set
    ``bytes_to_id`` byte value -> id of its ``<0xNN>`` token
    ``declared_control`` ids the file itself types CONTROL (``kinds`` may know more, see endings.py)
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.warnings: list[str] = []
        self.model = _model(metadata)
        self.tokens = _tokens(metadata)
        self.scores = _scores(metadata, len(self.tokens))
        self.kinds = _kinds(metadata, len(self.tokens))
        _check_normaliser(metadata)
        self.ids = self._special_ids(metadata)
        self.declared_control = frozenset(self.of_kind(CONTROL))
        self.bytes_to_id = self._byte_tokens()
        self.end_tokens = self._ends()

    def __len__(self) -> int:
        return len(self.tokens)

    def of_kind(self, *kinds: int) -> list[int]:
        """Ids of the tokens of these kinds, ascending."""
        pattern = re.compile(b"[" + b"".join(re.escape(bytes([kind])) for kind in kinds) + b"]")
        return [match.start() for match in pattern.finditer(self.kinds)]

    def text(self, name: str) -> str:
        """Text of a special token such as "bos", or "" where the model has none."""
        return self.tokens[self.ids[name]] if name in self.ids else ""

    @cached_property
    def plain(self) -> dict[str, int]:
        """Text -> id for ordinary text; of two tokens with one text the lower id. Empty texts are never found.

        Control tokens are left out, so that no merge can ever spell one. Built when first needed, for it is the
        slowest part: listing a model's properties does without.
        """
        count = len(self.tokens)
        plain = dict(zip(reversed(self.tokens), range(count - 1, -1, -1), strict=True))
        if len(plain) != count:
            self.warnings.append(f"{count - len(plain)} tokens repeat the text of another: the lowest id is used")
        if plain.pop("", None) is not None:
            self.warnings.append("the vocabulary has an empty token, which no text can give")
        for token in self.declared_control:
            if plain.get(self.tokens[token]) == token:
                del plain[self.tokens[token]]
        return plain

    def _byte_tokens(self) -> dict[int, int]:
        """Byte value -> id of its ``<0xNN>`` token."""
        table: dict[int, int] = {}
        for token in self.of_kind(BYTE):
            match = _BYTE_TEXT.fullmatch(self.tokens[token])
            if match is None:
                text = self.tokens[token][:32]
                raise bad("BAD_BYTE_TOKEN", f"token {token} is a byte token but reads {text!r} instead of <0xNN>")
            value = int(match[1], 16)
            if value in table:
                raise bad("BAD_BYTE_TOKEN", f"tokens {table[value]} and {token} both stand for byte 0x{value:02X}")
            table[value] = token
        return table

    def _special_ids(self, metadata: Mapping[str, Any]) -> dict[str, int]:
        count = len(self.tokens)
        ids = {name: token for name, token in DEFAULT_IDS.get(self.model, {}).items() if token < count}
        for name, key in SPECIAL_KEYS.items():
            value = metadata.get(f"tokenizer.ggml.{key}")
            if value is None:
                continue
            if type(value) is not int or not 0 <= value < count:
                raise bad("BAD_SPECIAL_TOKEN", f"{key} is {value!r}, but the vocabulary has ids 0 to {count - 1}")
            ids[name] = value
        if self.model == "bert" and "cls" in ids:
            ids["bos"] = ids["cls"]
        return ids

    def _ends(self) -> frozenset[int]:
        known: dict[str, int] = {}
        for token, text in enumerate(self.tokens):
            if text in KNOWN_TEXTS:
                known.setdefault(text, token)
        ends = end_tokens(known, self.ids, self.kinds)
        if not ends:
            self.warnings.append("the model names no token that ends an answer")
        return ends


def _model(metadata: Mapping[str, Any]) -> str:
    model = metadata.get("tokenizer.ggml.model")
    if model not in MODELS:
        known = ", ".join(MODELS)
        raise UnsupportedModel(f"tokenizer {model!r} is not one of those built in ({known})", name="UNKNOWN_TOKENIZER")
    return str(model)


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens = as_list(metadata.get("tokenizer.ggml.tokens"))
    if not tokens or not isinstance(tokens[0], str):
        raise bad("BAD_TOKEN_LIST", "tokenizer.ggml.tokens is missing or is not a list of strings")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN_CHARS:
        raise bad("TOKEN_TOO_LONG", f"a token has {longest} characters, more than {MAX_TOKEN_CHARS}")
    return tokens


def _scores(metadata: Mapping[str, Any], count: int) -> list[float] | None:
    if metadata.get("tokenizer.ggml.scores") is None:
        return None
    scores: list[float] = as_list(metadata["tokenizer.ggml.scores"])
    _same_length("scores", scores, count)
    numbers = isinstance(scores[0], int | float)
    # The sum is quick, but two infinities may make it NaN as well.
    if not numbers or (math.isnan(sum(scores)) and any(map(math.isnan, scores))):
        raise bad("BAD_SCORE", "tokenizer.ggml.scores holds something that is not a number")
    return scores


def _kinds(metadata: Mapping[str, Any], count: int) -> bytearray:
    if metadata.get("tokenizer.ggml.token_type") is None:
        return bytearray([NORMAL]) * count
    kinds = as_list(metadata["tokenizer.ggml.token_type"])
    _same_length("token_type", kinds, count)
    if not isinstance(kinds[0], int):
        raise bad("BAD_TOKEN_TYPE", "tokenizer.ggml.token_type is not a list of integers")
    if not 0 <= min(kinds) <= max(kinds) < len(KINDS):
        kinds = [kind if kind in KINDS else 0 for kind in kinds]
    return bytearray(kinds)


def _same_length(key: str, values: Sequence[Any], count: int) -> None:
    if len(values) != count:
        raise bad("LENGTH_MISMATCH", f"tokenizer.ggml.{key} has {len(values)} entries for {count} tokens")


def _check_normaliser(metadata: Mapping[str, Any]) -> None:
    """A SentencePiece character map starts with the size of its table, which must lie inside the blob."""
    blob = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if blob is None:
        return
    data = bytes(value & 0xFF for value in as_list(blob))
    if len(data) < 4 or int.from_bytes(data[:4], "little") + 4 >= len(data):
        raise bad("BAD_NORMALIZER", "tokenizer.ggml.precompiled_charsmap points outside itself")


def as_list(values: Any) -> list[Any]:
    """A metadata array as a plain list; numeric arrays may arrive as NumPy arrays, None as an empty list."""
    if values is None or isinstance(values, str | bytes | int | float):
        return []
    return values.tolist() if hasattr(values, "tolist") else list(values)

"""Byte-pair encoding: words, then the merges of the model file in their order.

Two kinds of file use it. In most ("gpt2") a word is turned into its UTF-8
bytes and every byte into one printable character, so that all 256 bytes are in
the vocabulary. In "gemma4" files, and some others, words stay as they are, spaces become U+2581
and what has no token falls back to ``<0xNN>`` tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from kinetic.gguf_types import Array
from kinetic.text import merge_table
from kinetic.text.merging import RankedMerges, Ranks, WordMemory
from kinetic.text.pretokenize import PreTokenizer, pre_tokenizer, word_splitter
from kinetic.text.spm import ESCAPED_SPACE, chunk_splitter
from kinetic.text.vocabulary import Vocabulary, as_list, bad


def byte_characters() -> str:
    """The printable character of each byte, as a string of 256.

    Printable Latin-1 stands for itself, the other 68 bytes map to U+0100 and up in their order (GPT-2's table).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


BYTE_CHARACTERS = byte_characters()
CHARACTER_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
_SURROGATES = re.compile("[\ud800-\udfff]")
_TO_CHARACTERS = str.maketrans({chr(byte): character for byte, character in enumerate(BYTE_CHARACTERS)})


class BytePairEncoder:
    """Text -> ids, without special tokens. Safe to share between threads.

    In ``folder`` tables of merges are kept (merge_table.py); no answer depends on them.
    """

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any], folder: Path | None = None) -> None:
        self._vocabulary, self._folder = vocabulary, folder
        self._merges = metadata.get("tokenizer.ggml.merges")  # read when first needed
        if not isinstance(self._merges, Sequence) or not self._merges:
            raise bad("MISSING_MERGES", "tokenizer.ggml.merges is missing or empty")
        self.pre = self._pre_tokenizer(metadata)
        self.raw = self.pre.raw
        self.add_bos = self.pre.add_bos
        self._memory = WordMemory(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """Tokens of a run of ordinary text. Lone surrogates become U+FFFD."""
        return self._memory.encode(self._words(_SURROGATES.sub("\ufffd", text)))

    def _encode_word(self, word: str) -> list[int]:
        plain = self._vocabulary.plain
        if not self.raw:
            word = (word if word.isascii() else word.encode("utf-8").decode("latin-1")).translate(_TO_CHARACTERS)
        whole = self.pre.ignore_merges or (self.raw and word[0] == "\n")
        if whole and word in plain:
            return [plain[word]]
        symbols = self._ranked.apply(word)
        try:
            return [plain[symbol] for symbol in symbols]
        except KeyError:
            parts = ([plain[symbol]] if symbol in plain else self._fallback(symbol) for symbol in symbols)
            return [token for part in parts for token in part]

    def _fallback(self, symbol: str) -> list[int]:
        """Tokens of the single characters or bytes; what has none is dropped, as in llama.cpp."""
        if self.raw:
            table = self._vocabulary.bytes_to_id
            return [table[byte] for byte in symbol.encode("utf-8") if byte in table]
        plain = self._vocabulary.plain
        return [plain[character] for character in symbol if character in plain]

    @cached_property
    def _ranked(self) -> RankedMerges:
        merges = self._merges
        if self._folder is None or not isinstance(merges, Array) or len(merges) < merge_table.FEWEST:
            return RankedMerges(self._read_all())
        content = merges.content()
        path = merge_table.table_path(self._folder, content)
        table = merge_table.load(path, content, len(merges))
        if table is None:
            merge_table.save(path, merge_table.build(content, as_list(merges)))
            return RankedMerges(self._read_all())
        return RankedMerges(merge_table.SoughtRanks(table, self._read_all))

    def _read_all(self) -> Ranks:
        """Merge as written, "left right" -> its place, the first of equals. Tokens hold no space, so this is unique."""
        merges = as_list(self._merges)
        if not isinstance(merges[0], str):
            raise bad("MISSING_MERGES", "tokenizer.ggml.merges is not a list of strings")
        return dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))

    @cached_property
    def _words(self) -> Callable[[str], list[str]]:
        split = word_splitter(self.pre.stages)
        if not self.raw:
            return split
        chunks = chunk_splitter(self._vocabulary.tokens)
        return lambda text: [chunk for line in split(text.replace(" ", ESCAPED_SPACE)) for chunk in chunks(line)]

    def _pre_tokenizer(self, metadata: Mapping[str, Any]) -> PreTokenizer:
        name = metadata.get("tokenizer.ggml.pre")
        if self._vocabulary.model == "gemma4":
            name = "gemma4"
        elif name is None:
            self._vocabulary.warnings.append(
                "the file names no pre-tokenizer, so 'default' is used and answers will be worse:"
                " a newer conversion of the model would name it"
            )
            name = "default"
        return pre_tokenizer(str(name))


def piece_bytes(text: str) -> bytes:
    """Bytes of a byte-level token. Characters outside the table, which broken files have, stay themselves."""
    try:
        return bytes([CHARACTER_BYTES[character] for character in text])
    except KeyError:
        return text.encode("utf-8", "surrogateescape")

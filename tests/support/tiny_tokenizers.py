"""Metadata of tokenizers small enough to read, for tests.

Both functions return what a GGUF file's metadata would be; keyword arguments add or replace
keys below ``tokenizer.ggml.``.
"""

from kinetic.text.bpe import BYTE_CHARACTERS

UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6


def byte_level(merges=(), special=(), pre="gpt-2", **keys):
    """Byte-level BPE: the 256 byte characters, one token per merge ("l o"), then (text, kind) tokens."""
    tokens = [*BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in merges), *(text for text, _ in special)]
    kinds = [1] * (256 + len(merges)) + [kind for _, kind in special]
    metadata = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": [*merges, "<no >merge"]}
    return named({**metadata, **keys})


def sentence_piece(pieces=(), special=(), **keys):
    """SentencePiece: <unk> <s> </s>, 256 byte tokens, (text, score) pieces from id 259, then (text, kind) tokens."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(text for text, _ in pieces)]
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [1] * len(pieces) + [kind for _, kind in special]
    scores = [0.0] * 259 + [score for _, score in pieces] + [-1000.0] * len(special)
    tokens += [text for text, _ in special]
    return named({"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores, **keys})


def named(keys):
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}

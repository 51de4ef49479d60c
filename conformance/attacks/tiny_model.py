"""The smallest model that this program runs: what hostile models and templates are changed from.

One layer of zeros, a byte-level vocabulary and two control tokens. Sound as it is: every
logit is 0, so that the first token is drawn at temperature 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from conformance.attacks.gguf_writer import GgufWriter

WIDTH, FFN, VOCABULARY = 32, 64, 258
END, BEGIN = 256, 257
NORMAL, CONTROL, BYTE = 1, 3, 6
F32, Q8_0 = 0, 8
Q8_0_BLOCK = 34
"""Bytes of 32 values: a float16 scale, then int8."""


class Typed(NamedTuple):
    """A value whose type in the file does not follow from it."""

    value: Any
    kind: str


def tiny_model(
    keys: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int] | None] | None = None,
    types: Mapping[str, int] | None = None,
    data: Mapping[str, bytes] | None = None,
) -> bytes:
    """A model file with some keys, shapes, tensor types and contents changed. None leaves a key or tensor out.

    A tensor of another type than F32 holds as many bytes as its ``data``, or as F32 would.
    """
    writer = GgufWriter()
    for name, value in (METADATA | dict(keys or {})).items():
        if value is not None:
            plain, kind = value if isinstance(value, Typed) else (value, None)
            writer.key(name, plain, kind)
    for tensor, shape in (SHAPES | dict(shapes or {})).items():
        if shape is not None:
            content = (data or {}).get(tensor) or bytes(4 * _product(shape))
            writer.raw_tensor(tensor, shape, (types or {}).get(tensor, F32), content)
    return writer.to_bytes()


def _product(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def byte_characters() -> list[str]:
    """The printable character of each byte (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


TOKENS = [*byte_characters(), "<end>", "<begin>"]
KINDS = [NORMAL] * 256 + [CONTROL] * 2

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.quantization_version": 2,
    "llama.context_length": 64,
    "llama.embedding_length": WIDTH,
    "llama.block_count": 1,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": 1,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": KINDS,
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": BEGIN,
    "tokenizer.ggml.eos_token_id": END,
    "tokenizer.ggml.add_bos_token": False,
}

SHAPES: dict[str, Sequence[int] | None] = {
    "token_embd.weight": (VOCABULARY, WIDTH),
    "output_norm.weight": (WIDTH,),
    "blk.0.attn_norm.weight": (WIDTH,),
    "blk.0.ffn_norm.weight": (WIDTH,),
    "blk.0.attn_q.weight": (WIDTH, WIDTH),
    "blk.0.attn_k.weight": (WIDTH, WIDTH),
    "blk.0.attn_v.weight": (WIDTH, WIDTH),
    "blk.0.attn_output.weight": (WIDTH, WIDTH),
    "blk.0.ffn_gate.weight": (FFN, WIDTH),
    "blk.0.ffn_up.weight": (FFN, WIDTH),
    "blk.0.ffn_down.weight": (WIDTH, FFN),
}

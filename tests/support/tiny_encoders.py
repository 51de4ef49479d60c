"""Small models that make vectors, one of each family, and a reranker of a family that writes text.

write_tiny_encoder(path, "bert")
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import tiny_models as tiny
from tests.support.tiny_tokenizers import CONTROL, named

NORMAL, UNKNOWN = 1, 2
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
RERANK = "<|im_start|>query {query}\ndocument {document}<|im_end|>\n"
LABELS = ["yes", "no"]
MEAN, CLS, LAST, RANK = 1, 2, 3, 4

KINDS = ("bert", "nomic-bert", "gemma-embedding", "qwen3")


def word_pieces() -> dict[str, Any]:
    """WordPiece: the words of ``tiny_models.TEXT``, and every letter at the start of a word and inside one."""
    letters = sorted({chr(code) for code in range(ord("a"), ord("z") + 1)} | set("0123456789.,?!"))
    words = dict.fromkeys(tiny.TEXT.split())
    pieces = ["\u2581" + text for text in (*words, *letters)] + letters
    tokens = [*SPECIAL, *dict.fromkeys(pieces)]
    kinds = [CONTROL, UNKNOWN, CONTROL, CONTROL, CONTROL] + [NORMAL] * (len(tokens) - len(SPECIAL))
    ids = {"padding_token_id": 0, "unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3, "mask_token_id": 4}
    return named({"model": "bert", "tokens": tokens, "token_type": kinds, "token_type_count": 2, **ids})


def write_tiny_encoder(path: Path, name: str, *, keys: Mapping[str, Any] | None = None, context: int = 640) -> Path:
    """``keys`` under the architecture's name take the place of the family's own."""
    make = {"bert": _bert, "nomic-bert": _nomic, "gemma-embedding": _gemma, "qwen3": _reranker}[name]
    tokenizer, tensors, own, s = make(context)
    metadata = tiny._settings(name, s, context) | tokenizer
    metadata |= {f"{name}.{key}": value for key, value in (own | dict(keys or {})).items()}
    return tiny._write(path, metadata, s, tensors)


def _shape(
    tokenizer: Mapping[str, Any], seed: int, layers: int = 2, heads: tuple[int, int, int] = (4, 4, 16)
) -> tiny.Shape:
    return tiny.Shape(layers, 64, *heads, 96, len(tokenizer["tokenizer.ggml.tokens"]), tiny.GEMMA_MIX, seed, {})


Made = tuple[dict[str, Any], tiny.Tensors, dict[str, Any], tiny.Shape]


def _encoder_tensors(s: tiny.Shape) -> tiny.Tensors:
    """What BERT and Nomic BERT have in common."""
    tensors: tiny.Tensors = [("token_embd.weight", (s.vocab, s.width), 1.0), ("token_types.weight", (2, s.width), 0.5)]
    norms = ["token_embd_norm"]
    for i in range(s.layers):
        p = f"blk.{i}."
        norms += [f"{p}attn_output_norm", f"{p}layer_output_norm"]
        for name, shape in {
            "attn_output": (s.width, s.width),
            "ffn_up": (s.ffn, s.width),
            "ffn_down": (s.width, s.ffn),
        }.items():
            tensors.append((f"{p}{name}.weight", shape, 1.5 / math.sqrt(shape[1])))
    for name in norms:
        tensors += [(f"{name}.weight", (s.width,), 0.2), (f"{name}.bias", (s.width,), 0.2)]
    return tensors


ENCODER = {"attention.causal": False, "attention.layer_norm_epsilon": 1e-12}


def _bert(context: int) -> Made:
    tokenizer = word_pieces()
    s = _shape(tokenizer, 71)
    tensors = _encoder_tensors(s) + [("position_embd.weight", (context, s.width), 0.5)]
    lengths = {"attn_q": s.width, "attn_k": s.width, "attn_v": s.width, "attn_output": s.width, "ffn_up": s.ffn}
    for i in range(s.layers):
        p = f"blk.{i}."
        tensors += [(f"{p}attn_{name}.weight", (s.width, s.width), 1.5 / math.sqrt(s.width)) for name in "qkv"]
        tensors += [(f"{p}{name}.bias", (n,), 0.3) for name, n in (lengths | {"ffn_down": s.width}).items()]
    tensors += [("cls.weight", (s.width, s.width), 0.2), ("cls.bias", (s.width,), 0.2)]
    tensors += [("cls.output.weight", (1, s.width), 0.2), ("cls.output.bias", (1,), 0.2)]
    return tokenizer, tensors, ENCODER | {"pooling_type": CLS}, s


def _nomic(context: int) -> Made:
    tokenizer = word_pieces()
    s = _shape(tokenizer, 72)
    tensors = _encoder_tensors(s)
    for i in range(s.layers):
        tensors.append((f"blk.{i}.attn_qkv.weight", (3 * s.width, s.width), 1.5 / math.sqrt(s.width)))
        tensors.append((f"blk.{i}.ffn_gate.weight", (s.ffn, s.width), 1.5 / math.sqrt(s.width)))
    return tokenizer, tensors, ENCODER | {"pooling_type": MEAN}, s


def _gemma(context: int) -> Made:
    tokenizer = tiny.gemma_tokenizer()
    s = _shape(tokenizer, 73, 6, (4, 1, 32))
    tensors: tiny.Tensors = [("token_embd.weight", (s.vocab, s.width), 0.3), ("output_norm.weight", (s.width,), 0.2)]
    tensors += [("dense_2.weight", (96, s.width), 0.2), ("dense_3.weight", (s.width, 96), 0.2)]
    for i in range(s.layers):
        p = f"blk.{i}."
        tensors += tiny._layer(p, s, ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"))
        tensors += [(f"{p}attn_{name}_norm.weight", (s.head_dim,), 0.2) for name in "qk"]
    dense = {"dense_2_feat_in": 64, "dense_2_feat_out": 96, "dense_3_feat_in": 96, "dense_3_feat_out": 64}
    return tokenizer, tensors, dense | {"attention.sliding_window": 20, "pooling_type": MEAN}, s


def _reranker(context: int) -> Made:
    tokenizer = tiny.chatml_tokenizer() | {"tokenizer.chat_template.rerank": RERANK}
    s = _shape(tokenizer, 74, 2, (4, 2, 32))
    tensors: tiny.Tensors = [("token_embd.weight", (s.vocab, s.width), 0.3), ("output_norm.weight", (s.width,), 0.2)]
    tensors.append(("cls.output.weight", (2, s.width), 0.2))
    for i in range(s.layers):
        p = f"blk.{i}."
        tensors += tiny._layer(p, s, ("attn_norm", "ffn_norm"))
        tensors += [(f"{p}attn_{name}_norm.weight", (s.head_dim,), 0.2) for name in "qk"]
    return tokenizer, tensors, {"pooling_type": RANK, "classifier.output_labels": LABELS}, s

"""Small models of both families with real tokenizers, written by ourselves: under a megabyte, in well under a second.

    write_tiny_llama(path, types={"": "Q8_0", "ffn_down": "Q4_0"}, tied=True)

``types`` names the format of each matrix by the part of its tensor's name between the layer
and ``.weight`` ("attn_q", "ffn_down", "token_embd", "output"); "" is for all others. Weights
come from a counter, so a seed names one model. Their sizes keep logits a few units apart, so
that neither a greedy answer nor a drawn one is the same token over and over.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kinetic.text.bpe import BYTE_CHARACTERS
from tests.support.blocks import FORMATS, encode_floats, normals, random_rows
from tests.support.gguf_writer import GgufWriter
from tests.support.tiny_tokenizers import CONTROL, USER_DEFINED, byte_level, sentence_piece

TEXT = (
    "the quick brown fox jumps over the lazy dog and the river runs to the sea where the old ships rest in the sun "
    "one two three rivers name them all then tell me what the answer is and why the answer is what it is"
)
"""What the tokenizers' merges are learned from."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA_TURNS = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + (message['role'] if message['role'] == 'user' "
    "else 'model') + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

MIXED = {
    "token_embd": "BF16",
    "output": "F16",
    "attn_q": "Q4_K",
    "attn_k": "Q5_K",
    "attn_v": "Q6_K",
    "attn_output": "Q4_1",
    "ffn_gate": "Q4_0",
    "ffn_up": "Q4_0",
    "ffn_down": "Q8_0",
}
"""Formats of blocks of 32 and of 256, and halves at the ends; the norms are F32."""

GEMMA_MIX = {
    "": "Q8_0",
    "attn_q": "Q5_0",
    "attn_v": "Q4_1",
    "attn_output": "Q5_1",
    "ffn_gate": "Q4_0",
    "ffn_down": "Q4_1",
}
"""Only blocks of 32: widths need not be multiples of 256."""


@dataclass
class Shape:
    """Sizes of a model; letters as in ``kinetic.backends.base``."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    types: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    replace: Mapping[str, np.ndarray] = field(default_factory=dict)

    def kind(self, name: str) -> str:
        """Format of the matrix ``name``, such as blk.0.attn_q.weight."""
        part = name.removesuffix(".weight").split(".")[-1]
        return self.types.get(part, self.types.get("", "Q8_0"))


def learned_merges(count: int, text: str = TEXT) -> list[str]:
    """Byte-pair merges of ``text``, the most frequent pair first, ties by spelling."""
    words = Counter(" " + word for word in text.split())
    pieces = {word: tuple(BYTE_CHARACTERS[byte] for byte in word.encode()) for word in words}
    merges = []
    for _ in range(count):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in pieces.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(" ".join(best))
        pieces = {word: _joined(parts, best) for word, parts in pieces.items()}
    return merges


def _joined(parts: Sequence[str], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in parts:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def chatml_tokenizer(merges: int = 50) -> dict[str, Any]:
    """Byte-level BPE with the control tokens of ChatML; 259 tokens and one for each merge."""
    special = [("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)]
    first = 256 + merges
    keys = {"bos_token_id": first, "eos_token_id": first + 2, "padding_token_id": first}
    metadata = byte_level(learned_merges(merges), special, add_bos_token=False, **keys)
    return metadata | {"tokenizer.chat_template": CHATML}


def gemma_tokenizer(pieces: int = 50) -> dict[str, Any]:
    """SentencePiece with the turns of Gemma, a user-defined token, and no space prefix."""
    texts = dict.fromkeys(merge.replace(" ", "").replace("\u0120", "\u2581") for merge in learned_merges(pieces))
    letters = sorted(set("\u2581" + TEXT.replace(" ", "")) - set(texts))
    scored = [(text, -float(rank)) for rank, text in enumerate([*texts, *letters])]
    special = [("<start_of_turn>", CONTROL), ("<end_of_turn>", CONTROL), ("\n\n", USER_DEFINED)]
    keys = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "eot_token_id": 260 + len(scored)}
    metadata = sentence_piece(scored, special, add_bos_token=True, add_space_prefix=False, **keys)
    return metadata | {"tokenizer.chat_template": GEMMA_TURNS}


def write_tiny_llama(
    path: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    width: int = 256,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    ffn: int = 256,
    merges: int = 50,
    types: Mapping[str, str] = MIXED,
    tied: bool = False,
    biases: bool = False,
    rope_scale: float = 1.0,
    rope_divisors: bool = False,
    context: int = 2048,
    replace: Mapping[str, np.ndarray] | None = None,
    keys: Mapping[str, Any] | None = None,
) -> Path:
    """A model of family ``llama``. ``replace`` gives tensors as float arrays, ``keys`` adds or replaces metadata."""
    tokenizer = chatml_tokenizer(merges)
    shape = Shape(
        layers,
        width,
        heads,
        kv_heads,
        head_dim,
        ffn,
        len(tokenizer["tokenizer.ggml.tokens"]),
        types,
        seed,
        replace or {},
    )
    metadata = _settings("llama", shape, context) | tokenizer
    if rope_scale != 1.0:
        metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": rope_scale}
    # As an output matrix the table must be small, and then it is a small part of the sum of the layers.
    table = 3.0 / math.sqrt(width) if tied else 1.0
    tensors = [("token_embd.weight", (shape.vocab, width), table), ("output_norm.weight", (width,), 0.2)]
    if not tied:
        tensors.append(("output.weight", (shape.vocab, width), 3.0 / math.sqrt(width)))
    if rope_divisors:
        tensors.append(("rope_freqs.weight", (head_dim // 2,), 0.2))
    for layer in range(layers):
        tensors += _layer(f"blk.{layer}.", shape, ("attn_norm", "ffn_norm"))
        tensors += _biases(f"blk.{layer}.", shape) if biases else []
    return _write(path, metadata | dict(keys or {}), shape, tensors)


def write_tiny_gemma3(
    path: Path,
    *,
    seed: int = 0,
    layers: int = 7,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 1,
    head_dim: int = 32,
    ffn: int = 96,
    pieces: int = 50,
    window: int = 64,
    types: Mapping[str, str] | None = None,
    rope_scale: float = 1.0,
    context: int = 2048,
    replace: Mapping[str, np.ndarray] | None = None,
    keys: Mapping[str, Any] | None = None,
) -> Path:
    """A model of family ``gemma3``: every sixth layer sees all keys, the others the last ``window``."""
    tokenizer = gemma_tokenizer(pieces)
    count = len(tokenizer["tokenizer.ggml.tokens"])
    mix = types or GEMMA_MIX
    shape = Shape(layers, width, heads, kv_heads, head_dim, ffn, count, mix, seed, replace or {})
    metadata = _settings("gemma3", shape, context) | tokenizer | {"gemma3.attention.sliding_window": window}
    metadata["gemma3.rope.freq_base"] = 1_000_000.0
    if rope_scale != 1.0:
        metadata |= {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": rope_scale}
    # The table is the output matrix too, and is scaled by the root of the width where it is read.
    tensors = [("token_embd.weight", (count, width), 1.6 / math.sqrt(width)), ("output_norm.weight", (width,), 0.2)]
    norms = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
    for layer in range(layers):
        p = f"blk.{layer}."
        tensors += _layer(p, shape, norms)
        tensors += [(f"{p}attn_{name}_norm.weight", (head_dim,), 0.2) for name in "qk"]
    return _write(path, metadata | dict(keys or {}), shape, tensors)


def write_tiny_qwen3(path: Path, *, seed: int = 0, types: Mapping[str, str] | None = None) -> Path:
    """A model of family ``qwen3``: heads normed before rotation, heads wider than their share of the width."""
    tokenizer = chatml_tokenizer()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    shape = Shape(2, 64, 6, 2, 48, 96, count, types or GEMMA_MIX, seed, {})
    tensors = [("token_embd.weight", (count, 64), 3.0 / math.sqrt(64)), ("output_norm.weight", (64,), 0.2)]
    for layer in range(shape.layers):
        p = f"blk.{layer}."
        tensors += _layer(p, shape, ("attn_norm", "ffn_norm"))
        tensors += [(f"{p}attn_{name}_norm.weight", (shape.head_dim,), 0.2) for name in "qk"]
    return _write(path, _settings("qwen3", shape, 2048) | tokenizer, shape, tensors)


MIXTURES: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "mixtral": ("llama", {"": "Q8_0", "ffn_gate_inp": "F32", "ffn_down_exps": "Q4_1"}, {}),
    "qwen3moe": (
        "qwen3moe",
        {"": "Q4_0", "ffn_gate_inp": "F32", "ffn_up_exps": "Q5_0", "ffn_down_exps": "F16"},
        {"expert_feed_forward_length": 96},
    ),
    "granitemoe": (
        "granitemoe",
        {"": "Q8_0", "ffn_gate_inp": "F16", "ffn_gate_exps": "BF16", "ffn_up_exps": "MXFP4"},
        {
            "expert_shared_feed_forward_length": 32,
            "embedding_scale": 1.5,
            "residual_scale": 0.75,
            "attention.scale": 0.2,
            "logit_scale": 0.5,
        },
    ),
}
"""Models with experts: their architecture, formats, and settings of their own."""


def write_tiny_mixture(path: Path, name: str, *, seed: int = 4, experts: int = 6, used: int = 2) -> Path:
    """One of ``MIXTURES``: layers of attention and a mixture of experts."""
    architecture, types, settings = MIXTURES[name]
    tokenizer = chatml_tokenizer()
    count = len(tokenizer["tokenizer.ggml.tokens"])
    s = Shape(2, 64, 4, 2, 32, 96, count, types, seed)
    settings = {"expert_count": experts, "expert_used_count": used} | settings
    metadata = _settings(architecture, s, 2048) | tokenizer
    metadata |= {f"{architecture}.{key}": value for key, value in settings.items()}
    tensors: Tensors = [("token_embd.weight", (count, 64), 3.0 / math.sqrt(64)), ("output_norm.weight", (64,), 0.2)]
    for layer in range(s.layers):
        p = f"blk.{layer}."
        tensors += [row for row in _layer(p, s, ("attn_norm", "ffn_norm")) if ".ffn_" not in row[0] or len(row[1]) == 1]
        tensors += _experts(p, s, experts, settings.get("expert_shared_feed_forward_length", 0))
        if name == "qwen3moe":
            tensors += [(f"{p}attn_{part}_norm.weight", (s.head_dim,), 0.2) for part in "qk"]
    return _write(path, metadata, s, tensors)


Tensors = list[tuple[str, tuple[int, ...], float]]


def _settings(architecture: str, s: Shape, context: int) -> dict[str, Any]:
    values = {
        "block_count": s.layers,
        "embedding_length": s.width,
        "context_length": context,
        "feed_forward_length": s.ffn,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": s.head_dim,
    }
    general = {"architecture": architecture, "name": f"tiny {architecture}", "quantization_version": 2}
    return {f"general.{key}": value for key, value in general.items()} | {
        f"{architecture}.{key}": value for key, value in values.items()
    }


def _layer(p: str, s: Shape, norms: Sequence[str]) -> Tensors:
    """(name, shape, spread); a norm's spread is around 1."""
    q, kv, e = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.width
    out: Tensors = [(f"{p}{name}.weight", (e,), 0.2) for name in norms]
    matrices = {"attn_q": (q, e), "attn_k": (kv, e), "attn_v": (kv, e), "attn_output": (e, q)}
    matrices |= {"ffn_gate": (s.ffn, e), "ffn_up": (s.ffn, e), "ffn_down": (e, s.ffn)}
    return out + [(f"{p}{name}.weight", shape, 1.5 / math.sqrt(shape[1])) for name, shape in matrices.items()]


def _experts(p: str, s: Shape, count: int, shared: int) -> Tensors:
    e, f = s.width, s.ffn
    shapes: dict[str, tuple[int, ...]] = {"gate_inp": (count, e), "gate_exps": (count, f, e), "up_exps": (count, f, e)}
    shapes["down_exps"] = (count, e, f)
    if shared:
        shapes |= {"gate_shexp": (shared, e), "up_shexp": (shared, e), "down_shexp": (e, shared)}
    return [(f"{p}ffn_{name}.weight", shape, 1.5 / math.sqrt(shape[-1])) for name, shape in shapes.items()]


def _biases(p: str, s: Shape) -> Tensors:
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    lengths = {"attn_q": q, "attn_k": kv, "attn_v": kv, "attn_output": s.width}
    lengths |= {"ffn_gate": s.ffn, "ffn_up": s.ffn, "ffn_down": s.width}
    return [(f"{p}{name}.bias", (length,), 0.3) for name, length in lengths.items()]


def _write(path: Path, metadata: Mapping[str, Any], s: Shape, tensors: Tensors) -> Path:
    writer = GgufWriter()
    for name, value in metadata.items():
        # Ids and counts are unsigned in real files.
        writer.key(name, value, "FLOAT32" if name.endswith("scores") else None)
    for number, (name, shape, spread) in enumerate(tensors):
        stream = 1000 * s.seed + 2 * number + 1
        if name in s.replace:
            writer.tensor(name, np.asarray(s.replace[name], np.float32).reshape(shape))
        elif len(shape) == 1:
            centre = 0.0 if name.endswith(".bias") else 9.0 if ".post_" in name else 1.0
            values = normals(stream, 1, shape[0]) * np.float32(spread) + np.float32(centre)
            writer.raw_tensor(name, shape, 0, encode_floats(FORMATS["F32"], values).tobytes())
        else:
            fmt = FORMATS[s.kind(name)]
            rows = random_rows(fmt, math.prod(shape[:-1]), shape[-1], stream, spread)
            writer.raw_tensor(name, shape, fmt.TYPE_ID, rows.tobytes())
    return writer.write(path)

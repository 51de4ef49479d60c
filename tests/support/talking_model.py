"""A real model file, small enough to write in a moment, that says what a test tells it.

Every byte is a token. The weights of attention and feed-forward are zero, so the next token
depends on the last one alone: after a byte of ``answer`` comes the next byte of it, after its
last byte the end token, after anything else its first byte. Bytes of ``answer`` must differ
from each other. ``scale`` makes the choice clear (far beyond what sampling can overturn) or,
where it is small, a matter of chance.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.gguf_writer import GgufWriter
from tests.support.tiny_tokenizers import CONTROL, byte_level

END, BEGIN, VOCABULARY = 256, 257, 258
ANSWER = b"one day"
OVERFLOW = ord("!")
"""After this byte a model written with ``overflow`` gives a logit that is not finite."""

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"

WIDTH, HEAD, FFN = 256, 32, 32


def write_talker(
    path: Path,
    answer: bytes = ANSWER,
    *,
    template: str | None = None,
    context: int = 64,
    scale: float = 1.0,
    overflow: bool = False,
) -> Path:
    assert len(set(answer)) == len(answer) > 0
    special = (("<end>", CONTROL), ("<begin>", CONTROL))
    writer = GgufWriter().keys(
        {
            "general.architecture": "llama",
            "general.name": "Talker",
            "llama.context_length": context,
            "llama.embedding_length": WIDTH,
            "llama.block_count": 1,
            "llama.feed_forward_length": FFN,
            "llama.attention.head_count": 1,
            "llama.attention.head_count_kv": 1,
            "llama.attention.key_length": HEAD,
            "llama.attention.value_length": HEAD,
            "llama.attention.layer_norm_rms_epsilon": 1e-6,
        }
    )
    writer.keys(byte_level(special=special, bos_token_id=BEGIN, eos_token_id=END, add_bos_token=True))
    if template is not None:
        writer.key("tokenizer.chat_template", template)
    for name, values in _tensors(answer, scale, overflow).items():
        writer.tensor(name, values.astype(np.float32))
    return writer.write(path)


def _tensors(answer: bytes, scale: float, overflow: bool) -> dict[str, np.ndarray]:
    """Each token's embedding is a code of its own, nearly orthogonal to the others."""
    codes = np.random.default_rng(1).choice([-1.0, 1.0], (VOCABULARY, WIDTH))
    codes[:, 0], codes[:, 1] = 1.0, 0.0  # what all have in common, and what only OVERFLOW has
    codes[OVERFLOW, 1] = 2.0
    head = np.zeros((VOCABULARY, WIDTH))
    for last, following in zip(answer, [*answer[1:], END], strict=True):
        head[following] += codes[last]
    head[answer[0], 0] += WIDTH / 2
    head *= scale
    head[0, 1] = 3e38 if overflow else 0.0
    one = np.ones(WIDTH)
    return {
        "token_embd.weight": codes,
        "output_norm.weight": one,
        "output.weight": head,
        "blk.0.attn_norm.weight": one,
        "blk.0.ffn_norm.weight": one,
        "blk.0.attn_q.weight": np.zeros((HEAD, WIDTH)),
        "blk.0.attn_k.weight": np.zeros((HEAD, WIDTH)),
        "blk.0.attn_v.weight": np.zeros((HEAD, WIDTH)),
        "blk.0.attn_output.weight": np.zeros((WIDTH, HEAD)),
        "blk.0.ffn_gate.weight": np.zeros((FFN, WIDTH)),
        "blk.0.ffn_up.weight": np.zeros((FFN, WIDTH)),
        "blk.0.ffn_down.weight": np.zeros((WIDTH, FFN)),
    }

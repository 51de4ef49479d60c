"""Tokenizers of the built-in models, as metadata: small, but with every kind of token that real ones have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from kinetic.api.probe import BYTE_CHARACTERS

TEXT = (
    "the quick brown fox jumps over the lazy dog and the river runs to the sea where the old ships rest in the sun "
    "one two three rivers name them all then tell me what the answer is and why the answer is what it is"
)
"""What merges are learned from."""

MERGES = 50
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
"""Kinds of token, as GGUF numbers them."""

COMMON = 300
"""Every built-in vocabulary has tokens 3 .. COMMON - 1."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] "
    "+ '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


@cache
def learned_merges() -> tuple[str, ...]:
    """Byte-pair merges of ``TEXT``, the most frequent pair first, ties by spelling."""
    words = Counter(" " + word for word in TEXT.split())
    pieces = {word: tuple(BYTE_CHARACTERS[byte] for byte in word.encode()) for word in words}
    merges = []
    for _ in range(MERGES):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in pieces.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(" ".join(best))
        pieces = {word: _joined(parts, best) for word, parts in pieces.items()}
    return tuple(merges)


def _joined(parts: Sequence[str], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in parts:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def byte_level() -> dict[str, Any]:
    """Byte-level BPE with the control tokens of ChatML: 256 bytes, the merges, three more."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = learned_merges()
    tokens = [*BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in merges), *special]
    first = 256 + len(merges)
    return _keys(
        model="gpt2",
        pre="gpt-2",
        tokens=tokens,
        token_type=[NORMAL] * first + [CONTROL] * len(special),
        merges=[*merges],
        bos_token_id=first,
        eos_token_id=first + 2,
        padding_token_id=first,
        add_bos_token=False,
    ) | {"tokenizer.chat_template": CHATML}


def sentence_piece() -> dict[str, Any]:
    """SentencePiece with byte tokens, scored pieces, turns, a user-defined token, and no space prefix."""
    texts = dict.fromkeys(merge.replace(" ", "").replace("\u0120", "\u2581") for merge in learned_merges())
    letters = sorted(set("\u2581" + TEXT.replace(" ", "")) - set(texts))
    scored = [*texts, *letters]
    special = [("<start_of_turn>", CONTROL), ("<end_of_turn>", CONTROL), ("\n\n", USER_DEFINED)]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(scored), *(kind for _, kind in special)]
    return _keys(
        model="llama",
        tokens=["<unk>", "<s>", "</s>", *byte_tokens, *scored, *(text for text, _ in special)],
        token_type=kinds,
        scores=[0.0] * 259 + [-float(rank) for rank in range(len(scored))] + [-1000.0] * len(special),
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
        eot_token_id=260 + len(scored),
        add_bos_token=True,
        add_space_prefix=False,
    ) | {"tokenizer.chat_template": TURNS}


def _keys(**keys: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items()}

"""Cutting text into words before byte-pair merging, by the name in ``tokenizer.ggml.pre``.

The patterns are those the models were trained with (their tokenizer.json),
checked against llama.cpp's output. A file with an unknown name is refused: a
near miss would change tokens without anyone noticing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kinetic.errors import UnsupportedModel

CONTRACTION = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SINGLE_DIGITS = r"(\p{N})"
LLAMA3 = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
QWEN2 = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
QWEN35 = (
    rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
)

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?:{CONTRACTION})?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?:{CONTRACTION})?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)

DEEPSEEK_LETTERS = (
    "(\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57"
    "\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124"
    "\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943]+)"
)
DEEPSEEK_LLM = (
    r"([\r\n])",
    DEEPSEEK_LETTERS,
    "(\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+)",
    r"(\s+\Z)",
    "([\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+)",
    r"(\p{N}+)",
)
DEEPSEEK_V3 = (
    r"(\p{N}{1,3})",
    "([\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+)",
    "([!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+)",
)
FALCON = (r"([\p{P}\$\+<=>\^~\|`]+)", GPT2, r"([0-9][0-9][0-9])")
DEFAULT = (r"([\p{P}\$\+<=>\^~\|]+)", GPT2, r"(\p{N}+)", r"([0-9][0-9][0-9])")
LINES = r"[^\n]+|\n+"


@dataclass(frozen=True)
class PreTokenizer:
    """``stages`` cut one after the other. One with a capturing group keeps what lies between its matches."""

    stages: tuple[str, ...]
    ignore_merges: bool = False
    """A word that is a token stays whole, whatever the merges say."""
    add_bos: bool = False
    """What holds where the file does not say."""


_GPT2 = PreTokenizer((GPT2,))
_SMOLLM = PreTokenizer((SINGLE_DIGITS, GPT2))
_LLAMA3 = PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)
_LLAMA3_MERGES = PreTokenizer((LLAMA3,))
_GPT4O = PreTokenizer((GPT4O,))

PRE_TOKENIZERS = {
    "default": PreTokenizer(DEFAULT),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "jais": _GPT2,
    "trillion": _GPT2,
    "exaone4": _GPT2,
    "granite-docling": _GPT2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "command-r": _SMOLLM,
    "codeshell": _SMOLLM,
    "exaone": _SMOLLM,
    "minerva-7b": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "pixtral": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": _LLAMA3_MERGES,
    "smaug-bpe": _LLAMA3_MERGES,
    "chatglm-bpe": _LLAMA3_MERGES,
    "glm4": PreTokenizer((LLAMA3,), ignore_merges=True),
    "qwen2": PreTokenizer((QWEN2,)),
    "deepseek-r1-qwen": PreTokenizer((QWEN2,)),
    "stablelm2": PreTokenizer((QWEN2,)),
    "megrez": PreTokenizer((QWEN2,)),
    "hunyuan": PreTokenizer((QWEN2,)),
    "qwen35": PreTokenizer((QWEN35,)),
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "tekken": PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True),
    "deepseek-llm": PreTokenizer(DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(
        (r"([\r\n])", r"(\s?\p{L}+)", r"(\s?\p{P}+)", "([\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+)", r"(\p{N})")
    ),
    "deepseek-v3": PreTokenizer(DEEPSEEK_V3),
    "hunyuan-dense": PreTokenizer(DEEPSEEK_V3),
    "falcon": PreTokenizer(FALCON),
    "gemma4": PreTokenizer((LINES,), add_bos=True),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Look up a name, or raise UnsupportedModel UNKNOWN_PRE_TOKENIZER."""
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"pre-tokenizer {name!r} is not built in, and another one would change the tokens",
            name="UNKNOWN_PRE_TOKENIZER",
        )
    return PRE_TOKENIZERS[name]


def word_splitter(stages: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Compile ``stages`` into a function from text to its words; joined again they give the text."""
    import regex  # type: ignore[import-untyped]  # only files with byte-pair tokenizers pay for it

    cuts = [_cut(regex.compile(stage)) for stage in stages]

    def split(text: str) -> list[str]:
        words = [text]
        for cut in cuts:
            words = [piece for word in words for piece in cut(word)]
        return words

    return split


def _cut(pattern: Any) -> Callable[[str], list[str]]:
    """One stage. With a group, matches and the gaps between them; without, the pattern matches every character."""
    if pattern.groups:
        return lambda text: [piece for piece in pattern.split(text) if piece]
    find: Callable[[str], list[str]] = pattern.findall
    return find

"""Cutting text into words before byte-pair merging, by the name in ``tokenizer.ggml.pre``.

The patterns are those the models were trained with (their tokenizer.json), checked against llama.cpp's output. Where
llama.cpp writes one more simply, because its expressions lack a class, the model's own is kept: gpt-4o, tekken, kimi-k2
and their relatives cut differently there at combining marks and at letters with case outside ASCII, tiny_aya at digits
beside letters outside ASCII. A file with an unknown name is refused: a near miss would change tokens without anyone
noticing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kinetic.errors import UnsupportedModel
from kinetic.text import patterns


@dataclass(frozen=True)
class PreTokenizer:
    """``stages`` cut one after the other (see patterns.py)."""

    stages: tuple[str, ...]
    ignore_merges: bool = False
    """A word that is a token stays whole, whatever the merges say."""
    add_bos: bool = False
    """What holds where the file does not say."""
    raw: bool = False
    """Words stay text with U+2581 for spaces, instead of becoming byte characters."""


_GPT2 = PreTokenizer((patterns.GPT2,))
_DIGITS = PreTokenizer((patterns.SINGLE_DIGITS, patterns.GPT2))
_LLAMA3 = PreTokenizer((patterns.LLAMA3,), ignore_merges=True, add_bos=True)
_LLAMA3_MERGES = PreTokenizer((patterns.LLAMA3,))
_GLM4 = PreTokenizer((patterns.LLAMA3,), ignore_merges=True)
_QWEN2 = PreTokenizer((patterns.QWEN2,))
_GPT4O = PreTokenizer((patterns.GPT4O,))
_DEEPSEEK_V3 = PreTokenizer(patterns.DEEPSEEK_V3)
_SENTENCES = PreTokenizer((patterns.SENTENCES,))
_BAILING = PreTokenizer((patterns.BAILING,))
_TINY_AYA = PreTokenizer(patterns.TINY_AYA)
_LINES = PreTokenizer((patterns.LINES,), add_bos=True, raw=True)

_NAMES: tuple[tuple[PreTokenizer, str], ...] = (
    (PreTokenizer(patterns.DEFAULT), "default"),
    (
        _GPT2,
        "gpt-2 phi-2 mpt olmo jais trillion exaone4 granite-docling jina-es jina-de jina-v2-es jina-v2-de jina-v1-en"
        " jina-v2-code roberta-bpe gigachat a.x-4.0 mellum modern-bert",
    ),
    (_DIGITS, "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    (_LLAMA3, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0 jina-v5-nano"),
    (_LLAMA3_MERGES, "dbrx smaug-bpe chatglm-bpe"),
    (_GLM4, "glm4 glm5"),
    (_QWEN2, "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan kormo f2llmv2 solar-open grok-2"),
    (PreTokenizer((patterns.QWEN35,)), "qwen35"),
    (_GPT4O, "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (PreTokenizer((patterns.GPT4O,), ignore_merges=True), "granite-embed-multi-97m"),
    (PreTokenizer((patterns.TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (PreTokenizer(patterns.DEEPSEEK_LLM), "deepseek-llm"),
    (PreTokenizer(patterns.DEEPSEEK_CODER), "deepseek-coder"),
    (_DEEPSEEK_V3, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (PreTokenizer(patterns.FALCON), "falcon"),
    (_SENTENCES, "bloom poro-chat gpt3-finnish"),
    (PreTokenizer(patterns.VIKING), "viking"),
    (PreTokenizer((patterns.JAIS2,)), "jais-2"),
    (PreTokenizer((patterns.EXAONE_MOE,)), "exaone-moe"),
    (_BAILING, "bailingmoe bailingmoe2 llada-moe"),
    (PreTokenizer((patterns.SEED_CODER,)), "seed-coder"),
    (PreTokenizer((patterns.UFAKZEKA,)), "ufakzeka"),
    (PreTokenizer(patterns.MINICPM5, ignore_merges=True), "minicpm5"),
    (PreTokenizer(patterns.LAGUNA), "laguna"),
    (_TINY_AYA, "tiny_aya cohere2moe"),
    (PreTokenizer(patterns.YOUTU, ignore_merges=True), "youtu"),
    (PreTokenizer((patterns.KIMI,)), "kimi-k2"),
    (PreTokenizer(patterns.SUPERBPE), "superbpe"),
    (PreTokenizer(patterns.CHAMELEON, add_bos=True), "chameleon"),
    (PreTokenizer(patterns.SPARK), "spark2_5"),
    (_LINES, "gemma4 granite-embed-multi-311m"),
)
PRE_TOKENIZERS = {name: pre for pre, names in _NAMES for name in names.split()}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Look up a name, or raise UnsupportedModel UNKNOWN_PRE_TOKENIZER."""
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not built in, and another one would change the tokens:"
            " a newer version may have it",
            name="UNKNOWN_PRE_TOKENIZER",
        )
    return PRE_TOKENIZERS[name]


def word_splitter(stages: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Compile ``stages`` into a function from text to its words; joined again they give the text."""
    if stages == (patterns.LINES,):
        return re.compile(patterns.LINES).findall
    import regex  # type: ignore[import-untyped]  # 45 ms that other files do not pay

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

"""The regular expressions that pre-tokenizers cut text with: facts of the tokenizers, as their makers wrote them.

Several names of ``pretokenize.py`` share one. A tuple is a row of stages, each of which cuts the pieces of the one
before; a stage with a capturing group keeps what lies between its matches, one without must match every character.
"""

from __future__ import annotations

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
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?:{CONTRACTION})?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?:{CONTRACTION})?"
)
GPT4O = rf"{_CASED}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
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

DEEPSEEK_CODER = (
    r"([\r\n])",
    r"(\s?\p{L}+)",
    r"(\s?\p{P}+)",
    "([\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+)",
    r"(\p{N})",
)
_ASCII_MARKS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
SPARK = (
    DEEPSEEK_V3[0],
    DEEPSEEK_V3[1],
    rf"({_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)",
    SINGLE_DIGITS,
)

# A word is whatever stands between white space and these marks (BLOOM and the Finnish models).
SENTENCES = "( ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+)"
VIKING = (SENTENCES, SINGLE_DIGITS)

_LETTERS = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_LONG_SPACES = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
JAIS2 = rf"{_LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_LONG_SPACES}|\s{{1,2}}(?!\S)|\s"
EXAONE_MOE = (
    rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
BAILING = rf"{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEED_CODER = rf"{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}"
UFAKZEKA = rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
MINICPM5 = (r"(\p{N}{1,3})", rf"{_LETTERS}|\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}")
LAGUNA = (LINES, QWEN2)
TINY_AYA = (r"(\d{1,3}(?=(?:\d{3})*\b))", GPT4O)
YOUTU = (
    "([\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+)",
    rf"{_CASED}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}",
)
_NOT_HAN_UPPER, _NOT_HAN_LOWER = rf"(?:(?!\p{{Han}}){_UPPER})", rf"(?:(?!\p{{Han}}){_LOWER})"
KIMI = (
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN_UPPER}*{_NOT_HAN_LOWER}+(?:{CONTRACTION})?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN_UPPER}+{_NOT_HAN_LOWER}*(?:{CONTRACTION})?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
)
# Cuts before each place from which three, six, nine ... digits follow.
_THOUSANDS = r"(?:[0-9]{3})+(?![0-9])"
SUPERBPE = (r"(\p{N}+)", rf"(?s:.(?:(?!{_THOUSANDS}).)*)")
CHAMELEON = (
    r"(<sentinel:[0-9]+>)",
    r"(IMGIMG[A-I]{1,4}Z)",
    r"([\t\n]|    |  )",
    SINGLE_DIGITS,
    r"([\p{P}!-/:-@\[-`{-~])",
    GPT2,
)

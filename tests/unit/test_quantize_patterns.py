"""Patterns of --tensor-type: beside Python's where both have one meaning, what is refused, and bounded work."""

from __future__ import annotations

import random
import re

import pytest

from kinetic.errors import LimitExceeded, UsageError
from kinetic.quantize.patterns import Pattern

NAMES = [
    "",
    "a",
    "b",
    "ab",
    "ba",
    "aab",
    "abab",
    "-",
    "a-b",
    "a.b",
    "blk.0.attn_q.weight",
    "blk.10.ffn_down.weight",
    "é",
]


@pytest.mark.parametrize(
    "text",
    [
        *(r"attn_q", r"blk\.[0-9]\.", r"blk\.(1[0-9]|2)\.ffn", r"^a+$", r"^(a|b)*$", r"^(ab){2}$", r"^(ab)?$"),
        *(
            r"^(?!.*ffn).*weight$",
            r"a(?!b)",
            r"\bq\b",
            r"k\.\d{2,}\.",
            r"^\w{1,2}$",
            r"[^a-z.]",
            r"a{0}b",
            r"x*",
            r"a|",
        ),
        *(
            r"[-a]b",
            r"[a-]$",
            r"[\w-]-b",
            r"\Bb",
            r"^.{3,4}$",
            r"^.$",
            r"^[^x]{2}$",
            r"()*b",
            r"a*?b",
            r"^\S+\W\D+$",
            r"]}",
        ),
    ],
)
def test_beside_python(text):
    """On bytes, as std::regex takes them."""
    python = re.compile(text.encode())
    for name in NAMES:
        assert Pattern(text).search(name) == bool(python.search(name.encode())), name


def made_up(chance: random.Random, depth: int = 0) -> str:
    kinds = ["a", "b", ".", "[ab]", "[^a]", r"\w", "^", "$"] + ["()", "|", "*", "+", "?", "{1,2}"] * (depth < 3)
    kind = chance.choice(kinds)
    if kind == "()":
        return f"({made_up(chance, depth + 1)}{made_up(chance, depth + 1)})"
    if kind == "|":
        return f"(?:{made_up(chance, depth + 1)}|{made_up(chance, depth + 1)})"
    if kind in ("*", "+", "?", "{1,2}"):
        return f"(?:{made_up(chance, depth + 1)}){kind}"
    return kind


def test_many_beside_python():
    chance = random.Random(7)
    texts = {"".join(made_up(chance) for _ in range(3)) for _ in range(400)}
    names = ["".join(chance.choice("ab.") for _ in range(length)) for length in range(7) for _ in range(3)]
    for text in texts:
        python = re.compile(text.encode())
        wrong = [name for name in names if Pattern(text).search(name) != bool(python.search(name.encode()))]
        assert not wrong, (text, wrong)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *((text, "inside [ ]") for text in ("blk[[:digit:]]", "[a[:alpha:]]", "[[.a.]]", "[[=a=]]", "[a-b-c]")),
        *((text, "inside [ ]") for text in ("[a--b]", "[a-[]")),
        *((text, "[] and [^]") for text in ("[]a]", "[^]a]", "[]")),
        ("é", "not ASCII"),
        *((text, "after (?") for text in ("(?i)a", "a(?=b)", "(?<=a)b", "(?P<n>a)", "(?#a)", "(?>a)")),
        *((text, "has no meaning") for text in (r"(a)\1", r"\0", r"\a", r"\z", r"\x41", r"\u0041", r"\cJ", "a\\")),
        *((text, "a repetition of") for text in ("a++", "a**", "a{2}{3}", "a*??")),
        *((text, "nothing to repeat") for text in ("*a", "a|+", "(*)", "^*", "(?!a)*")),
        *((text, "nothing to repeat") for text in ("a{,3}", "a{x}", "a{99999}", "{")),
        *((text, "at least than") for text in ("a{3,2}",)),
        *((text, "without its") for text in ("(", "a)", "[a", "[^", "(?:a", "((a)")),
        *((text, "a range") for text in ("[b-a]", r"[\d-z]", r"[a-\d]")),
        ("(" * 21 + ")" * 21, "more than 20 groups"),
    ],
)  # fmt: skip
def test_what_is_refused(text, problem):
    with pytest.raises(UsageError) as caught:
        Pattern(text)
    assert caught.value.name == "BAD_PATTERN" and problem in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    "text", ["(([a-z0-9_.]+)+)+!", "(a|a)*!", ".*" * 20 + "!", "(.?){40}!", "(" * 20 + ".*" + ")*" * 20 + "!"]
)
def test_no_pattern_takes_forever(text):
    """As they would where a search goes back and tries again."""
    assert not Pattern(text).search("blk.10.ffn_gate_exps.weight" * 2)


@pytest.mark.parametrize("text", ["(((a?){99}){99}){99}", "(){9999}(){9999}(){9999}", "(?!.*(?!.*(?!.*!)))"])
def test_work_is_bounded(text):
    with pytest.raises(LimitExceeded) as caught:
        Pattern(text).search("a" * 64)
    assert caught.value.name == "PATTERN_WORK" and "fewer repetitions" in str(caught.value)

"""Unigram tokenizers: the best way to cut a text, the replacements before it, and pairs of texts."""

from __future__ import annotations

import itertools
import random
import struct

import pytest

from kinetic.errors import MalformedGguf
from kinetic.text import load_tokenizer
from kinetic.text.charsmap import Charsmap
from kinetic.text.pairs import encode_pair
from tests.support.tiny_tokenizers import CONTROL, UNKNOWN, UNUSED, USER_DEFINED, named

SPECIAL = [("<s>", 0.0, CONTROL), ("<pad>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN)]
FIRST = len(SPECIAL)
IDS = {"bos_token_id": 0, "padding_token_id": 1, "eos_token_id": 2, "unknown_token_id": 3, "seperator_token_id": 2}


def unigram(pieces, **keys):
    """As XLM-RoBERTa's files have it. ``pieces`` are (text, score) or (text, score, kind)."""
    rows = SPECIAL + [piece if len(piece) == 3 else (*piece, 1) for piece in pieces]
    tokens, scores, kinds = (list(column) for column in zip(*rows, strict=True))
    own = {"model": "t5", "tokens": tokens, "scores": scores, "token_type": kinds}
    return load_tokenizer(named({**own, **IDS, "remove_extra_whitespaces": True, **keys}))


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special=False, parse_special=False)


def texts(tokenizer, text):
    pieces = [tokenizer.piece(token, special=True) for token in ids(tokenizer, text)]
    return [piece.decode().replace(" ", "\u2581") for piece in pieces]


def charsmap(rules):
    """The blob of these replacements: each node of the trie has 256 units of its own for its children."""
    units, replacements, blocks = [0] * 256, b"", {b"": 0}
    prefixes = sorted({key[:n] for key in rules for n in range(len(key) + 1)})
    for prefix in prefixes:
        place = blocks[prefix] + prefix[-1] if prefix else 0
        block = len(units)
        units += [0] * 256
        for child in prefixes:
            if child[:-1] == prefix and child:
                blocks[child] = block
        units[place] |= (place ^ block) << 10 | (prefix[-1] if prefix else 0)
        if prefix in rules:
            units[place] |= 1 << 8
            units[block] = 1 << 31 | len(replacements)
            replacements += rules[prefix] + b"\0"
    table = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(table)) + table + replacements


def test_the_best_sum_wins_over_the_longest_token():
    tokenizer = unigram([("\u2581a", -1.0), ("\u2581ab", -5.0), ("b", -1.0), ("\u2581", -3.0), ("a", -3.0)])
    assert texts(tokenizer, "ab") == ["\u2581a", "b"]
    assert texts(tokenizer, "ab  ab ") == ["\u2581a", "b"] * 2


def test_of_equal_sums_the_longer_last_token():
    tokenizer = unigram([("\u2581a", -1.0), ("bc", -1.0), ("\u2581ab", -1.0), ("c", -1.0)])
    assert texts(tokenizer, "abc") == ["\u2581a", "bc"]


def test_what_has_no_token_is_unknown_once():
    tokenizer = unigram([("\u2581a", -1.0), ("a", -1.0), ("\u2581", -2.0)])
    assert ids(tokenizer, "aXYZa") == [FIRST, 3, FIRST + 1]
    assert ids(tokenizer, "\ud800") == [FIRST + 2, 3]
    assert ids(tokenizer, "") == ids(tokenizer, "   ") == []


def test_user_defined_and_unused_tokens():
    tokenizer = unigram([("\u2581", -1.0), ("a", -1.0), ("<x>", -50.0, USER_DEFINED), ("aa", -0.5, UNUSED)])
    assert ids(tokenizer, "a<x>aa") == [FIRST, FIRST + 1, FIRST + 2, FIRST, FIRST + 3]


def test_any_text_is_cut_in_the_best_way():
    """Against every way there is."""
    draw = random.Random(5)
    pieces = {"".join(draw.choices("ab\u2581", k=draw.randint(1, 4))): -draw.random() * 9 for _ in range(40)}
    pieces |= dict.fromkeys("ab▁", -9.0)
    tokenizer = unigram(list(pieces.items()), remove_extra_whitespaces=False, add_space_prefix=False)
    for _ in range(60):
        text = "".join(draw.choices("ab ", k=draw.randint(1, 9)))
        plain = text.replace(" ", "\u2581")
        cuts = (
            [plain[i:j] for i, j in itertools.pairwise([0, *inner, len(plain)])]
            for count in range(len(plain))
            for inner in itertools.combinations(range(1, len(plain)), count)
        )
        best = max(sum(pieces[part] for part in cut) for cut in cuts if all(part in pieces for part in cut))
        found = texts(tokenizer, text)
        assert "".join(found) == plain
        assert abs(sum(pieces[part] for part in found) - best) < 1e-12


@pytest.mark.parametrize(
    "joins, prefix, expected",
    [
        (True, True, "\u2581a\u2581b"),
        (True, False, "\u2581a\u2581b"),
        (False, True, "\u2581\u2581\u2581a\u2581\u2581b\u2581"),
        (False, False, "\u2581\u2581a\u2581\u2581b\u2581"),
    ],
)
def test_spaces(joins, prefix, expected):
    tokenizer = unigram([("a", -1.0)], remove_extra_whitespaces=joins, add_space_prefix=prefix)
    assert tokenizer._encoder.normalise("  a  b ") == expected


RULES = {
    "ﬁ".encode(): b"fi",
    "Ａ".encode(): b"A",
    b"\t": b" ",
    b"ab": b"x",
    b"a": b"y",
    b"abcd": b"z",
    "\u200b".encode(): b"",
}


def test_replacements():
    """The longest from the left; what matches nothing stays."""
    table = Charsmap(charsmap(RULES))
    assert table.replace("ﬁne Ａ\tb\u200bé日") == "fine A bé日"
    assert table.replace("abc abcd a ac aab") == "xc z y yc yx"
    assert table.replace("") == ""
    assert table.replace("q\0a\0") == "q\0y\0"
    tokenizer = unigram([("\u2581", -1.0), ("x", -1.0)], precompiled_charsmap=list(charsmap(RULES)))
    assert ids(tokenizer, "ab") == [FIRST, FIRST + 1]


@pytest.mark.parametrize("spoil", ["a distance", "a text", "an end", "a size"])
def test_a_table_that_points_outside_itself_is_refused(spoil):
    blob = bytearray(charsmap(RULES))
    if spoil == "a distance":
        blob[4:8] = struct.pack("<I", 1 << 20 << 10)
    elif spoil == "a text":
        size = int.from_bytes(blob[:4], "little")
        values = [n for n in range(4, 4 + size, 4) if blob[n + 3] & 0x80]
        for n in values:
            blob[n : n + 4] = struct.pack("<I", 1 << 31 | 1 << 20)
    elif spoil == "an end":
        blob = bytearray(blob.rstrip(b"\0"))[:-1]
    else:
        blob[:4] = struct.pack("<I", 1 << 30)
    with pytest.raises(MalformedGguf, match="charsmap") as caught:
        unigram([("a", -1.0)], precompiled_charsmap=list(blob)).encode(
            "ab ﬁ abcd Ａ\u200b", add_special=True, parse_special=False
        )
    assert caught.value.name == "BAD_NORMALIZER"


def test_what_is_missing_is_refused():
    for key, name in (("scores", "MISSING_SCORES"), ("unknown_token_id", None)):
        if name:
            with pytest.raises(MalformedGguf) as caught:
                unigram([("a", -1.0)], **{key: None})
            assert caught.value.name == name
    with pytest.raises(MalformedGguf) as caught:
        load_tokenizer(named({"model": "t5", "tokens": ["a"], "scores": [0.0], "token_type": [1]}))
    assert caught.value.name == "MISSING_UNKNOWN"


def test_a_token_too_long_is_refused():
    unigram([("a" * 512, -1.0)])
    with pytest.raises(MalformedGguf) as caught:
        unigram([("a" * 513, -1.0)])
    assert caught.value.name == "LONG_TOKEN"


def test_special_tokens_and_pairs():
    """``<s> query </s></s> document </s>``."""
    tokenizer = unigram([("\u2581a", -1.0), ("\u2581b", -1.0)], add_bos_token=True, add_sep_token=True)
    assert tokenizer.encode("a b", add_special=True, parse_special=False) == [0, FIRST, FIRST + 1, 2]
    assert encode_pair(tokenizer, "", "a", "b") == [0, FIRST, 2, 2, FIRST + 1, 2]

"""Streamed text: whole characters, stop strings across tokens, and always the final text in the end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetic.errors import UsageError
from kinetic.text.stream import TextStream, final_text, find_stop


class Pieces:
    """A tokenizer whose token n is the n-th of the given byte strings."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def piece(self, token, *, special=False):
        return self.pieces[token]


def streamed(pieces, stop=()):
    """What each feed and then finish shows, and the stop string."""
    stream = TextStream(Pieces(*pieces), stop)
    shown = [stream.feed(token) for token in range(len(pieces))]
    return [*shown, stream.finish()], stream.stopped


def final(pieces, stop=()):
    return final_text(Pieces(*pieces), range(len(pieces)), stop)


def test_characters_are_shown_whole():
    cat = "😸".encode()  # CASES S8: f0 9f 98 | b8
    assert streamed([b"a", cat[:3], cat[3:], b"b"]) == (["a", "", "😸", "b", ""], None)
    assert streamed([bytes([byte]) for byte in "é你😀".encode()])[0] == ["", "é", "", "", "你", "", "", "", "😀", ""]


def test_no_replacement_character_before_the_text_is_known_to_be_broken():
    assert streamed([b"\xf0\x9f", b"\x98"])[0] == ["", "", "\ufffd"]  # max_tokens inside a character (S9)
    assert streamed([b"\xf0\x9f", b"x"])[0] == ["", "\ufffdx", ""]
    assert streamed([b"\xe2", b"\x82", b"\xac"])[0] == ["", "", "€", ""]


@pytest.mark.parametrize("broken", [b"\xc0\xaf", b"\xed\xa0\xbd", b"\xf4\x90\x80\x80", b"\xff", b"\x80\x80"])
def test_broken_bytes_come_out_as_in_the_final_text(broken):
    pieces = [b"a", *(bytes([byte]) for byte in broken), b"b"]
    assert "".join(streamed(pieces)[0]) == (b"a" + broken + b"b").decode("utf-8", "replace") == final(pieces)[0]


def test_a_stop_string_over_several_tokens_is_never_shown():
    pieces = [b" L", b" M", b" N", b" O", b" P", b" Q", b" R"]
    shown, stopped = streamed(pieces, ["O P Q"])
    assert (shown, stopped) == ([" L", " M", " N", " ", "", "", "", ""], "O P Q")
    assert final(pieces, ["O P Q"]) == (" L M N ", "O P Q")


def test_held_text_is_released_when_no_stop_comes():
    assert streamed([b"ab", b"ac", b"aba", b"b"], ["abab"]) == (["", "abac", "", "", ""], "abab")
    assert streamed([b"x", b"aba"], ["abab"]) == (["x", "", "aba"], None)


def test_the_stop_string_complete_first_wins():
    assert final([b"xabcd"], ["abcd", "bc"]) == ("xa", "bc")
    assert final([b"xabc"], ["c", "abc", "bc"]) == ("x", "abc")  # complete at once: the longest
    assert find_stop("none here", ["x", "yz"]) == (9, None)


def test_nothing_follows_a_stop_string():
    stream = TextStream(Pieces(b"a<end>b", b"c<end>"), ["<end>"])
    assert [stream.feed(0), stream.feed(1), stream.finish()] == ["a", "", ""]


def test_stop_strings_may_hold_any_character():
    assert final([b"\xe2", b"\x82\xac!", b"x"], ["€!"]) == ("", "€!")
    assert streamed([b"a", b"\xff"], ["\ufffd"]) == (["a", "", ""], "\ufffd")


def test_empty_stop_strings_are_refused():
    for stop in ([""], ["a", ""]):
        with pytest.raises(UsageError) as caught:
            TextStream(Pieces(), stop)
        assert caught.value.name == "EMPTY_STOP_STRING"


def cut_up(data, cuts):
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[first:last] for first, last in pairwise(edges)]


ALPHABET = st.sampled_from([b"a", b"b", b"ab", "é".encode(), "😀".encode(), b"\xf0", b"\x9f", b"\xff"])
STOPS = st.lists(st.sampled_from(["a", "ab", "ba", "aba", "bab", "é", "é😀", "\ufffd", "a\ufffd"]), max_size=3)


@given(st.lists(ALPHABET, max_size=14).map(b"".join), st.lists(st.integers(0, 99), max_size=9), STOPS)
def test_the_pieces_add_up_to_the_final_text(data, cuts, stop):
    """However the bytes are cut into tokens, what was shown is the final text, and no character was ever taken back."""
    pieces = cut_up(data, cuts)
    shown, stopped = streamed(pieces, stop)
    assert ("".join(shown), stopped) == final([data], stop) == final(pieces, stop)
    assert all("\ufffd" in final([data], stop)[0] for text in shown if "\ufffd" in text)

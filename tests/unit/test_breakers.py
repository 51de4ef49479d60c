"""Sequence breakers of DRY as tokens."""

import pytest

from kinetic.text import load_tokenizer
from kinetic.text.breakers import MOST_TOKENS, breaker_runs
from tests.support.tiny_tokenizers import CONTROL, byte_level, sentence_piece


@pytest.fixture(scope="module")
def tokenizer():
    """Bytes, "ab", "bc", "abc" and a control token."""
    return load_tokenizer(byte_level(merges=["a b", "b c", "ab c"], special=[("<a:b>", CONTROL)]))


def spelled(tokenizer, *texts):
    return sorted([tokenizer.piece(token, special=True) for token in run] for run in breaker_runs(tokenizer, texts))


def test_a_token_that_holds_the_text_is_a_run_by_itself(tokenizer):
    assert spelled(tokenizer, ":") == [[b":"], [b"<a:b>"]]
    assert spelled(tokenizer, "c") == [[b"abc"], [b"bc"], [b"c"]]


def test_a_token_that_ends_with_its_beginning_goes_on_with_the_rest(tokenizer):
    assert spelled(tokenizer, "bc") == [[b"ab", b"c"], [b"abc"], [b"b", b"c"], [b"bc"]]
    assert spelled(tokenizer, "cab") == [[b"abc", b"ab"], [b"bc", b"ab"], [b"c", b"ab"]]
    assert spelled(tokenizer, "aab") == [[b"a", b"ab"]]


def test_several_texts_give_each_run_once(tokenizer):
    assert spelled(tokenizer, "bc", "c") == [[b"ab", b"c"], [b"abc"], [b"b", b"c"], [b"bc"], [b"c"]]
    assert breaker_runs(tokenizer, []) == ()


def test_a_rest_is_cut_and_never_begins_inside_a_character(tokenizer):
    assert {len(run) for run in breaker_runs(tokenizer, ["x" * 40])} == {1 + MOST_TOKENS}
    euro = [bytes([byte]) for byte in "\u20ac".encode()]
    assert spelled(tokenizer, "\u20ac") == []
    assert spelled(tokenizer, "z\u20ac") == [[b"z", *euro]]


def test_the_rest_is_encoded_as_any_text_is():
    """With a SentencePiece model that includes the space prefix: llama.cpp does the same."""
    tokenizer = load_tokenizer(sentence_piece())
    runs = spelled(tokenizer, "ab")
    assert runs
    assert all(run[0].endswith(b"a") for run in runs)

"""Tokenizers on vocabularies small enough to work out by hand."""

import random
from itertools import pairwise

import pytest

from kinetic.errors import MalformedGguf, UnsupportedModel, UsageError
from kinetic.text import load_tokenizer
from kinetic.text.merging import NEVER, RankedMerges, WordMemory, _FirstRanks, merge
from kinetic.text.specials import SpecialTokens
from kinetic.text.spm import chunk_splitter
from tests.support.tiny_tokenizers import BYTE, CONTROL, UNKNOWN, UNUSED, USER_DEFINED, byte_level, sentence_piece

MERGES = ["l o", "lo w", "Ġ low", "e r", "low er"]
LO, LOW, SPACE_LOW, ER, LOWER = range(256, 261)


def ids(tokenizer, text, *, special=True, add=False, guard=""):
    return tokenizer.encode(text, add_special=add, parse_special=special, guard=guard)


# --- byte-pair ---


def test_merges_run_in_the_order_of_the_file():
    tokenizer = load_tokenizer(byte_level(MERGES))
    assert ids(tokenizer, "low lower") == [LOW, SPACE_LOW, ER]
    assert ids(tokenizer, "lower") == [LOWER]  # "low er" is the last merge, and all others came before
    assert tokenizer.vocab_size == 261


def test_of_equal_merges_the_first_counts_and_ties_go_left():
    tokenizer = load_tokenizer(byte_level(["a a", "a b", "a a", "aa a"]))
    assert ids(tokenizer, "aaab") == [256, 257]
    assert ids(tokenizer, "aaa") == [259]


def test_every_byte_comes_back():
    tokenizer = load_tokenizer(byte_level(MERGES))
    text = "".join(map(chr, [*range(0x80), 0xE9, 0x20AC, 0x1F600, 0x10FFFF]))
    assert tokenizer.decode(ids(tokenizer, text)) == text.encode()


def test_ignore_merges_takes_a_whole_word():
    merges = ["h i", "t h", "th i", "thi s"]
    tokens = byte_level(merges, special=[("this", 1)], pre="llama-bpe", bos_token_id=0)
    tokens["tokenizer.ggml.merges"] = ["h i"]
    assert ids(load_tokenizer(tokens), "this") == [259]  # the word is a token, though no merge leads to it
    tokens["tokenizer.ggml.pre"] = "gpt-2"
    assert ids(load_tokenizer(tokens), "this") == [ord("t"), 256, ord("s")]


def test_a_character_without_a_token_is_dropped_as_in_llama_cpp():
    metadata = byte_level(MERGES)
    metadata["tokenizer.ggml.tokens"][ord("x")] = "[gone]"
    assert ids(load_tokenizer(metadata), "xlowx") == [LOW]


def test_lone_surrogates_become_replacement_characters():
    tokenizer = load_tokenizer(byte_level())
    assert ids(tokenizer, "a\udcffb\ud800") == ids(tokenizer, "a\ufffdb\ufffd")


def test_long_words_are_merged_but_not_remembered():
    tokenizer = load_tokenizer(byte_level(["a a", "aa aa"]))
    assert ids(tokenizer, "a" * 4001) == [257] * 1000 + [ord("a")]


def test_word_memory_starts_anew_when_full():
    asked = []
    memory = WordMemory(lambda word: asked.append(word) or [len(word)])
    memory.WORDS = 2
    assert memory.encode(["a", "bb", "a", "ccc", "a"]) == [1, 2, 1, 3, 1]
    assert asked == ["a", "bb", "ccc", "a"]


def test_merge_equals_the_plain_definition():
    """Against the loop one would write first: scan for the lowest rank, join, repeat."""

    def plainly(symbols, rank):
        while True:
            pairs = [(rank(a, b), place) for place, (a, b) in enumerate(pairwise(symbols))]
            pairs = [pair for pair in pairs if pair[0] is not None]
            if not pairs:
                return symbols
            place = min(pairs)[1]
            symbols = [*symbols[:place], symbols[place] + symbols[place + 1], *symbols[place + 2 :]]

    random.seed(7)
    for _ in range(300):
        joined = ["".join(random.choices("ab", k=random.randint(2, 4))) for _ in range(random.randint(1, 12))]
        ranks = {text: random.randint(0, 5) for text in joined}
        word = random.choices("abc", k=random.randint(0, 12))

        def rank(left, right, ranks=ranks):
            return ranks.get(left + right)

        assert merge(list(word), rank) == plainly(word, rank)


@pytest.mark.parametrize("length", [0, 1, 2, 12, RankedMerges.SCANNED, RankedMerges.SCANNED + 1])
def test_scanning_ranks_equals_the_heap(length):
    """Words up to SCANNED characters take another way than longer ones, with the same result; ranks repeat."""
    random.seed(length)
    parts = ["a", "b", "ab", "ba", "aa", "abab", "aab", "ababab"]
    for _ in range(200):
        ranks = {f"{left} {right}": random.randint(0, 9) for left in parts for right in random.sample(parts, 3)}
        word = "".join(random.choices("abc", k=length))
        plainly = merge(list(word), lambda left, right, ranks=ranks: ranks.get(f"{left} {right}"))
        assert RankedMerges(ranks).apply(word) == plainly, (word, ranks)


def test_pairs_of_characters_are_remembered_up_to_a_bound():
    pairs = _FirstRanks({"a b": 5})
    assert pairs["ab"] == 5 and pairs["ba"] == NEVER and len(pairs) == 2
    pairs.PAIRS = 2
    assert pairs["bb"] == NEVER and len(pairs) == 1 and pairs["ab"] == 5


# --- SentencePiece ---

PIECES = [("▁", -1), ("a", -2), ("b", -3), ("▁a", -4), ("ab", -5), ("▁ab", -6), ("▁▁", -7), ("é", -8)]
P = {text: 259 + place for place, (text, _) in enumerate(PIECES)}


def test_scores_decide_and_the_prefix_is_added():
    tokenizer = load_tokenizer(sentence_piece(PIECES))
    assert tokenizer.add_bos and tokenizer.bos == 1 and tokenizer.eos == 2
    assert ids(tokenizer, "ab ab", add=True) == [1, P["▁ab"], P["▁ab"]]
    assert ids(tokenizer, "", add=True) == [1]
    assert tokenizer.decode([1, P["▁ab"], P["b"]]) == b" abb"


def test_higher_scores_join_first():
    low_first = sentence_piece([("▁", -1), ("a", -1), ("b", -1), ("▁a", -9), ("ab", -2)], add_space_prefix=True)
    assert ids(load_tokenizer(low_first), "ab") == [259, 263]
    low_last = sentence_piece([("▁", -1), ("a", -1), ("b", -1), ("▁a", -2), ("ab", -9)], add_space_prefix=True)
    assert ids(load_tokenizer(low_last), "ab") == [262, 261]


def test_unknown_characters_fall_back_to_bytes():
    tokenizer = load_tokenizer(sentence_piece(PIECES, add_space_prefix=False))
    assert ids(tokenizer, "aß") == [P["a"], 3 + 0xC3, 3 + 0x9F]
    assert ids(tokenizer, "caf\udcc3") == [3 + ord("c"), P["a"], 3 + ord("f"), 3 + 0xC3]
    assert tokenizer.decode([3 + 0xC3, 3 + 0x9F]) == "ß".encode()


def test_without_byte_tokens_the_unknown_token_is_used():
    metadata = sentence_piece(PIECES, add_space_prefix=False)
    metadata["tokenizer.ggml.token_type"][3 + 0x9F] = UNUSED
    metadata["tokenizer.ggml.tokens"][3 + 0x9F] = "[none]"
    assert ids(load_tokenizer(metadata), "aß") == [P["a"], 0]


def test_the_space_prefix_comes_after_special_tokens_only_if_the_model_has_it():
    """llama.cpp#8584: with the prefix every run of text after a special token gets one, without it none does."""
    tokenizer = load_tokenizer(sentence_piece(PIECES))
    assert ids(tokenizer, "<s>ab</s>b") == [1, P["▁ab"], 2, P["▁"], P["b"]]
    tokenizer = load_tokenizer(sentence_piece(PIECES, add_space_prefix=False))
    assert ids(tokenizer, "<s>ab</s>b") == [1, P["ab"], 2, P["b"]]


def test_user_defined_tokens_match_before_spaces_are_escaped():
    """Gemma's runs of spaces and HTML tags (CASES T4): they hold real spaces and win over every merge."""
    special = [("  ", USER_DEFINED), ("   ", USER_DEFINED), ("<b>", USER_DEFINED)]
    tokenizer = load_tokenizer(sentence_piece(PIECES, special, add_space_prefix=False))
    two, three, tag = 259 + len(PIECES), 260 + len(PIECES), 261 + len(PIECES)
    assert ids(tokenizer, "a   a  a a<b>", special=False) == [P["a"], three, P["a"], two, P["a"], P["▁a"], tag]
    assert tokenizer.decode([P["a"], three, tag]) == b"a   <b>"


def test_the_longest_run_of_tabs_and_no_space_after_it():
    """CASES T1: six tabs are one token, not two of three, and what follows gets no space."""
    tabs = [("\t" * count, USER_DEFINED) for count in (1, 2, 3, 6)]
    tokenizer = load_tokenizer(sentence_piece(PIECES, tabs, add_space_prefix=False))
    assert ids(tokenizer, "\t" * 6 + "ab", special=False) == [259 + len(PIECES) + 3, P["ab"]]


@pytest.mark.parametrize("crossing", [[], [("b▁a", -1.5), ("b▁", -1.2)]])
def test_chunks_never_change_the_tokens(crossing):
    tokenizer = load_tokenizer(sentence_piece(PIECES + crossing, add_space_prefix=False))
    whole = load_tokenizer(sentence_piece(PIECES + crossing, add_space_prefix=False))
    whole._encoder._chunks = lambda text: [text]
    random.seed(3)
    for _ in range(200):
        text = "".join(random.choices("aab  b", k=random.randint(1, 12)))
        assert ids(tokenizer, text) == ids(whole, text), text


def test_chunk_splitter_keeps_what_a_token_may_join():
    assert chunk_splitter(["▁a", "b"])("a▁▁b▁c") == ["a", "▁▁b", "▁c"]
    assert chunk_splitter(["▁a", ">▁<"])("x▁>▁<▁y>▁") == ["x", "▁>▁<", "▁y>▁"]


# --- special tokens ---

MARKS = [("<|im_end|>", CONTROL), ("<|im_start|>", CONTROL), ("<tool>", USER_DEFINED), ("<unk>", UNKNOWN)]
END, START, TOOL, UNK = range(261, 265)


def test_control_tokens_match_only_when_asked():
    tokenizer = load_tokenizer(byte_level(MERGES, MARKS))
    assert ids(tokenizer, "<|im_start|>low<|im_end|>") == [START, LOW, END]
    as_text = ids(tokenizer, "<|im_end|>", special=False)
    assert END not in as_text and tokenizer.decode(as_text) == b"<|im_end|>"
    assert ids(tokenizer, "low<tool>", special=False) == [LOW, TOOL]
    assert ids(tokenizer, "<unk>") == [UNK] and UNK not in ids(tokenizer, "<unk>", special=False)


def test_no_merge_spells_a_control_token():
    """User text must not become a control token even where the merges would lead there."""
    merges = ["< s", "<s >"]
    tokenizer = load_tokenizer(byte_level(merges, [("x", 1)], token_type=[1] * 257 + [CONTROL, 1]))
    assert ids(tokenizer, "<s>") == [257]
    assert 257 not in ids(tokenizer, "<s>", special=False)
    pieces = [("<s", -1), ("<", -1), ("s", -1), (">", -1)]
    tokenizer = load_tokenizer(sentence_piece(pieces, add_space_prefix=False))
    assert ids(tokenizer, "<s>") == [1] and 1 not in ids(tokenizer, "<s>", special=False)


def test_longest_text_wins_from_the_left():
    finder = SpecialTokens([("ab", 1), ("abc", 2), ("c", 3), ("bcd", 4), ("", 9)])
    assert finder.split("abcd") == [2, "d"]
    assert finder.split("xabab") == ["x", 1, 1]
    assert finder.split("bcdc") == [4, 3]
    assert finder.split("a") == ["a"] and finder.split("") == []
    assert SpecialTokens([]).split("abc") == ["abc"]


def test_special_texts_with_every_odd_character():
    texts = ["[x]", "]", "^a", "-", "\\d", "\n\n", "\t", "▁▁", "a-b"]
    finder = SpecialTokens((text, place) for place, text in enumerate(texts))
    for place, text in enumerate(texts):
        assert finder.split(f"q{text}q") == ["q", place, "q"], text


def test_phi3_tokens_swallow_the_white_space_behind_them():
    metadata = byte_level(MERGES, [("<|user|>", CONTROL), ("<|endoftext|>", CONTROL)], bos_token_id=262)
    assert ids(load_tokenizer(metadata), "<|user|>\n low") == [261, ord("\n"), SPACE_LOW]
    metadata["general.name"] = "Phi-3 mini"
    tokenizer = load_tokenizer(metadata)
    assert ids(tokenizer, "<|user|>\n low") == [261, LOW]
    assert ids(tokenizer, "<|endoftext|> low") == [262, SPACE_LOW]


def test_strip_left():
    finder = SpecialTokens([("<m>", 7)], strip_left=frozenset({7}))
    assert finder.split("a \n<m> b") == ["a", 7, " b"] and finder.split("  <m>") == [7]


# --- BOS, EOS, end tokens ---


@pytest.mark.parametrize("text, expected", [("low", [START, LOW]), ("<|im_start|>low", [START, LOW]), ("", [START])])
def test_bos_comes_exactly_once(text, expected):
    """CASES T11: a template or user that writes BOS does not get a second one."""
    tokenizer = load_tokenizer(byte_level(MERGES, MARKS, bos_token_id=START, add_bos_token=True))
    assert ids(tokenizer, text, add=True) == expected
    assert ids(tokenizer, "<|im_start|><|im_start|>", add=True) == [START, START]  # what the user wrote stays
    silent = load_tokenizer(byte_level(MERGES, MARKS, bos_token_id=START, add_bos_token=False))
    assert ids(silent, text, add=True) == ids(silent, text)


def test_eos_comes_exactly_once():
    tokenizer = load_tokenizer(byte_level(MERGES, MARKS, eos_token_id=END, add_eos_token=True))
    assert ids(tokenizer, "low", add=True) == ids(tokenizer, "low<|im_end|>", add=True) == [LOW, END]
    assert ids(tokenizer, "low", add=False) == [LOW]


def test_without_a_bos_id_none_is_added():
    tokenizer = load_tokenizer(byte_level(MERGES, add_bos_token=True))
    assert not tokenizer.add_bos and tokenizer.bos is None and ids(tokenizer, "low", add=True) == [LOW]


def ends(*texts, kind=CONTROL, **keys):
    tokenizer = load_tokenizer(byte_level(MERGES, [(text, kind) for text in texts], **keys))
    return {tokenizer._vocabulary.tokens[token] for token in tokenizer.end_tokens}


def test_end_tokens_are_found_by_id_and_by_text():
    assert ends("<|im_end|>", "<|endoftext|>", "<other>") == {"<|im_end|>", "<|endoftext|>"}
    assert ends("<stop>", "<turn>", eos_token_id=261, eot_token_id=262) == {"<stop>", "<turn>"}
    assert ends("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>") == {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
    assert ends("</s>", kind=1) == {"</s>"}


def test_end_texts_that_mean_something_else_in_two_families():
    assert ends("<|return|>", "<|call|>", "<|end|>") == {"<|return|>", "<|call|>"}
    assert ends("<|flush|>", "<|calls|>", "<|end|>") == {"<|flush|>", "<|calls|>"}
    assert ends("<|end|>", "<|call|>") == {"<|end|>", "<|call|>"}
    assert ends("<|tool_response>", "</s>") == {"<|tool_response>"}


def test_tokens_known_by_their_text_become_control_tokens():
    tokenizer = load_tokenizer(byte_level(MERGES, [("<|im_end|>", 1), ("<|channel|>", CONTROL)]))
    assert tokenizer.piece(261) == b"" and tokenizer.piece(261, special=True) == b"<|im_end|>"
    assert ids(tokenizer, "<|im_end|>") == [261] and ids(tokenizer, "<|im_end|>", special=False) != [261]
    assert tokenizer.piece(262) == b"<|channel|>"


def test_a_model_without_end_tokens_says_so():
    assert load_tokenizer(byte_level(MERGES)).warnings == ["the model names no token that ends an answer"]


# --- pieces ---


def test_pieces_by_kind():
    special = [("<c>", CONTROL), ("<u>", USER_DEFINED), ("<k>", UNKNOWN), ("<x>", UNUSED)]
    tokenizer = load_tokenizer(sentence_piece(PIECES, special))
    first = 259 + len(PIECES)
    assert [tokenizer.piece(first + n) for n in range(4)] == [b"", b"<u>", b"", b""]
    assert [tokenizer.piece(first + n, special=True) for n in range(4)] == [b"<c>", b"<u>", b"<k>", b""]
    assert tokenizer.piece(P["▁▁"]) == b"  " and tokenizer.piece(3 + 0x41) == b"A"
    assert tokenizer.text("bos") == "<s>" and tokenizer.text("mask") == ""


@pytest.mark.parametrize("token", [-1, 261, 2**32])
def test_ids_outside_the_vocabulary(token):
    with pytest.raises(UsageError) as caught:
        load_tokenizer(byte_level(MERGES)).piece(token)
    assert caught.value.name == "BAD_TOKEN_ID"


def test_decoding_cleans_nothing_up():
    """CASES T10: no space is removed before punctuation."""
    tokenizer = load_tokenizer(byte_level())
    for text in ("for 'manual'", "hello !", "a.b == c , d", " x", "the word 's"):
        assert tokenizer.decode(ids(tokenizer, text)).decode() == text


def test_bytes_that_are_no_text():
    tokenizer = load_tokenizer(byte_level())
    assert tokenizer.decode(ids(tokenizer, "😀")[:2]) == b"\xf0\x9f"
    metadata = sentence_piece([("\udcff\udcfe", -1)])
    assert load_tokenizer(metadata).piece(259) == b"\xff\xfe"


# --- broken files (ATTACKS 40-46) ---


def refused(metadata):
    with pytest.raises((MalformedGguf, UnsupportedModel)) as caught:
        load_tokenizer(metadata).encode("a", add_special=False, parse_special=False)
    assert caught.value.exit_code == 11
    return caught.value.name


@pytest.mark.parametrize("value", [261, 2**32 - 1, -1, 2.0, True, "2"])
@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "padding_token_id", "fim_pad_token_id"])
def test_special_ids_outside_the_vocabulary(key, value):
    assert refused(byte_level(MERGES, **{key: value})) == "BAD_SPECIAL_TOKEN"


@pytest.mark.parametrize("key", ["scores", "token_type"])
@pytest.mark.parametrize("count", [0, 1, 266, 268])
def test_arrays_of_different_lengths(key, count):
    assert refused(sentence_piece(PIECES, **{key: [1] * count})) == "LENGTH_MISMATCH"


@pytest.mark.parametrize("score", [float("nan"), "1"])
def test_scores_that_are_no_numbers(score):
    assert refused(sentence_piece(PIECES, scores=[score] * 267)) == "BAD_SCORE"


def test_infinite_scores_are_numbers():
    scores = [0.0] * 265 + [float("inf"), float("-inf")]
    assert load_tokenizer(sentence_piece(PIECES, scores=scores)).vocab_size == 267


@pytest.mark.parametrize("text", ["<0x-1>", "<0xGG>", "<0x100>", "<0x1>", "A", "<0x0a>", "<0x0A>"])
def test_byte_tokens_that_are_none(text):
    special = [(text, BYTE)]
    assert refused(sentence_piece(PIECES, special)) == "BAD_BYTE_TOKEN"


@pytest.mark.parametrize("blob", [[], [1, 2], [4, 0, 0, 0, 1, 2, 3, 4], [-1, -1, -1, -1, 0], [255, 255, 255, 127, 0]])
def test_normaliser_outside_itself(blob):
    assert refused(sentence_piece(PIECES, precompiled_charsmap=blob)) == "BAD_NORMALIZER"


def test_a_good_normaliser_blob_is_no_reason_to_refuse():
    blob = [4, 0, 0, 0, 1, 2, 3, 4, 0]
    assert load_tokenizer(sentence_piece(PIECES, precompiled_charsmap=blob)).warnings == []


def test_unknown_names():
    assert refused(byte_level(pre="someones-own")) == "UNKNOWN_PRE_TOKENIZER"
    assert refused(byte_level(model="rwkv")) == "UNKNOWN_TOKENIZER"
    assert refused({}) == "UNKNOWN_TOKENIZER"


def test_missing_parts():
    assert refused(byte_level(tokens=None)) == "BAD_TOKEN_LIST"
    assert refused(byte_level(tokens=[])) == "BAD_TOKEN_LIST"
    assert refused(byte_level(tokens=[1, 2])) == "BAD_TOKEN_LIST"
    assert refused({**byte_level(), "tokenizer.ggml.merges": None}) == "MISSING_MERGES"
    assert refused({**byte_level(), "tokenizer.ggml.merges": [1]}) == "MISSING_MERGES"
    assert refused(sentence_piece(PIECES, scores=None)) == "MISSING_SCORES"
    assert refused(byte_level(token_type=["a"] * 256)) == "BAD_TOKEN_TYPE"


def test_huge_tokens():
    assert refused(byte_level(special=[("x" * (1 << 20), 1)])) == "TOKEN_TOO_LONG"


def test_empty_and_repeated_tokens_are_warned_about():
    tokenizer = load_tokenizer(byte_level(MERGES, [("", 1), ("low", 1), ("", CONTROL)], eos_token_id=0))
    assert ids(tokenizer, "low") == [LOW]
    assert len(tokenizer.warnings) == 2 and "2 tokens repeat" in tokenizer.warnings[0]
    assert "empty token" in tokenizer.warnings[1]


def test_a_missing_pre_tokenizer_is_warned_about():
    tokenizer = load_tokenizer(byte_level(MERGES, pre=None, eos_token_id=0))
    assert len(tokenizer.warnings) == 1 and "names no pre-tokenizer" in tokenizer.warnings[0]
    assert ids(tokenizer, "low") == [LOW]


def test_odd_token_types_decode_to_nothing():
    tokenizer = load_tokenizer(byte_level(MERGES, [("odd", 99), ("minus", -1)]))
    assert tokenizer.piece(261) == tokenizer.piece(262, special=True) == b""


# --- WordPiece ---

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hallo", "▁welt", "▁we", "lt", "▁!", "▁ic", "▁你"]


def word_piece(**keys):
    metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": WORDS,
        "tokenizer.ggml.token_type": [CONTROL] * 4 + [1] * 7,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
    }
    return load_tokenizer(metadata | {f"tokenizer.ggml.normalizer.{key}": value for key, value in keys.items()})


def test_word_piece():
    tokenizer = word_piece()
    assert ids(tokenizer, "Hallo  WELT!", add=True) == [2, 4, 5, 8, 3]
    assert ids(tokenizer, "", add=True) == [2, 3]
    assert ids(tokenizer, "weltlt") == [5, 7] and ids(tokenizer, "xyz weltx welt") == [1, 1, 5]
    assert ids(tokenizer, "i\u0107 ic\u0301") == [9, 9] and ids(tokenizer, "你你") == [10, 10]
    assert ids(word_piece(lowercase=False), "Hallo hallo") == [1, 4]
    assert ids(word_piece(strip_accents=False), "i\u0107") == [1]

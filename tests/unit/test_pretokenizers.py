"""How text is cut into words before its bytes are joined: one row a pattern."""

import random

import pytest

from kinetic.errors import UnsupportedModel
from kinetic.text import load_tokenizer
from kinetic.text.pretokenize import PRE_TOKENIZERS, pre_tokenizer, word_splitter
from tests.support.tiny_tokenizers import byte_level

FAMILIES = (
    "gpt-2 llama-bpe llama3 llama-v3 falcon3 falcon-h1 lfm2 pixtral qwen2 deepseek-r1-qwen qwen35 deepseek-llm"
    " deepseek-coder deepseek-v3 falcon starcoder refact smollm gpt-4o llama4 exaone4 hunyuan hunyuan-dense olmo"
    " granite-docling command-r mpt phi-2 gemma4 tekken chatglm-bpe glm4 bloom viking"
).split()


def words(name, text):
    return word_splitter(PRE_TOKENIZERS[name].stages)(text)


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("gpt-2", "I'll see  it's 12345!\n\n x", ["I", "'ll", " see", " ", " it", "'s", " 12345", "!", "\n\n", " x"]),
        ("smollm", "in 2024 x", ["in", " ", "2", "0", "2", "4", " x"]),
        ("llama-bpe", "I'LL 12345 _x\n\n y", ["I", "'LL", " ", "123", "45", " _", "x", "\n\n", " y"]),
        ("qwen2", "(x):\n12", ["(x", "):\n", "1", "2"]),
        ("qwen2", "e\u0301x", ["e", "\u0301x"]),
        ("qwen35", "e\u0301x", ["e\u0301x"]),
        ("gpt-4o", "helloWorld's/\n 1234", ["hello", "World's", "/\n", " ", "123", "4"]),
        ("tekken", "HTTPServer 12", ["HTTPServer", " ", "1", "2"]),
        ("falcon", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
        ("default", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
        ("falcon", " `x", [" ", "`", "x"]),
        ("default", " `x", [" `", "x"]),
        ("deepseek-llm", "caf\u00e9 12 \u4f60\u597d\n", ["caf", "\u00e9", " ", "12", " ", "\u4f60\u597d", "\n"]),
        ("deepseek-v3", "x12345 \u4f60a", ["x", "123", "45", " ", "\u4f60", "a"]),
        ("deepseek-coder", "a12 b!", ["a", "1", "2", " b", "!"]),
        ("gemma4", "a b\n\nc", ["a b", "\n\n", "c"]),
        ("qwen2", "x->y", ["x", "->", "y"]),
        ("qwen2", "हिन", ["ह", "िन"]),
        ("qwen35", "हिन", ["हिन"]),
        ("exaone4", "it's 12", ["it", "'s", " 12"]),
        ("hunyuan", "12 x", ["1", "2", " x"]),
        ("hunyuan-dense", "1234 x", ["123", "4", " x"]),
        ("bloom", "Hi, you |x 12.", ["Hi", ",", " you", " |", "x", " 12", "."]),
        ("viking", "a 12.", ["a", " ", "1", "2", "."]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
        ("exaone-moe", "ab cd!\n\n", ["ab cd", "!\n", "\n"]),
        ("bailingmoe", "a\n\n\nb", ["a", "\n\n\n", "b"]),
        ("seed-coder", "a!\nb", ["a", "!", "\n", "b"]),
        ("ufakzeka", "Ali'den", ["Ali", "'den"]),
        ("minicpm5", "1234 x", ["123", "4", " x"]),
        ("laguna", "a \n b", ["a", " ", "\n", " b"]),
        ("tiny_aya", "1234567 x", ["1", "234", "567", " x"]),
        ("youtu", "ab你好，12", ["ab", "你好", "，", "1", "2"]),
        ("kimi-k2", "ab你好 1234", ["ab", "你好", " ", "123", "4"]),
        ("superbpe", "by the way 1234567!", ["by the way ", "1", "234", "567", "!"]),
        ("chameleon", "a  b\t;x IMGIMGABZD", ["a", "  ", "b", "\t", ";", "x", " ", "IMGIMGABZ", "D"]),
        ("spark2_5", "a!\n\n12", ["a", "!", "\n", "\n", "1", "2"]),
    ],
)
def test_words(name, text, expected):
    assert words(name, text) == expected


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_words_join_to_the_text(name):
    random.seed(name)
    alphabet = "aB'sS1²½٣ \t\n\r\u00a0\u2003é\u0301你ก्ि!.#$€😀\u200d\x00\x85\ufffd\U000e0001_"
    for _ in range(60):
        text = "".join(random.choices(alphabet, k=40))
        assert "".join(words(name, text)) == text


def test_the_families_have_theirs():
    assert set(FAMILIES) <= set(PRE_TOKENIZERS)


def test_names_that_share_a_pattern():
    same = [("llama-bpe", "falcon-h1"), ("refact", "starcoder"), ("exaone4", "gpt-2"), ("hunyuan-dense", "deepseek-v3")]
    assert all(pre_tokenizer(one) is pre_tokenizer(other) for one, other in same)
    assert pre_tokenizer("glm4") != pre_tokenizer("chatglm-bpe")


def test_an_unknown_name_is_one_sentence():
    with pytest.raises(UnsupportedModel, match=r"'someones-own' \(tokenizer.ggml.pre\) is not built in") as caught:
        load_tokenizer(byte_level(pre="someones-own"))
    assert caught.value.name == "UNKNOWN_PRE_TOKENIZER" and "\n" not in str(caught.value)


def test_raw_words_of_a_byte_level_file():
    """granite-embed-multi-311m keeps words as text, as Gemma 4 does, though its model is "gpt2"."""
    metadata = byte_level(["a b", "\u2581 ab"], pre="granite-embed-multi-311m", bos_token_id=0, add_bos_token=False)
    metadata["tokenizer.ggml.tokens"][0] = "\u2581"
    tokenizer = load_tokenizer(metadata)
    found = tokenizer.encode("ab ab", add_special=True, parse_special=False)
    assert found == [0, 256, 257] and tokenizer.decode(found[1:]) == b"ab ab"

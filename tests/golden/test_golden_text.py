"""Tokens, pieces and chat templates against llama.cpp's and the transformers library's own output."""

import json
import lzma
import re

import pytest

from kinetic.errors import TemplateError
from kinetic.gguf import Gguf
from kinetic.text import load_tokenizer
from kinetic.text.merge_table import SoughtRanks
from kinetic.text.template import ChatTemplate

VOCABULARIES = "bert-bge falcon gpt-2 llama-bpe llama-spm phi-3 qwen2 qwen35 starcoder".split()
LARGE = "command-r deepseek-llm gemma-4".split()
"""A second or two each to unpack and read."""
REAL_MODELS = {"smollm2-135m-instruct-q4_1": "smollm2_path", "gemma3-270m-q4_k_m": "gemma3_path"}

LAX_UTF8 = {"inv_overlong", "inv_surrogate", "inv_toobig"}
"""llama.cpp decodes overlong forms and surrogates, and throws on what lies above U+10FFFF. Here each byte that is
not UTF-8 becomes one U+FFFD (or its byte token), as the well-formed rule has it."""
CLEANS_UP = {"bert-bge", "falcon", "gemma-4", "gpt-2", "llama-bpe", "starcoder"}
"""llama.cpp removes spaces before punctuation when it detokenises these; here no byte is ever changed."""
LACKS = {"falcon": ["ctrl"], "smollm2-135m-instruct-q4_1": ["ctrl"]}
"""These vocabularies have no token for some control bytes; they are dropped, as everywhere else."""
SPACE_IS_2581 = {"gemma-4", "llama-spm", "phi-3", "gemma3-270m-q4_k_m"}
STRINGS = 129


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in LARGE]


@pytest.fixture(scope="module")
def strings(golden):
    """(name, text) of every test string; bytes that are not UTF-8 as surrogate escapes."""
    found = json.loads((golden / "tokenizers/strings.json").read_text("utf-8"))
    assert len(found) == STRINGS
    return [(item["name"], bytes.fromhex(item["hex"]).decode("utf-8", "surrogateescape")) for item in found]


@pytest.fixture(scope="module", params=[*VOCABULARIES, *SLOW, *REAL_MODELS])
def vocabulary(request, golden, tmp_path_factory):
    """(name, tokenizer, golden record)."""
    name = request.param
    if name in REAL_MODELS:
        path = request.getfixturevalue(REAL_MODELS[name])
    else:
        path = tmp_path_factory.mktemp("vocabulary") / f"{name}.gguf"
        path.write_bytes(lzma.decompress((golden / f"tokenizers/ggml-vocab-{name}.gguf.xz").read_bytes()))
    record = json.loads((golden / f"tokenizers/{name}.tok.json").read_text("utf-8"))
    with Gguf.open(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    yield name, tokenizer, record
    if name not in REAL_MODELS:
        path.unlink()


def once(ids, expected, tokenizer):
    """llama.cpp's tokens without the second BOS that it adds to a text that brings its own."""
    doubled = tokenizer.add_bos and ids[:1] == [tokenizer.bos] and expected[:2] == [tokenizer.bos] * 2
    return expected[1:] if doubled else expected


def test_what_the_vocabulary_says_of_itself(vocabulary):
    _, tokenizer, record = vocabulary
    info = record["info"]
    assert tokenizer.vocab_size == info["n_vocab"]
    assert [-1 if token is None else token for token in (tokenizer.bos, tokenizer.eos)] == [info["bos"], info["eos"]]
    assert [tokenizer.add_bos, tokenizer.add_eos] == [bool(info["add_bos"]), bool(info["add_eos"])]
    assert sorted(tokenizer.end_tokens) == info["eog"]
    assert tokenizer.warnings == []


def test_tokens(vocabulary, strings):
    """All strings, with and without BOS and EOS, with and without control tokens."""
    _, tokenizer, record = vocabulary
    compared = 0
    for name, text in strings:
        for add in (0, 1):
            for parse in (0, 1):
                expected = record["results"][name].get(f"add{add}_parse{parse}")
                if name in LAX_UTF8 or expected is None:
                    continue
                ids = tokenizer.encode(text, add_special=bool(add), parse_special=bool(parse))
                assert ids == (once(ids, expected, tokenizer) if add else expected), (name, add, parse)
                compared += 1
    assert compared == 4 * (STRINGS - len(LAX_UTF8))


@pytest.mark.parametrize("name", ["llama-bpe", "qwen35"])
def test_tokens_by_a_table_of_merges(golden, strings, tmp_path, monkeypatch, name):
    """The same while the table is made, with it, and where all merges are read after it."""
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(lzma.decompress((golden / f"tokenizers/ggml-vocab-{name}.gguf.xz").read_bytes()))
    record = json.loads((golden / f"tokenizers/{name}.tok.json").read_text("utf-8"))["results"]
    (tmp_path / "tables").mkdir()
    monkeypatch.setattr("kinetic.text.merge_table.FEWEST", 0)
    for sought in (20_000, 20_000, 300):
        monkeypatch.setattr(SoughtRanks, "SOUGHT", sought)
        with Gguf.open(path) as file:
            tokenizer = load_tokenizer(file.metadata, tmp_path / "tables")
        for string, text in strings:
            if string not in LAX_UTF8:
                ids = tokenizer.encode(text, add_special=False, parse_special=True)
                assert ids == record[string]["add0_parse1"], (sought, string)
        assert len(list((tmp_path / "tables").iterdir())) == 1


def test_pieces(vocabulary, strings):
    _, tokenizer, record = vocabulary
    for name, _ in strings:
        result = record["results"][name]
        for token, expected in zip(
            result.get("add1_parse1", []), result.get("pieces_add1_parse1_hex", []), strict=False
        ):
            assert tokenizer.piece(token, special=True).hex() == expected, (name, token)


def test_decoded_bytes(vocabulary, strings):
    """llama_detokenize's bytes where it cleans nothing up; it takes the space prefix off, which a stream must not."""
    name, tokenizer, record = vocabulary
    if name in CLEANS_UP:
        pytest.skip("llama.cpp changes bytes when it detokenises with this vocabulary")
    prefix = getattr(tokenizer._encoder, "add_space_prefix", False)
    for string, _ in strings:
        result = record["results"][string]
        if "detok_add1_parse1" not in result:
            continue
        for special in (False, True):
            decoded = tokenizer.decode(result["add1_parse1"], special=special)
            assert decoded.hex() == result["detok_add1_parse1"][f"hex_remove0_unparse{special:d}"], string
        decoded = tokenizer.decode(result["add0_parse0"], special=True)
        decoded = decoded.removeprefix(b" ") if prefix else decoded
        assert decoded.hex() == result["detok_add0_parse0_hex_remove0_unparse1"], string


def test_texts_come_back(vocabulary, strings):
    """Decoding gives every byte of the text again, but what a vocabulary has no token for."""
    name, tokenizer, _ = vocabulary
    if name == "bert-bge":
        pytest.skip("WordPiece does not keep the text")
    prefix = " " if getattr(tokenizer._encoder, "add_space_prefix", False) else ""
    for string, text in strings:
        lost = string in LACKS.get(name, ()) or (name in SPACE_IS_2581 and "\u2581" in text)
        if text and not string.startswith("inv_") and not lost:
            ids = tokenizer.encode(text, add_special=False, parse_special=False)
            assert tokenizer.decode(ids).decode("utf-8", "replace") == prefix + text, string


def test_llama_cpps_own_test_texts(vocabulary, golden):
    name, tokenizer, _ = vocabulary
    if name in REAL_MODELS:
        pytest.skip("llama.cpp has test texts for its vocabulary files only")
    base = golden / "tokenizers" / f"ggml-vocab-{name}.gguf"
    texts = base.with_suffix(".gguf.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    texts = texts if texts[-1] else texts[:-1]
    lines = base.with_suffix(".gguf.out").read_text("utf-8").splitlines()
    assert len(texts) == len(lines) > 40
    for text, line in zip(texts, lines, strict=True):
        assert tokenizer.encode(text, add_special=False, parse_special=False) == [int(token) for token in line.split()]


# --- templates ---


class Texts:
    """What a template reads of a tokenizer."""

    def __init__(self, record):
        self._texts = {"bos": record["bos_token"], "eos": record["eos_token"]}
        self.control_texts = []

    def text(self, name):
        return self._texts.get(name, "")


@pytest.fixture(scope="module")
def templates(golden):
    """name -> (template, what it reads of a tokenizer, golden record); each is compiled once."""
    found = {}
    for path in sorted((golden / "templates").glob("*.renders.json")):
        record = json.loads(path.read_text("utf-8"))
        source = (path.parent / record["template"]).read_bytes().decode("utf-8")
        texts = Texts(record)
        found[path.name] = (ChatTemplate({"default": source}, texts), texts, record)
    assert len(found) == 28
    return found


@pytest.fixture(scope="module")
def conversations(golden):
    found = json.loads((golden / "templates/conversations.json").read_text("utf-8"))
    return {conversation["name"]: conversation for conversation in found}


OPTIONS = ("name", "messages", "tools", "add_generation_prompt")


def render(template, conversation, clock, **extra):
    extra |= {key: value for key, value in conversation.items() if key not in OPTIONS}
    return template.render(
        conversation["messages"],
        tools=conversation.get("tools"),
        add_generation_prompt=conversation["add_generation_prompt"],
        clock=clock,
        extra=extra,
    )


def test_renderings(templates, conversations):
    """Every template on every conversation, exactly as the transformers library renders it, or refused as there."""
    rendered = refused = 0
    for name, (template, _, record) in templates.items():
        for conversation, expected in record["renders"].items():
            where = (name, conversation)
            if "python_jinja2" in expected:
                text = render(template, conversations[conversation], record["fixed_time"]).text
                assert text == expected["python_jinja2"], where
                rendered += 1
                continue
            with pytest.raises(TemplateError) as caught:
                render(template, conversations[conversation], record["fixed_time"])
            assert expected["python_jinja2_error"].removeprefix("TemplateError: ") in str(caught.value), where
            assert caught.value.name == "TEMPLATE_REFUSED", where
            refused += 1
    assert (rendered, refused) == (329, 7)


def test_guards_change_no_text(templates, conversations):
    """The same with every marker of each template taken for a control token, so that guards are at work."""
    guarded = 0
    for name, (template, texts, record) in templates.items():
        texts.control_texts = sorted(set(re.findall(r"<\|?/?[A-Za-z_]+\|?>|\[/?[A-Z_]+\]", template.source)))
        for conversation, expected in record["renders"].items():
            if "python_jinja2" in expected:
                result = render(template, conversations[conversation], record["fixed_time"])
                assert result.text == expected["python_jinja2"], (name, conversation)
                guarded += result.guard != ""
        texts.control_texts = []
    assert guarded > 5


def test_llama_server_agrees_given_its_variables(templates, conversations):
    """llama-server passes a date and enable_thinking=true; with them all but its repairs of templates are equal."""
    equal = different = 0
    for template, _, record in templates.values():
        for conversation, expected in record["renders"].items():
            if "server" in expected and "python_jinja2" in expected:
                extra = {"enable_thinking": True, "date_string": "14 Mar 2026"}
                text = render(template, conversations[conversation], record["fixed_time"], **extra).text
                equal += text == expected["server"]
                different += text != expected["server"]
    assert (equal, different) == (325, 4)

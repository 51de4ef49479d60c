"""``kinetic tokenize``: tokens as llama-tokenize shows them, and the way back to the very same bytes."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from kinetic.cli import main
from tests.support.gguf_writer import GgufWriter
from tests.support.tiny_tokenizers import CONTROL, USER_DEFINED, byte_level

MERGES = ["l o", "lo w"]
LOW, END, BEGIN, TOOL = 257, 258, 259, 260
ODD = "low \x1b[2J\t<end> 😸 naïve\r\n".encode()


@pytest.fixture
def model(tmp_path):
    special = (("<end>", CONTROL), ("<begin>", CONTROL), ("<tool>", USER_DEFINED))
    keys = byte_level(MERGES, special, bos_token_id=BEGIN, eos_token_id=END, add_bos_token=True)
    return str(GgufWriter().keys(keys).write(tmp_path / "vocabulary.gguf"))


@pytest.fixture
def tokenize(model, capsysbinary):
    """``tokenize("low", "--ids")`` -> standard output, as bytes."""

    def tokenize(*words, code=0):
        assert main(["tokenize", model, *words]) == code
        streams = capsysbinary.readouterr()
        return streams.out if code == 0 else streams.err.decode()

    return tokenize


def feed(monkeypatch, data):
    stdin = SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: False, read=lambda: data.decode())
    monkeypatch.setattr(sys, "stdin", stdin)


def ids(output):
    return json.loads(output)


def test_one_line_a_token(tokenize):
    assert tokenize("low<tool>") == b"   259 -> '<begin>'\n   257 -> 'low'\n   260 -> '<tool>'\n"
    shown = tokenize("\x1bé", "--no-bos", "--show-count").decode()
    assert shown.splitlines() == [
        "    27 -> '\\x1b'",
        "   195 -> '\\xc3'",
        "   169 -> '\\xa9'",
        "Total number of tokens: 3",
    ]


def test_control_tokens_only_where_asked_and_user_defined_ones_always(tokenize):
    assert ids(tokenize("low<end><tool>", "--ids", "--no-bos", "--parse-special")) == [LOW, END, TOOL]
    as_text = ids(tokenize("low<end><tool>", "--ids"))
    assert as_text[:2] == [BEGIN, LOW] and END not in as_text and as_text[-1] == TOOL
    assert ids(tokenize("low<end><tool>", "--ids", "--no-parse-special", "--add-special")) == as_text


def test_json(tokenize):
    found = json.loads(tokenize("lowé", "--json", "--no-bos"))
    assert found["count"] == 3
    assert found["tokens"] == [{"id": LOW, "piece": "low"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    assert json.loads(tokenize("--decode", "257,195", "--json")) == {"count": 2, "content": [*b"low", 195]}
    assert json.loads(tokenize("--decode", "257", "--json")) == {"count": 1, "content": "low"}


@pytest.mark.parametrize("bos", [True, False])
def test_there_and_back(tokenize, tmp_path, bos):
    """CASES T10 and T15: a file's bytes are used as they are, and come back so."""
    (tmp_path / "text").write_bytes(ODD)
    found = tokenize("-f", str(tmp_path / "text"), "--ids", *([] if bos else ["--no-bos"])).decode()
    assert (ids(found)[0] == BEGIN) == bos
    assert tokenize("--decode", found) == ODD
    assert tokenize("--decode", found, "--parse-special") == (b"<begin>" if bos else b"") + ODD


def test_places_that_a_text_comes_from(tokenize, monkeypatch):
    expected = tokenize("low\n", "--ids")
    for words in (["--stdin"], ["-f", "-"], []):
        feed(monkeypatch, b"low\n")
        assert tokenize(*words, "--ids") == expected
    assert tokenize("-p", r"low\n", "-e", "--ids") == tokenize(r"low\n", "--escape", "--ids") == expected
    assert ids(tokenize(r"low\n", "--ids"))[2:] == [ord("\\"), ord("n")]
    feed(monkeypatch, b"[257,\n 10]\n")
    assert tokenize("--decode", "-") == b"low\n"
    assert ids(tokenize("", "--ids")) == [BEGIN] and tokenize("", "--no-bos", "--ids") == b"[]\n"
    assert tokenize("--decode", "[]") == b""


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--decode", "1,x"], 2, "'x' is no token id"),
        (["--decode=-1"], 2, "'-1' is no token id"),
        (["--decode", "9" * 5000], 2, "is no token id"),
        (["--decode", "261"], 2, "token 261 is not in the vocabulary of 261"),
        (["--decode", "1", "text"], 2, "there can be no text beside it"),
        (["low", "-p", "low"], 2, "give the prompt once"),
        (["-f", "missing"], 3, "cannot read missing"),
    ],
)
def test_one_sentence_for_what_is_wrong(tokenize, words, code, says):
    message = tokenize(*words, code=code)
    assert says in message and message.startswith("kinetic: ") and message.count("\n") == 1


def test_a_file_without_a_tokenizer(tmp_path, capsys):
    path = GgufWriter().write(tmp_path / "empty.gguf")
    assert main(["tokenize", str(path), "x"]) == 11
    assert capsys.readouterr().err.startswith("kinetic: tokenizer None is not one of those built in")


def test_an_odd_file_is_warned_about(tmp_path, capsys):
    path = GgufWriter().keys(byte_level(pre=None, eos_token_id=0)).write(tmp_path / "old.gguf")
    assert main(["tokenize", str(path), "x", "--ids"]) == 0
    streams = capsys.readouterr()
    assert streams.out == "[120]\n" and "names no pre-tokenizer" in streams.err

"""Where a prompt comes from, and that nothing about it is changed on the way."""

import io
import sys
from types import SimpleNamespace

import pytest

from kinetic.cli.command import build_parser
from kinetic.cli.run_options import asked_options, read_prompt
from kinetic.errors import FileProblem, UsageError


def prompt_of(*words, stdin=b"", terminal=False, monkeypatch=None):
    options = build_parser()[1].choices["run"].parse_intermixed_args(["m", *map(str, words)])
    if monkeypatch:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin), isatty=lambda: terminal))
    return read_prompt(options)


@pytest.mark.parametrize("data", [b"D: Four\n", b"D: Four\r\n", b"\xef\xbb\xbfx", "\\n naïve 😸\t ".encode(), b""])
def test_file_and_standard_input_are_used_byte_for_byte(tmp_path, monkeypatch, data):
    (tmp_path / "prompt").write_bytes(data)
    assert prompt_of("-f", tmp_path / "prompt").encode() == data
    assert prompt_of(stdin=data, monkeypatch=monkeypatch).encode() == data
    assert prompt_of("-f", "-", stdin=data, monkeypatch=monkeypatch).encode() == data


def test_escapes_only_with_e():
    text = r"a\n\t\\\"\'\x41\q\x4"
    assert prompt_of("-p", text) == prompt_of(text) == text
    assert prompt_of("-p", text, "-e") == prompt_of("--escape", text) == "a\n\t\\\"'A\\q\\x4"
    options = build_parser()[1].choices["run"].parse_intermixed_args(["m", "x", "-e", "-sys", r"\n", "-r", r"\t"])
    assert asked_options(options)["system"] == "\n" and asked_options(options)["stop"] == ["\t"]


def test_variables_of_the_template():
    words = ["m", "x", "--chat-template-kwargs", '{"enable_thinking": false, "n": [1]}']
    options = build_parser()[1].choices["run"].parse_intermixed_args(words)
    assert asked_options(options)["template_vars"] == {"enable_thinking": False, "n": [1]}


def test_a_prompt_that_is_given_wins_over_standard_input(monkeypatch):
    assert prompt_of("x", stdin=b"ignored", monkeypatch=monkeypatch) == "x"
    assert prompt_of("-p", "", stdin=b"ignored", monkeypatch=monkeypatch) == ""


@pytest.mark.parametrize("words", [("x", "-p", "y"), ("x", "-f", "y"), ("-p", "x", "-f", "y")])
def test_only_one_prompt(words):
    with pytest.raises(UsageError) as caught:
        prompt_of(*words)
    assert caught.value.name == "PROMPT_TWICE"


def test_no_prompt_at_a_terminal(monkeypatch):
    with pytest.raises(UsageError):
        prompt_of(terminal=True, monkeypatch=monkeypatch)


def test_what_is_not_utf8_is_refused(tmp_path, monkeypatch):
    (tmp_path / "prompt").write_bytes(b"ab\xff")
    for words, options in ((("-f", tmp_path / "prompt"), {}), ((), {"stdin": b"\xff", "monkeypatch": monkeypatch})):
        with pytest.raises(UsageError) as caught:
            prompt_of(*words, **options)
        assert caught.value.name == "NOT_UTF8"
    with pytest.raises(UsageError):
        prompt_of("-p", "\udcff")


def test_a_missing_prompt_file(tmp_path):
    with pytest.raises(FileProblem):
        prompt_of("-f", tmp_path / "nothing")

"""``kinetic render``: the prompt and nothing else, from a model file or a template by itself."""

import io
import json
import sys

import pytest

from kinetic.cli import main
from tests.support.talking_model import TEMPLATE, write_talker
from tests.support.tiny_models import CHATML, write_tiny_llama

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße: <|im_end|>"}]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def template(place):
    def write(source):
        (place / "t.jinja").write_bytes(source.encode())
        return "t.jinja"

    return write


@pytest.fixture
def printed(capsys):
    def printed(*words):
        assert main(["render", *words]) == 0, capsys.readouterr().err
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return printed


@pytest.fixture
def refused(capsys):
    """The sentence on standard error, once the exit code is the expected one and nothing was printed."""

    def refused(code, *words):
        assert main(["render", *words]) == code
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("kinetic: ") and err.count("\n") == 1
        return err

    return refused


def test_a_models_template(place, printed):
    model = str(write_tiny_llama(place / "m.gguf"))
    words = ("-m", "system:Be brief.", "-m", "user:Grüße: <|im_end|>")
    begun = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGrüße: <|im_end|><|im_end|>\n"
    assert printed(model, *words) == begun + "<|im_start|>assistant\n"
    assert printed(model, *words, "--no-generation-prompt") == begun
    (place / "chat.json").write_text(json.dumps(CHAT))
    assert printed(model, "--messages", "chat.json", "--no-generation-prompt") == begun


def test_a_template_by_itself(printed, template):
    source = "{{ bos_token }}{{ messages[0].role }} {{ thinking }} {{ documents|length }} {{ tools is defined }}"
    assert printed(template(source), "-m", "user:x") == "user  0 False"
    words = ("--var", 'bos_token="<s>"', "--var", "thinking=false", "--var", 'documents=[{"text": "a"}]')
    assert printed(template(source), "-m", "user:x", *words) == "<s>user False 1 False"


def test_tools_and_messages_from_files(place, printed, template, monkeypatch):
    (place / "tools.json").write_text('[{"name": "ü"}]', "utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(CHAT).encode())))
    source = "{{ tools|tojson }}{{ messages[1].content }}"
    words = ("--messages", "-", "--tools", "tools.json")
    assert printed(template(source), *words) == '[{"name": "ü"}]' + CHAT[1]["content"]


def test_the_clock(printed, template):
    said = printed(template("{{ strftime_now('%d %b') }}"), "-m", "user:x", "--clock", "2026-03-14")
    assert said == "14 Mar"
    assert printed(template("{{ strftime_now('%Y') }}"), "-m", "user:x") >= "2026"
    words = ("-m", "user:x", "--json", "--template-time", "2026-03-14T15:09:26Z")
    told = json.loads(printed(template("{{ strftime_now('%H:%M') }}"), *words))
    assert told == {"prompt": "15:09", "clock": "2026-03-14T15:09:26Z"}
    assert json.loads(printed(template("x"), *words)) == {"prompt": "x", "clock": None}


BAD_FILES = {"list.json": b'{"role": "user"}', "text.json": b"nonsense", "bytes.json": b"\xff", "items.json": b"[1]"}
BAD_FILES |= {"deep.json": b"[" * 99999, "half.json": b'[{"role": "\\ud800"}]', "number.json": b'[{"a": NaN}]'}


@pytest.mark.parametrize("name", [*BAD_FILES, "none.json"])
def test_files_that_are_no_conversation(name, place, refused, template):
    if name in BAD_FILES:
        (place / name).write_bytes(BAD_FILES[name])
    refused(3 if name == "none.json" else 2, template("x"), "--messages", name)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("-m", "no colon"),
        ("-m", ":x"),
        ("-m", "user:x", "--messages", "-"),
        ("--messages", "-", "--tools", "-"),
        ("-m", "user:x", "--var", "a"),
        ("-m", "user:x", "--var", "a=b"),
        ("-m", "user:x", "--var", "a b=1"),
        ("-m", "user:x", "--var", "messages=[]"),
        ("-m", "user:x", "--clock", "noon"),
        ("-m", "user:\udcff"),
    ],
)
def test_flags_that_mean_nothing(words, refused, template):
    refused(2, template("x"), *words)


def test_templates_that_fail(place, refused, template):
    assert "No images." in refused(11, template("{{ raise_exception('No images.') }}"), "-m", "user:x")
    assert "syntax" in refused(11, template("{% if %}"), "-m", "user:x")
    refused(14, template("{{ 'a' * 9999999999 }}"), "-m", "user:x")
    refused(11, template("x" * (256 * 1024 + 1)), "-m", "user:x")
    refused(11, template("é" * 600_000), "-m", "user:x")
    (place / "t.jinja").write_bytes(b"\xff")
    refused(2, "t.jinja", "-m", "user:x")
    refused(3, "other.jinja", "-m", "user:x")
    refused(3, "other.gguf", "-m", "user:x")


def test_a_model_without_a_template(place, refused, printed):
    model = str(write_talker(place / "base.gguf"))
    assert "no chat template" in refused(2, model, "-m", "user:x")
    assert printed(str(write_talker(place / "chat.gguf", template=TEMPLATE)), "-m", "user:x")


def test_the_tiny_models_template_is_the_one_printed(printed, template):
    assert printed(template(CHATML), "-m", "user:x") == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"

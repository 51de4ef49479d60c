"""``kinetic trace`` and ``kinetic trace diff``: what they print, what they refuse, and their exit codes."""

import json
import os

import pytest

from kinetic.api import trace_file
from kinetic.cli.command import main
from tests.support.answers import answered, edit
from tests.support.talking_model import write_talker


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, a receipt of it and two traces of that."""
    folder = tmp_path_factory.mktemp("trace")
    before, home = os.getcwd(), os.environ.get("KINETIC_HOME")
    os.chdir(folder)
    try:
        os.environ["KINETIC_HOME"] = str(folder / "home")
        answered(write_talker(folder / "m.gguf"), folder / "a.json", seed=7)
        for device in ("cpu", "reference"):
            assert run("a.json", "--token", "5", "-o", f"{device}.cbor", "--device", device, "--model", "m.gguf") == 0
    finally:
        os.chdir(before)
        os.environ.pop("KINETIC_HOME")
        if home is not None:
            os.environ["KINETIC_HOME"] = home
    return folder


@pytest.fixture
def folder(made, monkeypatch):
    monkeypatch.chdir(made)
    monkeypatch.setenv("KINETIC_HOME", str(made / "home"))
    return made


def run(*words):
    return main(["trace", *words])


def test_a_trace_is_told_in_a_line_or_as_json(folder, capsys):
    words = ("a.json", "--token", "5", "-o", "t.cbor", "--model", "m.gguf", "-t", "1", "-q", "--rows", "3")
    assert run(*words) == 0
    out, err = capsys.readouterr()
    size = (folder / "t.cbor").stat().st_size
    assert err == "" and out == (
        f"t.cbor: 19 operations of token 5 (position 6), {size:,} bytes;"
        " the pass without recording gives the same logits\n"
    )
    assert run(*words, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["file"], told["bytes"], told["operations"], told["rows"]) == ("t.cbor", size, 19, 3)
    assert (told["is_same_unwatched"], told["receipt_agrees"]) == (True, None)


def test_traces_that_agree(folder, capsys):
    assert run("diff", "cpu.cbor", "reference.cbor") == 0
    out, err = capsys.readouterr()
    assert (
        out == "IDENTICAL: all 19 operations agree to the bit, and so do the logits of the unwatched pass\n" and not err
    )
    assert run("diff", "--json", "cpu.cbor", "reference.cbor") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["op"], told["first_file"]) == ("IDENTICAL", -1, "cpu.cbor")


def test_traces_that_differ(folder, capsys):
    trace = trace_file.read("cpu.cbor")
    values = bytearray(trace.ops[7].values)
    values[8] ^= 1
    trace.ops[7] = trace.ops[7]._replace(values=bytes(values))
    trace.head["engine_id"] = "cpu:other\x1b[31m"
    trace_file.write("changed.cbor", trace)
    assert run("diff", "cpu.cbor", "changed.cbor") == 10
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"DIFFERS: operation 7 of 19, {trace.ops[7].op}") and ", element 2: 0x" in lines[0]
    assert lines[1].startswith("  cpu.cbor: ") and lines[2].startswith("  changed.cbor: ") and "\x1b" not in lines[2]
    assert run("diff", "cpu.cbor", "changed.cbor", "--json") == 10
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["op"], told["element"], told["different"]) == ("DIFFERS", 7, 2, 1)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["diff", "cpu.cbor"], 2),
        (["diff", "cpu.cbor", "absent.cbor"], 3),
        (["diff", "cpu.cbor", "a.json"], 11),
        (["diff", "a.json", "cpu.cbor"], 11),
        (["diff", "cpu.cbor", "--token=5", "cpu.cbor"], 2),
        (["a.json", "-o", "t2.cbor"], 2),
        (["a.json", "--token", "5"], 2),
        (["a.json", "--token", "8", "-o", "t2.cbor"], 2),
        (["a.json", "--token", "-1", "-o", "t2.cbor"], 2),
        (["a.json", "--token", "x", "-o", "t2.cbor"], 2),
        (["a.json", "--token", "5", "-o", "t2.cbor", "--rows", "0"], 2),
        (["a.json", "--token", "5", "-o", "t2.cbor", "--threads", "-1"], 2),
        (["a.json", "--token", "5", "-o", "t2.cbor", "--device", "abacus"], 2),
        (["a.json", "--token", "5", "-o", "a.json"], 2),
        (["a.json", "--token", "5", "-o", "m.gguf"], 2),
        (["a.json", "--token", "5", "-o", "no/t2.cbor"], 3),
        (["a.json", "--token", "5", "-o", "t2.cbor", "--model", "absent.gguf"], 13),
        (["a.json", "--token", "5", "-o", "t2.cbor", "--opening", "absent.json"], 3),
        (["absent.json", "--token", "5", "-o", "t2.cbor"], 3),
        (["cpu.cbor", "--token", "5", "-o", "t2.cbor"], 11),
        (["changed.json", "--token", "5", "-o", "t2.cbor"], 11),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_leaves_no_file(folder, words, code, capsys):
    changed = folder / "changed.json"
    changed.write_bytes((folder / "a.json").read_bytes())
    edit(changed, lambda record: record["output"]["tokens"].__setitem__(0, -5))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert run(*words) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("kinetic: ") and err.count("\n") == 1 and "Traceback" not in err
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_fault_of_the_pass_without_recording_is_an_exit_code(folder, monkeypatch, capsys):
    import kinetic.api.trace as tracing

    right = tracing.trace
    monkeypatch.setattr(tracing, "trace", lambda *a, **options: right(*a, **options)._replace(is_same_unwatched=False))
    assert run("a.json", "--token", "5", "-o", "odd.cbor", "--model", "m.gguf") == 10
    assert "the pass without recording gives OTHER logits" in capsys.readouterr().out
    assert (folder / "odd.cbor").exists()


def test_help(capsys):
    for words, text in ((["--help"], "trace RECEIPT --token N -o FILE"), (["diff", "--help"], "trace diff")):
        assert run(*words) == 0
        assert text in capsys.readouterr().out

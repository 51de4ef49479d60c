"""``kinetic run`` and ``verify-receipt`` around a real model that says "one day": output, interruption, exit codes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from kinetic.backends.cpu import native, target
from kinetic.cli import main
from kinetic.cli.progress import Progress
from kinetic.engine import Engine
from receipts.encode import read_receipt
from tests.cli.conftest import COMMAND, ROOT
from tests.support.talking_model import TEMPLATE, write_talker


@pytest.fixture(autouse=True)
def model(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return write_talker(tmp_path / "tiny.gguf", template=TEMPLATE, overflow=True)


def run(*words):
    return main(["run", *map(str, words), "-t", "1"])


def prompt_of(receipt):
    return bytes(read_receipt(receipt).record["prompt"]["tokens"][1:])


def during_generation(monkeypatch, position, happens):
    """Let something happen just before the token at this output position is handed out."""
    real = Engine.generate

    def generate(self, request, *rest, **options):
        for step in real(self, request, *rest, **options):
            if step.position - len(request.prompt) == position:
                happens()
            yield step

    monkeypatch.setattr(Engine, "generate", generate)


def test_text_on_standard_output_and_statistics_beside_it(model, capsys):
    assert run(model, "Rivers?", "--seed", "7") == 0
    out, err = capsys.readouterr()
    assert out == "one day\n"
    assert "seed 7" in err and "tiny.gguf" in err and "answer 8 tokens" in err and "ended by end" in err
    assert len([line for line in err.splitlines() if "compiling kernels" not in line]) == 2


def test_quiet_means_the_answer_alone(model, capsys):
    assert run(model, "Rivers?", "-q") == 0
    assert capsys.readouterr() == ("one day\n", "")


def test_an_answer_that_ends_its_line_gets_no_second_newline(tmp_path, capsys):
    run(write_talker(tmp_path / "line.gguf", b"one\n"), "x", "-q")
    run(tmp_path / "line.gguf", "x", "-q", "-n", "0")
    assert capsys.readouterr().out == "one\n"


def test_json_is_one_object(model, capsys, tmp_path):
    receipt, seed = tmp_path / "r.json", str(2**64 - 1)
    assert run(model, "x", "--json", "--seed", seed, "--stop", "day", "--receipt", receipt) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "one " and answer["stop_reason"] == "stop" and answer["seed"] == seed
    assert answer["tokens"] == list(b"one day") and answer["receipt"] == str(receipt)
    assert answer["stats"]["answer_tokens"] == 7 and answer["profile"].startswith("kinetic-1")


def test_the_drawn_seed_is_shown_and_gives_the_same_receipt_again(model, capsys, tmp_path):
    first, again = tmp_path / "1.json", tmp_path / "2.json"
    run(model, "x", "--receipt", first, "--json")
    seed = json.loads(capsys.readouterr().out)["seed"]
    run(model, "x", "--receipt", again, "--seed", seed)
    records = [read_receipt(path).record for path in (first, again)]
    assert records[0]["sampling"] == records[1]["sampling"] and records[0]["sampling"]["seed"] == seed


def test_raw_and_system(model, tmp_path):
    path = tmp_path / "r.json"
    run(model, "x", "--raw", "--receipt", path)
    assert prompt_of(path) == b"x"
    run(model, "x", "-sys", "S", "--receipt", path)
    assert prompt_of(path) == b"system: S\nuser: x\n"


def test_control_c_ends_the_answer_and_keeps_the_receipt(model, capsys, tmp_path, monkeypatch):
    during_generation(monkeypatch, 3, lambda: signal.raise_signal(signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    assert run(model, "x", "--receipt", tmp_path / "r.json") == 130
    assert capsys.readouterr().out == "one \n"
    record = read_receipt(tmp_path / "r.json").record
    assert record["stop"]["reason"] == "interrupt" and record["text"] == "one "
    assert signal.getsignal(signal.SIGINT) is before
    assert main(["verify-receipt", str(tmp_path / "r.json")]) == 0
    assert capsys.readouterr().out.startswith("IDENTICAL: the run was interrupted; its 4 tokens are")


def test_the_second_control_c_ends_the_program(model, tmp_path, monkeypatch):
    during_generation(monkeypatch, 3, lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
    assert run(model, "x", "--receipt", tmp_path / "r.json") == 130
    assert not (tmp_path / "r.json").exists(), "at once means at once"


def test_control_c_at_a_real_process(tmp_path):
    """The answer would take for ever; it is interrupted when the first of it has been seen."""
    endless = write_talker(tmp_path / "endless.gguf", context=2**20)
    words = ["run", endless, "x", "-n", "-2", "--receipt", tmp_path / "r.json", "-t", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, bufsize=0
    ) as process:
        beginning = process.stdout.read(30)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "ended by interrupt" in errors.decode() and "Traceback" not in errors.decode()
    record = read_receipt(tmp_path / "r.json").record
    assert record["stop"]["reason"] == "interrupt" and record["text"] + "\n" == (beginning + rest).decode()
    assert main(["verify-receipt", str(tmp_path / "r.json"), "-t", "1"]) == 0


def test_a_reader_that_goes_away_leaves_the_receipt(model, tmp_path, monkeypatch):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

        def fileno(self):
            raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Gone())
        assert run(model, "x", "--receipt", tmp_path / "r.json") == 141
    assert read_receipt(tmp_path / "r.json").record["stop"]["reason"] == "interrupt"


def test_a_number_that_is_not_finite_leaves_no_receipt(model, tmp_path):
    assert run(model, "x!", "--raw", "--receipt", tmp_path / "r.json") == 8
    assert not (tmp_path / "r.json").exists()


def test_a_receipt_that_could_not_be_written_is_known_before_the_answer(model, capsys, tmp_path):
    for path in (tmp_path / "nowhere" / "r.json", tmp_path):
        assert run(model, "x", "--receipt", path) == 3
    assert capsys.readouterr().out == ""


def test_a_receipt_never_replaces_a_model_or_the_prompt(model, capsys, tmp_path):
    prompt, link = tmp_path / "p.txt", tmp_path / "link"
    prompt.write_text("x")
    link.symlink_to(model)
    before = model.read_bytes()
    for words in (["x", "--receipt", model], ["x", "--receipt", link], ["-f", prompt, "--receipt", prompt]):
        assert run(model, *words) == 2
    for name in ("-", ""):
        assert run(model, "x", "--receipt", name) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 5 and model.read_bytes() == before and prompt.read_text() == "x"


def test_standard_input_as_prompt_and_receipt(model, tmp_path):
    prompt = tmp_path / "p.txt"
    prompt.write_text("x")
    command = [*COMMAND, "run", str(model), "--receipt", str(prompt)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with prompt.open() as source:
        done = subprocess.run(command, stdin=source, capture_output=True, env=environment, check=False)
    assert done.returncode == 2 and prompt.read_text() == "x"


def test_one_token_is_not_tokens(model, capsys, tmp_path):
    assert run(model, "x", "-n", "1", "--receipt", tmp_path / "r.json") == 0
    assert "answer 1 token, ended by length" in capsys.readouterr().err
    assert main(["verify-receipt", str(tmp_path / "r.json")]) == 0
    assert capsys.readouterr().out == "IDENTICAL: its 1 token is the one this model draws\n"


def test_a_home_that_cannot_be_written_is_mentioned_once(model, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "file" / "home"))
    kernels = native.cache_folder(target.choose())  # those of all tests: nothing needs to be compiled here
    monkeypatch.setattr(native, "cache_folder", lambda isa: kernels)
    for words, notes in ([], 1), (["-q"], 0):
        monkeypatch.setenv("KINETIC_KERNELS", "")
        assert run(model, "x", "--receipt", tmp_path / "r.json", *words) == 0
        assert capsys.readouterr().err.count("can't be written") == notes


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["x" * 60, "-c", "32"], 6),
        (["x", "-c", "65"], 2),
        (["x", "-c", "-1"], 2),
        (["x", "-t", "-1"], 2),
        (["x", "-n", "-3"], 2),
        (["x", "--temp", "nan"], 2),
        (["x", "--top-p", "1.5"], 2),
        (["x", "--device", "abacus"], 2),
        (["x", "-l", "999+1"], 2),
        (["x", "--stop", ""], 2),
        (["", "--raw", "-sys", "x"], 2),
        (["x", "--template-time", "noon"], 2),
        (["x", "--chat-template-kwargs", "{"], 2),
        (["x", "--chat-template-kwargs", "[1]"], 2),
        (["x", "--chat-template-kwargs", '{"messages": []}'], 2),
    ],
)
def test_refusals(model, capsys, words, code):
    assert main(["run", str(model), *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("kinetic: ") and err.count("\n") == 1


# --- verify-receipt ---


@pytest.fixture
def receipt(model, tmp_path, capsys):
    path = tmp_path / "answer.json"
    assert run(model, "x", "--receipt", path, "-q") == 0
    capsys.readouterr()
    return path


def test_identical(receipt, capsys):
    assert main(["verify-receipt", str(receipt)]) == 0
    assert capsys.readouterr() == ("IDENTICAL: all 8 tokens are the ones this model draws\n", "")


def test_an_edited_token(receipt, capsys):
    envelope = json.loads(receipt.read_text())
    envelope["receipt"]["output"]["tokens"][2] = ord("R")
    receipt.write_text(json.dumps(envelope))
    assert main(["verify-receipt", str(receipt)]) == 10
    out, _ = capsys.readouterr()
    assert out.startswith("DIFFERS: token 2: receipt says 'R' (id 82), rerun gives 'e' (id 101)") and "apart" in out
    assert main(["verify-receipt", str(receipt), "--json"]) == 10
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["verdict"], verdict["position"], verdict["expected"], verdict["got"]) == ("DIFFERS", 2, 82, 101)


def test_other_verdicts(receipt, model, capsys, tmp_path):
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    assert main(["verify-receipt", str(receipt), "--model", str(tmp_path / "other.gguf")]) == 13
    assert capsys.readouterr().err.startswith("UNVERIFIABLE (")
    write_talker(tmp_path / "another.gguf", b"two")
    assert main(["verify-receipt", str(receipt), "--model", str(tmp_path / "another.gguf")]) == 13
    assert capsys.readouterr().err.startswith("UNVERIFIABLE (MODEL): ")
    model.unlink()
    assert main(["verify-receipt", str(receipt)]) == 13
    assert capsys.readouterr().err.startswith("UNVERIFIABLE (MODEL_MISSING): ")
    assert main(["verify-receipt", str(tmp_path / "nothing.json")]) == 3
    receipt.write_text("{")
    assert main(["verify-receipt", str(receipt)]) == 11


# --- progress ---


def at_a_terminal(monkeypatch):
    """Called by the test itself: pytest changes standard error between fixture and test."""
    monkeypatch.setattr("kinetic.cli.progress.FIRST_AFTER", 0.0)
    monkeypatch.setattr("kinetic.cli.progress.EVERY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def test_progress_is_for_terminals(monkeypatch, capsys):
    at_a_terminal(monkeypatch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    with Progress("hashing") as bar:
        bar(1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress("hashing") as bar:
        bar(1, 2)
        bar(0, 0)
    assert " 50%" in (shown := capsys.readouterr().err) and shown.endswith("\r\x1b[K")
    with Progress("hashing", quiet=True) as bar:
        bar(1, 2)
    assert capsys.readouterr().err == ""


def test_long_prompts_and_verification_show_progress_at_a_terminal(model, capsys, tmp_path, monkeypatch):
    at_a_terminal(monkeypatch)
    monkeypatch.setattr("kinetic.engine.engine.PROMPT_ROWS", 4)
    assert run(model, "123456789", "--receipt", tmp_path / "r.json") == 0
    assert "\rreading the prompt [" in capsys.readouterr().err
    assert main(["verify-receipt", str(tmp_path / "r.json")]) == 0
    shown = capsys.readouterr().err
    assert "\rhashing the model [" in shown and "\rrerunning the answer [" in shown
    assert run(model, "123456789", "-q") == 0
    assert capsys.readouterr().err == ""

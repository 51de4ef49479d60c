"""``kinetic run`` and ``verify-receipt`` around a model of bytes: output, interruption, exit codes."""

import json
import signal
import sys

import pytest

from kinetic.api import model as model_module
from kinetic.api import verify as verify_module
from kinetic.cli import main
from kinetic.cli.progress import Progress
from receipts.encode import read_receipt
from tests.support.fake_model import NAN, Engine, HashedFile, Template, Tokenizer


@pytest.fixture(autouse=True)
def model(monkeypatch, tmp_path):
    """A file that opens as the model of bytes."""
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    for module in (model_module, verify_module):
        monkeypatch.setattr(module.loader, "open_model_file", HashedFile)
    monkeypatch.setattr(model_module, "load_tokenizer", lambda metadata: Tokenizer())
    monkeypatch.setattr(model_module, "load_template", lambda metadata, tokenizer: Template())
    monkeypatch.setattr(model_module, "Engine", Engine)
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF weights")
    return path


def during_generation(monkeypatch, position, happens):
    """Let something happen just before the token at this output position is handed out."""
    real = Engine.generate

    def generate(self, request, should_stop=None):
        for step in real(self, request, should_stop):
            if step.position - len(request.prompt) == position:
                happens()
            yield step

    monkeypatch.setattr(Engine, "generate", generate)


def test_text_on_standard_output_and_statistics_beside_it(model, capsys):
    assert main(["run", str(model), "Rivers?", "--seed", "7"]) == 0
    out, err = capsys.readouterr()
    assert out == "a river\n"
    assert "seed 7" in err and "one byte at a time" in err and "tiny.gguf" in err and "ended by end" in err
    assert len(err.splitlines()) == 2


def test_quiet_means_the_answer_alone(model, capsys):
    assert main(["run", str(model), "Rivers?", "-q"]) == 0
    assert capsys.readouterr() == ("a river\n", "")


def test_an_answer_that_ends_its_line_gets_no_second_newline(model, capsys, monkeypatch):
    monkeypatch.setattr(Engine, "answer", b"one\n")
    main(["run", str(model), "x", "-q"])
    monkeypatch.setattr(Engine, "answer", b"")
    main(["run", str(model), "x", "-q"])
    assert capsys.readouterr().out == "one\n"


def test_json_is_one_object(model, capsys, tmp_path):
    receipt = str(tmp_path / "r.json")
    seed = str(2**64 - 1)
    assert main(["run", str(model), "x", "--json", "--seed", seed, "--stop", "ver", "--receipt", receipt]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "a ri" and answer["stop_reason"] == "stop" and answer["seed"] == seed
    assert answer["tokens"] == list(b"a river") and answer["receipt"] == receipt
    assert answer["stats"]["answer_tokens"] == 7 and answer["profile"].startswith("kinetic-1")


def test_the_drawn_seed_is_shown_and_gives_the_same_receipt_again(model, capsys, tmp_path):
    first, again = tmp_path / "1.json", tmp_path / "2.json"
    main(["run", str(model), "x", "--receipt", str(first), "--json"])
    seed = json.loads(capsys.readouterr().out)["seed"]
    main(["run", str(model), "x", "--receipt", str(again), "--seed", seed])
    records = [read_receipt(path).record for path in (first, again)]
    assert records[0]["sampling"] == records[1]["sampling"] and records[0]["sampling"]["seed"] == seed


def test_raw_and_system(model, capsys, tmp_path):
    path = tmp_path / "r.json"
    main(["run", str(model), "x", "--raw", "--receipt", str(path)])
    assert bytes(read_receipt(path).record["prompt"]["tokens"][1:]) == b"x"
    main(["run", str(model), "x", "-sys", "S", "--receipt", str(path)])
    assert bytes(read_receipt(path).record["prompt"]["tokens"][1:]) == b"system: S\nuser: x\n"


def test_control_c_ends_the_answer_and_keeps_the_receipt(model, capsys, tmp_path, monkeypatch):
    during_generation(monkeypatch, 3, lambda: signal.raise_signal(signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    assert main(["run", str(model), "x", "--receipt", str(tmp_path / "r.json")]) == 130
    assert capsys.readouterr().out == "a ri\n"
    record = read_receipt(tmp_path / "r.json").record
    assert record["stop"]["reason"] == "interrupt" and record["text"] == "a ri"
    assert signal.getsignal(signal.SIGINT) is before
    assert main(["verify-receipt", str(tmp_path / "r.json")]) == 0
    assert "interrupted" in capsys.readouterr().out


def test_the_second_control_c_ends_the_program(model, capsys, tmp_path, monkeypatch):
    during_generation(monkeypatch, 3, lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
    assert main(["run", str(model), "x", "--receipt", str(tmp_path / "r.json")]) == 130
    assert not (tmp_path / "r.json").exists(), "at once means at once"


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
        assert main(["run", str(model), "x", "--receipt", str(tmp_path / "r.json")]) == 141
    assert read_receipt(tmp_path / "r.json").record["stop"]["reason"] == "interrupt"


def test_a_number_that_is_not_finite_leaves_no_receipt(model, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(Engine, "answer", [65, NAN])
    assert main(["run", str(model), "x", "--receipt", str(tmp_path / "r.json")]) == 8
    assert not (tmp_path / "r.json").exists()


def test_a_receipt_that_could_not_be_written_is_known_before_the_answer(model, capsys, tmp_path):
    assert main(["run", str(model), "x", "--receipt", str(tmp_path / "nowhere" / "r.json")]) == 3
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["x" * 60, "-c", "32"], 6),
        (["x", "-c", "-1"], 2),
        (["x", "-t", "-1"], 2),
        (["x", "-n", "-3"], 2),
        (["x", "--temp", "nan"], 2),
        (["x", "--top-p", "1.5"], 2),
        (["x", "--device", "abacus"], 2),
        (["x", "-l", "999+1"], 2),
        (["x", "--stop", ""], 2),
        (["", "--raw", "-sys", "x"], 2),
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
    assert main(["run", str(model), "x", "--receipt", str(path), "-q"]) == 0
    capsys.readouterr()
    return path


def test_identical(receipt, capsys):
    assert main(["verify-receipt", str(receipt)]) == 0
    assert capsys.readouterr().out.startswith("IDENTICAL: all 8 tokens")


def test_an_edited_token(receipt, capsys):
    envelope = json.loads(receipt.read_text())
    envelope["receipt"]["output"]["tokens"][2] = ord("R")
    receipt.write_text(json.dumps(envelope))
    assert main(["verify-receipt", str(receipt)]) == 10
    assert capsys.readouterr().out.startswith("DIFFERS: token 2: receipt says 'R' (id 82), rerun gives 'r' (id 114)")
    assert main(["verify-receipt", str(receipt), "--json"]) == 10
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["verdict"], verdict["position"], verdict["expected"], verdict["got"]) == ("DIFFERS", 2, 82, 114)


def test_other_verdicts(receipt, model, capsys, tmp_path):
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    assert main(["verify-receipt", str(receipt), "--model", str(tmp_path / "other.gguf")]) == 13
    assert capsys.readouterr().err.startswith("UNVERIFIABLE (MODEL): ")
    model.unlink()
    assert main(["verify-receipt", str(receipt)]) == 13
    assert main(["verify-receipt", str(tmp_path / "nothing.json")]) == 3
    receipt.write_text("{")
    assert main(["verify-receipt", str(receipt)]) == 11


# --- progress ---


def test_progress_is_for_terminals(monkeypatch, capsys):
    monkeypatch.setattr("kinetic.cli.progress.FIRST_AFTER", 0.0)
    monkeypatch.setattr("kinetic.cli.progress.EVERY", 0.0)
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

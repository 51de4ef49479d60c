"""``kinetic audit``, interrupted and resumed: what is kept, what it counts for, and what it does not."""

import shutil
import signal

import pytest

from kinetic import store
from kinetic.api import model as model_module
from kinetic.api.verify import Checker
from kinetic.loader import LoadedFile
from ktc.keys import write_key_pair
from receipts.audit_state import State
from receipts.encode import read_receipt, write_receipt
from receipts.identity import receipt_id
from tests.support.fifty_receipts import BAD, arrive, audit, make, states, tamper


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(tmp_path_factory.mktemp("fifty"))


@pytest.fixture(autouse=True)
def folder(made, monkeypatch, tmp_path):
    return arrive(made, tmp_path, monkeypatch)


def interrupt_after(monkeypatch, count):
    """Ctrl-C in the middle of a rerun; gives the list of what was rerun."""
    rerun, real = [], Checker.rerun_record

    def interrupted(self, record):
        if len(rerun) == count:
            signal.raise_signal(signal.SIGINT)
        rerun.append(receipt_id(record))
        return real(self, record)

    monkeypatch.setattr(Checker, "rerun_record", interrupted)
    return rerun


def test_ctrl_c_loses_nothing(folder, monkeypatch, capsys, tmp_path):
    tamper(folder)
    with monkeypatch.context() as patch:
        first = interrupt_after(patch, 20)
        assert audit("r") == 130
    out, err = capsys.readouterr()
    assert "the same command goes on from there" in err and "identical" not in out
    (state,) = states(tmp_path)
    state.write_bytes(state.read_bytes() + b'{"file": "torn')
    second = interrupt_after(monkeypatch, -1)
    assert audit("r") == 12
    out, _ = capsys.readouterr()
    assert len(first) == 20 and len(second) == 29 and not set(first) & set(second)
    assert "20 of these verdicts are those of an earlier run." in out
    assert {line.split(": ")[0] for line in out.splitlines()[:3]} == set(BAD) and not states(tmp_path)


def test_a_resumed_sample_is_the_same_sample(folder, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        first = interrupt_after(patch, 4)
        assert audit("r", "--sample", "9") == 130
    second = interrupt_after(monkeypatch, -1)
    assert audit("r", "--sample", "9") == 0
    assert len(first) == 4 and len(second) == 5 and not set(first) & set(second)
    assert "  IDENTICAL          9" in capsys.readouterr().out


def test_a_kept_verdict_counts_for_the_same_bytes_engine_and_method_alone(folder, monkeypatch, capsys):
    rerun = interrupt_after(monkeypatch, -1)
    kept = ["r", "--state", "kept"]
    assert audit(*kept) == 0 and len(rerun) == 50
    assert audit(*kept) == 0 and len(rerun) == 50, "all was kept"
    assert "50 of these verdicts" in capsys.readouterr().out
    assert audit(*kept, "--method", "decode") == 0 and len(rerun) == 100
    assert audit("r/a07.json", *kept[1:], "--device", "reference") == 0 and len(rerun) == 101
    record = read_receipt("r/a07.json").record
    write_receipt("r/a07.json", record | {"clock": "noon"})
    assert audit(*kept) == 0 and rerun[101:] == [receipt_id(record | {"clock": "noon"})]
    monkeypatch.setattr("kinetic.api.audit._engine_id", lambda device: "another")
    assert audit(*kept) == 0 and len(rerun) == 152


def test_signatures_are_judged_anew_though_the_rerun_was_kept(folder, capsys):
    write_key_pair("bob", bytes(32))
    assert audit("r", "--state", "kept") == 0
    assert audit("r", "--state", "kept", "--key", "bob.pub") == 12
    assert "50 refused for their signature" in capsys.readouterr().out


def test_a_kept_difference_is_rerun_where_its_trail_is_wanted(folder, monkeypatch):
    tamper(folder)
    rerun = interrupt_after(monkeypatch, -1)
    assert audit("r", "--state", "kept") == 12 and audit("r", "--state", "kept", "--html", "r.html") == 12
    assert len(rerun) == 49 + 1


def test_a_state_is_never_written_into_another_file(folder, capsys):
    shutil.copy("r/a07.json", "elsewhere.json")
    before = (folder / "elsewhere.json").read_bytes()
    assert audit("r", "--state", "elsewhere.json") == 3
    assert (folder / "elsewhere.json").read_bytes() == before and capsys.readouterr().err.count("\n") == 1


def test_a_second_audit_with_the_same_state_waits_for_nobody(folder, capsys):
    with State("kept"):
        assert audit("r", "--state", "kept") == 3
    out, err = capsys.readouterr()
    assert out == "" and "kept is in use by another audit" in err and err.count("\n") == 1
    assert audit("r", "--state", "kept") == 0


def test_a_kept_verdict_needs_the_model_it_was_found_with(folder, monkeypatch, capsys):
    kept = ["r", "--state", "kept"]
    assert audit(*kept) == 0
    capsys.readouterr()
    assert audit(*kept, "--model", "model0.gguf") == 13
    out = capsys.readouterr().out
    assert out.count("UNVERIFIABLE (MODEL)") == 25 and "25 of these verdicts are those of an earlier run." in out
    data = bytearray((folder / "model1.gguf").read_bytes())
    data[-1] ^= 1
    (folder / "model1.gguf").write_bytes(data)
    store.digests("model1.gguf")
    assert audit(*kept) == 13
    assert capsys.readouterr().out.count("UNVERIFIABLE (MODEL_MISSING)") == 25
    (folder / "model0.gguf").unlink()
    assert audit(*kept) == 13
    out = capsys.readouterr().out
    assert out.count("UNVERIFIABLE (MODEL_MISSING)") == 50 and "earlier run" not in out


def test_where_all_was_kept_a_model_is_hashed_and_not_loaded(folder, monkeypatch):
    assert audit("r", "--state", "kept") == 0
    hashed, real = [], LoadedFile.identity
    monkeypatch.setattr(model_module, "_open_engine", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr(LoadedFile, "identity", lambda self, **asked: hashed.append(asked["rehash"]) or real(self))
    assert audit("r", "--state", "kept") == 0 and hashed == [True, True]

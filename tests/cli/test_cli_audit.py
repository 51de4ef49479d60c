"""``kinetic audit``: fifty receipts of which three were tampered with, two models, samples, and Ctrl-C."""

import json
import re
import shutil
import signal
from xml.etree import ElementTree

import pytest

from kinetic import store
from kinetic.api import Model
from kinetic.api import model as model_module
from kinetic.api.verify import Checker
from kinetic.cli import main
from ktc.keys import write_key_pair
from receipts.audit import choose
from receipts.encode import read_receipt, write_receipt
from receipts.identity import receipt_id
from receipts.sign import sign_record
from tests.support.sample_receipts import SEED
from tests.support.talking_model import write_talker


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder ``r`` of fifty signed receipts, of two models, whose answers are a matter of chance."""
    folder = tmp_path_factory.mktemp("fifty")
    (folder / "r" / "more").mkdir(parents=True)
    for half, answer in enumerate((b"one day", b"may be")):
        path = write_talker(folder / f"model{half}.gguf", answer, scale=0.02)
        with Model(path, threads=1) as model:
            for index in range(half, 50, 2):
                record = model.generate("x", seed=index, max_tokens=12).receipt()
                name = f"{'more/' if index > 40 else ''}a{index:02}.{'cbor' if index % 5 == 0 else 'json'}"
                form = name[-4:].lstrip(".")
                write_receipt(folder / "r" / name, record, [sign_record(record, SEED)], form=form)
    return folder


@pytest.fixture(autouse=True)
def folder(made, monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(store, "RACY_NS", -(10**18))
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    for model in folder.glob("*.gguf"):
        store.digests(model)
    monkeypatch.chdir(folder)
    return folder


def audit(*words):
    return main(["audit", *map(str, words), "-t", "1"])


def states(tmp_path):
    return list((tmp_path / "home" / "audits").iterdir())


def edit(path, change):
    envelope = json.loads(path.read_text())
    change(envelope)
    path.write_text(json.dumps(envelope))


def tamper(folder):
    """A token of one, the text of another, a bit of a signature of a third; the first two are signed anew."""

    def resign(envelope):
        envelope["signatures"] = [sign_record(envelope["receipt"], SEED)]

    def token(envelope):
        tokens = envelope["receipt"]["output"]["tokens"]
        tokens[2] = tokens[2] ^ 1
        resign(envelope)

    def text(envelope):
        envelope["receipt"]["text"] += "."
        resign(envelope)

    def signature(envelope):
        entry = envelope["signatures"][0]
        entry["signature"] = entry["signature"][:-3] + ("A" if entry["signature"][-3] != "A" else "E") + "=="

    edit(folder / "r" / "a07.json", token)
    edit(folder / "r" / "a18.json", text)
    edit(folder / "r" / "more" / "a43.json", signature)


BAD = {"r/a07.json": "DIFFERS", "r/a18.json": "MALFORMED", "r/more/a43.json": "SIGNATURE"}


def test_fifty_of_which_three_were_tampered_with(folder, capsys, tmp_path):
    tamper(folder)
    assert audit("r") == 12
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "" and {line.split(": ")[0]: re.split(r"[ :]+", line)[1] for line in lines[:3]} == BAD
    assert lines[3].startswith("47 of 50 receipts are identical; ")
    assert lines[4:] == [
        "  SIGNATURE          1  r/more/a43.json",
        "  MALFORMED          1  r/a18.json",
        "  DIFFERS            1  r/a07.json",
        "  IDENTICAL         47",
    ]
    assert "valid" not in out and not states(tmp_path), "a complete audit leaves no state"


@pytest.mark.parametrize(("gone", "code"), [((), 12), (("more/a43.json",), 11), (("more/a43.json", "a18.json"), 10)])
def test_the_gravest_decides_the_code(folder, gone, code):
    tamper(folder)
    for name in gone:
        (folder / "r" / name).unlink()
    assert audit("r", "-q") == code


def test_all_is_well(folder, capsys):
    assert audit("r") == 0
    assert capsys.readouterr().out == "All 50 receipts are identical.\n  IDENTICAL         50\n"
    write_key_pair("alice", SEED)
    write_key_pair("bob", bytes(32))
    assert audit("r", "--key", "alice.pub", "--json", "--sample", "25") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len({row["signature"] for row in rows}) == 1 and rows[0]["signature"].startswith("valid signature by alice")
    assert audit("r", "--key", "bob.pub") == 12
    assert capsys.readouterr().out.splitlines()[50].startswith("0 of 50 receipts are identical; 50 refused")


def test_each_model_is_hashed_and_loaded_once_though_receipts_alternate(folder, monkeypatch):
    loaded, real = [], model_module._open_engine

    def load(file, *rest):
        loaded.append(file.gguf.paths[0].name)
        return real(file, *rest)

    monkeypatch.setattr(model_module, "_open_engine", load)
    assert audit("r") == 0
    assert loaded == ["model0.gguf", "model1.gguf"]


def test_files_patterns_and_what_is_no_receipt(folder, capsys):
    (folder / "r" / "list.json").write_text('{"type": "kinetic-opening", "version": 1}')
    (folder / "r" / "big.json").write_text(" " * (16 * 1024 * 1024 + 1))
    assert audit("r") == 0
    out = capsys.readouterr().out
    assert out.startswith("All 50 receipts") and "skipped: not a receipt: 2 (r/big.json, r/list.json)" in out
    assert audit("r/list.json") == 11, "a file that is asked for by name had better be one"
    assert audit("r/a0*.json") == 0
    assert capsys.readouterr().out.splitlines()[-2].startswith("All 8 receipts")
    (folder / "r" / "half.json").write_text((folder / "r" / "a07.json").read_text()[:300])
    (folder / "r" / "empty.json").write_text('{"receipt": {}, "signatures": []}')
    assert audit("r") == 11
    out = capsys.readouterr().out
    assert "r/half.json: MALFORMED (BAD_JSON)" in out and "r/empty.json: MALFORMED (NOT_A_RECEIPT)" in out


@pytest.mark.parametrize("words", [["none"], ["other"], ["x*.json"]])
def test_an_audit_of_nothing_is_no_success(folder, words, capsys):
    (folder / "none").mkdir()
    (folder / "other").mkdir()
    (folder / "other" / "a.json").write_text("{}")
    assert audit(*words) == 3
    assert capsys.readouterr().out == ""


def test_what_cannot_be_judged_here_is_said_once_for_each(folder, capsys):
    (folder / "model1.gguf").unlink()
    assert audit("r") == 13
    out = capsys.readouterr().out
    assert out.count("UNVERIFIABLE (MODEL_MISSING)") == 25 and "  IDENTICAL         25" in out
    assert audit("r", "--model", "model0.gguf") == 13
    assert capsys.readouterr().out.count("UNVERIFIABLE (MODEL)") == 25


# Samples


def test_a_sample_is_the_one_that_its_seed_gives(folder, capsys):
    (folder / "r" / "a02.json").write_text('{"receipt": {}, "signatures": []}')
    seed = bytes(range(32))
    assert audit("r", "--sample", "5", "--sample-seed", seed.hex(), "--json") == 11
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err.startswith("r/a02.json: MALFORMED")
    counts = report["counts"]
    assert (counts["IDENTICAL"], counts["NOT_RERUN"], counts["MALFORMED"]) == (5, 44, 1)
    passed = [row for row in report["rows"] if row["verdict"] != "MALFORMED"]
    named = sorted(row["receipt_id"] for row in passed)
    rerun = {row["receipt_id"] for row in passed if row["verdict"] == "IDENTICAL"}
    assert rerun == {named[index] for index in choose(49, 5, seed)}
    facts = {fact["name"]: fact["value"] for fact in report["facts"]}
    assert facts["sample"] == "5 of the 49 receipts that pass the checks" and facts["sample seed"] == seed.hex()
    assert facts["chance to find at least one"].startswith("10.204% if 1 is bad, 10.204% if 1% are, ")


def test_a_sample_is_drawn_anew_each_time_and_says_what_it_is_worth(folder, capsys):
    seeds = set()
    for _ in range(2):
        assert audit("r", "--sample", "10%", "--state", "kept") == 0
        out = capsys.readouterr().out
        assert "  NOT_RERUN         45\n  IDENTICAL          5\n" in out
        seeds.add(re.search("sample seed: ([0-9a-f]{64})", out)[1])
    assert len(seeds) == 2, "though the state of the first audit was kept"
    assert audit("r", "--sample", "100%") == 0
    assert "100% if 1 is bad" in capsys.readouterr().out


def test_signatures_are_judged_of_all_and_not_of_the_sample_alone(folder):
    tamper(folder)
    assert audit("r", "--sample", "1") == 12


@pytest.mark.parametrize("words", [["--sample", "0"], ["--sample", "5%%"], ["--sample-seed", "ab"], ["--sample"]])
def test_samples_that_are_none(words, capsys):
    assert audit("r", *words) == 2
    assert capsys.readouterr().err.count("\n") == 1


# Interrupted and resumed


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


def test_a_receipt_that_changes_meanwhile_is_not_believed(folder, monkeypatch, capsys):
    real = Checker.rerun_record

    def change(self, record):
        tamper(folder)
        monkeypatch.setattr(Checker, "rerun_record", real)
        return real(self, record)

    monkeypatch.setattr(Checker, "rerun_record", change)
    assert audit("r") == 3
    assert capsys.readouterr().out.count("UNREADABLE (FILE_CHANGED)") == 3


def test_a_state_is_never_written_into_another_file(folder, capsys):
    before = (folder / "r" / "a07.json").read_bytes()
    assert audit("r", "--state", "r/a07.json") == 3
    assert (folder / "r" / "a07.json").read_bytes() == before and capsys.readouterr().err.count("\n") == 1


def test_a_fault_of_our_own_takes_no_other_verdict_with_it(folder, monkeypatch, capsys):
    real, met = Checker._rerun, []

    def fail(self, record):
        met.append(1)
        return 1 / 0 if len(met) == 3 else real(self, record)

    monkeypatch.setattr(Checker, "_rerun", fail)
    assert audit("r") == 1
    out = capsys.readouterr().out
    assert "FAULT: internal fault: ZeroDivisionError" in out and "  IDENTICAL         49" in out


def test_reports(folder, capsys):
    tamper(folder)
    assert audit("r", "--junit", "r.xml", "--sarif", "r.sarif", "--html", "r.html", "--json") == 12
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert {row["file"]: row["verdict"] for row in report["rows"] if row["verdict"] != "IDENTICAL"} == BAD
    assert [row["file"] for row in report["rows"]] == sorted(row["file"] for row in report["rows"])
    assert err.count("\n") == 3 and report["exit_code"] == 12
    assert len(list(ElementTree.parse("r.xml").getroot().iter("testcase"))) == 50
    assert "r/a07.json" in (folder / "r.sarif").read_text() and "r/a07.json" in (folder / "r.html").read_text()
    (differs,) = (row for row in report["rows"] if row["verdict"] == "DIFFERS")
    assert len(differs["trail"]) == differs["output_tokens"] > differs["position"]


def test_progress_at_a_terminal(folder, monkeypatch, capsys):
    monkeypatch.setattr("kinetic.cli.progress.FIRST_AFTER", 0.0)
    monkeypatch.setattr("kinetic.cli.progress.EVERY", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert audit("r") == 0
    shown = capsys.readouterr().err
    assert "\rchecking [" in shown and "\rhashing the model [" in shown
    shares = [int(share) for share in re.findall(r"\rrerunning \[[#.]+\] +(\d+)%", shown)]
    assert shares == sorted(shares) and shares[-1] == 100 and len(set(shares)) > 20

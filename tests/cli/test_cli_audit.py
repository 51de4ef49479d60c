"""``kinetic audit``: fifty receipts of which three were tampered with, two models, samples, reports."""

import json
import re
from xml.etree import ElementTree

import pytest

from kinetic.api import Model
from kinetic.api import model as model_module
from kinetic.api.verify import Checker
from kinetic.cli import main
from ktc.digest import token_digest
from ktc.keys import write_key_pair
from receipts.audit import choose
from receipts.encode import read_receipt, write_receipt
from receipts.identity import receipt_id
from tests.support.fifty_receipts import BAD, arrive, audit, make, states, tamper
from tests.support.sample_receipts import SEED


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(tmp_path_factory.mktemp("fifty"))


@pytest.fixture(autouse=True)
def folder(made, monkeypatch, tmp_path):
    return arrive(made, tmp_path, monkeypatch)


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
    (folder / "r" / "big.json").write_text('{"type": "kinetic-report",' + " " * (16 * 1024 * 1024))
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


@pytest.mark.parametrize(
    ("content", "code", "word"),
    [
        (b"", 11, "MALFORMED (BAD_JSON): the file is empty"),
        (bytes(8), 11, "MALFORMED (BAD_JSON)"),
        (b"{", 11, "MALFORMED (BAD_JSON)"),
        (b'{"recepit": {}, "signatures": []}', 11, "MALFORMED"),
        (b"{}", 11, "MALFORMED (MISSING_FIELD)"),
        (b"null", 11, "MALFORMED (WRONG_TYPE)"),
        (b" " * (16 * 1024 * 1024 + 1), 14, "LIMIT (FILE_TOO_LARGE)"),
    ],
    ids=["empty", "zeros", "cut", "misspelt", "table", "null", "large"],
)
def test_a_destroyed_receipt_in_a_folder_is_noticed(folder, capsys, content, code, word):
    (folder / "r" / "a07.json").write_bytes(content)
    assert audit("r", "--sample", "1") == code
    out = capsys.readouterr().out
    assert out.startswith(f"r/a07.json: {word}") and "skipped" not in out


def test_help_says_what_is_skipped(capsys):
    assert main(["audit", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(kind in out for kind in ("openings", "DSSE", "SARIF", "COSE", "sigstore"))


@pytest.mark.parametrize("words", [["none"], ["other"], ["x*.json"]])
def test_an_audit_of_nothing_is_no_success(folder, words, capsys):
    (folder / "none").mkdir()
    (folder / "other").mkdir()
    (folder / "other" / "a.json").write_text('{"type": "kinetic-opening"}')
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


def test_what_a_sample_leaves_out_and_contradicts_itself_is_malformed_all_the_same(folder, capsys):
    tamper(folder)
    (folder / "r" / "more" / "a43.json").unlink()
    names = sorted(receipt_id(read_receipt(path).record) for path in (folder / "r").rglob("a*.*"))
    edited = names.index(receipt_id(read_receipt("r/a07.json").record))
    seed = next(bytes([index]) * 32 for index in range(256) if edited not in choose(49, 1, bytes([index]) * 32))
    assert audit("r", "--sample", "1", "--sample-seed", seed.hex(), "--json") == 11
    rows = {row["file"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert (rows["r/a07.json"]["verdict"], rows["r/a07.json"]["name"]) == ("MALFORMED", "OUTPUT_DIGEST")
    assert rows["r/a07.json"]["method"] == "", "no rerun was needed to see that"
    assert sum(row["verdict"] == "NOT_RERUN" for row in rows.values()) >= 46


def test_what_of_a_sample_could_not_be_judged_is_said(folder, capsys):
    (folder / "model1.gguf").unlink()
    assert audit("r", "--sample", "100%") == 13
    says = "sample: 50 of the 50 receipts that pass the checks, 25 of which could not be judged: of their like it says"
    assert says in capsys.readouterr().out
    assert audit("r", "--sample", "100%", "--json") == 13
    facts = {fact["name"]: fact["value"] for fact in json.loads(capsys.readouterr().out)["facts"]}
    assert "25 of which could not be judged" in facts["sample"]


def test_answers_that_were_interrupted_are_said_to_be(folder, capsys):
    for name in ("a07.json", "a11.json"):
        record = read_receipt(folder / "r" / name).record
        tokens = record["output"]["tokens"][:2]
        with Model("model1.gguf", threads=1) as model:
            text = b"".join(map(model.tokenizer.piece, tokens)).decode("utf-8", "replace")
        part = {"output": {"tokens": tokens, "digest": token_digest(tokens)}, "text": text}
        write_receipt(folder / "r" / name, record | part | {"stop": record["stop"] | {"reason": "interrupt"}})
    assert audit("r") == 0
    says = "2 of the identical ones were interrupted: only the beginning of an answer was compared."
    assert says in capsys.readouterr().out


def test_a_seed_of_a_sample_without_one_is_misuse(folder, capsys):
    assert audit("r", "--sample-seed", "00" * 32) == 2
    assert "--sample" in capsys.readouterr().err


# Where output goes


@pytest.mark.parametrize(
    "words",
    [
        ["r", "--html", "r/a07.json"],
        ["r", "--junit", "link"],
        ["r", "--sarif", "r/more/new.json"],
        ["r", "--state", "r/a07.json"],
        ["r", "--state", "r/new.JSON"],
        ["r/a0*.json", "--html", "./r/../r/a07.json"],
        ["r/a07.json", "--state", "link"],
        ["r", "--state", "s", "--html", "./s"],
    ],
)
def test_nothing_that_is_audited_is_written_to(folder, words, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(Checker, "__init__", None)
    (folder / "link").symlink_to("r/a07.json")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert audit(*words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("kinetic: ") and err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_reports_and_states_may_stand_beside_what_is_audited(folder):
    words = ["--html", "r/more/report.html", "--sarif", "r/.reports.json", "--state", "r/state"]
    for _ in range(2):
        assert audit("r/a01.json", "r/more", *words) == 0
    assert (folder / "r" / "state").is_file()


def test_a_receipt_that_changes_meanwhile_is_not_believed(folder, monkeypatch, capsys):
    real = Checker.rerun_record

    def change(self, record):
        tamper(folder)
        monkeypatch.setattr(Checker, "rerun_record", real)
        return real(self, record)

    monkeypatch.setattr(Checker, "rerun_record", change)
    assert audit("r") == 3
    assert capsys.readouterr().out.count("UNREADABLE (FILE_CHANGED)") == 3


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

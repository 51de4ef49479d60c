"""``kinetic verify-receipt`` with several files, keys, trust, challenges, openings, methods and reports."""

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from kinetic import store
from kinetic.api import Model
from kinetic.api.verify import Checker
from kinetic.cli import main
from ktc.keys import write_key_pair
from receipts.audit_state import State
from receipts.encode import read_receipt, write_receipt
from receipts.identity import receipt_id
from receipts.report.rows import Timing
from receipts.sign import sign_record
from receipts.withhold import Opening, withhold, write_opening
from tests.cli.conftest import ROOT
from tests.support.sample_receipts import SEED
from tests.support.talking_model import write_talker


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """a.json is unsigned, b.json signed by alice, and bad.json has another third token."""
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(store, "RACY_NS", -(10**18))
    monkeypatch.chdir(tmp_path)
    with Model(write_talker(tmp_path / "tiny.gguf"), threads=1) as model:
        record = model.generate("x").receipt()
    write_receipt("a.json", record)
    write_receipt("b.json", record, [sign_record(record, SEED)])
    for name, seed in (("alice", SEED), ("bob", bytes(32))):
        write_key_pair(name, seed)
    edit("a.json", "bad.json", lambda receipt: receipt["output"]["tokens"].__setitem__(2, ord("R")))
    return tmp_path


def edit(source, target, change):
    envelope = json.loads(open_text(source))
    change(envelope["receipt"])
    write(target, json.dumps(envelope))


def open_text(name):
    with open(name, encoding="utf-8") as file:
        return file.read()


def write(name, text):
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)


def verify(*words):
    return main(["verify-receipt", *map(str, words), "-t", "1"])


ALL = "all 8 tokens are the ones this model draws"


def test_several_files_have_a_line_each_and_the_gravest_code(capsys):
    assert verify("a.json", "bad.json", "absent.json", "a.json") == 10
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "" and lines[0] == lines[3] == f"a.json: IDENTICAL: {ALL}"
    assert lines[1].startswith("bad.json: DIFFERS: token 2: receipt says 'R' (id 82), rerun gives 'e' (id 101)")
    assert lines[2].startswith("absent.json: UNREADABLE: ") or lines[2].startswith("absent.json: UNREADABLE (")
    assert verify("a.json", "absent.json") == 3


def test_without_a_pinned_key_the_word_valid_is_never_printed(capsys):
    assert verify("b.json") == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"IDENTICAL: {ALL}; signature consistent, signer unknown (key ") and out.endswith(")\n")
    assert "valid" not in out + err
    for words in (["a.json"], ["bad.json", "b.json"], ["b.json", "--json"]):
        verify(*words)
        assert "valid" not in "".join(capsys.readouterr())


def test_a_pinned_key(capsys):
    assert verify("b.json", "--key", "alice.pub") == 0
    assert f"IDENTICAL: {ALL}; valid signature by alice (key " in capsys.readouterr().out
    for file, key, name in (
        ("b.json", "bob.pub", "UNTRUSTED_KEY"),
        ("a.json", "alice.pub", "UNSIGNED"),
        ("bad.json", "alice.pub", "UNSIGNED"),
    ):
        assert verify(file, "--key", key) == 12
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"SIGNATURE ({name}): ") and "valid" not in err
    assert verify("b.json", "--key", "bob.pub", "--key", "alice.pub") == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--key", "absent.pub"], 3),
        (["--key", "alice"], 12),
        (["--trust", "absent.toml"], 3),
        (["--trust", "a.json"], 11),
        (["--trust", "x", "--key", "alice.pub"], 2),
        (["--at", "noon"], 2),
        (["--at", "2026-01-01"], 2),
        (["--html", "fifo"], 3),
        (["--junit", "/dev/null"], 3),
        (["--sarif", "trust.toml"], 2),
        (["--html", "state"], 2),
        (["--html", "alice.pub"], 2),
        (["--html", "alice"], 2),
        (["--html", "link"], 2),
        (["--html", "w.opening.json"], 2),
        (["--challenge", "abcd"], 2),
        (["--opening", "a.json"], 11),
        (["--opening", "absent.json"], 3),
        (["--method", "guess"], 2),
        (["--device", "abacus"], 2),
        (["--html", "no/such/folder.html"], 3),
        (["--html", "home"], 2),
        (["--junit", "a.json"], 2),
        (["--junit", "./a.json"], 2),
        (["--sarif", "tiny.gguf"], 2),
        (["--sarif", "alice.pub", "--key", "alice.pub"], 2),
        (["--sarif", "r", "--html", "./r"], 2),
    ],
)
def test_what_cannot_be_asked_is_one_sentence_and_touches_nothing(folder, words, code, capsys):
    os.mkfifo("fifo")
    write("trust.toml", 'format = "kinetic-trust"\nversion = 1\nmode = "enforce"\n')
    write_opening("w.opening.json", Opening("00" * 32, SEED, [1]))
    (folder / "link").symlink_to("trust.toml")
    with State("state"):
        pass
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert verify("a.json", *words) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("kinetic: ") and err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_challenges(folder, capsys):
    with Model("tiny.gguf", threads=1) as model:
        model.generate("x", challenge="ab" * 16).save_receipt("c.json")
    assert verify("c.json", "--challenge", "AB" * 16) == 0
    assert verify("c.json", "a.json", "--challenge", "cd" * 16) == 12
    lines = capsys.readouterr().out.splitlines()
    assert "SIGNATURE (CHALLENGE): the receipt answers another challenge" in lines[1]
    assert "SIGNATURE (CHALLENGE): the receipt answers no challenge" in lines[2]


def test_openings_and_methods(capsys):
    record = read_receipt("a.json").record
    shown = withhold(record, SEED)
    write_receipt("w.json", shown)
    write_opening("w.opening.json", Opening(receipt_id(shown), SEED, record["prompt"]["tokens"]))
    assert verify("w.json") == 13
    assert capsys.readouterr().err.startswith("UNVERIFIABLE (WITHHELD): ")
    assert verify("w.json", "--opening", "w.opening.json") == 0
    capsys.readouterr()
    assert verify("a.json", "--opening", "w.opening.json") == 11
    said = "MALFORMED (OPENING): the receipt shows its prompt, so this opening is another's"
    assert capsys.readouterr().err.startswith(said)
    assert verify("w.opening.json") == 11
    assert "this is an opening: give the receipt, and this with --opening" in capsys.readouterr().err
    assert verify("w.json", "a.json", "--opening", "w.opening.json") == 2
    out, err = capsys.readouterr()
    assert out == "" and "an opening is that of one receipt" in err and err.count("\n") == 1
    write_receipt("w.json", shown | {"clock": "noon"})
    assert verify("w.json", "--opening", "w.opening.json") == 11
    assert capsys.readouterr().err.startswith("MALFORMED (OPENING): ")
    assert verify("a.json", "--method", "decode") == 0
    assert capsys.readouterr().out == f"IDENTICAL: {ALL} by plain decoding\n"


@pytest.mark.parametrize(("content", "code"), [(None, 3), ("{}", 11), ("not JSON", 11), ("[" * 99, 14)])
def test_an_opening_that_is_none_is_named_once(content, code, capsys):
    if content is not None:
        write("o.json", content)
    assert verify("a.json", "--opening", "o.json") == code
    err = capsys.readouterr().err
    assert err.count("o.json") == 1 and err.count("\n") == 1


def test_a_bundle_in_place_of_a_receipt(folder, capsys):
    (folder / "m.ktc").write_bytes(store.BUNDLE_MAGIC + bytes(100))
    assert verify("m.ktc") == 11
    err = capsys.readouterr().err
    assert err.startswith("MALFORMED (NOT_A_RECEIPT): this is a bundle") and "`kinetic verify`" in err


def test_a_folder_in_place_of_a_receipt(folder, capsys):
    assert verify(".") == 3
    assert "`kinetic audit`" in capsys.readouterr().err


def test_a_report_goes_where_a_link_leads(folder, capsys):
    (folder / "reports").mkdir()
    (folder / "link.html").symlink_to("reports/r.html")
    for _ in range(2):
        assert verify("a.json", "--html", "link.html") == 0
        assert (folder / "link.html").is_symlink() and "a.json" in open_text("reports/r.html")
    (folder / "lost").symlink_to("absent/r.html")
    assert verify("a.json", "--html", "lost") == 3


def test_a_report_goes_where_the_link_led_when_it_was_checked(folder, monkeypatch):
    (folder / "link.html").symlink_to("r.html")
    key, real = open_text("alice.pub"), Checker.rerun

    def change(self, examined):
        (folder / "link.html").unlink()
        (folder / "link.html").symlink_to("alice.pub")
        return real(self, examined)

    monkeypatch.setattr(Checker, "rerun", change)
    assert verify("a.json", "--html", "link.html") == 0
    assert open_text("alice.pub") == key and "a.json" in open_text("r.html")


def test_json_is_one_object_a_line(capsys):
    assert verify("--json", "b.json", "bad.json", "absent.json") == 10
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert err == "" and [row["file"] for row in rows] == ["b.json", "bad.json", "absent.json"]
    assert [row["verdict"] for row in rows] == ["IDENTICAL", "DIFFERS", "UNREADABLE"]
    assert rows[0]["receipt_id"] == receipt_id(read_receipt("b.json").record) and rows[0]["method"] == "replay"
    assert rows[0]["signature"].startswith("signature consistent") and rows[2]["receipt_id"] == ""
    assert (rows[1]["position"], rows[1]["expected"], rows[1]["got"]) == (2, ord("R"), ord("e"))
    assert [list(row.get("timing", ())) for row in rows] == [list(Timing._fields)] * 2 + [[]]
    for row, count in zip(rows[:2], (8, 3), strict=True):
        seconds, speed = row["timing"]["check_seconds"], row["timing"]["tokens_per_second"]
        assert row["timing"]["load_seconds"] > 0 and seconds > 0 and speed == pytest.approx(count / seconds, rel=0.01)
    assert rows[0]["timing"]["load_seconds"] > rows[1]["timing"]["load_seconds"], "it is open already"


def test_reports_hold_every_file(folder, capsys):
    words = ["--junit", "r.xml", "--sarif", "r.sarif", "--html", "r.html"]
    assert verify("a.json", "bad.json", *words) == 10
    assert len(capsys.readouterr().out.splitlines()) == 2
    suite = ElementTree.parse("r.xml").getroot()
    cases = list(suite.iter("testcase"))
    assert len(cases) == 2 and len(list(suite.iter("failure"))) == 1
    assert json.loads(open_text("r.sarif"))["version"] == "2.1.0" and "bad.json" in open_text("r.sarif")
    page = open_text("r.html")
    assert "bad.json" in page and "DIFFERS" in page and "a.json" in page


def test_a_hostile_file_name_steers_no_terminal(folder, capsys):
    name = "\x1b[31mred\n.json"
    write_receipt(name, read_receipt("a.json").record)
    assert verify(name, "a.json") == 0
    out, _ = capsys.readouterr()
    assert "\x1b" not in out and out.count("\n") == 2


@pytest.mark.parametrize(("content", "code"), [("{}", 11), ("not a receipt", 11)])
def test_what_is_no_receipt_costs_no_engine(folder, content, code):
    write("x.json", content)
    program = "import sys; from kinetic.cli import main; print(main(sys.argv[1:])); print(*sys.modules)"
    command = [sys.executable, "-c", program, "verify-receipt", str(folder / "x.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    got, modules = done.stdout.splitlines()
    assert int(got) == code
    assert not {name.partition(".")[0] for name in modules.split()} & {"numpy", "numba", "nacl", "jinja2", "regex"}

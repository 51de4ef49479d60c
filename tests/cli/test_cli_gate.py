"""``kinetic gate``: baselines are written, receipts rerun, and every way in which one can fail is told."""

import json
import shutil
from xml.etree import ElementTree

import pytest

from kinetic.api import Model
from kinetic.cli import main
from ktc.digest import token_digest
from receipts.encode import read_receipt, write_receipt
from receipts.withhold import opening_of, withhold, write_opening
from tests.support.talking_model import write_talker
from tests.unit.test_bench_store import record, row

SALT = bytes(range(32))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two models, and receipts of them in ``r``: a, b and c of one, d of the other."""
    folder = tmp_path_factory.mktemp("gate")
    (folder / "r").mkdir()
    for answer, names in ((b"one day", "abc"), (b"may be", "d")):
        with Model(write_talker(folder / f"{names}.gguf", answer, scale=0.02), threads=1) as model:
            for seed, name in enumerate(names):
                found = model.generate("x", seed=seed, max_tokens=12, commit_logits=name != "c").receipt()
                write_receipt(folder / "r" / f"{name}.json", found)
    return folder


@pytest.fixture(autouse=True)
def folder(made, monkeypatch, tmp_path):
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def gate(capsys):
    """``gate("--strict", code=13)`` -> standard output and standard error of a check of gate.json."""

    def gate(*words, code=0):
        got = main(["gate", "--baseline", "gate.json", "-t", "1", *map(str, words)])
        shown = capsys.readouterr()
        assert got == code, (got, shown.out, shown.err)
        return shown.out, shown.err

    return gate


BOTH = ("abc.gguf", "d.gguf")


def write(*words):
    assert main(["gate", "--write", "-o", "gate.json", "-q", *map(str, words or ["r"])]) == 0


def edit(path, change):
    found = read_receipt(path).record
    change(found)
    write_receipt(path, found)


def other_token(found):
    tokens = found["output"]["tokens"]
    tokens[2] ^= 1
    found["output"]["digest"] = token_digest(tokens)


# --- open ---


def test_a_baseline_that_is_kept(gate):
    write()
    out, err = gate(*BOTH, "--strict")
    assert out == "open: 4 checks: 4 passed, 0 failed, 0 skipped.\n" and err == ""


def test_models_are_found_among_those_named_by_their_hashes_alone(gate, folder):
    write()
    (folder / "abc.gguf").rename("d2.gguf")
    (folder / "d.gguf").rename("abc.gguf")
    gate("--model", "abc.gguf", "--model", "d2.gguf", "--strict")


def test_a_model_that_no_receipt_is_of_is_named(gate, folder):
    write()
    write_talker(folder / "other.gguf", b"no")
    assert "other.gguf is the model of no receipt in gate.json" in gate(*BOTH, "other.gguf")[1]
    assert "there is no file none.gguf" in gate("none.gguf", code=3)[1]


def test_the_same_receipts_give_the_same_baseline_wherever_it_is_written_from(folder, monkeypatch):
    write("r/d.json", "r/a.json", "r/b.json", "r/c.json")
    first = (folder / "gate.json").read_bytes()
    monkeypatch.chdir(folder / "r")
    assert main(["gate", "--write", "-o", "../gate.json", ".", "-q"]) == 0
    assert (folder / "gate.json").read_bytes() == first
    table = json.loads(first)
    assert [entry["file"] for entry in table["receipts"]] == [f"r/{name}.json" for name in "abcd"]
    assert [bool(entry["commitment"]) for entry in table["receipts"]] == [True, True, False, True]


def test_a_baseline_is_no_receipt_to_an_audit(gate, folder, capsys):
    write()
    (folder / "report.json").write_text(gate(*BOTH, "--json")[0])
    assert main(["audit", ".", "--model", "d.gguf", "-q"]) == 13
    assert "skipped: not a receipt: 2 (./gate.json, ./report.json)" in capsys.readouterr().out


# --- closed ---


def test_another_token_is_shown_among_its_words(gate, folder):
    edit("r/b.json", other_token)
    write()
    tokens = read_receipt(folder / "r" / "b.json").record["output"]["tokens"]
    out, _ = gate(*BOTH, code=10)
    lines = out.splitlines()
    assert lines[0].startswith("r/b.json: FAILED (DIFFERS): token 2: receipt says ")
    assert lines[1] == f"  @@ token 2 of {len(tokens)} @@"
    assert lines[2] == f"    {bytes(tokens[:2]).decode()!r}"
    assert lines[3].startswith(f"  - {chr(tokens[2])!r} (id {tokens[2]}) in the receipt, then {chr(tokens[3])!r}"[:-1])
    assert lines[4].startswith(f"  + {chr(tokens[2] ^ 1)!r} (id {tokens[2] ^ 1}) now; the two best are ")
    assert "the receipt claims this very engine" in lines[6]
    assert lines[-1] == "closed: 4 checks: 3 passed, 1 failed, 0 skipped. Exit code 10."


def test_another_digest_of_logits_is_shown_with_its_row(gate):
    def other_logits(found):
        found["logit_commit"][1] = "00" * 8

    edit("r/a.json", other_logits)
    write()
    out, _ = gate(*BOTH, code=10)
    assert "r/a.json: FAILED (LOGITS_DIFFER): token 1: the tokens agree" in out
    assert "  @@ row 1 of " in out and "  - digest 0000000000000000 in the receipt, before token " in out


def test_a_receipt_that_is_gone_or_another(gate, folder):
    write()
    edit("r/a.json", other_token)
    out, _ = gate(*BOTH, code=11)
    assert "r/a.json: FAILED (RECEIPT_CHANGED): this is not the file that the baseline names, its tokens changed" in out
    shutil.copy("r/b.json", "r/a.json")
    assert "its tokens, its logits changed: restore it" in gate(*BOTH, code=11)[0]
    (folder / "r" / "a.json").write_text("{}")
    assert "and no receipt any more: " in gate(*BOTH, code=11)[0]
    (folder / "r" / "a.json").unlink()
    out, _ = gate(*BOTH, code=3)
    assert "r/a.json: FAILED (RECEIPT_MISSING): the baseline's receipt is not there" in out and "3 passed" in out


def test_another_profile_fails_and_is_not_skipped(gate):
    edit("r/a.json", lambda found: found.update(profile="kinetic-1-draft.999"))
    write()
    out, _ = gate(*BOTH, code=13)
    assert "r/a.json: FAILED (PROFILE): the receipt was made under kinetic-1-draft.999" in out
    assert "the arithmetic changed, so its answers are others" in out


def test_a_signature_that_is_asked_for(gate, folder):
    from ktc.keys import write_key_pair

    write()
    write_key_pair("k", SALT)
    assert "FAILED (UNSIGNED)" in gate(*BOTH, "--key", "k.pub", code=12)[0]


@pytest.mark.parametrize(
    ("harm", "code"), [("missing", 3), ("missing differs", 10), ("missing differs changed", 11), ("skipped", 0)]
)
def test_the_gravest_decides(gate, folder, harm, code):
    if "differs" in harm:
        edit("r/b.json", other_token)
    write()
    if "missing" in harm:
        (folder / "r" / "a.json").unlink()
    if "changed" in harm:
        edit("r/c.json", other_token)
    gate("abc.gguf", code=code)


# --- skipped ---


def test_a_missing_model_is_skipped_counted_and_never_passes(gate):
    write()
    out, _ = gate(code=13)
    assert "skipped (MODEL_MISSING): 3 receipts of abc.gguf: no file here has the hashes of abc.gguf: name it\n" in out
    assert out.endswith(
        "4 checks: 0 passed, 0 failed, 4 skipped; nothing was judged, so the gate is shut. Exit code 13.\n"
    )
    out, _ = gate("abc.gguf")
    assert out.splitlines() == [
        "skipped (MODEL_MISSING): r/d.json: no file here has the hashes of d.gguf: name it",
        "open: 4 checks: 3 passed, 0 failed, 1 skipped.",
    ]
    out, _ = gate("abc.gguf", "--strict", code=13)
    assert out.endswith("nothing may be skipped, so the gate is shut. Exit code 13.\n")


def test_a_withheld_prompt_is_rerun_with_its_opening_or_skipped(gate, folder):
    found = read_receipt(folder / "r" / "c.json").record
    hidden = withhold(found, SALT)
    write_receipt(folder / "r" / "c.json", hidden)
    write_opening(folder / "r" / "c.opening.json", opening_of(hidden, SALT, found["prompt"]["tokens"]))
    write()
    gate(*BOTH, "--strict")
    (folder / "r" / "c.opening.json").unlink()
    assert "r/c.json: FAILED (UNREADABLE)" in gate(*BOTH, code=3)[0]
    write()
    assert "skipped (WITHHELD): r/c.json: the prompt is withheld" in gate(*BOTH)[0]


# --- speeds ---


def measured(tmp_path, *speeds, **more):
    name = tmp_path / "bench.json"
    about = {"model": {"blake3": "ab" * 32, "file": "m.gguf", "size": 1, "sha256": ""}} | more
    name.write_text("".join(json.dumps(record(row(speed), **about)) + "\n" for speed in speeds))
    return name


def test_speed_that_is_lost_beyond_the_noise(gate, tmp_path):
    write("r", "--bench", measured(tmp_path, 50, 100))
    out, _ = gate(*BOTH, "--bench", measured(tmp_path, 97), "--strict")
    assert out.startswith("open: 5 checks: 5 passed")
    out, _ = gate(*BOTH, "--bench", measured(tmp_path, 60), code=7)
    assert "m.gguf tg128, 1 thread: FAILED (SLOWER): 0.600 of 0.1, 2026-11-30" in out
    assert "  - 100 tokens/s, quartiles 99 to 101 (0.1, 2026" in out and "  + 60 tokens/s" in out
    gate(*BOTH, "--bench", measured(tmp_path, 60), "--fail-below", "0.5")
    edit("r/b.json", other_token)
    gate(*BOTH, "--bench", measured(tmp_path, 60), code=11)


def test_speed_that_was_not_measured_here_is_skipped(gate, tmp_path):
    write("r", "--bench", measured(tmp_path, 100))
    assert "skipped (NOT_MEASURED): m.gguf tg128, 1 thread: no measurement was given" in gate(*BOTH)[0]
    gate(*BOTH, "--strict", code=13)
    other = {"processor": "Q", "architecture": "x", "cores": 2, "usable": 2, "quota": None, "isa": "avx2"}
    out, _ = gate(*BOTH, "--bench", measured(tmp_path, 10, machine=other))
    assert "skipped (OTHER_MACHINE): m.gguf tg128, 1 thread: measured on Q, x, 2 of 2 cores, avx2, and" in out
    out, _ = gate(*BOTH, "--bench", measured(tmp_path, 10, device="gpu"))
    assert "(NOT_MEASURED)" in out and "none of the measurements" in out


# --- reports ---


def test_reports(gate, folder):
    edit("r/b.json", other_token)
    write()
    out, err = gate("abc.gguf", "--json", "--markdown", "s.md", "--junit", "g.xml", "--html", "g.html", code=10)
    report = json.loads(out)
    assert report["counts"] == {"passed": 2, "failed": 1, "skipped": 1} and report["exit_code"] == 10
    assert [one["status"] for one in report["outcomes"]] == ["passed", "failed", "passed", "skipped"]
    assert report["outcomes"][1]["verdict"]["position"] == 2 and err.startswith("r/b.json: FAILED (DIFFERS)")
    text = (folder / "s.md").read_text()
    assert text.startswith("### Kinetic gate: closed, exit code 10\n\n4 checks: 2 passed, 1 failed, 1 skipped.\n")
    assert "| **failed** | `r/b.json` | DIFFERS: `token 2: " in text and "\n```diff\n@@ token 2 of " in text
    suites = ElementTree.parse(folder / "g.xml").getroot()
    assert suites.attrib["tests"] == "4" and suites.attrib["failures"] == "1"
    assert len(suites.findall(".//failure")) == 1 and len(suites.findall(".//skipped")) == 1
    assert "closed: 4 checks" in (folder / "g.html").read_text()


# --- what is refused ---


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (None, 3, "there is no baseline gate.json: `kinetic gate --write -o gate.json RECEIPT...` makes one"),
        ("", 11, "gate.json is no baseline of `kinetic gate`: "),
        ("[]", 11, "the file must be an object, not an array"),
        ('{"format": "kinetic gate 1"}', 11, "baseline lacks the field 'models'"),
        ('{"format": "kinetic gate 2"}', 13, "only 'kinetic gate 1' is known here"),
        ('{"format": "kinetic gate 1", "models": [], "receipts": [], "bench": []}', 11, "it promises nothing"),
        ('{"format": "other", "models": [], "receipts": [], "bench": []}', 11, "baseline.format is 'other'"),
    ],
    ids=["none", "empty", "array", "fields", "later", "nothing", "other"],
)
def test_a_baseline_that_cannot_be_used_is_one_sentence(gate, folder, content, code, says):
    if content is not None:
        (folder / "gate.json").write_text(content)
    out, err = gate(*BOTH, code=code)
    assert out == "" and err.startswith("kinetic: ") and err.count("\n") == 1 and says in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "say what to check with --baseline FILE"),
        (["--write", "--baseline", "g.json"], 2, "say what to check"),
        (["--write", "r"], 2, "a place: -o FILE"),
        (["--write", "-o", "g.json"], 2, "--write needs receipts"),
        (["--write", "-o", "g.json", "r", "--strict"], 2, "leave --strict out"),
        (["--write", "-o", "r/a.json", "r/a.json"], 2, "r/a.json is an input"),
        (["--write", "-o", "g.json", "none.json"], 3, "cannot read none.json"),
        (["--write", "-o", "g.json", "abc.gguf"], 11, "abc.gguf: "),
        (["--baseline", "gate.json", "-o", "x"], 2, "-o is where --write puts a baseline"),
        (["--baseline", "gate.json", "--markdown", "gate.json"], 2, "is what is read"),
        (["--baseline", "gate.json", "--bench", "r/a.json"], 11, "r/a.json holds no measurement"),
    ],
)
def test_refusals(capsys, folder, words, code, says):
    write()
    before = (folder / "gate.json").read_bytes()
    assert main(["gate", *words]) == code
    shown = capsys.readouterr()
    assert says in shown.err and shown.err.count("\n") == 1 and shown.out == ""
    assert (folder / "gate.json").read_bytes() == before and not (folder / "g.json").exists()

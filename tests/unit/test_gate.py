"""Rules of the gate apart from a rerun: codes, speeds, Markdown of hostile texts, documents, the golden baseline."""

from __future__ import annotations

import json
import re

import pytest

from conformance import gate_baseline, gate_bench, gate_report
from conformance.gate_outcome import BENCH, FAILED, PASSED, SKIPPED, Outcome, Result
from ktc.errors import KtcError, Malformed
from receipts.report import Row
from receipts.verify import Verdict
from tests.conftest import ROOT
from tests.support.sample_reports import HOSTILE
from tests.unit.test_bench_store import MACHINE, record, row
from tools.check_docs import help_text, shell_commands
from tools.make_golden_receipts import BASELINE, baseline

ROW = Row("a.json", Verdict(0, "IDENTICAL", "", method="replay"))


def outcome(status, code=0, name="X", subject="a.json", sentence="s", **more):
    return Outcome(subject, "m.gguf", status, name, sentence, code, **{"row": ROW} | more)


GOOD, SKIP = outcome(PASSED), outcome(SKIPPED, 13)


@pytest.mark.parametrize(
    ("outcomes", "code", "strict"),
    [
        ([GOOD], 0, 0),
        ([GOOD, SKIP], 0, 13),
        ([SKIP, SKIP], 13, 13),
        ([outcome(FAILED, 13), GOOD], 13, 13),
        ([outcome(FAILED, 7), SKIP], 7, 7),
        ([outcome(FAILED, 7), outcome(FAILED, 13)], 7, 7),
        ([outcome(FAILED, code) for code in (7, 3, 1, 14)], 14, 14),
        ([outcome(FAILED, code) for code in (7, 3, 1, 14, 10)], 10, 10),
        ([outcome(FAILED, code) for code in (10, 11)], 11, 11),
        ([outcome(FAILED, code) for code in (10, 11, 12)], 12, 12),
    ],
)
def test_the_exit_code(outcomes, code, strict):
    assert Result(outcomes, []).exit_code == code
    assert Result(outcomes, [], is_strict=True).exit_code == strict


def test_the_order_of_exit_codes():
    order = [12, 11, 10, 14, 1, 3, 7, 13]
    for at, code in enumerate(order):
        assert Result([outcome(FAILED, one) for one in reversed(order[at:])], []).exit_code == code


# --- speeds ---

ABOUT = {"model": {"blake3": "ab" * 32, "file": "m.gguf", "size": 1}}


def with_ratio(speed, ratio, peer="llama.cpp 1"):
    spread = {"median": ratio, "q1": ratio * 0.99, "q3": ratio * 1.01, "ratios": [ratio] * 5}
    return record(row(speed, peer={"median": 1, "q1": 1, "q3": 1}, ratio=spread), **ABOUT, peer=peer)


def judged(then, now, below=1.0):
    entries, _ = gate_bench.expectations(then)
    (found,) = gate_bench.judge(entries, now, {"ab" * 32: "m.gguf"}, below)
    return found


def test_the_ratio_to_the_same_program_counts_where_both_have_one():
    then = [with_ratio(100, 2.0)]
    assert judged(then, [with_ratio(50, 2.0)]).status == PASSED, "a busy machine slows both"
    found = judged(then, [with_ratio(100, 1.8)])
    assert (found.status, found.name, found.exit_code) == (
        FAILED,
        "SLOWER",
        7,
    ) and "beside llama.cpp 1" in found.sentence
    assert judged(then, [with_ratio(50, 2.0, peer="llama.cpp 2")]).status == FAILED, "another version says nothing"
    assert judged(then, [record(row(50), **ABOUT)]).status == FAILED


def test_of_several_machines_that_of_this_one_is_judged():
    other = record(row(1000), **ABOUT, machine=MACHINE | {"isa": "avx512"})
    assert judged([other, record(row(100), **ABOUT)], [record(row(100), **ABOUT)]).status == PASSED
    assert judged([other], [record(row(100), **ABOUT)]).name == "OTHER_MACHINE"


def test_the_last_of_each_kind_counts_then_and_now():
    then = [record(row(10), **ABOUT), record(row(100), **ABOUT)]
    assert judged(then, [record(row(100), **ABOUT), record(row(50), **ABOUT)]).status == FAILED
    assert judged(then, [record(row(50), **ABOUT), record(row(100), **ABOUT)]).status == PASSED


def test_a_loss_within_the_noise_passes():
    then = [record(row(100), **ABOUT)]
    assert judged(then, [record(row(92), **ABOUT)]).status == PASSED
    assert judged(then, [record(row(85), **ABOUT)]).status == FAILED
    assert judged(then, [record(row(85, spread=0.5), **ABOUT)]).status == PASSED


@pytest.mark.parametrize("text", ["0", "0.0", "-1", "1e3", "1.", ".5", "NaN", "1.1234567", ""])
def test_a_speed_is_a_plain_number_above_zero(text):
    with pytest.raises(KtcError):
        gate_bench.NUMBER.check(text, "x")


# --- the baseline file ---


def entry(**more):
    about = {"file": "a.json", "blake3": "00" * 32, "opening": "", "model": "11" * 32, "profile": "p", "engine": ""}
    return about | {"tokens": 1, "digest": "22" * 32, "commitment": ""} | more


@pytest.mark.parametrize("file", ["/etc/passwd", "a\\b.json", "a\nb.json", "", "a\0"])
def test_files_are_named_from_the_baseline_on(tmp_path, file):
    table = {"format": gate_baseline.FORM, "models": [], "receipts": [entry(file=file)], "bench": []}
    (tmp_path / "g.json").write_text(json.dumps(table))
    with pytest.raises(Malformed):
        gate_baseline.read(str(tmp_path / "g.json"))


def test_a_file_named_twice_is_refused(tmp_path):
    table = {"format": gate_baseline.FORM, "models": [], "receipts": [entry(), entry()], "bench": []}
    (tmp_path / "g.json").write_text(json.dumps(table))
    with pytest.raises(Malformed, match="ascending"):
        gate_baseline.read(str(tmp_path / "g.json"))


def test_the_golden_baseline_is_that_of_the_golden_receipts():
    assert BASELINE.read_bytes() == baseline(), "receipts are others: run make golden"
    assert len(gate_baseline.read(str(BASELINE)).receipts) == 17


# --- Markdown ---


@pytest.mark.parametrize("text", [*HOSTILE, "`", "``` ```", "@team #1 http://x.yz www.x.yz", "a|b", "| --- |", "\\|"])
def test_hostile_texts_are_code_and_nothing_else(text):
    outcomes = [outcome(FAILED, 10, subject=text, sentence=text, diff=(f"- {text!r}",), notes=(text,)), SKIP]
    outcomes += [outcome(SKIPPED, 13, sentence=text)._replace(group=text)]
    shown = gate_report.markdown(Result(outcomes, [("f", text)]))
    table = [line for line in shown.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {4}
    for line in table[2:]:
        rest = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", line)
        assert re.fullmatch(r"[|*a-zA-Z_ :]*", rest), line
    summary = next(line for line in shown.splitlines() if line.startswith("<details"))
    assert re.fullmatch(r"<details open><summary><code>[^<>]*</code></summary>", summary)
    fences = [line for line in shown.splitlines() if re.match("`{3,}", line)]
    assert len(fences) == 2 and fences[0] == f"{fences[1]}diff" and "\x1b" not in shown and "\u202e" not in shown


def test_a_comment_is_not_longer_than_it_may_be():
    many = [outcome(FAILED, 10, subject=f"{n}.json", diff=("- " + "x" * 9000,) * 40) for n in range(300)]
    shown = gate_report.markdown(Result(many, []))
    assert len(shown) < 65_536 and "260 more" in shown and "too long for a comment" in shown
    few = gate_report.markdown(Result([one._replace(diff=("- x",)) for one in many], []))
    assert few.count("<details") == 20 and "280 more differ" in few


def test_a_speed_is_in_every_report():
    slow = Outcome("m.gguf tg128, 1 thread", BENCH, FAILED, "SLOWER", "0.5 of x", 7)
    result = Result([GOOD, slow], [])
    assert "SLOWER: `0.5 of x`" in gate_report.markdown(result)
    assert '<testsuite name="bench" tests="1" failures="1"' in gate_report.to_junit(result)
    assert "failed (SLOWER): 0.5 of x" in gate_report.to_page(result)
    assert json.loads(gate_report.to_json(result))["outcomes"][1]["verdict"] == {}


# --- documents ---

CI = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


def scripts():
    """Each command of the two workflows."""
    yaml = pytest.importorskip("yaml")
    github, gitlab = map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```$", CI, re.MULTILINE | re.DOTALL))
    steps = github["jobs"]["gate"]["steps"]
    assert all(("run" in step) != ("uses" in step) for step in steps) and gitlab["gate"]["script"]
    return [step["run"] for step in steps if "run" in step], gitlab["gate"]["script"]


def test_the_workflows_call_commands_that_exist():
    for commands in scripts():
        assert sum("gate --baseline" in command for command in commands) == 1
        for command in commands:
            check_command(command)


def test_the_document_calls_commands_that_exist():
    found = [command for _, command in shell_commands(CI)]
    assert len(found) > 5
    for command in found:
        check_command(command)


def check_command(command):
    words = command.split()
    if words[0] == "kinetic":
        shown = help_text(words[1])
        assert shown, command
        assert all(re.search(rf"(?<![\w-]){flag}(?![\w-])", shown) for flag in words if re.match("--?[a-z]", flag)), (
            command
        )
    else:
        assert words[:4] == ["python", "-m", "pip", "install"]

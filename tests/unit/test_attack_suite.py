"""The attacks of ``kinetic doctor --attack-self``: all are refused, and the suite notices where one is not."""

from __future__ import annotations

import os
import sys

import pytest

from conformance.attacks import Attack, Outcome, attacks, fault, suite
from conformance.attacks.suite import Batch, run_suite
from conformance.vector_files import read_vectors

LISTED = {*range(1, 116)} - {8, 16, 23, 29, 36, 43, 53, 61, 65, 74, 82, 88, 94, 98, 103, 109}
"""Numbers of the list of attacks that the project works through; the gaps are intended."""

PROGRAMS = {attack.name: attack for attack in attacks(vectors=False)}


@pytest.fixture(scope="module")
def report():
    return run_suite(vectors=False)


def test_names_are_told_apart():
    assert len(PROGRAMS) == len(list(attacks(vectors=False))) > 500


def test_every_attack_is_refused(report):
    assert [(result.name, result.problem) for result in report.failed] == []
    made = {result.name for result in report.results} - {result.name for result in report.skipped}
    allowed = {name for name, attack in PROGRAMS.items() if attack.needs_user and os.geteuid() == 0}
    assert made == PROGRAMS.keys() - allowed
    assert report.passed == len(made)


def test_every_number_of_the_list_is_there(report):
    of_vectors = {number for batch in suite._batches() for vector in batch._vectors for number in vector["attack"]}
    assert report.numbers | of_vectors == LISTED


@pytest.mark.slow
def test_vectors_come_along():
    told = []
    report = run_suite(lambda done, total: told.append((done, total)), [])
    assert report.failed == report.skipped == [] and report.passed > 1500
    assert told == sorted(told) and told[-1] == (report.passed, report.passed)


# --- a limit that is switched off is noticed ---

MUTATIONS = {
    "kinetic.gguf_parse.ALIGNMENTS = frozenset(range(1, 1 << 16))": "gguf-15-alignment-3",
    "kinetic.gguf_parse._Parser.check_place = lambda *_: None": "gguf-28-by-2-40",
    "kinetic.gguf_parse.INT64_MAX = 1 << 200": "gguf-22-bytes-wrap",
    "kinetic.gguf_parse.LONGEST_TENSOR_NAME = 1 << 20": "gguf-17-64-bytes",
    "kinetic.gguf.check_padding = lambda *_: None": "gguf-30-padding-not-zero",
    "kinetic.gguf._check_part = lambda *_: None": "gguf-split-sibling-of-another-name",
    "kinetic.models.settings._share = lambda width, heads, _: width // heads": "model-odd-heads",
    "kinetic.models.llama.expect_no_others = lambda *_: None": "model-extra",
    "kinetic.text.vocabulary.MAX_TOKEN_CHARS = 1 << 40": "model-long-token",
    "kinetic.text.vocabulary.math.isnan = lambda _: False": "model-score-nan",
    "kinetic.text.template.MAX_TEMPLATE = 1 << 40": "template-large",
    "kinetic.text.budget.CHARACTERS = 1 << 60": "template-endless-sum",
    "kinetic.text.budget.STEPS = 1 << 60": "template-endless-loops",
    "kinetic.text.budget.MAX_WIDTH = 1 << 60": "template-endless-center",
    "kinetic.text.sandbox.Environment.is_safe_attribute = lambda *_: True": "template-python-07",
    "kinetic.pull.MODEL_NAME = re.compile('.*', re.DOTALL)": "pull-file-dash",
    "kinetic.pull.REQUIREMENT = re.compile('.*', re.DOTALL)": "pull-package-flag",
    "kinetic.local_models.SHA256 = re.compile('sha256:(.*)')": "manifest-up",
    "ktc.limits.MAX_KEY_FILE_BYTES = 1 << 40": "key-large",
    "os.O_NOFOLLOW = 0": "key-link",
}
"""What is done to the program before it runs, and the attack that then gets through."""


def mutated(change):
    """How to start a worker with a changed program."""
    modules = "re os ktc.limits kinetic.gguf kinetic.pull kinetic.models.llama kinetic.text.vocabulary".split()
    modules += ["kinetic.text.template", "kinetic.text.sandbox", "kinetic.text.budget", "kinetic.local_models"]
    lines = [f"import {', '.join(modules)}", "from conformance.attacks.worker import main", change, "main()"]
    return [sys.executable, "-c", "\n".join(lines)]


@pytest.mark.parametrize(("change", "name"), MUTATIONS.items(), ids=MUTATIONS.values())
def test_a_limit_that_is_switched_off_is_noticed(change, name):
    attack = PROGRAMS[name]._replace(seconds=2)
    (result,) = run_suite(chosen=[attack], vectors=False, workers=1, command=mutated(change)).results
    assert result.problem


def test_a_vector_that_is_judged_otherwise_is_noticed(tmp_path):
    vector = next(vector for vector in read_vectors("receipts") if vector["expect"]["exit_code"] == 11)
    other = {**vector, "expect": {**vector["expect"], "name": "OTHER"}}
    with suite.Pool(tmp_path, 1, suite.WORKER) as pool:
        ((result,),) = pool.results([Batch("receipts", [other])])
    assert "instead of 11 OTHER" in result.problem


# --- what counts as a fault ---


def nothing(_):
    pass


SOUND = Attack("a", [1], "An attack.", ("timeit", "-n1", "-r1", "pass"), nothing, 0, seconds=5)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(11, "kinetic: BAD", []), ""),
        (Outcome(0, "kinetic: BAD", []), "exit code 0 instead of 11"),
        (Outcome(1, "Traceback\nValueError: BAD", []), "exit code 1 instead of 11; its last words: ValueError: BAD"),
        (Outcome(11, "kinetic: something else", []), "does not say 'BAD'"),
        (Outcome(11, "Traceback BAD", []), "a traceback"),
        (Outcome(11, "BAD \x1b[2J", []), "control characters"),
        (Outcome(11, "BAD", ["ran"]), "files were written: ran"),
    ],
)
def test_faults(outcome, said):
    found = fault(SOUND._replace(exit_code=11, reason="BAD"), outcome)
    assert said in found and bool(said) == bool(found)


def python(statement, **changes):
    """An attack whose program runs a statement, and is said to end well."""
    return SOUND._replace(arguments=("timeit", "-n1", "-r1", statement), **changes)


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (python("pass"), ""),
        (python("while True: pass", seconds=1), "it still ran after 1 seconds"),
        (python("open('fifo').read()", seconds=1, write=lambda at: os.mkfifo(at / "fifo")), "it still ran"),
        (python("bytearray(1 << 30)"), "MemoryError"),
        (python("open('ran', 'w').close()"), "files were written: ran"),
        (python("import socket; socket.create_connection(('127.0.0.1', 9))"), "forbidden: socket.connect"),
        (python("import os; os.system('true')"), "forbidden: os.system"),
        (python("import subprocess; subprocess.run(['true'])"), "forbidden: subprocess.Popen"),
        (python("import os; os.abort()"), "exit code -6"),
        (python("import os, signal; os.kill(os.getppid(), signal.SIGKILL)"), "has ended"),
    ],
)
def test_what_a_program_may_not_do(attack, said):
    found = run_suite(chosen=[attack, SOUND._replace(name="b")], vectors=False, workers=1).results
    assert said in found[0].problem and bool(found[0].problem) == bool(said)
    assert found[1].problem == "", "the next one is judged as ever"


def test_nothing_passes_because_it_was_skipped(monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    chosen = [SOUND._replace(needs_user=True), SOUND._replace(name="b", write=full), SOUND._replace(name="c")]
    report = run_suite(chosen=chosen, vectors=False, workers=1)
    assert (report.passed, len(report.failed), len(report.skipped)) == (1, 0, 2)
    assert "superuser" in report.skipped[0].skipped and "No space left" in report.skipped[1].skipped
    assert report.plain()["passed"] == 1 and len(report.plain()["skipped"]) == 2

"""``kinetic doctor --attack-self``: what it prints and returns."""

import json

import pytest

from conformance.attacks import suite
from conformance.attacks.suite import Report, Result
from kinetic.cli import main

GOOD = Result("a", [1], "An attack.")
BAD = Result("b", [2], "Another.", problem="exit code 0 instead of 11")
LEFT_OUT = Result("c", [3], "A third.", skipped="the superuser may read everything")


@pytest.fixture
def said(monkeypatch, capsys):
    def run(*results, options=()):
        monkeypatch.setattr(suite, "run_suite", lambda progress: Report(list(results)))
        return main(["doctor", "--attack-self", *options]), capsys.readouterr().out

    return run


def test_all_refused(said):
    code, text = said(GOOD, GOOD)
    assert code == 0
    assert "2 refused as they must be, 0 not, 0 skipped" in text
    assert text.endswith("verdict    safe against what was tried\n")


def test_one_that_succeeds(said):
    code, text = said(GOOD, BAD, LEFT_OUT)
    assert code == 1
    assert "SUCCEEDED  b: Another. exit code 0 instead of 11\n" in text
    assert "skipped    c: the superuser may read everything\n" in text
    assert "1 refused as they must be, 1 not, 1 skipped" in text and "verdict    not safe" in text


def test_what_was_skipped_is_said_in_the_verdict(said):
    code, text = said(GOOD, LEFT_OUT)
    assert code == 0 and text.endswith("safe against what was tried, not all was\n")


def test_json(said):
    code, text = said(GOOD, BAD, LEFT_OUT, options=["--json"])
    found = json.loads(text)
    assert (code, found["attacks"], found["passed"]) == (1, 3, 1)
    assert found["failed"][0]["problem"] == BAD.problem and found["skipped"][0]["name"] == "c"


def test_not_together_with_quick():
    assert main(["doctor", "--attack-self", "--quick"]) == 2


@pytest.mark.slow
def test_this_installation(kinetic):
    done = kinetic("doctor", "--attack-self", "-q")
    assert "verdict    safe against what was tried" in done.stdout

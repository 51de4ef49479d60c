"""Attacks as processes meet them: the exit code, one sentence, no traceback, and nothing written."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from conformance.attacks import attacks, from_vectors, receipts, run

SLOW_ONES = [attack for attack in from_vectors.attacks() if {"--key", "--trust", "--challenge"} & set(attack.arguments)]
"""Those with options, a process each; the others share one in test_receipt_vectors.py."""


def test_names_are_told_apart():
    names = [attack.name for attack in receipts.attacks()]
    assert len(set(names)) == len(names) > 40
    assert {77, 83, 101, 112} <= {number for attack in attacks() for number in attack.numbers}


def check(attack, folder):
    if attack.arguments[0] == "kinetic" and find_spec("numpy") is None:
        pytest.skip("there is no engine here")
    if attack.needs_user and os.geteuid() == 0:
        pytest.skip("the superuser may read everything")
    outcome = run(attack, folder)
    assert outcome.exit_code == attack.exit_code, outcome.output
    assert attack.reason in outcome.output
    assert "Traceback" not in outcome.output and "\x1b" not in outcome.output
    assert outcome.written == []


@pytest.mark.parametrize("attack", list(receipts.attacks()), ids=lambda attack: attack.name)
def test_attack(attack, tmp_path):
    check(attack, tmp_path)


@pytest.mark.parametrize("attack", SLOW_ONES[::8], ids=lambda attack: attack.name)
def test_vector_with_options(attack, tmp_path):
    check(attack, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [one for n, one in enumerate(SLOW_ONES) if n % 8], ids=lambda attack: attack.name)
def test_every_vector_with_options(attack, tmp_path):
    check(attack, tmp_path)

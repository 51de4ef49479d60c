"""The examination of a machine: what it finds wrong, and what the gravest finding is."""

from __future__ import annotations

import os

import numpy as np
import pytest

from kinetic.api import doctor, machine, self_test
from kinetic.api.doctor import Diagnosis, Finding
from kinetic.backends import open_backend
from kinetic.backends.cpu import target
from kinetic.errors import KineticError
from kinetic.formats import RUNNABLE, by_type

NAMES = [by_type(type_id, "").NAME for type_id in sorted(RUNNABLE)]
SMALL = [{"name": "tiny", "size": 1000, "path": ""}]


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(machine, "PIECE", 4 << 20)


def facts(**known):
    return machine.describe()._replace(**known)


def found(diagnosis, topic):
    (finding,) = (finding for finding in diagnosis.findings if finding.topic == topic)
    return finding


# --- the self-test ---


def test_every_format_and_a_whole_model_are_compared():
    told = []
    outcomes = list(self_test.run(2, lambda done, total: told.append((done, total))))
    assert [outcome.name for outcome in outcomes] == [*NAMES, "whole model"]
    assert all(outcome.compared > 4000 and outcome.different == 0 for outcome in outcomes)
    assert told == sorted(told) and told[-1][0] == told[-1][1]


def test_what_is_compared_is_neither_constant_nor_out_of_range():
    forward, layers = self_test._model()
    rows = self_test._answer(open_backend("reference").load(forward, layers, None))
    assert np.isfinite(rows).all() and 0.01 < rows.std() < 100
    assert len(set(rows.argmax(axis=1))) > 2


class Flipped:
    """A backend one bit of whose answers is wrong: of value ``at`` of passes over ``rows`` rows."""

    def __init__(self, inner, rows):
        self.inner, self.rows = inner, rows

    def load(self, *arguments):
        program = self.inner.load(*arguments)
        run = program.run

        def flipped(batch):
            out = run(batch)
            if len(batch.tokens) == self.rows:
                out.view(np.uint32)[-1, -1] ^= 1
            return out

        program.run = flipped
        return program


def flip(monkeypatch, rows):
    def opened(name, *, threads=0):
        inner = open_backend(name, threads=threads)
        return inner if name == "reference" else Flipped(inner, rows)

    monkeypatch.setattr(self_test, "open_backend", opened)


@pytest.mark.parametrize(("rows", "wrong"), [(33, NAMES), (self_test.PROMPT, ["whole model"])])
def test_a_single_wrong_bit_is_found(monkeypatch, rows, wrong):
    flip(monkeypatch, rows)
    outcomes = list(self_test.run(1))
    assert [outcome.name for outcome in outcomes if outcome.different] == wrong


def test_kernels_that_differ_are_the_gravest_finding(monkeypatch, tmp_path):
    flip(monkeypatch, self_test.PROMPT)
    diagnosis = doctor.diagnose([{"name": "huge", "size": 1 << 60, "path": ""}])
    assert diagnosis.exit_code == doctor.DIFFERS
    assert "whole model" in found(diagnosis, "kernels").text and found(diagnosis, "models").exit_code == 5


def test_kernels_that_cannot_be_compiled(monkeypatch):
    def fail(*_):
        raise KineticError("compiling the kernels failed (exit 1): no space", name="COMPILE_FAILED")

    monkeypatch.setattr(self_test, "compile_all", fail)
    diagnosis = doctor.diagnose(SMALL)
    assert diagnosis.exit_code == 1 and "no space" in found(diagnosis, "kernels").text


# --- all of it ---


def test_a_healthy_machine():
    diagnosis = doctor.diagnose(SMALL)
    assert diagnosis.exit_code == 0 and diagnosis.plain()["healthy"]
    assert [finding.topic for finding in diagnosis.findings] == ["backend", "folders", "models", "kernels"]
    assert diagnosis.isa == target.choose() in found(diagnosis, "backend").text
    assert all(speed and speed > 1e8 for speed in diagnosis.bandwidth.values()) and 1 in diagnosis.bandwidth


def test_quick_measures_and_compiles_nothing(monkeypatch):
    monkeypatch.setattr(self_test, "run", lambda *_: pytest.fail("compiled"))
    monkeypatch.setattr(machine, "read_bandwidth", lambda *_: pytest.fail("measured"))
    diagnosis = doctor.diagnose(SMALL, quick=True)
    assert diagnosis.bandwidth == {} and diagnosis.exit_code == 0


def test_looking_creates_nothing(tmp_path):
    doctor.diagnose(SMALL, quick=True)
    assert not (tmp_path / "home").exists()


def test_a_processor_without_kernels(monkeypatch):
    monkeypatch.setattr(target, "available", list)
    diagnosis = doctor.diagnose(SMALL)
    assert diagnosis.exit_code == 1 and diagnosis.isa == ""
    assert [finding.topic for finding in diagnosis.findings] == ["backend", "folders", "models"]


def test_a_set_that_somebody_asked_for(monkeypatch):
    monkeypatch.setenv(target.ENVIRONMENT, target.available()[-1])
    diagnosis = doctor.diagnose(SMALL, quick=True)
    assert diagnosis.isa == target.available()[-1]
    assert f"{target.ENVIRONMENT} names it" in found(diagnosis, "backend").text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "home").mkdir(mode=0o500)
    assert doctor.diagnose(SMALL, quick=True).exit_code == doctor.FOLDER


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "keys").write_text("")
    diagnosis = doctor.diagnose(SMALL, quick=True)
    assert diagnosis.exit_code == doctor.FOLDER
    assert found(diagnosis, "folders").text.endswith("/keys can't be written: keys can't be kept")


@pytest.mark.parametrize(
    ("size", "answer"), [(1000, "yes"), (769, "yes"), (1001, "not now"), (1538, "not now"), (1540, "no")]
)
def test_what_fits(size, answer):
    # 1300 bytes are free, 2000 there: a file needs 1.3 times its size.
    assert doctor.fits(size, facts(free=1300, memory=2000)) == answer


def test_what_is_not_known_forbids_nothing():
    assert doctor.fits(1 << 40, facts(free=None, memory=None)) == "yes"


def test_no_memory_for_any_model(monkeypatch):
    small = facts(free=100, memory=2000)
    monkeypatch.setattr(machine, "describe", lambda: small)
    diagnosis = doctor.diagnose(
        [{"name": "a", "size": 1000, "path": ""}, {"name": "b", "size": 9999, "path": ""}], quick=True
    )
    assert diagnosis.exit_code == doctor.MEMORY
    assert found(diagnosis, "models").text == ("there is no memory for any; fit once memory is free: a; too large: b")


def test_the_gravest_finding_counts():
    codes = [doctor.FOLDER, doctor.MEMORY, doctor.FAULT, doctor.DIFFERS]
    for number in range(1, 5):
        findings = [Finding("x", "y"), *(Finding("x", "y", code) for code in codes[:number])]
        diagnosis = Diagnosis(facts(), (), [], {}, "avx2", 1, findings)
        assert diagnosis.exit_code == codes[number - 1] and not diagnosis.plain()["healthy"]

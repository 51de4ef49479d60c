"""Execution profiles of bundles: which one fits, what it may decide, and how one is measured."""

from __future__ import annotations

import pytest

from kinetic.api import Model, profiles
from kinetic.api.bundle import pack
from kinetic.backends.cpu import target
from kinetic.backends.cpu.system import available_cores
from kinetic.errors import UsageError
from tests.support.talking_model import write_talker

PROFILE = {"device": "cpu", "isa": "any", "cores": 4, "threads": 3, "prompt_rows": 128}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(profiles, "_machine", lambda: ("avx2", 4))


@pytest.mark.parametrize(
    ("given", "device", "found"),
    [
        ([], "cpu", None),
        ([PROFILE], "cpu", 0),
        ([PROFILE], "reference", None),
        ([PROFILE | {"cores": 8}], "cpu", None),
        ([PROFILE | {"isa": "vnni512"}], "cpu", None),
        ([PROFILE | {"device": "cuda"}], "cpu", None),
        ([PROFILE | {"cores": 8}, PROFILE, PROFILE | {"isa": "avx2"}], "cpu", 2),
        ([PROFILE | {"threads": 1}, PROFILE], "cpu", 0),
    ],
)
def test_a_profile_fits_its_own_kind_of_machine(machine, given, device, found):
    assert profiles.fitting(given, device) == (None if found is None else given[found])


def test_a_profile_only_restricts(machine):
    assert profiles.plan([], "cpu", 0) == (0, 0, "")
    assert profiles.plan([PROFILE], "cpu", 0) == (
        3,
        128,
        "profile of the bundle: 3 threads, 128 rows of a prompt at once",
    )
    assert profiles.plan([PROFILE], "cpu", 2) == (2, 128, "profile of the bundle: 128 rows of a prompt at once")
    hostile = PROFILE | {"threads": 1024, "prompt_rows": 4096}
    assert profiles.plan([hostile], "cpu", 0)[:2] == (4, 512)


def test_a_profile_is_used_where_nothing_else_is_said(tmp_path):
    here = {"device": "cpu", "isa": target.choose(), "cores": available_cores(), "threads": 1, "prompt_rows": 8}
    path = write_talker(tmp_path / "a.gguf")
    pack(path, tmp_path / "a.ktc", profiles=[here])
    with Model(path, threads=1) as bare, Model(tmp_path / "a.ktc") as model:
        passes = []
        run = model._engine._program.run
        model._engine._program.run = lambda batch, **options: passes.append(len(batch.tokens)) or run(batch, **options)
        asked = {"temperature": 0, "raw": True, "max_tokens": 5}
        answer, same = model.generate("a rather long text", **asked), bare.generate("a rather long text", **asked)
        assert answer.tokens == same.tokens and answer.receipt()["model"] == same.receipt()["model"]
        assert passes[:3] == [8, 8, 3] and model._engine.identity.threads == 1
        assert model.profile_note == "profile of the bundle: 1 thread, 8 rows of a prompt at once"
    with Model(tmp_path / "a.ktc", threads=2) as model:
        assert model._engine.identity.threads == 2


def test_a_measured_profile_fits_the_machine_it_was_measured_on(tmp_path):
    told = []
    path = write_talker(tmp_path / "a.gguf", context=64)
    found = profiles.measure(path, lambda done, total: told.append((done, total)))
    assert profiles.fitting([found], "cpu") == found
    assert 1 <= found["threads"] <= found["cores"] == available_cores() and found["prompt_rows"] in profiles.ROWS
    assert told[-1][0] == told[-1][1] == len(told)
    pack(path, tmp_path / "a.ktc", profiles=[found])
    with pytest.raises(UsageError) as caught:
        profiles.measure(write_talker(tmp_path / "b.gguf", context=20))
    assert caught.value.name == "SHORT_CONTEXT"


def test_the_fastest_of_what_is_measured_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(profiles, "_machine", lambda: ("avx2", 3))
    monkeypatch.setattr(profiles, "_decode_seconds", lambda engine: abs(engine.identity.threads - 2) + 1.0)
    monkeypatch.setattr(profiles, "_prompt_seconds", lambda engine, rows: abs(rows - 256) + 1.0)
    found = profiles.measure(write_talker(tmp_path / "a.gguf"))
    assert (found["threads"], found["prompt_rows"], found["cores"]) == (2, 256, 3)


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (3, [1, 2, 3]), (20, [*range(1, 9), 12, 16, 20])])
def test_which_numbers_of_threads_are_tried(cores, counts):
    assert profiles._thread_counts(cores) == counts

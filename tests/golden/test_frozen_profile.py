"""The freeze: what follows from the arithmetic never changes under one profile name."""

from __future__ import annotations

import json

import pytest

from kinetic.types import PROFILE
from tools import pin_profile
from tools.pin_profile import RULE, changes, main, path, pins, read


def test_a_change_of_bits_needs_a_new_profile_name():
    pinned, found = read(), pins()
    assert not changes(pinned, found), RULE
    if "-draft." not in PROFILE:
        assert pinned.keys() == found.keys(), "python -m tools.pin_profile adds what is new"
        assert json.loads(path(PROFILE).read_text(encoding="utf-8"))["profile"] == PROFILE


def test_everything_that_the_arithmetic_gives_is_pinned():
    parts = {name.partition("/")[0] for name in pins()}
    assert parts == {"recipes", "functions", "samplers", "vectors", "ops", "receipts", "bundles"}
    assert len(pins()) > 150


def test_a_changed_digest_is_named():
    pinned = pins()
    name = "recipes/llama-mixed"
    assert changes(pinned, pinned) == []
    assert changes(pinned, pinned | {"ops/new": "00" * 32}) == []
    (fault,) = changes(pinned, pinned | {name: "00" * 32})
    assert fault.startswith(f"{name} is another under {PROFILE}: {RULE}")
    (fault,) = changes(pinned, {other: digest for other, digest in pinned.items() if other != name})
    assert fault.startswith(f"{name} is gone")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(pin_profile, "FOLDER", tmp_path)
    monkeypatch.setattr(pin_profile, "PROFILE", "kinetic-7")
    return tmp_path


def test_the_tool_adds_and_never_changes(folder, monkeypatch, capsys):
    monkeypatch.setattr(pin_profile, "read", lambda: read("kinetic-7"))
    monkeypatch.setattr(pin_profile, "pins", lambda: {"a": "00", "b": "11"})
    assert main() == 0 and read("kinetic-7") == {"a": "00", "b": "11"}
    monkeypatch.setattr(pin_profile, "pins", lambda: {"a": "00", "b": "11", "c": "22"})
    assert main() == 0 and read("kinetic-7")["c"] == "22"
    monkeypatch.setattr(pin_profile, "pins", lambda: {"a": "33", "b": "11", "c": "22", "d": "44"})
    capsys.readouterr()
    assert main() == 1 and f"a is another under kinetic-7: {RULE}" in capsys.readouterr().out
    assert read("kinetic-7") == {"a": "00", "b": "11", "c": "22"}


def test_of_a_draft_nothing_is_pinned(folder, monkeypatch):
    monkeypatch.setattr(pin_profile, "PROFILE", "kinetic-7-draft.1")
    assert main() == 0 and list(folder.iterdir()) == []

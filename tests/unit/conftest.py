"""Fixtures for tests around a real, tiny model."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("talkers")


@pytest.fixture
def make(folder):
    """``make(template, answer)`` opens a model that says ``answer``; other arguments are Model's."""
    # Not at the top: the tests of receipts and ktc run where NumPy is not installed.
    from kinetic.api import Model
    from tests.support.talking_model import write_talker

    opened = []

    def make(template=None, answer=b"one day", **options):
        path = folder / f"{hash((template, answer))}.gguf"
        if not path.exists():
            write_talker(path, answer, template=template, overflow=True)
        opened.append(Model(path, **{"threads": 1} | options))
        return opened[-1]

    yield make
    for model in opened:
        model.close()

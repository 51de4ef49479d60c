"""Every folder of ``archs`` is a case of some test, or is named here with the reason why it is none."""

from __future__ import annotations

import importlib
from pathlib import Path

LEFT_OUT: dict[str, str] = {}


def cases_among(names: set[str]) -> set[str]:
    """Those of ``names`` that are a parameter of a test in a module of this folder that opens ``archs``, or one of the
    ``MODELS`` of its fixture."""
    found: set[str] = set()
    for path in sorted(Path(__file__).parent.glob("test_golden_*.py")):
        if '"archs"' not in path.read_text(encoding="utf-8") or path.name == Path(__file__).name:
            continue
        module = importlib.import_module(f"tests.golden.{path.stem}")
        found |= names.intersection(getattr(module, "MODELS", ()))
        for name, function in vars(module).items():
            marks = getattr(function, "pytestmark", []) if name.startswith("test_") else []
            for mark in marks:
                if mark.name == "parametrize":
                    found |= {value for value in mark.args[1] if isinstance(value, str) and value in names}
    return found


def test_every_model_is_tested_or_left_out_for_a_reason(golden):
    folders = {path.name for path in (golden / "archs").iterdir() if path.is_dir()}
    known = cases_among(folders)
    assert sorted(folders - known - LEFT_OUT.keys()) == [], "neither tested nor left out"
    assert sorted(known & LEFT_OUT.keys()) == [], "tested, and yet named as left out"
    assert sorted(LEFT_OUT.keys() - folders) == [], "left out, and yet not there"
    assert all(len(reason.split()) > 3 for reason in LEFT_OUT.values())
    assert len(known) > 20

"""``kinetic verify --derive`` of a bundle whose recorded settings hold a pattern made to take forever."""

from __future__ import annotations

import json

import pytest

from kinetic.api import bundle
from kinetic.cli import main
from ktc.reader import open_bundle
from tests.support.tiny_models import write_tiny_llama


@pytest.fixture
def derive(tmp_path, capsys):
    """``derive(pattern)``: what is said of a Q4_0 file with this pattern in its record."""
    source = write_tiny_llama(tmp_path / "f16.gguf", types={"": "F16"})
    assert main(["pack", "-o", f"{tmp_path}/a.ktc", "--derived-from", str(source), "--quantize", "Q4_0", "-q"]) == 0
    assert main(["unpack", f"{tmp_path}/a.ktc", "-o", f"{tmp_path}/q4.gguf", "-q"]) == 0
    with open_bundle(tmp_path / "a.ktc") as held:
        record = dict(held.manifest["derivation"][0])

    def derive(pattern):
        record["settings"] = f"Q4_0 --tensor-type '{pattern}=Q8_0'"
        bundle.pack(tmp_path / "q4.gguf", tmp_path / "b.ktc", derivation=record)
        capsys.readouterr()
        main(["verify", f"{tmp_path}/b.ktc", "--derive", str(source), "--json"])
        return json.loads(capsys.readouterr().out)

    return derive


def test_a_search_that_ends(derive):
    """One that goes back and tries again would not."""
    assert derive("(([a-z0-9_.]+)+)+!")["derivation"]["verdict"] == "DERIVED"


def test_a_search_that_is_given_up(derive):
    said = derive("(((a?){99}){99}){99}")
    assert (said["exit_code"], said["name"]) == (14, "PATTERN_WORK") and "fewer repetitions" in said["message"]

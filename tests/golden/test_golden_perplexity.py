"""Perplexity as ``kinetic perplexity`` reckons it, within half a percent of llama-perplexity's."""

from __future__ import annotations

import json

import pytest

from kinetic.cli import main

EXPECTED = {"smollm2": 35.1102, "gemma3": 41.4693}
PATHS = [
    pytest.param("smollm2", "smollm2_path", id="smollm2"),
    pytest.param("gemma3", "gemma3_path", id="gemma3", marks=pytest.mark.full),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, fixture", PATHS)
def test_perplexity(golden, request, capsys, name, fixture):
    path = request.getfixturevalue(fixture)
    text = golden / "perplexity" / "text.txt"
    assert main(["perplexity", str(path), "-f", str(text), "-c", "512", "--json", "--no-pack-cache"]) == 0
    found = json.loads(capsys.readouterr().out)["ppl"]
    print(f"{name}: perplexity {found:.4f}, llama.cpp {EXPECTED[name]}")
    assert abs(found / EXPECTED[name] - 1) < 0.005


def test_the_first_chunk(golden, smollm2_path, capsys):
    """What llama-perplexity prints as [1] is 50.9591; a single chunk is noisier than the whole."""
    text = str(golden / "perplexity" / "text.txt")
    assert main(["perplexity", str(smollm2_path), text, "--chunks", "1", "--json", "--no-pack-cache"]) == 0
    assert abs(json.loads(capsys.readouterr().out)["ppl"] / 50.9591 - 1) < 0.01

"""Commands as a user types them, on a device: answers that another device reruns, the suite, the benchmark."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import gpu as benchmark
from kinetic.backends.gpu import choose
from kinetic.cli import main
from tests.support.blocks import FORMATS
from tests.support.whole_models import WRITERS

FAMILIES = ("llama", "gemma3", "qwen3moe", "lfm2", "qwen35")
"""Keys alone, windows, experts, and two kinds of recurrent state."""

ASKED = ("-n", 6, "--seed", 5, "--temp", 0.9, "--raw", "--commit", "-q")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_receipt_of_one_device_verifies_on_another(device, tmp_path, capsys, family):
    """CASES D13: the same tokens, and digests of logits, with all on the device and with nothing on it."""
    path, records = WRITERS[family](tmp_path / "tiny.gguf"), []
    for here, there in (("opencl", "cpu"), ("cpu", "opencl")):
        receipt = tmp_path / f"{here}.json"
        assert command("run", path, "one two", *ASKED, "--device", here, "--receipt", receipt) == 0
        records.append(json.loads(receipt.read_text())["receipt"])
        assert records[-1]["claims"]["device_class"] == here
        capsys.readouterr()
        assert command("verify-receipt", receipt, "--model", path, "--device", there) == 0
        assert "IDENTICAL" in capsys.readouterr().out
    ours, theirs = records
    assert ours["output"] == theirs["output"] and len(ours["output"]["tokens"]) == 6


def test_a_changed_answer_is_refused_on_the_device(device, tmp_path, capsys):
    path, receipt = WRITERS["llama"](tmp_path / "tiny.gguf"), tmp_path / "answer.json"
    assert command("run", path, "one two", *ASKED, "--device", "opencl", "--receipt", receipt) == 0
    changed = json.loads(receipt.read_text())
    tokens = changed["receipt"]["output"]["tokens"]
    tokens[3] = tokens[3] + 1
    receipt.write_text(json.dumps(changed))
    assert command("verify-receipt", receipt, "--model", path, "--device", "opencl") == 10
    assert "DIFFERS" in capsys.readouterr().out


def command(*words) -> int:
    return main([str(word) for word in words])


def test_the_suite_of_a_device(device, capsys):
    """Cases that are about any device, and those that compare it with the reference and the processor."""
    only = (
        "rows/llama-mixed/7-9",
        "operations/rms_norm",
        "devices/lfm2-mixed",
        "crossings/llama-mixed",
        "samplers/dry",
    )
    only = [word for case in only for word in ("--only", case)]
    assert command("conformance", "--quick", "-q", "--device", "opencl", "--json", *only) == 0
    cases = {case["id"]: case for case in json.loads(capsys.readouterr().out)["cases"]}
    assert {"devices/lfm2-mixed/opencl-reference", "operations/rms_norm/cpu", "samplers/dry/opencl"} <= cases.keys()
    assert {"crossings/llama-mixed/cpu", "crossings/llama-mixed/from-cpu"} <= cases.keys()


def test_the_benchmark_checks_first(device, monkeypatch, capsys):
    """Its quick form: few formats and models, no times; then one whose bits are others."""
    monkeypatch.setattr(benchmark, "FORMATS", {name: FORMATS[name] for name in ("Q4_K", "F16")})
    monkeypatch.setattr(benchmark, "WRITERS", {name: WRITERS[name] for name in ("llama", "lfm2")})
    monkeypatch.setattr(choose, "best", lambda *_: "cpu")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only-check"])
    assert benchmark.main() == 0
    out = capsys.readouterr().out
    assert out.count("same bits product") == 4 and out.count("same bits model") == 2
    monkeypatch.setattr(benchmark, "same", lambda *_: benchmark.np.zeros(1, bool))
    assert benchmark.main() == 1
    assert "OTHER BITS" in capsys.readouterr().out

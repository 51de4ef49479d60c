"""What the suite says where there is no device, or none that computes the reference's bits."""

from __future__ import annotations

import json

from conformance import setting as setting_module
from kinetic.cli import main
from kinetic.errors import UsageError

CASE = ("conformance", "--quick", "-q", "--json", "--only", "operations/rms_norm")


def test_a_device_that_is_not_here_is_left_out_with_a_reason(monkeypatch, capsys):
    def describe(device, threads=0):
        raise UsageError("OpenCL needs pyopencl: install kinetic-engine[opencl]", name="NO_OPENCL")

    monkeypatch.setattr(setting_module, "describe_backend", describe)
    assert main([*CASE]) == 0
    cases = {case["id"]: case for case in json.loads(capsys.readouterr().out)["cases"]}
    left_out = cases["operations/rms_norm/opencl"]
    assert left_out["outcome"] == "skipped" and "install kinetic-engine[opencl]" in left_out["text"]
    assert cases["operations/rms_norm/cpu"]["outcome"] == "passed"
    assert main([*CASE, "--strict"]) == 13


def test_a_name_that_is_no_device(capsys):
    assert main(["conformance", "--device", "gpu"]) == 2
    assert "cpu, reference, opencl[:N], cuda[:N]" in capsys.readouterr().err

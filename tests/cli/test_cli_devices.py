"""``--device`` and ``--gpu-layers``: the same everywhere, what they refuse, and what is not imported without them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kinetic.api import opening
from kinetic.cli import command, main
from kinetic.errors import UsageError
from tests.cli.conftest import ROOT
from tests.support.talking_model import TEMPLATE, write_talker

RUNNING = (
    "run", "verify-receipt", "audit", "trace", "embed", "rerank", "bench", "gate", "perplexity", "imatrix",
    "check-output",
)  # fmt: skip
"""Commands that run a model, beside `receipt export vsa`."""


@pytest.fixture
def model(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return write_talker(tmp_path / "tiny.gguf", template=TEMPLATE)


def flags(capsys, *words) -> list[str]:
    """The help of ``--device`` and what follows it, as one line each."""
    assert main([*words, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split()).replace("vsa: ", "")
    start = text.index("--device NAME cpu")
    return [text[start : text.index("as many as fit)", start)]]


def test_every_command_has_the_same_flags(capsys):
    known = flags(capsys, "run")
    assert "cuda[:N]" in known[0] and "-ngl, --gpu-layers, --n-gpu-layers N" in known[0]
    for name in RUNNING:
        assert flags(capsys, name) == known, name
    assert flags(capsys, "receipt", "export") == known


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-ngl", "many"), "--gpu-layers is 'many', but must be a number of layers, all, or auto"),
        (("--gpu-layers", "-3"), "--gpu-layers is '-3', but must be"),
        (("-ngl", "1.5"), "--gpu-layers is '1.5', but must be"),
        (("-ngl7",), "write a flag and its value apart"),
        (("--device", "abacus", "-ngl", "0"), "there is no device abacus"),
        (
            ("--device", "abacus"),
            "there is no device abacus: this build has auto, cpu, reference, opencl[:N], cuda[:N]",
        ),
        (("--device", "opencl:"), "there is no device opencl:"),
        (("--device", "cpu", "-ngl", "5"), "the device is cpu, so no layers can be anywhere else"),
        (("-ngl", "all", "--device", "reference"), "the device is reference, so no layers"),
    ],
)
def test_what_makes_no_sense(model, capsys, words, said):
    assert main(["run", str(model), "Rivers?", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("words", "device", "layers"), [
    ((), "cpu", "auto"), (("-ngl", "0"), "cpu", "0"), (("-ngl", "20"), "auto", "20"),
    (("-ngl", "auto"), "auto", "auto"),
    (("--n-gpu-layers", "-1", "--device", "cuda:1"), "cuda:1", "-1"),
    (("--device", "opencl", "--gpu-layers", "all"), "opencl", "all"), (("--device", "opencl"), "opencl", "auto"),
])  # fmt: skip
def test_layers_ask_for_a_device(words, device, layers):
    parser, _ = command.build_parser()
    options = parser.parse_args(["run", "m", "x", *words])
    assert (options.device, options.gpu_layers) == (device, layers)


def test_how_layers_are_meant(monkeypatch):
    monkeypatch.setattr("kinetic.backends.gpu.choose.best", lambda progress: "opencl:3")
    chosen = opening.choose_device
    assert chosen("auto", None, 5) == ("opencl:3", 5) and chosen("auto", None, 0) == ("cpu", None)
    assert chosen("cuda", None, "all") == ("cuda", -1) and chosen("cuda", None, "-1") == ("cuda", -1)
    assert chosen("cpu", None, "0") == ("cpu", None) and chosen("cpu", None) == ("cpu", None)
    monkeypatch.setattr("kinetic.backends.gpu.choose.best", lambda progress: "cpu")
    assert chosen("auto", None, 5) == ("cpu", None)
    for wrong in (True, 2.0, "", "-2", "1e3", "٣"):
        with pytest.raises(UsageError, match="--gpu-layers is "):
            chosen("cuda", None, wrong)


def test_a_run_on_the_cpu_imports_no_driver(model, tmp_path):
    """Neither with flags that name the CPU, nor without; and `-ngl 0` leaves even a device that is not there alone."""
    program = (
        "import sys; from kinetic.cli import main\n"
        f"for words in ([], ['-ngl', '0'], ['--device', 'cuda:7', '-ngl', '0']):\n"
        f"    assert main(['run', {str(model)!r}, 'Rivers?', '-q', '-n', '2', *words]) == 0\n"
        "assert not {'cupy', 'pyopencl'} & set(sys.modules), 'imported'\n"
        "assert not any(name.startswith('kinetic.backends.gpu') for name in sys.modules), 'kernels'"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_auto_names_what_it_passes_over(model, capsys, monkeypatch):
    def named(name):
        raise UsageError(f"there is no {name} here")

    monkeypatch.setattr("kinetic.backends.gpu.choose.open_named", named)
    monkeypatch.setattr("kinetic.backends.gpu.choose.graphics_of", list, raising=False)
    assert main(["run", str(model), "Rivers?", "-n", "2", "--device", "auto"]) == 0
    out = capsys.readouterr()
    assert "kinetic: cuda is passed over: there is no cuda here" in out.err and "opencl is passed over: " in out.err
    assert ", device " in out.err

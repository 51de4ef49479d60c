"""``kinetic doctor``, and ``kinetic`` without a command."""

import json
import os
import subprocess
import sys
import time

import pytest

from kinetic.api import doctor as api
from kinetic.cli import doctor, main
from tests.support.talking_model import write_talker


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """No model of another program on this machine."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for name in ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


def lines(text):
    """Label and text of each line."""
    return {line.split()[0]: line.split(None, 1)[1] for line in text.splitlines()}


def test_a_healthy_machine(kinetic):
    done = kinetic("doctor")
    said = lines(done.stdout)
    assert said["verdict"] == "healthy" and "bit for bit those of the reference" in said["kernels"]
    assert said["models"].startswith("fit: ") and "smollm2" in said["models"]
    assert "core" in said["processor"] and "GB/s" in said["bandwidth"] and "free" in said["memory"]
    assert "PROBLEM" not in done.stdout


def test_json(kinetic):
    said = json.loads(kinetic("doctor", "--json", "--quick").stdout)
    assert said["healthy"] and said["machine"]["cores"] >= 1 and said["isa"] and said["profile"]
    assert [finding["topic"] for finding in said["findings"]] == ["backend", "folders", "models"]
    assert said["bandwidth"] == {}


def test_quick_compiles_nothing(kinetic, tmp_path):
    said = lines(kinetic("doctor", "--quick", env={"KINETIC_KERNELS": str(tmp_path / "kernels")}).stdout)
    assert "kernels" not in said and "bandwidth" not in said and said["verdict"] == "healthy"
    assert not (tmp_path / "kernels").exists()


@pytest.mark.slow
def test_kernels_are_compiled_where_there_are_none(kinetic, tmp_path):
    done = kinetic("doctor", env={"KINETIC_KERNELS": str(tmp_path / "kernels")})
    assert "compiling kernels" in done.stderr and lines(done.stdout)["verdict"] == "healthy"
    assert list((tmp_path / "kernels").glob("*/core.o"))


def test_problems_decide_the_exit_code(kinetic, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "bench").write_text("")
    done = kinetic("doctor", "--quick", check=3)
    assert lines(done.stdout)["folders"].startswith("PROBLEM: ") and "1 problem, exit code 3" in done.stdout
    assert not json.loads(kinetic("doctor", "--quick", "--json", check=3).stdout)["healthy"]


def test_kernels_that_differ(monkeypatch, capsys):
    wrong = api.Finding("kernels", "values that are not the reference's", api.DIFFERS)
    monkeypatch.setattr(api, "_kernels", lambda *_: wrong)
    assert main(["doctor", "-q"]) == 10
    assert "PROBLEM: values that are not" in capsys.readouterr().out


# --- kinetic, alone ---


def test_kinetic_alone_suggests_what_is_here_first(kinetic, tmp_path):
    write_talker(tmp_path / "mine.gguf")
    kinetic("pull", tmp_path / "mine.gguf", "-q")
    text = kinetic().stdout
    assert text.index("kinetic run mine") < text.index("kinetic pull smollm2")
    assert "core" in text.splitlines()[0] and text.endswith("`kinetic --help` lists the commands.\n")


def test_only_what_fits_is_suggested(monkeypatch, capsys):
    facts = doctor_facts()
    monkeypatch.setattr("kinetic.api.machine.describe", lambda: facts._replace(free=150_000_000, memory=4 << 30))
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "smollm2" in text and "gemma3-270m" not in text
    monkeypatch.setattr("kinetic.api.machine.describe", lambda: facts._replace(free=1, memory=2))
    assert main([]) == 0
    assert "No model that is known fits" in capsys.readouterr().out


def doctor_facts():
    from kinetic.api import machine

    return machine.describe()


def test_long_lists_are_cut():
    rows = [{"name": f"m{n}", "size": 10, "path": "x", "license": ""} for n in range(9)]
    text = "\n".join(doctor._suggestions(doctor_facts(), rows))
    assert text.count("kinetic run") == doctor.LISTED and "and 4 more: kinetic models" in text


def test_names_can_be_copied_into_a_shell():
    rows = [{"name": "a b", "size": 10, "path": "x", "license": ""}]
    assert "kinetic run 'a b' " in "\n".join(doctor._suggestions(doctor_facts(), rows))


def test_kinetic_alone_is_quick_and_loads_nothing_heavy(kinetic):
    code = "import sys; from kinetic.cli import main; main([]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    loaded = set(done.stderr.split())
    assert not loaded & {"numpy", "numba", "llvmlite", "jinja2", "regex", "blake3", "kinetic.engine"}
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        kinetic()
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.3 * 3  # three times what it may take on a quiet machine

"""``kinetic pull`` from a hub, ``kinetic models`` and ``kinetic rm`` as a user runs them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from tests.support.hub_server import Hub, Repo, serve
from tests.support.talking_model import write_talker
from tests.unit.test_local_models import cached, ollama, write

REPO = "some-one/Tiny-GGUF"


@pytest.fixture
def talker(tmp_path):
    write_talker(tmp_path / "talker.gguf", b"one day")
    return (tmp_path / "talker.gguf").read_bytes()


@pytest.fixture
def hub(talker):
    with serve(Hub()) as hub:
        hub.repos[REPO] = Repo({"Tiny-Q8_0.gguf": talker, "Tiny-F16.gguf": talker})
        yield hub


@pytest.fixture
def env(tmp_path):
    """A home without anything, and no settings of whoever runs the tests."""
    empty = dict.fromkeys(("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"), "")
    return {**empty, "HOME": str(tmp_path), "OLLAMA_MODELS": str(tmp_path / "ollama"), "HF_HUB_OFFLINE": "0"}


def one_line(text):
    return text.startswith("kinetic: ") and text.endswith("\n") and text.count("\n") == 1


def test_pull_run_list_and_remove(kinetic, hub, env, tmp_path):
    pytest.importorskip("huggingface_hub")
    env["HF_ENDPOINT"] = hub.endpoint
    done = kinetic("pull", f"{REPO}:Q8_0", env=env)
    assert done.stdout == f"{tmp_path / 'home' / 'models' / 'Tiny-Q8_0.gguf'}\n"
    assert done.stderr.splitlines()[-1] == "Run it with: kinetic run Tiny-Q8_0"
    for name in ("Tiny-Q8_0", f"hf:{REPO}:Q8_0"):
        assert "one day" in kinetic("run", name, "x", "-n", "20", "--temp", "0", env=env).stdout
    rows = {row["name"]: row for row in json.loads(kinetic("models", "--json", env=env).stdout)}
    assert rows["Tiny-Q8_0"]["source"] == "kinetic" and rows["smollm2"]["source"] == "catalog"
    removed = kinetic("rm", f"hf:{REPO}:Q8_0", "-y", env=env)
    assert removed.stdout.startswith(f"hf:{REPO}:Q8_0: ") and removed.stdout.endswith(" MB freed\n")
    assert "kinetic pull" in kinetic("run", f"{REPO}:Q8_0", "x", check=3, env=env).stderr


def test_pull_fails_in_one_line(kinetic, hub, env):
    pytest.importorskip("huggingface_hub")
    env["HF_ENDPOINT"] = hub.endpoint
    hub.repos["o/gated"] = Repo({"a.gguf": b"GGUF"}, gated=True)
    for source, code in [("hf:o/gated", 9), ("hf:o/none", 4), (f"hf:{REPO}:Q2_K", 2), ("hf:o", 2)]:
        assert one_line(kinetic("pull", source, "-q", check=code, env=env).stderr)
    done = kinetic("pull", f"hf:{REPO}", "-q", check=4, env={**env, "HF_HUB_OFFLINE": "1"})
    assert one_line(done.stderr) and "HF_HUB_OFFLINE" in done.stderr


def test_models_of_other_programs(kinetic, env, tmp_path, talker):
    blob = ollama(tmp_path / "ollama", "registry.ollama.ai/library/tiny/latest", talker)
    write(tmp_path / ".lmstudio/models/pub/\x1b[31mred/m.gguf", talker)
    cached(tmp_path / ".cache/huggingface/hub", "o/r", "c" * 40, {"m-Q4_K_M.gguf": talker})
    rows = {row["name"]: row for row in json.loads(kinetic("models", "--json", env=env).stdout)}
    assert rows["ollama:tiny:latest"] == {
        "name": "ollama:tiny:latest",
        "size": len(talker),
        "source": "ollama",
        "pulled": False,
        "path": str(blob),
        "title": "",
        "license": "",
    }
    assert [row["source"] for row in rows.values()] == ["hf", "lmstudio", "ollama", "catalog", "catalog"]
    listed = kinetic("models", env=env).stdout
    assert "hf:o/r:Q4_K_M " in listed and str(blob) in listed and "\x1b" not in listed
    for name in ("ollama:tiny", "hf:o/r:Q4_K_M", "lmstudio:pub/\x1b[31mred/m.gguf"):
        assert "one day" in kinetic("run", name, "x", "-n", "20", "--temp", "0", env=env).stdout


def test_remove_refuses_what_is_not_ours(kinetic, env, tmp_path, talker):
    blob = ollama(tmp_path / "ollama", "registry.ollama.ai/library/tiny/latest", talker)
    cached(tmp_path / ".cache/huggingface/hub", "o/r", "c" * 40, {"m-Q4_K_M.gguf": talker})
    kinetic("pull", tmp_path / "talker.gguf", env=env)
    cases = {
        "ollama:tiny": "Ollama",
        "o/r:Q4_K_M": "Hugging Face cache",
        str(tmp_path / "talker.gguf"): "no pulled model",
        "smollm2": "nothing to remove",
        "nothing": "no model called nothing",
    }
    for name, words in cases.items():
        done = kinetic("rm", "talker", name, check=3, env=env)
        assert one_line(done.stderr) and words in done.stderr, done.stderr
    assert blob.exists() and (tmp_path / "talker.gguf").exists()
    assert (tmp_path / "home/models/talker.gguf").exists(), "nothing is removed before all names are known"
    assert one_line(kinetic("rm", check=2, env=env).stderr)


def test_remove_several(kinetic, env, tmp_path, talker):
    models = tmp_path / "home" / "models"
    for name in ("a.gguf", "a.ktc", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf", "stay.gguf"):
        write(models / name, b"GGUF" * 250_000)
    write(models / ".unfinished" / ("0" * 64), b"x" * 3_000_000)
    done = kinetic("rm", "a", "a", "s-00001-of-00002", "--unfinished", "-y", env=env)
    assert done.stdout == "a: 1.0 MB freed\ns-00001-of-00002: 2.0 MB freed\nunfinished downloads: 3.0 MB freed\n"
    assert sorted(path.name for path in models.iterdir()) == ["a.ktc", "stay.gguf"]


@pytest.mark.parametrize("stdin", ["", "n\n", "y\n"])
def test_without_a_terminal_nothing_is_removed_unless_told(kinetic, env, tmp_path, stdin):
    model = write(tmp_path / "home" / "models" / "a.gguf")
    done = kinetic("rm", "a", check=2, stdin=stdin, env=env)
    assert one_line(done.stderr) and "say -y" in done.stderr and done.stdout == "" and model.exists()
    kinetic("rm", "a", "-y", stdin=stdin, env=env)
    assert not model.exists()


@pytest.mark.parametrize(("answer", "words", "is_removed"), [("y", [], True), ("", [], False), ("", ["-y"], True)])
def test_remove_asks_on_a_terminal(env, tmp_path, answer, words, is_removed):
    model = write(tmp_path / "home" / "models" / "a.gguf")
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode() + b"\n")
    command = [sys.executable, "-m", "kinetic", "rm", "a", *words]
    environment = {**os.environ, **env, "KINETIC_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=environment, timeout=60)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == (0 if is_removed else 1) and model.exists() != is_removed
    assert done.stdout.decode() == ("a: 0.0 MB freed\n" if is_removed else "Nothing was removed.\n")

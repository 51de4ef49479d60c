"""``--no-pack-cache``, and what ``kinetic run``, ``verify-receipt`` and ``rm`` do with packs of weights."""

from __future__ import annotations

import os
import time

import pytest

from kinetic import store
from kinetic.backends.cpu.packs import IS_POSSIBLE
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="packs are not kept on this system")

ASK = ("run", "tiny", "one two", "--temp", "0", "-n", "4", "-q")


@pytest.fixture
def home(tmp_path):
    """With a model that wasn't written just now: one that was could change again unnoticed, and has no packs."""
    path = tmp_path / "home" / "models" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    write_tiny_llama(path, layers=1)
    while not store.is_settled(path.stat()):
        time.sleep(0.05)
    return tmp_path / "home"


def packs(home):
    return list((home / "packs").glob("*")) if (home / "packs").exists() else []


def test_packs_come_are_used_and_go_with_their_model(kinetic, home, tmp_path):
    env, receipt = {"KINETIC_PACK_CACHE": "1G"}, tmp_path / "answer.json"
    plain = kinetic(*ASK, "--no-pack-cache", env=env).stdout
    assert packs(home) == []
    assert kinetic(*ASK, "--receipt", receipt, env=env).stdout == plain
    (pack,) = packs(home)
    for words in (ASK, ("verify-receipt", receipt), ("audit", receipt), ("bench", "tiny", *"-p 8 -n 4 -r 1".split())):
        os.utime(pack, ns=(1, 1))
        done = kinetic(*words, "--no-pack-cache", env=env)
        assert pack.stat().st_mtime_ns == 1
        assert kinetic(*words, env=env).stdout == done.stdout or words[0] == "bench"
        assert pack.stat().st_mtime_ns > 1, words
    assert packs(home) == [pack]
    freed = (pack.stat().st_size + (home / "models" / "tiny.gguf").stat().st_size) / 1e6
    assert kinetic("rm", "tiny", "-y", env=env).stdout == f"tiny: {freed:,.1f} MB freed\n"
    assert packs(home) == []


def test_the_environment_says_how_much(kinetic, home):
    kinetic(*ASK, env={"KINETIC_PACK_CACHE": "0"})
    kinetic(*ASK, env={"KINETIC_PACK_CACHE": "1K"})
    assert packs(home) == []
    said = kinetic(*ASK, env={"KINETIC_PACK_CACHE": "much"}, check=2).stderr
    assert said.startswith("kinetic: KINETIC_PACK_CACHE is 'much'") and said.count("\n") == 1


def test_the_flag_is_for_what_runs_a_model(kinetic, tmp_path):
    words = ("receipt", "export", "dsse", tmp_path / "no.json", "-o", tmp_path / "out", "--no-pack-cache")
    assert "--no-pack-cache is for vsa alone" in kinetic(*words, check=2).stderr
